// Package engine is the heart of the daemon: it knows functions, starts and
// stops their instances, leases them to invocations, keeps their logs, and
// answers what is here. It speaks no protocol towards users: gateway and server
// translate for it.
//
// The main types: [Engine]; a function (function.go) owns its instances
// (instance.go) and hands them out as leases (lease.go); an invocation
// (invoke.go) holds one lease until its answer's body is closed.
//
// Lock order: container.op, container.disk, containers.mu, registry.mu,
// container.mu, streams.mu; and Engine.gcMu, cache.mu, Engine.deployMu,
// Engine.tenantMu, shells.disk, Engine.mu, shells.mu, function.mu, functionLog.mu.
// Under places.mu none of them is taken.
// Only cache.mu, the first three and functionLog.mu are held over the disk, and no
// event waits for those, but for deployMu one that asks for a revision at rest.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/admission"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// UnknownError says that there is no function of that name, or no such revision of it.
// It is an fs.ErrNotExist, which the start of an instance may return as well.
type UnknownError struct{ Function, Revision string }

func (e *UnknownError) Error() string {
	if e.Revision != "" {
		return fmt.Sprintf("function %q has no revision %q: fre function revisions %s lists those that are kept", e.Function, e.Revision, e.Function)
	}
	return fmt.Sprintf("there is no function %q", e.Function)
}
func (e *UnknownError) Unwrap() error { return fs.ErrNotExist }

// The errors callers tell apart, with *UnknownError.
var (
	ErrNameTaken  = errors.New("name already taken")
	ErrTimeout    = errors.New("function did not answer in time")
	ErrOverloaded = errors.New("too many events are waiting for this function")
	ErrDegraded   = admission.ErrRefused // an *admission.RefusedError says why
	ErrClosed     = errors.New("engine is stopping")
	ErrSlowBody   = errors.New("the request's body came too slowly while others waited")
	ErrNotReady   = errors.New("image is not a function")
	ErrForeign    = errors.New("the function is another tenant's")

	// ErrEventTooLarge: the headers, path and query are more than a function
	// can be told.
	ErrEventTooLarge = channel.ErrMetaTooLarge
)

// Config wires an Engine. Store, Sandboxes, Builder, StateDir and Log are
// required. The caller owns Store and Sandboxes and closes them after the
// Engine.
type Config struct {
	Store     *store.Store
	Sandboxes *sandbox.Host
	Builder   *image.Builder // Builder.Run and Images may be nil: Open sets them to the engine's own
	StateDir  string         // logs/ and tenants/ are made below it
	Log       *slog.Logger

	BufferBytes int64 // of the memory that answers are held in until they are sent; default 256 MiB
	BufferLock  bool  // as in buffer.Config
	BufferHuge  bool

	// Admission says when events that need memory for bodies are refused. Free, Now
	// and Changed are the engine's to set.
	Admission admission.Config

	AllowHostNetwork bool     // whether templates may ask for the host's network
	LendConnections  []string // functions, as TENANT/NAME, that may ask for their clients' connections

	Metrics prometheus.Registerer // nil: not exported
	UIDBase uint32                // first host id of tenant 1; default 0x10000000
	Shells  ShellConfig

	Revisions int // that are kept of a function beside those that have events or an alias; default 5, below 0: none

	Concurrency int                   // events under way at once, of all functions; default 256 for each CPU
	Queue       admission.QueueConfig // of those that wait, for one function each and for the engine

	LogBytes int64 // size of a function's log file before it is rotated; default 8 MiB
	LogFiles int   // rotated files kept beside the current one; default 3

	ImageLimits        oci.Limits       // of what is loaded, imported and pulled; defaults there
	InsecureRegistries []string         // hosts that are spoken to without TLS, beside loopback
	Outward            outward.Rule     // what tenants may have the engine connect to
	Signatures         signature.Policy // what has to be signed to be pulled

	Work WorkConfig // what tenants may keep in /work; default: no limit

	Quotas  func(tenant string) Quotas                // asked at each start and build; nil: none
	Secrets func(tenant, name string) ([]byte, error) // a value for the engine to wipe; fs.ErrNotExist; nil: there are none

	// Triggers says whether a tenant's function may have such triggers; nil: any.
	Triggers func(tenant string, all []image.Trigger) error
	Calls    func(tenant string) error // asked before each event that a function makes by a call; nil: none is refused
	Called   func(*CallRecord)         // told of each; nil: nobody is. It must not block
	Table    Table                     // told of what is deployed before it is; nil: nobody is

	BuildTime time.Duration // that a build has for all its steps, once it has its turn; default an hour

	GC GCConfig

	// ForkPercent bounds the memory limits of all fork servers together, in percent
	// of the host's memory; default 25, below 0: no fork servers.
	ForkPercent int
}

// Engine is safe for use by several goroutines.
type Engine struct {
	cfg        Config
	log        *slog.Logger
	metrics    *metrics
	boxes      registry
	containers containers
	agents     agents
	shells     *shells
	buffers    *buffer.Pool
	admission  *admission.Controller
	places     *places
	outward    *http.Transport // by cfg.Outward
	started    time.Time
	forks      budget        // memory of fork servers
	mapErr     error         // why /work cannot be mounted with mapped owners; nil if it can
	nextID     atomic.Uint64 // of invocations; starts at the time of Open, so that no id comes twice
	received   atomic.Int64  // bytes of bodies that are being read before their events take a place

	measuring sync.Mutex // held while what the host costs is measured

	volumes   *volume.Manager            // directories with a size: tenants' /work, what containers write
	scratches *pool.Pool[*volume.Volume] // layers of containers that have not run; nil where they take no time

	cache cache
	uses  sync.Map // *tenantUse by tenant

	tenantMu sync.Mutex // held over the disk while a tenant's directory is made
	works    map[string]*volume.Volume

	gcMu sync.Mutex // one garbage collection at a time; before all others

	deployMu  sync.Mutex
	functions atomic.Pointer[map[string]*deployment] // by qualified name; replaced whole under deployMu

	mu      sync.Mutex
	closing bool
	closed  chan struct{}
	ended   chan struct{}   // closed once no sandbox and no worker is left
	abort   func()          // ends life
	life    context.Context // of builds and deployments: ends when Close gives up waiting
	flight  sync.WaitGroup  // invocations, runs and builds
	workers sync.WaitGroup  // goroutines that outlive a call: instance watchers, warmers
}

// Open loads the deployed functions and starts the instances their templates
// keep warm.
func Open(cfg Config) (_ *Engine, err error) {
	if cfg.UIDBase == 0 {
		cfg.UIDBase = 0x10000000
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = defaultPlaces()
	}
	switch {
	case cfg.Revisions == 0:
		cfg.Revisions = defaultRevisions
	case cfg.Revisions < 0:
		cfg.Revisions = 0
	}
	if err := cfg.Queue.Check(); err != nil {
		return nil, fmt.Errorf("overload: %w", err)
	}
	if cfg.BufferBytes == 0 {
		cfg.BufferBytes = 256 << 20
	}
	if cfg.LogBytes == 0 {
		cfg.LogBytes = 8 << 20
	}
	if cfg.GC.Interval == 0 {
		cfg.GC.Interval = 6 * time.Hour
	}
	if err := cfg.GC.Policy.check(); err != nil {
		return nil, fmt.Errorf("garbage collection: %w", err)
	}
	if cfg.LogFiles == 0 {
		cfg.LogFiles = 3
	}
	if err := removeChecks(cfg.StateDir); err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	// Nobody but root may reach what tenants keep: its owners are ids that other
	// users of the host may have.
	for dir, mode := range map[string]os.FileMode{"logs": 0o711, "tenants": 0o700} {
		path := filepath.Join(cfg.StateDir, dir)
		if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
			return nil, fmt.Errorf("make state directory: %w", err)
		}
	}
	if cfg.ForkPercent == 0 {
		cfg.ForkPercent = 25
	}
	memory, err := sandbox.HostMemory()
	if err != nil {
		return nil, err
	}
	cfg.Shells.setDefaults(memory)
	e := &Engine{cfg: cfg, log: cfg.Log, started: time.Now(), closed: make(chan struct{}), ended: make(chan struct{})}
	if e.buffers, err = buffer.New(buffer.Config{Bytes: cfg.BufferBytes, Lock: cfg.BufferLock, Huge: cfg.BufferHuge}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.buffers.Close())
		}
	}()
	e.places, e.outward = newPlaces(cfg.Concurrency, cfg.Queue), cfg.Outward.Transport()
	if err := e.openAdmission(); err != nil {
		return nil, err
	}
	e.mapErr = sandbox.CanMap(filepath.Join(cfg.StateDir, "tenants"))
	e.shells = newShells(e, cfg.Shells)
	e.forks.left = memory / 100 * int64(cfg.ForkPercent)
	if e.volumes, err = volume.Open(volume.Config{Dir: filepath.Join(cfg.StateDir, "removed"), Log: cfg.Log}); err != nil {
		return nil, err
	}
	if err := errors.Join(cfg.Work.check(e.volumes), e.openCache()); err != nil {
		return nil, errors.Join(err, e.volumes.Close())
	}
	e.works = make(map[string]*volume.Volume)
	life, abort := context.WithCancelCause(context.Background())
	e.life, e.abort = life, func() { abort(ErrClosed) }
	e.metrics = newMetrics(cfg.Metrics, e)
	e.boxes.live = make(map[string]*box)
	if err := e.openContainers(); err != nil {
		return nil, errors.Join(err, e.volumes.Close())
	}
	e.prepareScratches()
	e.nextID.Store(uint64(time.Now().UnixMilli()) << 20)
	if cfg.Builder.Run == nil {
		cfg.Builder.Run = buildRunner{e}
	}
	if cfg.Builder.Images == nil {
		cfg.Builder.Images = buildImages{e}
	}

	e.agents.byID = make(map[string]*agent)
	functions := make(map[string]*deployment)
	e.functions.Store(&functions)
	e.forgetTemporary()
	e.qualifyNames()
	for _, rec := range cfg.Store.Functions() {
		d, err := e.load(rec)
		if err != nil {
			// One damaged record must not keep the others from answering.
			e.log.Error("function not loaded", "function", rec.Name, "error", err)
			continue
		}
		functions[rec.Name] = d
	}
	e.each(func(f *function) {
		// Makes the way out, if it needs one, before its first event does.
		if _, err := f.spec(""); err != nil {
			e.log.Error("function cannot start", "function", f.name, "error", err)
		}
		// It was deployed on a larger host: it goes on with what there is.
		if err := e.checkLimits(f.config.Resources); err != nil {
			e.log.Warn("function has limits that this host cannot enforce", "function", f.name, "error", err)
		}
		f.publish()
		f.warm()
	})
	e.spawn(e.shells.prune)
	e.spawn(e.attachWorks)
	e.spawn(e.watchAdmission)
	if cfg.GC.Interval > 0 {
		e.spawn(e.collect)
	}
	return e, nil
}

// Close refuses new work, waits for what is in flight until ctx ends, then
// kills every sandbox and waits for their watchers.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closing {
		e.mu.Unlock()
		return nil
	}
	e.closing = true
	close(e.closed)
	e.mu.Unlock()

	e.each(func(f *function) { f.tunnels.end() })
	drained := make(chan struct{})
	go func() { e.flight.Wait(); close(drained) }()
	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		err = fmt.Errorf("drain: %w", context.Cause(ctx))
	}
	e.abort()
	retireAll := func() { e.each((*function).retire) }
	retireAll()
	e.boxes.close()
	<-drained   // without its sandbox every invocation ends
	retireAll() // what a Deploy published meanwhile
	e.shells.closeTools()
	e.workers.Wait()
	e.outward.CloseIdleConnections()
	close(e.ended)
	for _, d := range *e.functions.Load() {
		d.logs.Close()
		err = errors.Join(err, d.main.endTrace())
	}
	for _, c := range e.containers.all() {
		c.log.Close()
	}
	e.closeAgents()
	if e.scratches != nil {
		e.scratches.Close()
	}
	return errors.Join(err, e.volumes.Close(), e.buffers.Close())
}

// Stopping says whether Close was called: no new work is accepted.
func (e *Engine) Stopping() bool {
	select {
	case <-e.closed:
		return true
	default:
		return false
	}
}

// Closed is closed when Close was called.
func (e *Engine) Closed() <-chan struct{} { return e.closed }

// begin counts a unit of work that Close waits for.
func (e *Engine) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return ErrClosed
	}
	e.flight.Add(1)
	return nil
}

// spawn runs fn in a goroutine that Close waits for.
func (e *Engine) spawn(fn func()) {
	e.workers.Go(fn)
}

// while counts f as work in flight, whose context ends with ErrClosed when Close
// gives up waiting.
func (e *Engine) while(ctx context.Context, f func(context.Context) error) error {
	if err := e.begin(); err != nil {
		return err
	}
	defer e.flight.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(e.life, func() { cancel(ErrClosed) })
	defer stop()
	return f(ctx)
}

// StateDir is where the engine keeps what lasts.
func (e *Engine) StateDir() string { return e.cfg.StateDir }
