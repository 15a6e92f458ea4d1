package oci

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// guard checks every request of ggcr (go-containerregistry) before the network. ggcr falls back to
// plain HTTP for every private address: guard refuses requests without TLS, except to loopback
// addresses and the hosts in insecure. A remote registry cannot redirect the engine to a service on
// this host. guard bounds manifests, because ggcr reads and decodes them whole, and gives up a
// silent peer.
type guard struct {
	insecure []string
	local    bool              // the registry itself is on this host
	patience time.Duration     // longest wait for an answer's next byte
	carrier  http.RoundTripper // nil: remote.DefaultTransport
}

// maxManifest is the size that the OCI distribution-spec has every registry accept.
const maxManifest = 4 << 20

// patience is longer than registries take to find a blob in cold storage.
const patience = 2 * time.Minute

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if near := loopback(r.URL); near && !g.local {
		return nil, fmt.Errorf("a remote registry refers to %s, an address of the engine's host", r.URL.Host)
	} else if r.URL.Scheme != "https" && !near && !slices.Contains(g.insecure, r.URL.Host) {
		return nil, fmt.Errorf("%s does not use TLS: to allow plain HTTP, list the registry under registry.insecure in the engine's configuration", r.URL.Host)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	a := &answer{ctx: ctx, cancel: cancel, left: math.MaxInt64, patience: g.patience}
	a.timer = time.AfterFunc(g.patience, func() {
		cancel(fmt.Errorf("%s has been silent for %v: %w", r.URL.Host, g.patience, os.ErrDeadlineExceeded))
	})
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		a.timer.Stop() // an upload takes as long as it needs
	}
	carrier := g.carrier
	if carrier == nil {
		carrier = remote.DefaultTransport
	}
	resp, err := carrier.RoundTrip(r.WithContext(ctx))
	a.timer.Stop()
	if err != nil {
		err = reason(ctx, err)
		cancel(nil)
		return nil, err
	}
	asked := r
	for asked.Response != nil { // redirected: the first request names the object
		asked = asked.Response.Request
	}
	if strings.Contains(asked.URL.Path, "/manifests/") {
		a.left = maxManifest
	}
	a.ReadCloser, resp.Body = resp.Body, a
	return resp, nil
}

// answer is the body of an answer.
type answer struct {
	io.ReadCloser
	ctx      context.Context //nolint:containedctx // the request's
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	patience time.Duration
	left     int64
}

func (a *answer) Read(p []byte) (int, error) {
	a.timer.Reset(a.patience) // the timer runs only during a Read
	n, err := a.ReadCloser.Read(p)
	a.timer.Stop()
	if a.left -= int64(n); a.left < 0 {
		return 0, fmt.Errorf("%w of %d bytes of a manifest", ErrLimit, maxManifest)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // a Reader's end is io.EOF itself
		err = reason(a.ctx, err)
	}
	return n, err
}

func (a *answer) Close() error {
	a.timer.Stop()
	defer a.cancel(nil)
	return a.ReadCloser.Close()
}

func loopback(u *url.URL) bool {
	host := u.Hostname()
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}
