package adapter

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel"
)

// proxy passes events to the server and its answers back.
type proxy struct {
	server  *server
	address string

	mu   sync.Mutex
	idle []*connection // the most recently used last
}

var errNotReady = errors.New("not ready")

// failure makes the failure for the engine: the server's end, if this is the cause of err.
func (p *proxy) failure(err error) *channel.Failure {
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-p.server.gone.Done():
		select {
		case <-p.server.copied:
		case <-t.C:
		}
		return p.server.failure()
	case <-t.C:
	}
	if errors.Is(err, errNotReady) {
		return &channel.Failure{
			Type: "NotReady", Stack: p.server.words.String(),
			Message: "the server does not accept connections at " + p.address + ": let the server listen on $PORT, or set http.port to the server's port",
		}
	}
	return &channel.Failure{Type: "ServerError", Message: "the server's answer: " + err.Error()}
}

// take returns an idle connection that the server has not closed, or a new connection.
func (p *proxy) take(ctx context.Context) (*connection, error) {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			break
		}
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		if c.alive() {
			return c, nil
		}
		_ = c.Close()
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", p.address)
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c, r: bufio.NewReaderSize(c, 16<<10)}, nil
}

func (p *proxy) put(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, c)
}

// small is the size up to which a body is kept, to be sent again on another connection.
const small = 32 << 10

// send sends a request, once more if the server closes an idle connection during the first write.
func (p *proxy) send(ctx context.Context, e *channel.Event, head []byte, chunked bool) (*channel.Answer, error) {
	body := e.Body
	whole := e.Length >= 0 && e.Length <= small
	if whole {
		n := len(head)
		head, body = append(head, make([]byte, e.Length)...), nil
		if _, err := io.ReadFull(e.Body, head[n:]); err != nil {
			return nil, err
		}
	}
	for tried := false; ; tried = true {
		c, err := p.take(ctx)
		if err != nil {
			return nil, p.unserved(err, tried)
		}
		again := c.used && whole && idempotent(e.Method)
		c.used = true
		a, err := p.exchange(ctx, c, e, head, body, chunked)
		if err != nil && again && ctx.Err() == nil && gone(err) { // closed during our write
			continue
		}
		return a, err
	}
}

func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// unserved is the error of an event for which the server accepts no connection. If the server has
// ended before it saw the event, another instance may run the event.
func (p *proxy) unserved(err error, tried bool) error {
	if !tried && errors.Is(err, unix.ECONNREFUSED) && p.server.ended() {
		return channel.ErrUnserved
	}
	return err
}

// exchange sends one request on c, which it owns, and returns the answer. Closing the answer's body
// returns c to the pool or closes c.
func (p *proxy) exchange(ctx context.Context, c *connection, e *channel.Event, head []byte, body io.Reader, chunked bool) (_ *channel.Answer, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer func() {
		if err != nil {
			stop()
			_ = c.Close()
		}
	}()
	if err := c.send(head); err != nil {
		return nil, err
	}
	sent := c.startBody(ctx, body, chunked)
	resp, err := readResponse(c.r, e.Method) //nolint:bodyclose // by answerBody, or its connection is
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		err = errors.New("the server switched protocols without a request")
	}
	if err != nil {
		return nil, err
	}
	headers, err := answerHeaders(resp)
	if err != nil {
		return nil, err
	}
	return &channel.Answer{Status: resp.StatusCode, Headers: headers, Body: &answerBody{
		ReadCloser: resp.Body, proxy: p, c: c, sent: sent, stop: stop, last: resp.Close,
	}}, nil
}

// startBody sends the request's body, if not nil, while the caller reads the response.
func (c *connection) startBody(ctx context.Context, body io.Reader, chunked bool) (sent chan error) {
	sent = make(chan error, 1)
	if body == nil {
		sent <- nil
		return sent
	}
	go func() {
		err := sendBody(c, body, chunked)
		if err != nil && ctx.Err() == nil && !gone(err) {
			_ = c.Close() // the request cannot become whole
		}
		sent <- err
	}()
	return sent
}

// answerBody returns the connection to the pool after both bodies are whole.
type answerBody struct {
	io.ReadCloser
	proxy *proxy
	c     *connection
	sent  chan error  // the end of the request's body
	stop  func() bool // undoes the effect of a cancellation
	last  bool        // the server closes the connection
	whole bool
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch err {
	case nil:
	case io.EOF: //nolint:errorlint // a Reader's end is io.EOF itself
		b.whole = true
	default:
		err = b.proxy.failure(err)
	}
	return n, err
}

// Close ends the event, with the request's body.
func (b *answerBody) Close() error {
	reusable := b.stop() && b.whole && !b.last
	select {
	case err := <-b.sent:
		reusable = reusable && err == nil
	default:
		reusable = false
	}
	if reusable {
		b.proxy.put(b.c)
		return nil
	}
	return b.c.Close()
}
