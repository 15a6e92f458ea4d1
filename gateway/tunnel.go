package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

// switcher is a front whose connection can change its protocol: *exchange.
type switcher interface {
	front
	Switch(idle time.Duration) (*httpserver.Tunnel, error)
}

// tunnel is a connection about to change its protocol (RFC 9110 section 7.8). It is also the
// event's body, which has no bytes until the function agrees.
type tunnel struct {
	x        switcher
	protocol string // as asked for by the client
	idle     time.Duration
	quit     context.CancelCauseFunc // ends the event

	sent int64 // bytes passed to the client; valid after carry

	opened chan struct{} // closed once t is set
	over   chan struct{} // closed by Close

	mu     sync.Mutex
	t      *httpserver.Tunnel
	closed bool
	last   *time.Timer // ends the event some time after the end of the client's direction
}

// errTunnelIdle ends an idle tunnel.
var errTunnelIdle = errors.New("idle for too long")

// Read reads from the client once the protocol has changed.
func (b *tunnel) Read(p []byte) (int, error) {
	select {
	case <-b.opened:
	case <-b.over:
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.t.Read(p)
	if err == nil {
		return n, nil
	}
	if !errors.Is(err, io.EOF) {
		return n, &BodyError{err}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed && b.last == nil { // from now on no read detects an idle tunnel
		b.last = time.AfterFunc(b.idle, func() { b.quit(errTunnelIdle) })
	}
	return n, err
}

// Close ends reading.
func (b *tunnel) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	close(b.over)
	if b.last != nil {
		b.last.Stop()
	}
	if b.t == nil {
		return nil
	}
	return b.t.Close()
}

// open changes the protocol and starts the tunnel.
func (b *tunnel) open() error {
	t, err := b.x.Switch(b.idle)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.t = t
	close(b.opened)
	if b.closed {
		return t.Close()
	}
	return nil
}

// upgrade adds the function's fields about the new protocol, which newReply leaves out.
func (a *reply) upgrade(resp *engine.Response) {
	for _, h := range resp.Header {
		if http.CanonicalHeaderKey(h[0]) == "Upgrade" && httpserver.ValidField(h[0], h[1]) {
			a.header = append(a.header, [2]string{"Upgrade", h[1]})
		}
	}
}

// carry changes the protocol as the function agreed, and passes the function's bytes to the
// client until they end.
func (b *tunnel) carry(a *reply, r *request, resp *engine.Response) error {
	held, err := b.x.Buffer(streamSize)
	if err != nil {
		return err
	}
	defer held.Release()
	buf := held.Bytes()
	a.upgrade(resp)
	a.setFields(b.x, r, resp)
	if err := b.open(); err != nil {
		return &brokenError{err}
	}
	for {
		n, rerr := resp.Body.Read(buf)
		if n > 0 {
			if _, err := b.t.Write(buf[:n]); err != nil {
				return &brokenError{err}
			}
			b.sent += int64(n)
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return nil
		case rerr != nil:
			return &brokenError{rerr}
		}
	}
}
