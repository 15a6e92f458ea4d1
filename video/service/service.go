// Package service is the video service: it takes videos in, has a function in sandboxes work
// on them, and keeps what is made. It is a customer of an engine, as others are.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/video/asset"
)

// What an asset's directory has beside what is served.
const (
	sourceFile = "source"
	jobsDir    = "jobs"
)

// Config of a Service.
type Config struct {
	Library *asset.Library // required
	Engine  *client.Client // required
	Log     *slog.Logger   // required

	Function string                                        // name of the transcoder on the engine; default fre-video-transcoder
	Template func(dir string, timeout time.Duration) error // required: writes the transcoder's template directory, whose events take no longer
	Lock     string                                        // file that keeps what was resolved for the transcoder; default: each service resolves anew

	Slots        int           // jobs at a time; default: as many as there are CPUs
	Rungs        int           // at most of a ladder; default 4
	Preset       string        // of x264, others' are as fast as they can be; default veryfast
	Codec        string        // of media.Codecs, of assets that name none; default H.264
	MostDuration time.Duration // of a video; default 12 hours
	MostBytes    int64         // of a source; default 50 GiB
	// Room is called before the service writes so many bytes of a source, or of what is made of
	// it. Its error, such as ENOSPC, refuses them. Nil: the service writes until the disk is full.
	Room func(bytes int64) error

	JobTimeout time.Duration // of a job, which is done three times at most, of one that goes through all of a source for each hour of it; default 5 minutes
}

// Service works on assets. Its methods may be called from several goroutines.
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
	removing map[string]int     // by asset: how often, now; nobody begins to work on those
	closed   bool
}

// worker is an asset that is being worked on.
type worker struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

var (
	// ErrState is that something cannot be done with an asset in the state it is in.
	ErrState = errors.New("not in this state of the asset")
	// ErrTooLarge is a source with more bytes than allowed.
	ErrTooLarge = errors.New("the source is larger than allowed")
	// ErrEmpty is a source without a byte.
	ErrEmpty = errors.New("the source is empty: it has 0 bytes")

	errClosing = errors.New("the service is stopping")
	errRemoved = errors.New("the asset was removed")
)

// New starts a service, which goes on with what another has left undone.
func New(cfg Config) *Service {
	if cfg.Function == "" {
		cfg.Function = "fre-video-transcoder"
	}
	if cfg.Slots == 0 {
		cfg.Slots = runtime.NumCPU()
	}
	if cfg.Rungs == 0 {
		cfg.Rungs = 4
	}
	if cfg.MostDuration == 0 {
		cfg.MostDuration = 12 * time.Hour
	}
	if cfg.MostBytes == 0 {
		cfg.MostBytes = 50 << 30
	}
	if cfg.JobTimeout == 0 {
		cfg.JobTimeout = 5 * time.Minute
	}
	s := &Service{
		cfg: cfg, library: cfg.Library, slots: make(chan struct{}, cfg.Slots), working: map[string]*worker{}, removing: map[string]int{},
		function: &function{engine: cfg.Engine, name: cfg.Function, lock: cfg.Lock, log: cfg.Log},
	}
	s.function.files = func(dir string) error {
		return cfg.Template(dir, cfg.wholeTimeout(0)+time.Minute) // the service's own words come first
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

// Close ends what is under way, which the next service goes on with, and waits for it.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosing)
	s.group.Wait()
}

// reconcile deploys the function, and takes sources from it that nobody works on.
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

// Order is what whoever brings a video wants to have made of it.
type Order struct {
	Name       string // what its owner calls it
	Codec      string // of media.Codecs; "": the service's choice
	Protection asset.Protection
}

func (o Order) asset(id string) *asset.Asset {
	a := &asset.Asset{ID: id, Name: o.Name, Codec: o.Codec, Protection: o.Protection, Created: time.Now().UTC(), State: asset.Uploading}
	if o.Protection != asset.Clear {
		a.Secret = asset.NewSecret()
	}
	return a
}

// Add takes a video in that r has, and has it worked on.
func (s *Service) Add(ctx context.Context, order Order, r io.Reader) (*asset.Asset, error) {
	id := asset.NewID()
	if err := s.library.Create(order.asset(id)); err != nil {
		return nil, err
	}
	var a *asset.Asset
	err := func() error {
		f, err := os.Create(s.SourcePath(id))
		if err != nil {
			return err
		}
		err = s.copy(f, r, s.cfg.MostBytes+1)
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = fmt.Errorf("%w: %d bytes at most", ErrTooLarge, s.cfg.MostBytes)
		}
		return errors.Join(err, f.Close())
	}()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		a, err = s.Uploaded(id)
	}
	if err != nil {
		return nil, errors.Join(err, s.library.Remove(id))
	}
	return a, nil
}

// roomPiece is how many bytes are written before the disk's room is looked at again.
const roomPiece = 1 << 20

// room returns an error if the service may not write so many bytes.
func (s *Service) room(bytes int64) error {
	if s.cfg.Room == nil {
		return nil
	}
	return s.cfg.Room(bytes)
}

// copy copies n bytes, from file to file by the kernel, as long as there is room for them.
// io.EOF where there are fewer.
func (s *Service) copy(to io.Writer, from io.Reader, n int64) error {
	for n > 0 {
		piece := min(n, roomPiece)
		if err := s.room(piece); err != nil {
			return err
		}
		if _, err := io.CopyN(to, from, piece); err != nil {
			return err
		}
		n -= piece
	}
	return nil
}

// Expect makes an asset of a video that is being uploaded to [Service.SourcePath]; Uploaded
// follows, or Remove.
func (s *Service) Expect(id string, order Order, size int64) error {
	a := order.asset(id)
	a.Size = size
	return s.library.Create(a)
}

// SourcePath is where an asset's source is, or is uploaded to.
func (s *Service) SourcePath(id string) string { return s.library.Path(id, sourceFile) }

// Uploaded has an asset worked on whose source is there.
func (s *Service) Uploaded(id string) (*asset.Asset, error) {
	f, err := os.Open(s.SourcePath(id))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = ErrEmpty
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, err
	}
	return s.begin(id, func(a *asset.Asset) { a.Size = info.Size() }, asset.Uploading)
}

// Retry works on an asset again that has failed.
func (s *Service) Retry(id string) (*asset.Asset, error) {
	return s.begin(id, func(a *asset.Asset) { a.Error, a.Plan, a.Source = "", nil, nil }, asset.Failed)
}

func (s *Service) begin(id string, change func(*asset.Asset), from asset.State) (*asset.Asset, error) {
	a, err := s.library.Update(id, func(a *asset.Asset) error {
		if a.State != from {
			return fmt.Errorf("%w: asset %s is %s, not %s", ErrState, id, a.State, from)
		}
		change(a)
		a.State = asset.Working
		return nil
	})
	if err == nil {
		s.start(id)
	}
	return a, err
}

// Remove ends the work on an asset and takes it away. The error is fs.ErrNotExist where there
// is none.
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
		s.startLocked(id) // it could not be removed
	}
	return err
}

// start has an asset worked on whose state says so. Who removes it meanwhile goes first.
func (s *Service) start(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startLocked(id)
}

func (s *Service) startLocked(id string) {
	if s.closed || s.removing[id] > 0 || s.library.Get(id) == nil {
		return
	}
	before := s.working[id] // it has failed, and tidies up
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

// contained makes an error of a panic: what sandboxes answer is taken apart here, and whoever
// has one in hand may answer anything.
func contained(log *slog.Logger, do func() error) func() error {
	return func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("what was made cannot be used", "panic", p, "stack", string(debug.Stack()))
				err = fmt.Errorf("what was made cannot be used: %v", p)
			}
		}()
		return do()
	}
}

// workOn works on an asset until it is ready or has failed, or ctx ends. A full disk it waits
// for.
func (s *Service) workOn(ctx context.Context, id string) {
	log := s.cfg.Log.With("asset", id)
	began := time.Now()
	err := s.patiently(ctx, id, noRoom, contained(log, func() error { return (&work{Service: s, id: id, log: log}).run(ctx) }))
	switch {
	case err == nil:
		log.InfoContext(ctx, "an asset is ready", "seconds", time.Since(began).Seconds())
	case errors.Is(context.Cause(ctx), errClosing): // to be gone on with
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
			return // to be found out again
		}
	}
	if a := s.library.Get(id); a != nil {
		s.sweep(a)
	}
	s.giveBack(ctx, id)
}

// giveBack has the function forget an asset's source.
func (s *Service) giveBack(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := s.function.take(ctx, id); err != nil {
		s.cfg.Log.WarnContext(ctx, "the engine keeps a source until the next start", "asset", id, "error", err)
	}
}

// patiently does what is to be done for an asset, and again, later each time, for as long as
// its error is one that passes; the asset says what it waits for.
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

// noRoom says that a disk is full, or a quota used up.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// sweep removes what an asset's directory has that nobody needs any more: beside an asset that
// is ready what only the work needed, else all but the source.
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
