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

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/api"
)

// codeDegraded is the code of a refusal for lack of memory, as in the gateway.
const codeDegraded api.Code = "degraded"

// Admission decides about requests in need of memory: segments to be made, playlists not yet in
// memory, uploads. Stored segments and playlists in memory need no admission. Its methods are
// safe for concurrent use.
type Admission struct {
	*admission.Controller
	refused *prometheus.CounterVec
	closed  chan struct{}
	group   sync.WaitGroup
}

// NewAdmission watches memory by cfg.Free until Close. reg, unless nil, gets metrics of states
// and refusals.
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

// WatchMemory calls NewAdmission with defaults. free returns the free and the total memory, in
// bytes.
func WatchMemory(free func() (free, all int64), log *slog.Logger, reg prometheus.Registerer) *Admission {
	return NewAdmission(admission.Config{Free: free}, log, reg)
}

// watch brings the state back to normal even if no request calls Admit.
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

// Admit returns nil or an *api.Error of status 503. A nil Admission admits everything.
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

// Status returns the state, its reason and its start. The reason of state normal is "".
func (a *Admission) Status() (state, reason string, since time.Time) {
	s, r, t := a.Since()
	if s == admission.Normal {
		r = ""
	}
	return s.String(), string(r), t
}
