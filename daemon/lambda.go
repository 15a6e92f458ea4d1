package daemon

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"

	"github.com/fre-engine/fre/adapters/lambda"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/awslambda"
	"github.com/fre-engine/fre/store"
)

// Lambda is the configuration file's lambda: AWS Lambda's API, on a separate listener. The
// API's requests are control actions like the control API's, but have other sizes of bodies and
// signatures over the path as sent. The gateway's server supports neither.
type Lambda struct {
	Listen   string `yaml:"listen"`
	Region   string `yaml:"region"`
	Unsigned string `yaml:"unsigned"`
}

var regionName = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]$`)

func (c *Lambda) check() error {
	if c == nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen: %q is no HOST:PORT", c.Listen)
	}
	if c.Region == "" {
		c.Region = awslambda.Region
	}
	if !regionName.MatchString(c.Region) {
		return fmt.Errorf("region: %q is not such as us-east-1", c.Region)
	}
	if c.Unsigned == "" {
		return nil
	}
	if !image.ValidName(c.Unsigned) {
		return fmt.Errorf("unsigned: %q is no tenant", c.Unsigned)
	}
	if !loopback(c.Listen) {
		return errors.New("unsigned: whoever reaches the address could deploy: listen on loopback, or leave it out and sign")
	}
	return nil
}

func loopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().IsLoopback()
}

// open makes the server and the listener. Beyond loopback the listener requires TLS.
func (c *Lambda) open(secure *tls.Config, bound func(net.Listener) net.Listener, eng *engine.Engine, invoker gateway.Invoker, st *store.Store, guard *gateway.Guard, events lambda.Events, log *slog.Logger) (net.Listener, *http.Server, error) {
	if secure == nil && !loopback(c.Listen) {
		return nil, nil, &hintError{fmt.Errorf("lambda.listen: %s: code would be sent in the clear", c.Listen), "give --tls-cert and --tls-key, or tls.acme; without TLS it can listen on an address such as 127.0.0.1:9001"}
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, nil, &hintError{err, "give another address as lambda.listen"}
	}
	l = bound(l)
	if secure != nil {
		l = tls.NewListener(l, onlyHTTP1(secure))
	}
	return l, newHTTPServer(lambda.New(lambda.Config{
		Engine: eng, Invoker: invoker, Guard: guard, Events: events, Rootfs: st.Rootfs, Scratch: st.MkdirScratch, Log: log, Region: c.Region, Unsigned: c.Unsigned,
	}), log), nil
}
