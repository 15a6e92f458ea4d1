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
// Only cache.mu, the first three and functionLog.mu are held over the disk, and no
// event waits for those.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// UnknownError says that there is no function of that name. It is an
// fs.ErrNotExist, which the start of an instance may return as well.
type UnknownError struct{ Function string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("function %q: %v", e.Function, fs.ErrNotExist)
}
func (e *UnknownError) Unwrap() error { return fs.ErrNotExist }

// The errors callers tell apart, with *UnknownError.
var (
	ErrNameTaken  = errors.New("name already taken")
	ErrTimeout    = errors.New("function did not answer in time")
	ErrOverloaded = errors.New("too many events are waiting for this function")
	ErrClosed     = errors.New("engine is stopping")
	ErrNotReady   = errors.New("image is not a function")

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
	Builder   *image.Builder // Builder.Run may be nil: Open sets it to the engine's own runner
	StateDir  string         // logs/ and tenants/ are made below it
	Log       *slog.Logger

	AllowHostNetwork bool // whether templates may ask for the host's network

	Metrics  prometheus.Registerer // nil: not exported
	UIDBase  uint32                // first host id of tenant 1; default 0x10000000
	Shells   ShellConfig
	MaxQueue int   // events waiting for one function; default 1024
	LogBytes int64 // size of a function's log file before it is rotated; default 8 MiB
	LogFiles int   // rotated files kept beside the current one; default 3

	ImageLimits        oci.Limits // of what is loaded, imported and pulled; defaults there
	InsecureRegistries []string   // hosts that are spoken to without TLS, beside loopback

	Work WorkConfig // what tenants may keep in /work; default: no limit
	GC   GCConfig

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
	shells     *shells
	forks      budget        // memory of fork servers
	mapErr     error         // why /work cannot be mounted with mapped owners; nil if it can
	nextID     atomic.Uint64 // of invocations; starts at the time of Open, so that no id comes twice

	measuring sync.Mutex // held while what the host costs is measured

	volumes   *volume.Manager            // directories with a size: tenants' /work, what containers write
	scratches *pool.Pool[*volume.Volume] // layers of containers that have not run; nil where they take no time

	cache cache

	tenantMu sync.Mutex // held over the disk while a tenant's directory is made
	works    map[string]*volume.Volume

	gcMu sync.Mutex // one garbage collection at a time; before all others

	deployMu  sync.Mutex
	functions atomic.Pointer[map[string]*function] // replaced whole under deployMu

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
func Open(cfg Config) (*Engine, error) {
	if cfg.UIDBase == 0 {
		cfg.UIDBase = 0x10000000
	}
	if cfg.MaxQueue == 0 {
		cfg.MaxQueue = 1024
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
	e := &Engine{cfg: cfg, log: cfg.Log, closed: make(chan struct{}), ended: make(chan struct{})}
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

	functions := make(map[string]*function)
	e.functions.Store(&functions)
	for _, rec := range cfg.Store.Functions() {
		f, err := e.newFunction(rec)
		if err == nil {
			f.logs, err = e.openLog(rec.Name)
		}
		if err != nil {
			// One damaged record must not keep the others from answering.
			e.log.Error("function not loaded", "function", rec.Name, "error", err)
			continue
		}
		functions[rec.Name] = f
	}
	for _, f := range functions {
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
	}
	e.spawn(e.shells.prune)
	e.spawn(e.attachWorks)
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

	drained := make(chan struct{})
	go func() { e.flight.Wait(); close(drained) }()
	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		err = fmt.Errorf("drain: %w", context.Cause(ctx))
	}
	e.abort()
	retireAll := func() {
		for _, f := range *e.functions.Load() {
			f.retire()
		}
	}
	retireAll()
	e.boxes.close()
	<-drained   // without its sandbox every invocation ends
	retireAll() // what a Deploy published meanwhile
	e.workers.Wait()
	close(e.ended)
	for _, f := range *e.functions.Load() {
		f.logs.Close()
	}
	for _, c := range e.containers.all() {
		c.log.Close()
	}
	if e.scratches != nil {
		e.scratches.Close()
	}
	return errors.Join(err, e.volumes.Close())
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

// Build makes an image of the template in dir and returns it with the lock to
// write beside the template. report is called from one goroutine at a time.
func (e *Engine) Build(ctx context.Context, dir *os.Root, report func(image.Event)) (img *store.Image, lock *image.Lock, err error) {
	err = e.while(ctx, func(ctx context.Context) error {
		e.cache.mu.RLock()
		defer e.cache.mu.RUnlock()
		img, lock, err = e.cfg.Builder.Build(ctx, dir, report)
		return err
	})
	return img, lock, err
}

// Base builds the named base environment, or finds it in the local registry.
func (e *Engine) Base(ctx context.Context, name string, report func(image.Event)) (img *store.Image, err error) {
	err = e.while(ctx, func(ctx context.Context) error {
		e.cache.mu.RLock()
		defer e.cache.mu.RUnlock()
		img, err = e.cfg.Builder.Base(ctx, name, report)
		return err
	})
	return img, err
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

// ImageList lists the local registry from memory, newest first, with the
// generation of its last change.
func (e *Engine) ImageList() ([]*store.Image, uint64) { return e.cfg.Store.ImageList() }

// Image finds an image by name, name:version, digest or a prefix of it.
func (e *Engine) Image(ref string) (*store.Image, error) { return e.cfg.Store.Image(ref) }

// TagImage gives an image one more name, "name:version" or "name" for version
// "latest", which another image loses. Errors: as of [Engine.Image], and
// store.ErrName.
func (e *Engine) TagImage(ctx context.Context, ref, name string) (*store.Image, error) {
	img, err := e.cfg.Store.Image(ref)
	if err != nil {
		return nil, err
	}
	return e.cfg.Store.Tag(ctx, img.Digest, name)
}

// Removed says what became of an image that was to be removed.
type Removed struct {
	Image    *store.Image // as it was
	Untagged []string     // names that are gone, and what registries call it
	Deleted  bool         // so is the image
}

// RemoveOptions adjust RemoveImage.
type RemoveOptions struct {
	Force bool // an image with several names may be removed by its digest
}

// ErrSeveralNames says that a digest stands for more names than one.
var ErrSeveralNames = errors.New("image has several names")

// RemoveImage takes an image's name away, and with its last name, or where ref
// is a digest, the image. What the registry of a name calls the image,
// "name@sha256:…", is a name as well, and goes with the last "name:version" of
// that registry's. What a function or a sandbox uses stays: store.ErrInUse.
func (e *Engine) RemoveImage(ctx context.Context, ref string, o RemoveOptions) (Removed, error) {
	img, name, err := e.cfg.Store.Find(ref)
	if err != nil {
		return Removed{}, err
	}
	all := slices.Concat(img.Names, img.Remotes)
	goes := all
	if r, err := store.ParseReference(ref); err == nil && slices.Contains(img.Remotes, store.Reference{Name: r.Name, Digest: r.Digest}.String()) {
		goes = []string{store.Reference{Name: r.Name, Digest: r.Digest}.String()}
	} else if name != "" {
		goes = namesWith(img, name)
	} else if len(img.Names) > 1 || len(img.Names) == 1 && len(namesWith(img, img.Names[0])) < len(all) {
		if !o.Force {
			return Removed{}, fmt.Errorf("remove image %s: %w: %s", ref, ErrSeveralNames, strings.Join(all, ", "))
		}
	}
	if len(goes) < len(all) {
		return Removed{Image: img, Untagged: goes}, e.cfg.Store.Untag(ctx, goes...)
	}
	err = e.whileUnused(ref, img.Digest, func() error { return e.cfg.Store.RemoveImage(ctx, img.Digest) })
	return Removed{Image: img, Untagged: all, Deleted: true}, err
}

// namesWith are the names of an image that go with one of them.
func namesWith(img *store.Image, name string) []string {
	repository := nameOnly(name)
	goes := []string{name}
	for _, other := range img.Names {
		if other != name && nameOnly(other) == repository {
			return goes
		}
	}
	for _, remote := range img.Remotes {
		if strings.HasPrefix(remote, repository+"@") {
			goes = append(goes, remote)
		}
	}
	return goes
}

// ImageSizes are what images take on disk, from memory.
func (e *Engine) ImageSizes() *store.Sizes { return e.cfg.Store.Sizes() }

// StateDir is where the engine keeps what lasts.
func (e *Engine) StateDir() string { return e.cfg.StateDir }

// Function is what lists and inspections show of a deployed function.
type Function struct {
	Name        string
	Image       store.Digest
	ImageRef    string // "name:version"
	Config      image.Config
	Deployed    time.Time
	Instances   int    // live sandboxes
	Busy        int    // events being handled
	Queued      int    // events waiting for an instance
	Fork        string // whether its instances are forked, or why not: "on", "waiting", "off: …"; "" where its runtime cannot
	Invocations uint64
	Failures    uint64
	Defences    []string    // in force around its sandboxes (sandbox.Host.Defences)
	Shells      *ShellStats // what its instances can start from; nil: nothing

	counters counters
}

// DeployOptions adjust Deploy.
type DeployOptions struct {
	Replace bool // take over the name of a function that came from another template
}

// Deploy puts the image's function behind name. The same template's function
// of that name is replaced without losing an event: what is in flight ends on
// the old instances. ErrNameTaken when another template has the name.
func (e *Engine) Deploy(ctx context.Context, name string, img *store.Image, o DeployOptions) (*Function, error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.flight.Done()
	if name == "" {
		name = img.Name
	}
	if !image.ValidName(name) {
		return nil, fmt.Errorf("deploy: %w", &image.FieldError{Field: "name", Message: fmt.Sprintf("%q is not a function name: lower-case letters, digits and dashes, 63 at most", name)})
	}
	spec, err := json.Marshal(functionSpec{img.Name, img.Version})
	if err != nil {
		return nil, err
	}
	rec := store.Function{Name: name, Image: img.Digest, Spec: spec, Deployed: time.Now().UTC().Truncate(time.Millisecond)}
	f, err := e.newFunction(&rec)
	if err != nil {
		return nil, err
	}
	if _, err := f.spec(""); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}
	if err := e.checkLimits(f.config.Resources); err != nil {
		return nil, fmt.Errorf("deploy %s: %w", name, err)
	}

	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	old := (*e.functions.Load())[name]
	if old != nil && old.template != img.Name && !o.Replace {
		return nil, fmt.Errorf("deploy %s: %w by a function of template %s", name, ErrNameTaken, old.template)
	}
	if old != nil {
		f.logs = old.logs // one log over all deployments of a name
	} else if f.logs, err = e.openLog(name); err != nil {
		return nil, err
	}
	if err := e.cfg.Store.PutFunction(ctx, rec); err != nil {
		if old == nil {
			f.logs.Close()
		}
		return nil, err
	}
	f.publish()
	e.replaceLocked(name, f)
	e.Changes().Add(f.changed(store.ActionDeploy))
	if old != nil {
		old.retire()
	}
	f.warm()
	return f.describe(), nil
}

func (e *Engine) openLog(function string) (*functionLog, error) {
	return openLog(filepath.Join(e.cfg.StateDir, "logs", function), function, e.cfg.LogBytes, e.cfg.LogFiles)
}

// replaceLocked publishes, with deployMu held, a new map of functions with name
// set to f, or removed where f is nil.
func (e *Engine) replaceLocked(name string, f *function) {
	next := maps.Clone(*e.functions.Load())
	if f == nil {
		delete(next, name)
	} else {
		next[name] = f
	}
	e.functions.Store(&next)
}

// Functions lists the deployed functions by name. The same pointer stands for the
// same content: nobody changes it.
func (e *Engine) Functions() []*Function {
	m := *e.functions.Load()
	out := make([]*Function, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[name].describe())
	}
	return out
}

// Function describes one; fs.ErrNotExist when there is none of that name.
func (e *Engine) Function(name string) (*Function, error) {
	f, err := e.lookup(name)
	if err != nil {
		return nil, err
	}
	return f.describe(), nil
}

func (e *Engine) lookup(name string) (*function, error) {
	f := (*e.functions.Load())[name]
	if f == nil {
		return nil, &UnknownError{Function: name}
	}
	return f, nil
}

// RemoveFunction forgets a function, ends its instances and deletes its logs.
// Its image and its tenant's /work stay.
func (e *Engine) RemoveFunction(ctx context.Context, name string) error {
	if err := e.begin(); err != nil {
		return err
	}
	defer e.flight.Done()
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	f, err := e.lookup(name)
	if err == nil {
		err = e.cfg.Store.RemoveFunction(ctx, name)
	}
	if err != nil {
		return err
	}
	e.replaceLocked(name, nil)
	e.Changes().Add(f.changed(store.ActionRemove))
	f.retire()
	f.logs.Close()
	e.metrics.forget(name)
	return os.RemoveAll(f.logs.dir)
}
