package daemon

import (
	"context"
	"fmt"
	"net"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/server"
)

// A part is a protocol that clients speak.
type part interface {
	// Open listens, and adds the server to the daemon's endpoints.
	Open(ctx context.Context, d *Daemon) error
	// Close undoes Open, even if Open returned an error.
	Close() error
}

// partEntry is a row of the list of parts.
type partEntry struct {
	name string // in errors; of an adapter also the build tag: go build -tags noNAME leaves it out
	on   bool
	open func() part // nil: left out of this build
}

// parts lists the protocols in the order of their start and of the end of their servers.
func (cfg *Config) parts() []partEntry {
	return []partEntry{
		{"openfaas", cfg.OpenFaaS != nil, newOpenFaaS},
		{"control API", true, newControl},
		{"gateway", true, newGateway},
		{"remote API", cfg.APIListen != "", newRemote},
		{"lambda", cfg.Lambda != nil, newLambda},
		{"docker", cfg.DockerSocket != "", newDocker},
		{"registry", cfg.Registry != nil, newRegistry},
	}
}

// leftOut refuses a configured part that this build does not have.
func leftOut(parts []partEntry) error {
	for _, entry := range parts {
		if entry.on && entry.open == nil {
			return failure.Hint(
				fmt.Errorf("%s: fre was built without the feature", entry.name),
				"remove the feature from flags and configuration, or build fre without -tags no"+entry.name)
		}
	}
	return nil
}

// endpoint is a listener with its server.
type endpoint struct {
	listener net.Listener
	server   httpServer
}

// answer has a server take the connections of a listener once the daemon serves.
func (d *Daemon) answer(l net.Listener, s httpServer) {
	d.endpoints = append(d.endpoints, endpoint{l, s})
}

// openParts opens the configured parts.
func (d *Daemon) openParts(ctx context.Context) error {
	for _, entry := range d.cfg.parts() {
		if !entry.on {
			continue
		}
		p := entry.open()
		d.undo.add(p.Close)
		if err := p.Open(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// controlPart serves the control API on its socket.
type controlPart struct{ cleanup }

func newControl() part { return &controlPart{} }

// Open implements part.
func (*controlPart) Open(_ context.Context, d *Daemon) error {
	d.answer(d.control, newHTTPServer(server.New(d.api()), d.log))
	return nil
}

// api configures the control API.
func (d *Daemon) api() server.Config {
	api := server.Config{
		Engine: d.engine, Events: d.queue, Log: d.log, Version: d.cfg.Version, Scratch: d.store.MkdirScratch, Connections: d.memory, Access: d.records, Invoker: d.counted(), Agents: d.engine.Agents(),
	}
	if d.node != nil {
		api.Nodes = d.node
	}
	return api
}

// counted returns the receiver of events that counts the clients' requests.
func (d *Daemon) counted() gateway.Invoker { return gateway.Counted(d.invoker, d.guard) }

// remotePart serves the control API for other hosts.
type remotePart struct{ cleanup }

func newRemote() part { return &remotePart{} }

// Open implements part.
func (p *remotePart) Open(ctx context.Context, d *Daemon) error {
	l, err := listenAPI(d.cfg.APIListen, d.secure, d.bound)
	if err != nil {
		return err
	}
	p.addListener(l)
	api := d.api()
	api.Remote = true
	d.answer(l, newHTTPServer(server.New(api), d.log))
	d.log.InfoContext(ctx, "control API ready", "address", l.Addr().String(), "tls", d.secure != nil)
	return nil
}

// gatewayPart serves the functions.
type gatewayPart struct{ cleanup }

func newGateway() part { return &gatewayPart{} }

// Open implements part.
func (*gatewayPart) Open(_ context.Context, d *Daemon) error {
	front := gateway.New(gateway.Config{
		OpenFaaS: d.openFaaS,
		Guard:    d.guard, Events: d.accepts, Engine: d.invoker, Log: d.log, MaxBodyBytes: d.cfg.MaxBody, Metrics: d.metrics, TrustedProxies: d.proxies, AccessLog: d.accessLog, Compress: d.cfg.Compress,
	})
	clients := httpserver.New(httpserver.Config{
		Handler: front, Refuse: front.Refuse, Log: d.log, TLS: d.secure, Memory: buffer.Memory{Pool: d.memory},
		MaxConnections: d.cfg.MaxConnections, MaxPerClient: d.perClient(), Shared: d.shared,
	})
	d.metrics.MustRegister(gateway.Connections(clients))
	d.answer(d.public, clients)
	return nil
}
