package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// readSize is the size of a read of a body.
const readSize = 256 << 10

// answer describes the answer to a request.
type answer struct {
	status     int
	bytes      int64         // of the body, without the framing of chunks
	retryAfter time.Duration // Retry-After; 0: none
}

// session is a connection that reconnects after the server has ended the connection. Only one
// goroutine at a time may use a session.
type session struct {
	plan *plan
	conn *conn // nil: not connected
}

// call sends the plan's request and drains the answer. The end of ctx ends the call.
func (s *session) call(ctx context.Context) (answer, error) {
	if s.conn == nil {
		c, err := s.plan.dial(ctx, readSize)
		if err != nil {
			return answer{}, fmt.Errorf("connect: %w", err)
		}
		s.conn = c
	}
	a, keep, err := s.conn.do(s.plan.request(), s.plan.Method == "HEAD", s.plan.Timeout)
	if err != nil || !keep {
		s.close()
	}
	return a, err
}

func (s *session) close() {
	if s.conn != nil {
		s.conn.close()
		s.conn = nil
	}
}

// conn is a connection to the server.
type conn struct {
	net  net.Conn
	stop func() bool // undoes closing net at the end of ctx
	buf  []byte
	r, w int // buf[r:w] was read from net and is still unused

	first time.Time     // arrival of the first byte of the current answer
	text  *bytes.Buffer // receives the body; nil: the body is discarded
	pace  *pace         // nil: unlimited
	drop  *drop         // nil: discarded bytes are read into buf
}

// remote describes the server's address and how to connect.
type remote struct {
	network, address string
	tls              *tls.Config // nil for http
	timeout          time.Duration
	control          func(network, address string, c syscall.RawConn) error // runs before connecting; may be nil

	by func(ctx context.Context, network, address string) (net.Conn, error) // nil: net.Dialer
}

// dial returns a connection with a buffer of size bytes.
func (p *remote) dial(ctx context.Context, size int) (*conn, error) {
	by := p.by
	if by == nil {
		by = (&net.Dialer{Timeout: p.timeout, Control: p.control}).DialContext
	}
	c, err := by(ctx, p.network, p.address)
	if err != nil {
		return nil, reason(err)
	}
	if p.tls != nil {
		t := tls.Client(c, p.tls)
		hello, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		if err := t.HandshakeContext(hello); err != nil {
			_ = c.Close() // not used yet
			return nil, reason(err)
		}
		c = t
	}
	// The end of ctx closes the connection. A deadline would not do: the next request would move
	// it.
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	return &conn{net: c, stop: stop, buf: make([]byte, size)}, nil
}

func (c *conn) close() {
	c.stop()
	_ = c.net.Close() // the connection is not needed any more
}

// reason removes the addresses that net puts before an error. Addresses differ from connection to
// connection, but the report counts errors by text.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}

var (
	errEnded   = errors.New("the connection ended before the answer")
	errBroken  = errors.New("the connection ended within the answer")
	errTooLong = errors.New("no end of the answer's header, or of a line, within the buffer")
	errText    = fmt.Errorf("a text of more than %d MiB", maxText>>20)
)

// do sends a request, skips interim answers and drains the final answer. keep reports whether the
// connection can be used again.
func (c *conn) do(request []byte, isHead bool, timeout time.Duration) (a answer, keep bool, err error) {
	c.first = time.Time{}
	if err := c.net.SetDeadline(time.Now().Add(timeout)); err != nil {
		return a, false, reason(err)
	}
	// A server may answer and close before it has read the whole request, for example with 413; so
	// read the answer even after a failed write. A server that echoes may wait until the client
	// reads the answer; so send a long request while reading.
	var sent chan error
	var sendErr error
	if len(request) <= readSize {
		_, sendErr = c.net.Write(request)
	} else {
		sent = make(chan error, 1)
		go func() {
			_, err := c.net.Write(request)
			sent <- err
		}()
	}
	for {
		var h head
		if h, err = c.head(); err != nil {
			break
		}
		if h.status >= 200 || h.status == 101 {
			a.status, a.retryAfter = h.status, h.retryAfter
			a.bytes, err = c.body(h, isHead)
			keep = h.keep && c.r == c.w
			break
		}
	}
	if sent != nil {
		select {
		case sendErr = <-sent:
		default: // the rest of the request is not needed
			_ = c.net.Close()
			sendErr = <-sent
		}
	}
	if sendErr != nil && errors.Is(err, errEnded) {
		err = fmt.Errorf("send: %w", reason(sendErr))
	}
	return a, keep && err == nil && sendErr == nil, err
}

// fill reads more bytes behind buf[:w]. At the end of the connection the error is io.EOF.
func (c *conn) fill() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	if c.w == len(c.buf) {
		if c.r == 0 {
			return errTooLong
		}
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	room := c.buf[c.w:]
	if c.pace != nil {
		room = room[:c.pace.wait(len(room))]
	}
	n, err := c.net.Read(room)
	if c.pace != nil {
		c.pace.came(n)
	}
	if c.first.IsZero() {
		c.first = time.Now()
	}
	c.w += n
	if n > 0 || err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return reason(err)
}

// within turns io.EOF into errBroken: the connection ended inside an answer.
func within(err error) error {
	if errors.Is(err, io.EOF) {
		return errBroken
	}
	return err
}

var headEnd = []byte("\r\n\r\n")

// head reads an answer up to the body.
func (c *conn) head() (head, error) {
	for from := 0; ; {
		if i := bytes.Index(c.buf[c.r+from:c.w], headEnd); i >= 0 {
			end := c.r + from + i + len(headEnd)
			h, err := parseHead(c.buf[c.r:end])
			c.r = end
			return h, err
		}
		from = max(0, c.w-c.r-len(headEnd)+1)
		if err := c.fill(); err != nil {
			if errors.Is(err, io.EOF) && c.r == c.w {
				return head{}, errEnded
			}
			return head{}, within(err)
		}
	}
}

// body drains the body after the head (RFC 9112, 6.3) and returns the length.
func (c *conn) body(h head, isHead bool) (int64, error) {
	switch {
	case isHead || h.status == 204 || h.status == 304 || h.status == 101:
		return 0, nil
	case h.chunked:
		return c.chunks()
	case h.length >= 0:
		return h.length, c.drain(h.length)
	}
	for n := int64(0); ; {
		n += int64(c.w - c.r)
		if err := c.use(c.w - c.r); err != nil {
			return n, err
		}
		if err := c.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				return n, nil
			}
			return n, err
		}
	}
}

// use consumes n bytes of the body from the buffer.
func (c *conn) use(n int) error {
	if c.text != nil {
		if c.text.Len()+n > maxText {
			return errText
		}
		_, _ = c.text.Write(c.buf[c.r : c.r+n]) // a Buffer takes everything
	}
	c.r += n
	return nil
}

// drain consumes n bytes of the body.
func (c *conn) drain(n int64) error {
	for {
		have := min(n, int64(c.w-c.r))
		if err := c.use(int(have)); err != nil {
			return err
		}
		if n -= have; n == 0 {
			return nil
		}
		if c.drop != nil && c.text == nil {
			gone, err := c.drop.some(n, c.pace)
			if err != nil {
				return within(err)
			}
			n -= gone
			continue
		}
		if err := c.fill(); err != nil {
			return within(err)
		}
	}
}

// chunks drains a chunked body and the trailers (RFC 9112, 7.1).
func (c *conn) chunks() (int64, error) {
	for all := int64(0); ; {
		line, err := c.line()
		if err != nil {
			return all, err
		}
		n, err := parseChunkSize(line)
		if err != nil {
			return all, err
		}
		if n == 0 {
			for {
				if line, err = c.line(); err != nil || len(line) == 0 {
					return all, err
				}
			}
		}
		if err := c.drain(n); err != nil {
			return all, err
		}
		all += n
		if line, err = c.line(); err != nil || len(line) > 0 {
			return all, errors.Join(err, tooMuch(line))
		}
	}
}

func tooMuch(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	return fmt.Errorf("%w: a chunk is longer than it says", errAnswer)
}

// line reads a line and returns it without the line end. The result is valid until the next read.
func (c *conn) line() ([]byte, error) {
	for from := 0; ; {
		if i := bytes.IndexByte(c.buf[c.r+from:c.w], '\n'); i >= 0 {
			line := c.buf[c.r : c.r+from+i]
			c.r += from + i + 1
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
		from = c.w - c.r
		if err := c.fill(); err != nil {
			return nil, within(err)
		}
	}
}
