//go:build !noopenfaas

package daemon

import (
	"context"
	"fmt"
	"net"

	"github.com/fre-engine/fre/adapters/openfaas"
	"github.com/fre-engine/fre/failure"
)

// openfaasPart answers OpenFaaS's clients at the gateway.
type openfaasPart struct{ cleanup }

func newOpenFaaS() part { return &openfaasPart{} }

// Open makes the gateway's handler. Beyond loopback it requires TLS.
func (*openfaasPart) Open(_ context.Context, d *Daemon) error {
	at := d.public.Addr()
	if tcp, ok := at.(*net.TCPAddr); d.secure == nil && (!ok || !tcp.IP.IsLoopback()) {
		return failure.Hint(
			fmt.Errorf("openfaas: tokens would be sent in the clear to %s", at),
			"give --tls-cert and --tls-key, or tls.acme in the configuration; without TLS use a loopback address for the gateway, for example 127.0.0.1:8080")
	}
	builders := make([]openfaas.Builder, len(d.cfg.OpenFaaS.Builders))
	for i, b := range d.cfg.OpenFaaS.Builders {
		builders[i] = openfaas.Builder(b)
	}
	d.openFaaS = openfaas.New(openfaas.Config{
		Engine: d.engine, Events: d.queue, Access: d.records, Scratch: d.store.MkdirScratch, Log: d.log, Version: d.cfg.Version,
		Builders: builders, MaxContextBytes: d.cfg.OpenFaaS.MaxContextBytes,
	})
	return nil
}
