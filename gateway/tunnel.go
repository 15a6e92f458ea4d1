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

// DefaultTunnelIdle is how long a tunnel may carry nothing.
const DefaultTunnelIdle = 5 * time.Minute

// tunnel is a connection that is to change its protocol (RFC 9110 section 7.8): as an
// event's body it has nothing until the function has agreed.
type tunnel struct {
	e        *exchange
	protocol string // what the client asks for
	idle     time.Duration
	quit     context.CancelCauseFunc // ends the event

	opened chan struct{} // closed once t is there
	over   chan struct{} // closed by Close

	mu     sync.Mutex
	t      *httpserver.Tunnel
	closed bool
	last   *time.Timer // ends the event some time after the client's direction has ended
}

// errTunnelIdle is why a tunnel ends that carries nothing.
var errTunnelIdle = errors.New("nothing has passed for too long")

// asksForTunnel makes one where the request asks for another protocol, and nil where it
// does not, or what it asks for cannot be.
func (e *exchange) asksForTunnel(quit context.CancelCauseFunc) *tunnel {
	protocol := string(e.Get("upgrade"))
	if !e.Upgrade || protocol == "" || e.Body != nil || e.Protocol() != "HTTP/1.1" {
		return nil
	}
	return &tunnel{e: e, protocol: protocol, idle: e.g.TunnelIdle, quit: quit, opened: make(chan struct{}), over: make(chan struct{})}
}

// Read reads what the client sends once the protocol has changed.
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
	if !b.closed && b.last == nil { // nobody watches over the other direction from here on
		b.last = time.AfterFunc(b.idle, func() { b.quit(errTunnelIdle) })
	}
	return n, err
}

// Close ends the reading.
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

// open begins the tunnel.
func (b *tunnel) open() error {
	t, err := b.e.Switch(b.idle)
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

// carry changes the protocol as the function has agreed to, and passes on what it says
// until it has nothing more to say.
func (b *tunnel) carry(a *reply, r *request, resp *engine.Response) error {
	lent, err := b.e.Buffer(streamSize)
	if err != nil {
		return err
	}
	defer lent.Release()
	buf := lent.Bytes()
	for _, h := range resp.Header {
		if http.CanonicalHeaderKey(h[0]) == "Upgrade" && httpserver.ValidField(h[0], h[1]) {
			a.header = append(a.header, [2]string{"Upgrade", h[1]})
		}
	}
	a.setFields(b.e, r, resp)
	b.e.status = resp.Status
	if err := b.open(); err != nil {
		return &brokenError{err}
	}
	for {
		n, rerr := resp.Body.Read(buf)
		if n > 0 {
			if _, err := b.t.Write(buf[:n]); err != nil {
				return &brokenError{err}
			}
			b.e.bytes += int64(n)
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return nil
		case rerr != nil:
			return &brokenError{rerr}
		}
	}
}
