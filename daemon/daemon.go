// Package daemon is `fre serve`: it reads the configuration, opens the parts of FRE one after the
// other, runs them until a signal comes, and closes them in reverse.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"
	_ "time/tzdata" // schedules name time zones, which the host may lack

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/adapters/docker"
	"github.com/fre-engine/fre/adapters/openfaas"
	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/events/trigger"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/store"
)

// Config is the daemon's configuration: flags, and the file of --config for settings that only
// an operator changes.
type Config struct {
	State, Socket, Listen, Group string
	DockerSocket                 string
	ConfigFile                   string
	Version                      api.Version // of the program
	Drain                        time.Duration
	Pool, Parked, Forks          int
	MaxBody                      int64
	TrustedProxies               []string // addresses and ranges
	Compress                     bool
	AccessLog                    string // file, "-" for stdout, "" for none
	TLSCert, TLSKey              string // files, "" for a gateway in the clear
	Packages                     image.SettingsOverride
	Debian                       []debian.Source // nil: the host's
	Require                      []string        // ids of checks that must be OK
	Shells                       engine.ShellConfig
	Work                         engine.WorkConfig
	AllowHostNetwork             bool
	LendConnections              []string
	InsecureRegistries           []string // hosts, with their port
	Signatures                   []signature.RuleConfig
	Registry                     *Registry // nil: no registry is served
	ImageLimits                  oci.Limits
	Egress                       egress.Config
	GC                           engine.GCConfig
	BufferBytes, ConnectionBytes int64
	BufferLock, BufferHuge       bool
	MaxConnections, MaxPerClient int
	Admission                    admission.Config
	Concurrency, Revisions       int
	Queue                        admission.QueueConfig
	APIListen                    string // "": no remote control API
	Access                       Access
	ACME                         *ACME // nil: no ACME
	Events                       events.Config
	EventsOff                    bool
	Lambda                       *Lambda          // nil: AWS Lambda's API is not served
	OpenFaaS                     *openfaas.Config // nil: OpenFaaS's clients are not answered
	Cluster                      Cluster
}

// Run runs the daemon until ctx ends. stopSignals restores the default effect of signals, so that a
// second Ctrl-C ends a drain.
func Run(ctx context.Context, stopSignals func(), cfg Config, log *slog.Logger) (err error) {
	if cfg.ConfigFile != "" {
		if err := cfg.ReadFile(cfg.ConfigFile); err != nil {
			return err
		}
	}
	if cfg.State, err = filepath.Abs(cfg.State); err != nil {
		return err
	}
	if cfg.AccessLog != "" && cfg.AccessLog != "-" {
		if cfg.AccessLog, err = filepath.Abs(cfg.AccessLog); err != nil {
			return err
		}
	}
	for _, file := range []*string{&cfg.TLSCert, &cfg.TLSKey} {
		if *file == "" {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return err
		}
	}
	if cfg.Socket, err = filepath.Abs(cfg.Socket); err != nil {
		return err
	}
	switch cfg.DockerSocket {
	case "none":
		cfg.DockerSocket = ""
	case "":
		cfg.DockerSocket = filepath.Join(filepath.Dir(cfg.Socket), "docker.sock")
	default:
		if cfg.DockerSocket, err = filepath.Abs(cfg.DockerSocket); err != nil {
			return err
		}
	}
	if cfg.MaxConnections < 1 || cfg.MaxPerClient < 0 {
		return &hintError{errors.New("--max-connections and --max-connections-per-client: less than one connection"), "leave them out for 10,000, half of them from one address"}
	}
	proxies, err := readProxies(cfg.TrustedProxies)
	if err != nil {
		return err
	}
	secure, err := gatewayTLS(cfg.TLSCert, cfg.TLSKey, log)
	if err != nil {
		return err
	}
	if cfg.ACME != nil {
		if secure != nil {
			return &hintError{errors.New("--tls-cert and tls.acme exclude each other"), "leave one out"}
		}
		secure = cfg.ACME.tls(cfg.State)
	}
	// Isolate executes the program again: same arguments, same pid, in a new mount namespace.
	if err := sandbox.Isolate(); err != nil {
		return err
	}
	tuneGC()
	debug.SetMemoryLimit(256 << 20)
	var undo cleanup
	defer undo.run(&err)

	if err := os.MkdirAll(cfg.State, 0o711); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if len(cfg.Require) > 0 {
		if err := engine.Require(engine.Checks(cfg.State), cfg.Require); err != nil {
			return &hintError{fmt.Errorf("%s: %w", cfg.ConfigFile, err), "fre doctor --format '{{.ID}}: {{.Found}}' lists all checks"}
		}
	}
	st, err := store.Open(filepath.Join(cfg.State, "store"), log)
	if err != nil {
		if errors.Is(err, store.ErrLocked) {
			return &hintError{fmt.Errorf("an engine is already running on %s: %w", cfg.State, err), "stop it, or give this one another --state"}
		}
		return err
	}
	undo.add(st.Close)
	cfg.Access.records.HTTP = cfg.issuers()
	records, err := cfg.Access.open(cfg.State, log)
	if err != nil {
		return err
	}
	undo.add(records.Close)
	settings, err := image.HostSettings(image.ThisHost(), cfg.Packages)
	if err != nil {
		return err
	}
	shells := cfg.Parked
	if shells == 0 {
		shells = -1 // sandbox.Config's value for no parked sandboxes
	}
	policy, err := signature.Read(cfg.Signatures)
	if err != nil {
		return fmt.Errorf("registry.signatures%w", err)
	}
	host, err := sandbox.Open(sandbox.Config{Dir: filepath.Join(cfg.State, "run"), Log: log, PoolSize: cfg.Pool, Shells: shells, Egress: cfg.Egress})
	if err != nil {
		return &hintError{err, "fre doctor says what this host lacks"}
	}
	undo.add(host.Close)

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newPauses())
	release, err := debian.HostRelease(cfg.Debian)
	if err != nil {
		log.WarnContext(ctx, "templates have to name the release of their base", "error", err)
	}
	builder := &image.Builder{
		Store: st, Release: release, Bases: runtimes.Bases(), Runtimes: runtimes.All(), Sites: runtimes.Sites(), Git: runtimes.Repository(), Settings: settings, Log: log,
		Archive: func(release string) (image.Archive, error) {
			return debian.Open(debian.Config{Release: release, Sources: cfg.Debian, Cache: filepath.Join(cfg.State, "cache", "debian"), Log: log})
		},
	}
	accessLog, closeLog, err := openAccessLog(cfg.AccessLog, log, metrics)
	if err != nil {
		return err
	}
	undo.add(closeLog)
	var called func(*engine.CallRecord)
	if accessLog != nil {
		called = func(c *engine.CallRecord) { gateway.LogCall(accessLog, c) }
	}
	node, table, err := cfg.Cluster.open(&cfg, records, log, metrics)
	if err != nil {
		return err
	}
	if node != nil {
		undo.add(func() error { return node.Close(context.WithoutCancel(ctx)) })
	}
	eng, err := engine.Open(engine.Config{
		Store: st, Sandboxes: host, Builder: builder, StateDir: cfg.State, Log: log, Metrics: metrics, Shells: cfg.Shells,
		ForkPercent: cmp.Or(cfg.Forks, -1), Work: cfg.Work, GC: cfg.GC, BufferBytes: cfg.BufferBytes, BufferLock: cfg.BufferLock, BufferHuge: cfg.BufferHuge, Admission: cfg.Admission,
		Revisions: cfg.Revisions, Concurrency: cfg.Concurrency, Queue: cfg.Queue, AllowHostNetwork: cfg.AllowHostNetwork, LendConnections: cfg.LendConnections,
		InsecureRegistries: cfg.InsecureRegistries, Outward: cfg.outward(), Signatures: policy, ImageLimits: cfg.ImageLimits,
		Quotas: quotasOf(records), Secrets: records.Secret, Triggers: cfg.checkTriggers, Calls: records.Event, Called: called, Table: table,
	})
	if err != nil {
		return err
	}
	undo.add(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
		defer cancel()
		return eng.Close(ctx)
	})

	control, err := server.Listen(cfg.Socket, cfg.Group)
	if err != nil {
		return err
	}
	undo.add(func() error { return ignoreMissing(os.Remove(cfg.Socket)) })
	undo.addListener(control)
	public, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return &hintError{err, "give another address with --listen"}
	}
	undo.addListener(public)
	memory, err := buffer.New(buffer.Config{Bytes: cmp.Or(cfg.ConnectionBytes, 64<<20), Lock: cfg.BufferLock, Huge: cfg.BufferHuge})
	if err != nil {
		return err
	}
	undo.add(memory.Close)
	prometheus.WrapRegistererWith(prometheus.Labels{"pool": "connections"}, metrics).MustRegister(memory)
	guard := &cfg.Access.guard
	guard.Front = eng.Front
	var invoker gateway.Engine = eng
	if node != nil {
		if err := joinCluster(ctx, node, eng); err != nil {
			return err
		}
		invoker, guard.Front = node, node.Front
		cfg.Events.Engine, cfg.Events.Elsewhere = node.Local(), node.Elsewhere
	}
	queue, triggers, down := openEvents(ctx, &cfg, records, eng, log, metrics)
	var takesEvents gateway.Events = trigger.Down{Err: down}
	if queue != nil {
		takesEvents = triggers
		undo.add(func() error { return queue.Close(context.WithoutCancel(ctx)) })
	}
	faas, err := openOpenFaaS(cfg.OpenFaaS, public.Addr(), secure != nil, eng, queue, records, st.MkdirScratch, log, cfg.Version)
	if err != nil {
		return err
	}
	front := gateway.New(gateway.Config{
		OpenFaaS: faas,
		Guard:    guard, Events: takesEvents, Engine: invoker, Log: log, MaxBodyBytes: cfg.MaxBody, Metrics: metrics, TrustedProxies: proxies, AccessLog: accessLog, Compress: cfg.Compress,
	})
	shared := func(a netip.Addr) bool {
		return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	perClient := cmp.Or(cfg.MaxPerClient, max(1, cfg.MaxConnections/2))
	clients := httpserver.New(httpserver.Config{
		Handler: front, Refuse: front.Refuse, Log: log, TLS: secure, Memory: buffer.Lender{Pool: memory},
		MaxConnections: cfg.MaxConnections, MaxPerClient: perClient, Shared: shared,
	})
	bound := func(l net.Listener) net.Listener {
		return server.Bounded(l, cfg.MaxConnections, perClient, shared)
	}
	metrics.MustRegister(gateway.Connections(clients))
	api := server.Config{
		Engine: eng, Events: queue, Log: log, Version: cfg.Version, Scratch: st.MkdirScratch, Connections: memory, Access: records, Invoker: gateway.Counted(invoker, guard), Agents: eng,
	}
	if node != nil {
		api.Nodes = node
	}
	listeners := []net.Listener{control, public}
	servers := []httpServer{
		newHTTPServer(server.New(api), log),
		clients,
	}
	if cfg.APIListen != "" {
		l, err := listenAPI(cfg.APIListen, secure, bound)
		if err != nil {
			return err
		}
		undo.addListener(l)
		api.Remote = true
		listeners = append(listeners, l)
		servers = append(servers, newHTTPServer(server.New(api), log))
		log.InfoContext(ctx, "control API ready", "address", l.Addr().String(), "tls", secure != nil)
	}
	if cfg.Lambda != nil {
		l, s, err := cfg.Lambda.open(secure, bound, eng, api.Invoker, st, guard, takesEvents, log)
		if err != nil {
			return err
		}
		undo.addListener(l)
		listeners, servers = append(listeners, l), append(servers, s)
		log.InfoContext(ctx, "Lambda API ready", "address", l.Addr().String(), "tls", secure != nil)
	}
	if cfg.DockerSocket != "" {
		l, err := server.Listen(cfg.DockerSocket, cfg.Group)
		if err != nil {
			return &hintError{err, "give another path with --docker-socket, or none"}
		}
		undo.add(func() error { return ignoreMissing(os.Remove(cfg.DockerSocket)) })
		undo.addListener(l)
		listeners = append(listeners, l)
		servers = append(servers, newHTTPServer(docker.New(docker.Config{Engine: eng, Log: log, Version: cfg.Version, Access: records}), log))
	}
	if c := cfg.Registry; c != nil {
		c.Dir = cmp.Or(c.Dir, filepath.Join(cfg.State, "registry"))
		r, l, err := c.open(ctx, log, metrics)
		if err != nil {
			return fmt.Errorf("%s: registry.serve: %w", cfg.ConfigFile, err)
		}
		undo.add(r.Close)
		undo.addListener(l)
		collecting, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.collectEach(collecting, r, log)
		}()
		undo.add(func() error {
			stop()
			<-done
			return nil
		})
		listeners = append(listeners, l)
		servers = append(servers, newHTTPServer(r, log))
		log.InfoContext(ctx, "registry ready", "address", l.Addr().String(), "directory", c.Dir)
	}
	url := "http://" + public.Addr().String()
	if secure != nil {
		url = "https://" + public.Addr().String()
	}
	log.InfoContext(ctx, "engine ready", "socket", cfg.Socket, "docker_socket", cfg.DockerSocket, "gateway", url, "state", cfg.State)

	group, ctx := errgroup.WithContext(ctx)
	for i, l := range listeners {
		group.Go(func() error { return ignoreClosed(servers[i].Serve(l)) })
	}
	if triggers != nil {
		group.Go(func() error {
			triggers.Cron(ctx, queue)
			return nil
		})
		group.Go(func() error {
			triggers.NATS(ctx, queue, cfg.Events.Subjects.Allow)
			return nil
		})
		group.Go(func() error {
			triggers.Files(ctx, filepath.Join(cfg.State, "events", "files"), eng.Work)
			return nil
		})
	}
	group.Go(func() error {
		// Loading ten thousand images leaves garbage of two thirds of the heap, and no collection
		// is due before the heap has grown by four times.
		debug.FreeOSMemory()
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		stopSignals()
		log.Info("stopping", "drain", cfg.Drain)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
		defer cancel()
		// Close the engine first: it refuses new events and ends followed logs, and events in
		// flight still have their connections. The queue stops with it: its running events end, and
		// the next engine takes the rest.
		var all []error
		queued := make(chan error, 1)
		go func() {
			if queue == nil {
				queued <- nil
				return
			}
			queued <- queue.Close(drain)
		}()
		if node != nil { // events of other nodes end here
			all = append(all, node.Close(drain))
		}
		all = append(all, eng.Close(drain), <-queued)
		for _, s := range servers {
			if s.Shutdown(drain) != nil {
				all = append(all, s.Close())
			}
		}
		return errors.Join(all...)
	})
	return group.Wait()
}

// httpServer is the common part of *http.Server and *httpserver.Server.
type httpServer interface {
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// openAccessLog opens the file of --access-log; the log is nil without one. done closes log and
// file.
func openAccessLog(path string, log *slog.Logger, metrics prometheus.Registerer) (l *gateway.AccessLog, done func() error, err error) {
	file := os.Stdout
	switch path {
	case "":
		return nil, func() error { return nil }, nil
	case "-":
	default:
		// Append, for tools that rotate by copy and truncate.
		if file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
			return nil, nil, &hintError{fmt.Errorf("--access-log: %w", err), "give a file that root may write, or - for standard output"}
		}
	}
	l = gateway.NewAccessLog(file, log, metrics)
	return l, func() error {
		err := l.Close()
		if file != os.Stdout {
			err = errors.Join(err, file.Close())
		}
		return err
	}, nil
}

// newHTTPServer bounds the resources that a silent client can hold.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ConnContext: server.ConnContext, MaxHeaderBytes: gateway.MaxHeaderBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Doctor checks the host when no engine answers, with measured costs if costs is set. state is the
// state directory of a future engine; until it exists, its nearest existing parent is checked.
func Doctor(state string, costs bool) ([]api.Check, error) {
	for {
		_, err := os.Stat(state)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		state = filepath.Dir(state)
	}
	checks := engine.Checks(state)
	var err error
	if costs {
		err = engine.Measure(checks, state)
	}
	return server.Checks(checks), err
}

// hintError is an error with the next step.
type hintError struct {
	error
	next string
}

func (e *hintError) Unwrap() error { return e.error }

// Next returns the next step, which the program prints below the message.
func (e *hintError) Next() string { return e.next }

// cleanup runs the added functions in reverse.
type cleanup []func() error

func (c *cleanup) add(f func() error) { *c = append(*c, f) }

// addListener closes a listener that no server has closed.
func (c *cleanup) addListener(l net.Listener) {
	c.add(func() error { return ignoreClosed(l.Close()) })
}

func (c *cleanup) run(err *error) {
	for i := len(*c) - 1; i >= 0; i-- {
		*err = errors.Join(*err, (*c)[i]())
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
