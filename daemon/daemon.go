// Package daemon is `fre serve`: it reads the configuration, opens the parts of FRE one after the
// other, runs them until a signal comes, and closes them in reverse.
//
// [Open] lists the steps. Each step registers its undo as soon as it succeeds. parts.go lists the
// protocols that clients speak; a build can leave the adapters of other products out.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	_ "time/tzdata" // schedules name time zones, which the host may lack

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/cluster"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/events/trigger"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// Daemon is the engine with the parts around the engine.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	metrics *prometheus.Registry
	undo    cleanup

	proxies []netip.Prefix // whose headers about clients are believed
	secure  *tls.Config    // nil: the gateway is in the clear

	store     *store.Store
	records   *access.Access
	settings  image.Settings
	policy    signature.Policy
	host      *sandbox.Host
	builder   *image.Builder
	accessLog *gateway.AccessLog // nil: none
	node      *cluster.Node      // nil: the engine is alone
	engine    *engine.Engine

	control, public net.Listener
	memory          *buffer.Pool // for clients' connections
	guard           *gateway.Guard
	invoker         gateway.Engine  // the engine, or the node
	queue           *events.Service // nil: no asynchronous events
	triggers        *trigger.Set    // nil without queue
	accepts         gateway.Events  // the triggers, or their refusal
	openFaaS        http.Handler    // nil: off
	endpoints       []endpoint      // in the order of their end
}

// Run runs the daemon until ctx ends. stopSignals restores the default effect of signals, so that a
// second Ctrl-C ends a drain.
func Run(ctx context.Context, stopSignals func(), cfg Config, log *slog.Logger) (err error) {
	d, err := Open(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer d.undo.run(&err)
	return d.serve(ctx, stopSignals)
}

// Open reads the configuration file and opens all parts. Clients can connect, but get no answer
// before the daemon serves. The first call executes the program again, in a new mount namespace,
// with the same arguments and process id. After an error nothing is left open.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (_ *Daemon, err error) {
	d := &Daemon{cfg: cfg, log: log}
	for _, step := range []func(context.Context) error{
		d.configure,
		d.isolate,
		d.warnRenamed,
		d.openState,
		d.openStore,
		d.openAccess,
		d.openSandboxes,
		d.openBuilder,
		d.openAccessLog,
		d.openCluster,
		d.openEngine,
		d.listen,
		d.openMemory,
		d.joinCluster,
		d.openEvents,
		d.openParts,
	} {
		if err = step(ctx); err != nil {
			d.undo.run(&err)
			return nil, err
		}
	}
	return d, nil
}

// Close closes all parts, in the reverse order of Open.
func (d *Daemon) Close() error { return d.undo.Close() }

// serve answers clients until ctx ends or a server fails, and drains.
func (d *Daemon) serve(ctx context.Context, stopSignals func()) error {
	url := "http://" + d.public.Addr().String()
	if d.secure != nil {
		url = "https://" + d.public.Addr().String()
	}
	d.log.InfoContext(ctx, "engine ready", "socket", d.cfg.Socket, "docker_socket", d.cfg.DockerSocket, "gateway", url, "state", d.cfg.State)

	group, ctx := errgroup.WithContext(ctx)
	for _, e := range d.endpoints {
		group.Go(func() error { return ignoreClosed(e.server.Serve(e.listener)) })
	}
	if d.triggers != nil {
		d.runTriggers(ctx, group)
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
		return d.drain(ctx)
	})
	return group.Wait()
}

// runTriggers makes events of the triggers until ctx ends.
func (d *Daemon) runTriggers(ctx context.Context, group *errgroup.Group) {
	for _, run := range []func(){
		func() { d.triggers.Cron(ctx, d.queue) },
		func() { d.triggers.NATS(ctx, d.queue, d.cfg.Events.Subjects.Allow) },
		func() { d.triggers.Files(ctx, filepath.Join(d.cfg.State, "events", "files"), d.engine.Work) },
	} {
		group.Go(func() error {
			run()
			return nil
		})
	}
}

// drain stops the daemon gracefully; ctx has ended.
func (d *Daemon) drain(ctx context.Context) error {
	d.log.InfoContext(ctx, "stopping", "drain", d.cfg.Drain)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.Drain)
	defer cancel()
	// Close the engine first: it refuses new events and ends followed logs, and events in
	// flight still have their connections. The queue stops with it: its running events end, and
	// the next engine takes the rest.
	var all []error
	queued := make(chan error, 1)
	go func() {
		if d.queue == nil {
			queued <- nil
			return
		}
		queued <- d.queue.Close(drain)
	}()
	if d.node != nil { // events of other nodes end here
		all = append(all, d.node.Close(drain))
	}
	all = append(all, d.engine.Close(drain), <-queued)
	for _, e := range d.endpoints {
		if e.server.Shutdown(drain) != nil {
			all = append(all, e.server.Close())
		}
	}
	return errors.Join(all...)
}
