package adapter

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
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

// connection is a connection to the server.
type connection struct {
	net.Conn
	r    *bufio.Reader
	used bool // has carried a request
}

var errNotReady = errors.New("not ready")

// waitReady returns after the server accepts connections and, if the template names a path, answers
// it with a status below 500.
func (p *proxy) waitReady(ctx context.Context, cfg *config) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		ok, err := p.probe(ctx, cfg)
		if ok || err != nil {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-p.server.exited:
		case <-ctx.Done():
		}
		t.Stop()
		select {
		case <-p.server.exited:
			return errNotReady
		default:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// accepted waits until the server has accepted all connections: the kernel completes connections
// before the server calls accept, so accepted looks at the queue. It returns false if the server or
// ctx ends.
func (p *proxy) accepted(ctx context.Context) (bool, error) {
	for {
		info, err := unix.GetsockoptTCPInfo(p.server.listener, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return false, err
		}
		if info.Unacked == 0 {
			return true, nil
		}
		t := time.NewTimer(time.Millisecond)
		select {
		case <-t.C:
			continue
		case <-p.server.exited:
		case <-ctx.Done():
		}
		t.Stop()
		return false, nil
	}
}

func (p *proxy) probe(ctx context.Context, cfg *config) (bool, error) {
	c, err := p.take(ctx)
	if err != nil {
		return false, nil // it does not listen yet
	}
	if cfg.bind {
		if accepted, err := p.accepted(ctx); err != nil {
			return false, err
		} else if !accepted {
			_ = c.Close()
			return false, nil
		}
	}
	if cfg.ready == "" {
		p.put(c)
		return true, nil
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", cfg.ready); err == nil {
		if resp, err := http.ReadResponse(c.r, nil); err == nil { //nolint:bodyclose // its connection is closed
			_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
			if err == nil && resp.StatusCode < 500 {
				_ = c.Close()
				return true, nil
			}
		}
	}
	_ = c.Close()
	return false, nil
}

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

// alive reports whether the idle connection is silent: neither closed nor with unexpected bytes.
func (c *connection) alive() bool {
	if c.r.Buffered() > 0 {
		return false
	}
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// acknowledge has the kernel acknowledge the next segment at once (tcp(7), TCP_QUICKACK). A server
// that writes its answer in two pieces without TCP_NODELAY sends the second piece only after the
// acknowledgement of the first, which otherwise takes 40 ms.
func (c *connection) acknowledge() error {
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // only speed depends on it
	})
}

// handle is the channel's handler.
func (p *proxy) handle(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
	a, err := p.pass(ctx, e)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, channel.ErrUnserved) {
			return nil, err
		}
		return nil, p.failure(err)
	}
	return a, nil
}

// small is the size up to which a body is kept, to be sent again on another connection.
const small = 32 << 10

func (p *proxy) pass(ctx context.Context, e *channel.Event) (*channel.Answer, error) {
	if e.Upgrade != "" {
		e.Length = 0 // the following bytes belong to the other protocol
	}
	head, chunked, err := requestHead(e)
	if err != nil {
		return &channel.Answer{Status: 400, Headers: [][2]string{{"content-type", "text/plain; charset=utf-8"}}, Body: strings.NewReader(err.Error() + "\n")}, nil //nolint:nilerr // it is the client's mistake, and answered
	}
	if e.Upgrade != "" {
		return p.upgrade(ctx, e, head)
	}
	return p.send(ctx, e, head, chunked)
}

// send sends a request, once more if the server closes an idle connection during the first write.
func (p *proxy) send(ctx context.Context, e *channel.Event, head []byte, chunked bool) (*channel.Answer, error) {
	body := e.Body
	whole := e.Length >= 0 && e.Length <= small
	if whole {
		b := make([]byte, e.Length)
		if _, err := io.ReadFull(e.Body, b); err != nil {
			return nil, err
		}
		head, body = append(head, b...), nil
	}
	for tried := false; ; tried = true {
		c, err := p.take(ctx)
		if err != nil {
			if !tried && errors.Is(err, unix.ECONNREFUSED) && p.server.ended() {
				err = channel.ErrUnserved // the server never saw the event: another instance may run it
			}
			return nil, err
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

func idempotent(method string) bool {
	return slices.Contains([]string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"}, method)
}

func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
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
	if _, err := c.Write(head); err != nil {
		return nil, err
	}
	if err := c.acknowledge(); err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	if body == nil {
		sent <- nil
	} else {
		go func() {
			err := sendBody(c, body, chunked)
			if err != nil && ctx.Err() == nil && !gone(err) {
				_ = c.Close() // the request cannot become whole
			}
			sent <- err
		}()
	}
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

// readResponse skips interim answers except 101.
func readResponse(r *bufio.Reader, method string) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return resp, nil
		case resp.StatusCode >= 100 && resp.StatusCode < 200:
			continue
		case resp.StatusCode < 200 || resp.StatusCode > 599:
			return nil, fmt.Errorf("status %d is not from 200 to 599", resp.StatusCode)
		}
		return resp, nil
	}
}

// sendBody sends a request's body after its head.
func sendBody(w io.Writer, body io.Reader, chunked bool) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			var werr error
			if chunked {
				_, werr = fmt.Fprintf(w, "%x\r\n%s\r\n", n, buf[:n])
			} else {
				_, werr = w.Write(buf[:n])
			}
			if werr != nil {
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF) && chunked:
			_, err := io.WriteString(w, "0\r\n\r\n")
			return err
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// hopByHop fields belong to one connection (RFC 9110 section 7.6.1). The adapter sets the further
// fields in the list itself.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Expect": true, "X-Fre-Id": true,
}

// requestHead is the head of e's request; chunked reports the transfer coding of the body. An
// invalid target is an error; an invalid header is left out.
func requestHead(e *channel.Event) (head []byte, chunked bool, err error) {
	target, err := requestTarget(e)
	if err != nil {
		return nil, false, err
	}
	var b bytes.Buffer
	_, _ = fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", e.Method, target)
	host, length := "localhost", e.Length
	for _, h := range e.Headers {
		name := textproto.CanonicalMIMEHeaderKey(h[0])
		if !token(h[0]) || strings.ContainsFunc(h[1], control) {
			continue
		}
		switch {
		case name == "Host":
			host = cmp.Or(h[1], host)
		case name == "Content-Length":
			if n, err := strconv.ParseInt(h[1], 10, 64); err == nil && n >= 0 && length < 0 {
				length = n
			}
		case !hopByHop[name] && !hopByHop[dashed(h[0])]:
			_, _ = fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
		}
	}
	_, _ = fmt.Fprintf(&b, "Host: %s\r\n", host)
	if token(e.ID) {
		_, _ = fmt.Fprintf(&b, "X-Fre-Id: %s\r\n", e.ID)
	}
	chunked = writeFraming(&b, e, length)
	b.WriteString("\r\n")
	return b.Bytes(), chunked, nil
}

// requestTarget returns the target of e's request.
func requestTarget(e *channel.Event) (string, error) {
	target := e.Path
	if e.Query != "" {
		target += "?" + e.Query
	}
	if !token(e.Method) || !strings.HasPrefix(target, "/") || strings.ContainsFunc(target, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return "", fmt.Errorf("%q cannot be the target of a request", e.Method+" "+target)
	}
	return target, nil
}

// writeFraming writes the headers that say how the request ends. A negative length is unknown.
func writeFraming(b *bytes.Buffer, e *channel.Event, length int64) (chunked bool) {
	switch {
	case e.Upgrade != "" && !strings.ContainsFunc(e.Upgrade, control):
		_, _ = fmt.Fprintf(b, "Connection: Upgrade\r\nUpgrade: %s\r\n", e.Upgrade)
	case length < 0:
		b.WriteString("Transfer-Encoding: chunked\r\n")
		return true
	case length > 0 || e.Method == "POST" || e.Method == "PUT" || e.Method == "PATCH":
		_, _ = fmt.Fprintf(b, "Content-Length: %d\r\n", length)
	}
	return false
}

// dashed is the name that web frameworks see for a header with unusual characters: X_Fre_Id becomes
// X-Fre-Id.
func dashed(name string) string {
	return textproto.CanonicalMIMEHeaderKey(strings.Map(func(c rune) rune {
		if odd(c) {
			return '-'
		}
		return c
	}, name))
}

// token implements RFC 9110 section 5.6.2.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

func control(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// answerHeaders returns the answer's end-to-end headers, sorted by name. Invalid headers are an
// error, because the engine would take them for a broken protocol.
func answerHeaders(resp *http.Response) ([][2]string, error) {
	out := [][2]string{}
	for name, values := range resp.Header {
		if hopByHop[name] {
			continue
		}
		for _, v := range values {
			if !token(name) || strings.ContainsFunc(v, control) {
				return nil, fmt.Errorf("header %q has control characters in %q", name, v)
			}
			out = append(out, [2]string{name, v})
		}
	}
	if len(out) > channel.MaxHeaders {
		return nil, fmt.Errorf("%d headers, at most %d", len(out), channel.MaxHeaders)
	}
	slices.SortStableFunc(out, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out, nil
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
