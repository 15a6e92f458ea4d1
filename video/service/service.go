// Package service is the video service: it accepts videos, has a function in sandboxes transcode
// them, and keeps the results. To the engine it is an ordinary client.
package service

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/video/asset"
)

// Names in an asset's directory, beside the served files.
const (
	sourceFile = "source"
	jobsDir    = "jobs"
)

// Config configures a Service.
type Config struct {
	Library *asset.Library // required
	Engine  *client.Client // required
	Log     *slog.Logger   // required

	Function string                                        // name of the transcoder on the engine; default fre-video-transcoder
	Template func(dir string, timeout time.Duration) error // required: writes the template directory, with timeout for each event
	Lock     string                                        // file with the transcoder's resolved packages; default: each service resolves anew

	Slots        int           // jobs at a time; default: the number of CPUs
	Rungs        int           // most rungs of a ladder; default 4
	Preset       string        // of x264 and x265; SVT-AV1 gets a preset of about the same speed; default veryfast
	Codec        string        // of media.Codecs, for orders without a codec; default H.264
	MostDuration time.Duration // of a video; default 12 hours
	MostBytes    int64         // of a source; default 50 GiB
	// Room is called before the service writes bytes of a source or of a result. If Room returns
	// an error, such as ENOSPC, the service does not write them. Nil: the service writes until
	// the disk is full.
	Room func(bytes int64) error

	JobTimeout time.Duration // for each of three tries of a job; a job over the whole source has this time for each hour of source; default 5 minutes
}

// Service works on assets. Its methods are safe for concurrent use.
type Service struct {
	cfg      Config
	library  *asset.Library
	function *function
	slots    chan struct{}

	ctx    context.Context
	cancel context.CancelCauseFunc
	group  sync.WaitGroup

	mu       sync.Mutex
	working  map[string]*worker // by asset
	removing map[string]int     // by asset: number of Remove calls under way; no work starts meanwhile
	closed   bool
}

// worker is the goroutine at work on an asset.
type worker struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

var (
	// ErrState reports that the asset's state does not allow the operation.
	ErrState = errors.New("not in this state of the asset")
	// ErrTooLarge is a source with more bytes than allowed.
	ErrTooLarge = errors.New("the source is larger than allowed")
	// ErrEmpty is a source of 0 bytes.
	ErrEmpty = errors.New("the source is empty: it has 0 bytes")

	errClosing = errors.New("the service is stopping")
	errRemoved = errors.New("the asset was removed")
)

// New starts a service, which continues the unfinished work of its predecessor.
func New(cfg Config) *Service {
	cfg.setDefaults()
	s := &Service{
		cfg: cfg, library: cfg.Library, slots: make(chan struct{}, cfg.Slots), working: map[string]*worker{}, removing: map[string]int{},
		function: &function{engine: cfg.Engine, name: cfg.Function, lock: cfg.Lock, log: cfg.Log},
	}
	s.function.files = func(dir string) error {
		return cfg.Template(dir, cfg.wholeTimeout(0)+time.Minute) // longer than the service's own timeout, whose error is clearer
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	for _, a := range s.library.List() {
		switch a.State {
		case asset.Uploading:
		case asset.Working:
			s.start(a.ID)
		case asset.Ready, asset.Failed:
			s.sweep(a)
		}
	}
	s.group.Go(func() { s.reconcile() })
	return s
}

func (c *Config) setDefaults() {
	if c.Function == "" {
		c.Function = "fre-video-transcoder"
	}
	if c.Slots == 0 {
		c.Slots = runtime.NumCPU()
	}
	if c.Rungs == 0 {
		c.Rungs = 4
	}
	if c.MostDuration == 0 {
		c.MostDuration = 12 * time.Hour
	}
	if c.MostBytes == 0 {
		c.MostBytes = 50 << 30
	}
	if c.JobTimeout == 0 {
		c.JobTimeout = 5 * time.Minute
	}
}

// Close interrupts all work and waits for the end. The next service continues the work.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosing)
	s.group.Wait()
}

// reconcile deploys the function and deletes its sources that no work needs.
func (s *Service) reconcile() {
	log := s.cfg.Log
	var names []string
	err := try(s.ctx, log, func() (err error) {
		names, err = s.function.sources(s.ctx)
		return err
	})
	for _, name := range names {
		if a := s.library.Get(name); a == nil || a.State != asset.Working {
			if err := s.function.take(s.ctx, name); err != nil {
				log.Warn("take a source back", "source", name, "error", err)
			}
		}
	}
	if err != nil && s.ctx.Err() == nil {
		log.Error("the transcoder is not ready", "error", err)
	}
}

// Remove ends the work on an asset and deletes the asset. The error of an unknown asset is
// fs.ErrNotExist.
func (s *Service) Remove(id string) error {
	s.mu.Lock()
	s.removing[id]++
	w := s.working[id]
	s.mu.Unlock()
	if w != nil {
		w.cancel(errRemoved)
		<-w.done
	}
	err := s.library.Remove(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing[id]--; s.removing[id] == 0 {
		delete(s.removing, id)
	}
	if a := s.library.Get(id); a != nil && a.State == asset.Working && s.working[id] == nil {
		s.startLocked(id) // the asset could not be removed
	}
	return err
}

// start starts the work on an asset in state Working, unless a Remove is under way.
func (s *Service) start(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startLocked(id)
}

func (s *Service) startLocked(id string) {
	if s.closed || s.removing[id] > 0 || s.library.Get(id) == nil {
		return
	}
	before := s.working[id] // this work has failed and still cleans up
	ctx, cancel := context.WithCancelCause(s.ctx)
	own := &worker{cancel: cancel, done: make(chan struct{})}
	s.working[id] = own
	s.group.Go(func() {
		defer close(own.done)
		defer cancel(nil)
		if before != nil {
			<-before.done
		}
		s.workOn(ctx, id)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.working[id] == own {
			delete(s.working, id)
		}
	})
}

// workOn works on an asset until the asset is ready or failed, or ctx ends. While the disk is
// full, workOn waits.
func (s *Service) workOn(ctx context.Context, id string) {
	log := s.cfg.Log.With("asset", id)
	began := time.Now()
	err := s.patiently(ctx, id, noRoom, contained(log, func() error { return (&work{Service: s, id: id, log: log}).run(ctx) }))
	switch {
	case err == nil:
		log.InfoContext(ctx, "an asset is ready", "seconds", time.Since(began).Seconds())
	case errors.Is(context.Cause(ctx), errClosing): // the next service continues
		return
	case ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) && s.library.Get(id) == nil: // removed
	default:
		log.WarnContext(ctx, "an asset has failed", "error", err)
		if err := s.patiently(ctx, id, func(err error) bool { return !errors.Is(err, fs.ErrNotExist) }, func() error {
			_, unkept := s.library.Update(id, func(a *asset.Asset) error {
				a.State, a.Error, a.Jobs = asset.Failed, err.Error(), nil
				return nil
			})
			return unkept
		}); err != nil {
			return // the next service finds the failure again
		}
	}
	if a := s.library.Get(id); a != nil {
		s.sweep(a)
	}
	s.giveBack(ctx, id)
}

// giveBack has the function delete an asset's source.
func (s *Service) giveBack(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := s.function.take(ctx, id); err != nil {
		s.cfg.Log.WarnContext(ctx, "the engine keeps a source until the next start", "asset", id, "error", err)
	}
}

// patiently calls do, with growing pauses, while do's error is temporary by passes. The asset
// shows the reason for the wait.
func (s *Service) patiently(ctx context.Context, id string, passes func(error) bool, do func() error) error {
	const most = 30 * time.Second
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, most) {
		err := do()
		if err == nil || ctx.Err() != nil || !passes(err) {
			return err
		}
		s.cfg.Log.WarnContext(ctx, "an asset waits", "asset", id, "error", err)
		waits := err.Error()
		if noRoom(err) {
			waits = "there is no room on the disk: free some, or remove assets, and it goes on: " + waits
		}
		s.library.Progress(id, &asset.Jobs{Waits: waits})
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// sweep deletes leftovers of the work: beside a ready asset the jobs' files, else all but source
// and record.
func (s *Service) sweep(a *asset.Asset) {
	dir := s.library.Path(a.ID)
	names := []string{jobsDir}
	var err error
	if a.State != asset.Ready {
		var entries []os.DirEntry
		entries, err = os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != sourceFile && !strings.HasPrefix(e.Name(), "asset.json") {
				names = append(names, e.Name())
			}
		}
	}
	for _, name := range names {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Error("remove what is left of the work", "asset", a.ID, "error", err)
	}
}

// Status is the health of a service.
type Status struct {
	Started time.Time           `json:"started"`
	State   string              `json:"state"`            // normal, degraded, probing, recovering
	Reason  string              `json:"reason,omitempty"` // memory or waits; "" in state normal
	Since   time.Time           `json:"since"`            // time of the last change of State
	Assets  map[asset.State]int `json:"assets"`           // number of assets in each state
}
