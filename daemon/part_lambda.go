//go:build !nolambda

package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/fre-engine/fre/adapters/lambda"
	"github.com/fre-engine/fre/failure"
)

// lambdaPart serves AWS Lambda's API.
type lambdaPart struct{ cleanup }

func newLambda() part { return &lambdaPart{} }

// Open listens. Beyond loopback it requires TLS.
func (p *lambdaPart) Open(ctx context.Context, d *Daemon) error {
	c := d.cfg.Lambda
	if d.secure == nil && !loopback(c.Listen) {
		return failure.Hint(fmt.Errorf("lambda.listen: %s: code would be sent in the clear", c.Listen), "give --tls-cert and --tls-key, or tls.acme; without TLS use a loopback address, for example 127.0.0.1:9001")
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return failure.Hint(err, "give another address as lambda.listen")
	}
	l = d.bound(l)
	if d.secure != nil {
		l = tls.NewListener(l, onlyHTTP1(d.secure))
	}
	p.addListener(l)
	d.answer(l, newHTTPServer(lambda.New(lambda.Config{
		Engine: d.engine, Invoker: d.counted(), Guard: d.guard, Events: d.accepts, Rootfs: d.store.Rootfs, Scratch: d.store.MkdirScratch, Log: d.log, Region: c.Region, Unsigned: c.Unsigned,
	}), d.log))
	d.log.InfoContext(ctx, "Lambda API ready", "address", l.Addr().String(), "tls", d.secure != nil)
	return nil
}
