package origin

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/admission"
)

// codeDegraded is the code of what is refused for want of memory, as the gateway has it.
const codeDegraded api.Code = "degraded"

// Admission decides about work that needs memory: segments that are made for who asks,
// playlists that are not in memory yet, uploads. Segments that are stored and playlists that
// are in memory never ask. Its methods may be called from several goroutines.
type Admission struct {
	*admission.Controller
	refused *prometheus.CounterVec
	closed  chan struct{}
	group   sync.WaitGroup
}

// NewAdmission watches memory, of which free says how much is free of all, until Close. reg,
// unless nil, gets the state and what was refused.
func NewAdmission(cfg admission.Config, log *slog.Logger, reg prometheus.Registerer) *Admission {
	cfg.Changed = func(from, to admission.State, because admission.Reason) {
		tell := log.Info
		if to == admission.Degraded {
			tell = log.Warn
		}
		tell("admission", "from", from.String(), "to", to.String(), "reason", string(because))
	}
	a := &Admission{
		Controller: admission.New(cfg), closed: make(chan struct{}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_video_admission_refused_total", Help: "Work that was refused because memory was short, by the reason."}, []string{"reason"}),
	}
	if reg != nil {
		reg.MustRegister(a.refused)
		for _, s := range admission.States {
			reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "fre_video_admission_state", Help: "1 for the state that decides about work that needs memory.",
				ConstLabels: prometheus.Labels{"state": s.String()},
			}, func() float64 {
				if now, _ := a.State(); now != s {
					return 0
				}
				return 1
			}))
		}
	}
	a.group.Go(a.watch)
	return a
}

// WatchMemory is NewAdmission by the defaults, for memory of which free says how much is free
// of all.
func WatchMemory(free func() (free, all int64), log *slog.Logger, reg prometheus.Registerer) *Admission {
	return NewAdmission(admission.Config{Free: free}, log, reg)
}

// watch brings the state back to normal, whether somebody asks or not.
func (a *Admission) watch() {
	for {
		select {
		case <-a.Unsettled():
		case <-a.closed:
			return
		}
		tick := time.NewTicker(a.Every())
		for a.Look() != admission.Normal {
			select {
			case <-tick.C:
			case <-a.closed:
				tick.Stop()
				return
			}
		}
		tick.Stop()
	}
}

// Close ends the watch.
func (a *Admission) Close() error {
	close(a.closed)
	a.group.Wait()
	return nil
}

// Admit decides about work that needs memory: nil, or an *api.Error of status 503. Of a nil
// Admission it is nil.
func (a *Admission) Admit() error {
	if a == nil {
		return nil
	}
	err := a.Controller.Admit()
	var refused *admission.RefusedError
	if !errors.As(err, &refused) {
		return err
	}
	a.refused.WithLabelValues(string(refused.Reason)).Inc()
	retry := int(math.Ceil(max(refused.Retry, time.Second).Seconds()))
	return &api.Error{
		Status: http.StatusServiceUnavailable, Code: codeDegraded,
		Message: fmt.Sprintf("the service is short of memory: it is %s (%s)", refused.State, refused.Reason),
		Next:    "ask again in " + strconv.Itoa(retry) + " s",
	}
}

// Status is how the service does.
func (a *Admission) Status() (state, reason string, since time.Time) {
	s, r, t := a.Since()
	if s == admission.Normal {
		r = ""
	}
	return s.String(), string(r), t
}

// refuseWork answers with an error of Admit's.
func (o *Origin) refuseWork(x *exchange, refused *api.Error) {
	x.Set("Retry-After", "1")
	o.refuse(x, refused.Status, refused.Code, refused.Message)
}
