package main

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
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"
	_ "time/tzdata" // schedules name time zones, which the host may lack

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

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

// serveConfig is the daemon's configuration: flags, and the file of --config for settings that only
// an operator changes.
type serveConfig struct {
	State, Socket, Listen, Group string
	DockerSocket                 string
	ConfigFile, LogLevel         string
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
	Registry                     *registryConfig // nil: no registry is served
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
	Access                       accessSettings
	ACME                         *acmeConfig // nil: no ACME
	Events                       events.Config
	EventsOff                    bool
	Lambda                       *lambdaConfig    // nil: AWS Lambda's API is not served
	OpenFaaS                     *openfaas.Config // nil: OpenFaaS's clients are not answered
	Cluster                      clusterConfig
}

// defaultState is the state directory without --state.
const defaultState = "/var/lib/fre"

// serveCommand is the daemon. This file alone wires FRE's parts together.
func serveCommand() *cobra.Command {
	var cfg serveConfig
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the engine: control socket and HTTP gateway",
		Long: `Run the engine in the foreground until SIGTERM or SIGINT.

Functions answer at http://LISTEN/function/NAME, with --tls-cert and --tls-key at
https://LISTEN/function/NAME, over HTTP/1.1 and HTTP/2. The control socket serves the
other fre commands, for root and the group named by --group. Sandboxes never
outlive the engine: whatever a crash leaves is cleaned up at the next start.

--config names a YAML file: "packages" takes precedence over the host's own
configuration of pip, npm, Maven, Composer, RubyGems, Go and apt, "require" lists checks of fre doctor without
which the engine does not start, "shells" says how many interpreters are kept
running ahead of their functions, "work" how much tenants may keep, "network"
what functions may reach beside the public internet, "registry" whether images are
served to others, "gc" which of them go by themselves, "buffers" and "overload" how much memory answers
may wait in, how many events run and wait at once, and what happens to others, "events"
where those that run later are kept, "cluster" which other nodes it works with, "access" and "tls" who may call and where
certificates come from, "revisions" how many of a function are kept, "lambda" where AWS Lambda's API is
served, "openfaas" whether OpenFaaS's clients are answered (see docs/configuration.md).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			return serve(ctx, stop, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.State, "state", defaultState, "state `directory`: local registry, tenants' files, logs")
	f.StringVar(&cfg.Socket, "socket", defaultSocket(), "control socket `path`")
	f.StringVar(&cfg.DockerSocket, "docker-socket", "", "`path` of the socket for Docker's clients, none for none (default docker.sock beside the control socket)")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:8080", "HTTP gateway `address`")
	f.StringVar(&cfg.Group, "group", "fre", "group that may use the control socket, if it exists")
	f.StringVar(&cfg.ConfigFile, "config", "", "configuration `file`")
	f.StringVar(&cfg.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.DurationVar(&cfg.Drain, "drain", 30*time.Second, "how long a graceful stop waits for events in flight")
	f.IntVar(&cfg.Pool, "pool", 64, "cgroups, network namespaces and bare shells kept ready without any demand, if memory and process ids allow")
	f.IntVar(&cfg.Forks, "forks", 25, "`percent` of the host's memory that fork servers may have together; 0 for none")
	f.IntVar(&cfg.Parked, "shells", 1024, "sandboxes parked ahead at most, after demand for them and if memory and process ids allow; 0: every start is made from nothing")
	f.Int64Var(&cfg.MaxBody, "max-body", gateway.DefaultMaxBody, "largest request body in `bytes`")
	f.IntVar(&cfg.MaxConnections, "max-connections", 10_000, "connections of clients at most, of the gateway and of each API that listens on an address")
	f.IntVar(&cfg.MaxPerClient, "max-connections-per-client", 0, "of one address, or of IPv6 one /64; trusted proxies have no such bound (default half of --max-connections)")
	f.StringSliceVar(&cfg.TrustedProxies, "trusted-proxies", nil, "`ranges` of addresses whose X-Forwarded-* and Forwarded headers functions are told")
	f.BoolVar(&cfg.Compress, "compress", true, "compress answers where clients ask for it and it is worth it")
	f.StringVar(&cfg.AccessLog, "access-log", "", "`file` for a line of JSON about each request, - for standard output")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "`file` with the gateway's certificate and those that lead to its authority, PEM; read anew when it changes")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "`file` with the certificate's key, PEM")
	f.StringVar(&cfg.APIListen, "api-listen", "", "`address` of the control API for other hosts, by tokens (fre token); beyond loopback with TLS only")
	return cmd
}

// serve runs the daemon until ctx ends. stopSignals restores the default effect of signals, so that
// a second Ctrl-C ends a drain.
func serve(ctx context.Context, stopSignals func(), cfg serveConfig) (err error) {
	if os.Geteuid() != 0 {
		return &hintError{errors.New("the engine must run as root: it makes namespaces, cgroups and mounts"), "run: sudo fre serve"}
	}
	log, err := newLog(cfg.LogLevel)
	if err != nil {
		return err
	}
	if cfg.ConfigFile != "" {
		if err := readConfig(cfg.ConfigFile, &cfg); err != nil {
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
	faas, err := openOpenFaaS(cfg.OpenFaaS, public.Addr(), secure != nil, eng, queue, records, st.MkdirScratch, log)
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
		Engine: eng, Events: queue, Log: log, Version: version(), Scratch: st.MkdirScratch, Connections: memory, Access: records, Invoker: gateway.Counted(invoker, guard), Agents: eng,
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
		servers = append(servers, newHTTPServer(docker.New(docker.Config{Engine: eng, Log: log, Version: version(), Access: records}), log))
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
			c.collect(collecting, r, log)
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

// doctorLocal checks the host when no engine answers, with measured costs if costs is set. state is
// the state directory of a future engine; until it exists, its nearest existing parent is checked.
func doctorLocal(state string, costs bool) ([]api.Check, error) {
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
