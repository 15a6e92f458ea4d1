// Package engine is the heart of the daemon. The engine knows functions, starts and stops their
// instances, leases instances to invocations, keeps logs, and lists the node's state. The engine
// speaks no protocol towards users: packages gateway and server translate.
//
// The main types: [Engine]; a function (function.go) owns its instances (instance.go) and hands
// them out as leases (lease.go); an invocation (invoke.go) holds one lease until the body of its
// answer is closed.
//
// Lock order: those of packages container and build; and Engine.deployMu, live.Tenants.mu,
// interpreters.disk, interpreters.mu, function.mu, live.Log.mu. No code takes one of these locks
// while it holds slots.mu.
//
// Held during disk I/O: Engine.deployMu, live.Tenants.mu, interpreters.disk and live.Log.mu. An
// event waits for such a lock in two cases: the event asks for a revision at rest (deployMu), or
// the engine logs a line of the event (live.Log.mu).
package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// UnknownError says that no function has this name, or that the function has no such revision.
// UnknownError wraps fs.ErrNotExist, an error that the start of an instance may return as well.
type UnknownError struct{ Function, Revision string }

func (e *UnknownError) Error() string {
	if e.Revision != "" {
		return fmt.Sprintf("function %q has no revision %q: list revisions with fre function revisions %s", e.Function, e.Revision, e.Function)
	}
	return fmt.Sprintf("there is no function %q", e.Function)
}
func (e *UnknownError) Unwrap() error { return fs.ErrNotExist }

// Code returns [failure.NotFound].
func (e *UnknownError) Code() failure.Code { return failure.NotFound }

// Errors that callers tell apart, beside *UnknownError.
var (
	ErrNameTaken  = live.ErrNameTaken
	ErrTimeout    = failure.New(failure.Timeout, "function did not answer in time", "")
	ErrOverloaded = failure.New(failure.Overloaded, "too many events are waiting for the function", "")
	ErrDegraded   = admission.ErrRefused // returned as an *admission.RefusedError with the reason
	ErrClosed     = live.ErrClosed
	ErrSlowBody   = failure.New(failure.SlowBody, "the request's body was too slow while other requests waited", "")
	ErrNotReady   = failure.New(failure.NotFunction, "image is not a function", "deploy an image built from a template")
	ErrForeign    = failure.New(failure.Forbidden, "the function is another tenant's", "write the token's tenant into fret.yaml")

	// ErrEventTooLarge: headers, path and query together exceed channel.MaxMeta. Package channel,
	// which functions link, knows no codes.
	ErrEventTooLarge = failure.Wrap(failure.HeaderTooLarge, channel.ErrMetaTooLarge, "")
)

// Config wires an Engine. Required: Store, Sandboxes, Builder, StateDir and Log. The caller owns
// Store and Sandboxes and closes both after the Engine.
type Config struct {
	Store     *store.Store
	Sandboxes *sandbox.Host
	Builder   *image.Builder // Open sets Builder.Run and Builder.Images if they are nil
	StateDir  string         // parent directory of logs/ and tenants/
	Log       *slog.Logger

	BufferBytes int64 // memory for answers that wait to be sent; default 256 MiB
	BufferLock  bool  // as in buffer.Config
	BufferHuge  bool

	// Admission configures when events that need memory for bodies are refused. The engine sets
	// Free, Now and Changed.
	Admission admission.Config

	AllowHostNetwork bool     // templates may ask for the host's network
	LendConnections  []string // functions, as TENANT/NAME, that may ask for their clients' connections

	Metrics      prometheus.Registerer // nil: not exported
	UIDBase      uint32                // first host id of tenant 1; default 0x10000000
	Interpreters InterpreterConfig

	Revisions int // kept revisions of a function beside those with events or an alias; default 5, below 0: none

	Concurrency int                   // events under way at once, of all functions; default 256 for each CPU
	Queue       admission.QueueConfig // limits each queue: one for each function, and one for the engine

	LogBytes int64 // size of a function's log file before it is rotated; default 8 MiB
	LogFiles int   // rotated files kept beside the current file; default 3

	ImageLimits        oci.Limits       // for loaded, imported and pulled images; defaults of package oci
	InsecureRegistries []string         // hosts reached without TLS, beside loopback
	Outward            outward.Rule     // destinations that tenants may have the engine connect to
	Signatures         signature.Policy // signatures required of pulled images

	Work live.WorkConfig // limits of tenants' /work; default: no limit

	Quotas  func(tenant string) live.Quotas           // called at each start and build; nil: no quotas
	Secrets func(tenant, name string) ([]byte, error) // returns a value for the engine to wipe, or fs.ErrNotExist; nil: no secrets

	// Triggers returns an error if a tenant's function may not have these triggers; nil: any.
	Triggers func(tenant string, all []template.Trigger) error
	Calls    func(tenant string) error // called before each event that a function's call makes; nil: no call is refused
	Called   func(*CallRecord)         // called after each call; nil: not called. It must not block
	Table    Table                     // learns of each deployment before it takes effect; may be nil

	BuildTime time.Duration // limit for all steps of a build, without the wait for its turn; default an hour

	GC build.GCConfig

	// ForkPercent bounds the sum of the memory limits of all fork servers, in percent of the
	// host's memory; default 25, below 0: no fork servers.
	ForkPercent int

	avoid []volume.Kind // kinds of volumes that tests do without
}

// Engine is safe for use by several goroutines.
type Engine struct {
	*host
	live.List          // the client's view of boxes
	*container.Manager // of containers
	*build.Library     // of images
	holds              *live.Holds
	agents             *Agents
	interpreters       *interpreters
	started            time.Time
	nextID             atomic.Uint64 // of invocations; starts at the time of Open, so that ids stay unique over restarts

	measuring sync.Mutex // held while Measure runs

	volumes   *volume.Manager            // size-limited directories: tenants' /work, containers' scratch layers
	scratches *pool.Pool[*volume.Volume] // scratch layers for new containers; nil if a layer costs no time

	deployMu  sync.Mutex
	functions atomic.Pointer[map[string]*deployment] // by qualified name; replaced whole under deployMu
}

// Open loads the deployed functions and starts the instances that their templates keep warm.
func Open(cfg Config) (_ *Engine, err error) {
	if cfg.UIDBase == 0 {
		cfg.UIDBase = 0x10000000
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = defaultSlots()
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
	if err := cfg.GC.Policy.Check(); err != nil {
		return nil, fmt.Errorf("garbage collection: %w", err)
	}
	if cfg.LogFiles == 0 {
		cfg.LogFiles = 3
	}
	if err := removeChecks(cfg.StateDir); err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	// Only root may reach tenants' files: their owners are ids that the host's users may have.
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
	cfg.Interpreters.setDefaults(memory)
	e := &Engine{host: &host{cfg: cfg, log: cfg.Log, metrics: newMetrics(), life: live.NewLife()}, started: time.Now()}
	e.agents = newAgents(e)
	e.boxes = live.NewTable(e.life, cfg.Sandboxes, cfg.Store.Changes())
	e.List = live.NewList(e.boxes)
	if e.buffers, err = buffer.New(buffer.Config{Bytes: cfg.BufferBytes, Lock: cfg.BufferLock, Huge: cfg.BufferHuge}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.buffers.Close())
		}
	}()
	e.slots = newSlots(cfg.Concurrency, cfg.Queue)
	if err := e.openAdmission(); err != nil {
		return nil, err
	}
	e.interpreters = newInterpreters(e.host, cfg.Interpreters)
	e.forks.left = memory / 100 * int64(cfg.ForkPercent)
	if e.volumes, err = volume.Open(volume.Config{Dir: filepath.Join(cfg.StateDir, "removed"), Avoid: cfg.avoid, Log: cfg.Log}); err != nil {
		return nil, err
	}
	e.networks = live.Networks{Host: cfg.Sandboxes, AllowHost: cfg.AllowHostNetwork}
	e.tenants, err = live.NewTenants(live.TenantsConfig{
		Store: cfg.Store, Volumes: e.volumes, Life: e.life, Log: cfg.Log, StateDir: cfg.StateDir, UIDBase: cfg.UIDBase, Work: cfg.Work, Quotas: cfg.Quotas,
	})
	if err != nil {
		return nil, errors.Join(err, e.volumes.Close())
	}
	e.holds = live.NewHolds(cfg.Store)
	e.Library, err = build.Open(build.Config{
		Store: cfg.Store, Builder: cfg.Builder, Volumes: e.volumes, Life: e.life, Boxes: e.boxes, Tenants: e.tenants, Holds: e.holds, Log: cfg.Log, StateDir: cfg.StateDir,
		Users: e.imageUsers, Collected: func(r *build.GCReport) { e.metrics.collected(r) },
		BuildTime: cfg.BuildTime, ImageLimits: cfg.ImageLimits, InsecureRegistries: cfg.InsecureRegistries, Outward: cfg.Outward, Signatures: cfg.Signatures, GC: cfg.GC,
	})
	if err != nil {
		return nil, errors.Join(err, e.volumes.Close())
	}
	if cfg.Metrics != nil {
		e.register(cfg.Metrics)
	}
	e.prepareScratches()
	e.Manager, err = container.Open(container.ManagerConfig{
		Store: cfg.Store, Host: cfg.Sandboxes, Volumes: e.volumes, Scratches: e.scratches, Life: e.life, Boxes: e.boxes, Tenants: e.tenants,
		Holds: e.holds, Networks: e.networks, Log: cfg.Log, StateDir: cfg.StateDir, LogBytes: cfg.LogBytes, LogFiles: cfg.LogFiles,
	})
	if err != nil {
		e.closeScratches()
		return nil, errors.Join(err, e.volumes.Close())
	}
	e.nextID.Store(uint64(time.Now().UnixMilli()) << 20)
	if cfg.Builder.Run == nil {
		cfg.Builder.Run = buildRunner{e.host, e.interpreters}
	}

	functions := make(map[string]*deployment)
	e.functions.Store(&functions)
	e.forgetTemporary()
	e.qualifyNames()
	for _, rec := range cfg.Store.Functions() {
		d, err := e.load(rec)
		if err != nil {
			// One damaged record must not keep the other functions from answering.
			e.log.Error("function not loaded", "function", rec.Name, "error", err)
			continue
		}
		functions[rec.Name] = d
	}
	e.each(func(f *function) {
		// spec makes the egress network, if the function needs one, before the first event.
		if _, err := f.spec(""); err != nil {
			e.log.Error("function cannot start", "function", f.name, "error", err)
		}
		// Deployed on a larger host, the function goes on with the resources of this host.
		if err := live.CheckLimits(e.cfg.Sandboxes, f.config.Resources); err != nil {
			e.log.Warn("the host cannot enforce limits of the function", "function", f.name, "error", err)
		}
		e.prepare(f)
		f.warm()
	})
	e.life.Spawn(e.interpreters.prune)
	e.life.Spawn(e.tenants.AttachAll)
	e.life.Spawn(e.watchAdmission)
	if cfg.GC.Interval > 0 {
		e.life.Spawn(e.Collect)
	}
	return e, nil
}

// Close refuses new work, waits until ctx ends for work in flight, kills every sandbox and waits
// for the sandboxes' watchers.
func (e *Engine) Close(ctx context.Context) error {
	if !e.life.Close() {
		return nil
	}
	e.each(func(f *function) { f.tunnels.end() })
	wait, err := e.life.Drain(ctx)
	retireAll := func() { e.each((*function).retire) }
	retireAll()
	e.boxes.Close()
	wait()      // every invocation ends with its sandbox
	retireAll() // again: a Deploy may have published a function meanwhile
	e.interpreters.closeTools()
	e.life.End()
	e.Library.Close()
	for _, d := range *e.functions.Load() {
		d.logs.Close()
		err = errors.Join(err, d.main.endTrace())
	}
	e.Manager.Close()
	e.agents.close()
	e.closeScratches()
	return errors.Join(err, e.volumes.Close(), e.buffers.Close())
}

// Stopping reports whether Close was called: the engine refuses new work.
func (e *Engine) Stopping() bool { return e.life.Stopping() }

// Closed returns a channel that Close closes when it is called.
func (e *Engine) Closed() <-chan struct{} { return e.life.Closed() }

// Agents returns the sandboxes of agents.
func (e *Engine) Agents() *Agents { return e.agents }

// Work returns the directory seen by a tenant's sandboxes as /work. It is made at first use.
func (e *Engine) Work(tenant string) (string, error) { return e.tenants.Work(tenant) }

// StateDir returns the directory of all state that outlives the engine.
func (e *Engine) StateDir() string { return e.cfg.StateDir }
