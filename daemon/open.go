package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/store"
)

// configure reads the configuration file, checks the flags and loads the gateway's certificate.
func (d *Daemon) configure(context.Context) (err error) {
	cfg := &d.cfg
	if cfg.ConfigFile != "" {
		if err := cfg.ReadFile(cfg.ConfigFile); err != nil {
			return err
		}
	}
	if err := cfg.complete(); err != nil {
		return err
	}
	if d.proxies, err = readProxies(cfg.TrustedProxies); err != nil {
		return err
	}
	if d.secure, err = gatewayTLS(cfg.TLSCert, cfg.TLSKey, d.log); err != nil || cfg.ACME == nil {
		return err
	}
	if d.secure != nil {
		return failure.Hint(errors.New("--tls-cert and tls.acme exclude each other"), "remove either")
	}
	d.secure = cfg.ACME.tls(cfg.State)
	return nil
}

// isolate executes the program again: same arguments, same pid, in a new mount namespace. The
// second time it tunes the garbage collector.
func (d *Daemon) isolate(context.Context) error {
	if err := sandbox.Isolate(); err != nil {
		return err
	}
	tuneGC()
	debug.SetMemoryLimit(256 << 20)
	return nil
}

// warnRenamed logs each setting that was given under its old name. It runs after isolate, which
// repeats all earlier steps.
func (d *Daemon) warnRenamed(context.Context) error {
	for _, r := range d.cfg.renamed {
		d.log.Warn("setting has a new name: the old name is deprecated", "old", r.old, "new", r.name)
	}
	return nil
}

// openState makes the state directory and checks what the configuration requires of the host.
func (d *Daemon) openState(context.Context) error {
	if err := os.MkdirAll(d.cfg.State, 0o711); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if len(d.cfg.Require) == 0 {
		return nil
	}
	if err := engine.Require(engine.Checks(d.cfg.State), d.cfg.Require); err != nil {
		return failure.Hint(fmt.Errorf("%s: %w", d.cfg.ConfigFile, err), "fre doctor --format '{{.ID}}: {{.Found}}' lists all checks")
	}
	return nil
}

func (d *Daemon) openStore(context.Context) (err error) {
	d.store, err = store.Open(filepath.Join(d.cfg.State, "store"), d.log)
	if errors.Is(err, store.ErrLocked) {
		return failure.Hint(fmt.Errorf("an engine is already running on %s: %w", d.cfg.State, err), "stop the running engine, or use another --state")
	}
	if err != nil {
		return err
	}
	d.undo.add(d.store.Close)
	return nil
}

func (d *Daemon) openAccess(context.Context) (err error) {
	d.cfg.Access.records.HTTP = d.cfg.issuers()
	if d.records, err = d.cfg.Access.open(d.cfg.State, d.log); err != nil {
		return err
	}
	d.undo.add(d.records.Close)
	d.guard = &d.cfg.Access.guard
	return nil
}

// openSandboxes reads the host's settings and opens the pools of sandboxes.
func (d *Daemon) openSandboxes(context.Context) (err error) {
	if d.settings, err = d.cfg.Packages.Settings(image.ThisHost()); err != nil {
		return err
	}
	parked := d.cfg.Parked
	if parked == 0 {
		parked = -1 // sandbox.Config's value for no parked sandboxes
	}
	if d.policy, err = signature.Read(d.cfg.Signatures); err != nil {
		return fmt.Errorf("registry.signatures%w", err)
	}
	d.host, err = sandbox.Open(sandbox.Config{Dir: filepath.Join(d.cfg.State, "run"), Log: d.log, PoolSize: d.cfg.Pool, Parked: parked, Egress: d.cfg.Egress})
	if err != nil {
		return failure.Hint(err, "run fre doctor to see missing features of the host")
	}
	d.undo.add(d.host.Close)
	return nil
}

// openBuilder makes the builder of images, and the metrics.
func (d *Daemon) openBuilder(ctx context.Context) error {
	d.metrics = prometheus.NewRegistry()
	d.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newPauses())
	release, err := debian.HostRelease(d.cfg.Debian)
	if err != nil {
		d.log.WarnContext(ctx, "templates must name a release in base", "error", err)
	}
	d.builder = &image.Builder{
		Store: d.store, Release: release, Bases: runtimes.Bases(), Runtimes: runtimes.All(), Sites: runtimes.Sites(), Git: runtimes.Repository(), Settings: d.settings, Log: d.log,
		Archive: func(release string) (image.Archive, error) {
			return debian.Open(debian.Config{Release: release, Sources: d.cfg.Debian, Cache: filepath.Join(d.cfg.State, "cache", "debian"), Log: d.log})
		},
	}
	return nil
}

func (d *Daemon) openEngine(ctx context.Context) (err error) {
	cfg := &d.cfg
	config := engine.Config{
		Store: d.store, Sandboxes: d.host, Builder: d.builder, StateDir: cfg.State, Log: d.log, Metrics: d.metrics, Interpreters: cfg.Interpreters,
		ForkPercent: cmp.Or(cfg.Forks, -1), Work: cfg.Work, GC: cfg.GC, BufferBytes: cfg.BufferBytes, BufferLock: cfg.BufferLock, BufferHuge: cfg.BufferHuge, Admission: cfg.Admission,
		Revisions: cfg.Revisions, Concurrency: cfg.Concurrency, Queue: cfg.Queue, AllowHostNetwork: cfg.AllowHostNetwork, LendConnections: cfg.LendConnections,
		InsecureRegistries: cfg.InsecureRegistries, Outward: cfg.outward(), Signatures: d.policy, ImageLimits: cfg.ImageLimits,
		Quotas: quotasOf(d.records), Secrets: d.records.Secret, Triggers: cfg.checkTriggers, Calls: d.records.Event,
	}
	if d.accessLog != nil {
		config.Called = func(c *engine.CallRecord) { gateway.LogCall(d.accessLog, c) }
	}
	if d.node != nil {
		config.Table = d.node
	}
	if d.engine, err = engine.Open(config); err != nil {
		return err
	}
	d.guard.Front, d.invoker = d.engine.Front, d.engine
	d.undo.add(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
		defer cancel()
		return d.engine.Close(ctx)
	})
	return nil
}

// listen opens the control socket and the gateway's address.
func (d *Daemon) listen(ctx context.Context) (err error) {
	if d.control, err = server.Listen(d.cfg.Socket, d.cfg.Group); err != nil {
		return err
	}
	d.undo.add(func() error { return ignoreMissing(os.Remove(d.cfg.Socket)) })
	d.undo.addListener(d.control)
	if d.public, err = (&net.ListenConfig{}).Listen(ctx, "tcp", d.cfg.Listen); err != nil {
		return failure.Hint(err, "give another address with --listen")
	}
	d.undo.addListener(d.public)
	return nil
}

// openMemory opens the memory of clients' connections.
func (d *Daemon) openMemory(context.Context) (err error) {
	d.memory, err = buffer.New(buffer.Config{Bytes: cmp.Or(d.cfg.ConnectionBytes, 64<<20), Lock: d.cfg.BufferLock, Huge: d.cfg.BufferHuge})
	if err != nil {
		return err
	}
	d.undo.add(d.memory.Close)
	prometheus.WrapRegistererWith(prometheus.Labels{"pool": "connections"}, d.metrics).MustRegister(d.memory)
	return nil
}

// bound limits the connections of a listener.
func (d *Daemon) bound(l net.Listener) net.Listener {
	return server.Bounded(l, d.cfg.MaxConnections, d.perClient(), d.shared)
}

// perClient is the maximum number of connections of one address.
func (d *Daemon) perClient() int {
	return cmp.Or(d.cfg.MaxPerClient, max(1, d.cfg.MaxConnections/2))
}

// shared reports whether many clients share an address: the address of a trusted proxy.
func (d *Daemon) shared(a netip.Addr) bool {
	return slices.ContainsFunc(d.proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}
