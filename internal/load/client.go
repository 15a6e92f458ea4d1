package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	clientBuffer = 4 << 10  // takes a header and the begin of a body
	secureBuffer = 16 << 10 // a record of TLS (RFC 8446, 5.1)
	maxText      = 8 << 20  // of a body that is kept
)

// What a weak network is made of: a receive buffer that holds a small window, short
// segments, and reads of at most paceBytes.
const (
	paceBytes   = 16 << 10
	paceSlack   = 50 * time.Millisecond // this much that was read late is made up for
	weakWindow  = 64 << 10
	weakSegment = 1200
)

// ClientConfig says whom a Client asks.
type ClientConfig struct {
	URL     string        // required: http or https; its path is not used
	TLS     *tls.Config   // for https; default: the system's certificates
	Timeout time.Duration // of one request, from its sending; default 30 s

	// Dial makes connections, of TCP as a rule; default: a net.Dialer's. By others
	// a weak network is one that is read slowly, and no more.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Rate is what a weak network lets through to the client, in bits a second; 0: as much as
	// comes. The receiver does it: it reads no faster, advertises a window of 64 KiB at most
	// and segments of 1200 bytes (SO_RCVBUF and TCP_MAXSEG, set before it connects), so that
	// the server's socket fills, and its writes wait, as behind a slow link. What a link has
	// besides (delay, loss, queues) is not there. SO_MAX_PACING_RATE on this side
	// would pace what the client sends, which is its requests, and no more.
	Rate float64
}

// Answer is what is kept of one.
type Answer struct {
	Status     int
	Bytes      int64         // of the body, chunks' framing left out
	FirstByte  time.Time     // when the first byte of it was there; zero: none came
	RetryAfter time.Duration // what Retry-After says; 0: nothing
}

// Client sends one request after another on a connection of its own, which it makes anew
// when it has ended. It takes few KiB, and bodies that nobody wants are thrown away in the
// kernel. It is for one goroutine at a time.
type Client struct {
	remote
	host string
	rate float64
	conn *conn // nil: none
}

// NewClient returns a client, to be closed. It connects with the first request. Errors are
// ErrConfig.
func NewClient(c ClientConfig) (*Client, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%w: URL %q: give a whole one, such as http://localhost:8090/", ErrConfig, c.URL)
	case c.Rate < 0 || c.Timeout < 0:
		return nil, fmt.Errorf("%w: a rate of %v bits a second, a time-out of %v: nothing may be negative", ErrConfig, c.Rate, c.Timeout)
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	r := newRemote(u, c.TLS, c.Timeout)
	r.by = c.Dial
	if c.Rate > 0 {
		r.control = narrow
	}
	return &Client{remote: r, host: u.Host, rate: c.Rate}, nil
}

// Host is what requests are to have as their Host.
func (c *Client) Host() string { return c.host }

// Do sends a whole request, which is neither HEAD nor has a body, and takes the answer; the
// body goes to text, or nowhere where that is nil. The end of ctx closes the connection, so
// that it is to be the same for all requests.
func (c *Client) Do(ctx context.Context, request []byte, text *bytes.Buffer) (Answer, error) {
	if c.conn == nil {
		if err := c.connect(ctx); err != nil {
			return Answer{}, fmt.Errorf("connect: %w", err)
		}
	}
	c.conn.text = text
	a, keep, err := c.conn.do(request, false, c.timeout)
	out := Answer{Status: a.status, Bytes: a.bytes, FirstByte: c.conn.first, RetryAfter: a.retryAfter}
	if err != nil || !keep {
		c.Close()
	}
	return out, err
}

// connect makes the connection.
func (c *Client) connect(ctx context.Context) error {
	size := clientBuffer
	if c.tls != nil {
		size = secureBuffer
	}
	conn, err := c.dial(ctx, size)
	if err != nil {
		return err
	}
	if tcp, ok := conn.net.(*net.TCPConn); ok {
		if conn.drop, err = newDrop(tcp); err != nil {
			conn.close()
			return reason(err)
		}
	}
	if c.rate > 0 {
		conn.pace = &pace{ctx: ctx, rate: c.rate}
	}
	c.conn = conn
	return nil
}

// Close ends the connection; the next request makes another.
func (c *Client) Close() {
	if c.conn != nil {
		c.conn.close()
		c.conn = nil
	}
}

// narrow makes a socket that is not connected yet one for a weak network.
func narrow(_, _ string, raw syscall.RawConn) error {
	var err error
	if outer := raw.Control(func(fd uintptr) {
		err = errors.Join(
			os.NewSyscallError("SO_RCVBUF", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, weakWindow)),
			os.NewSyscallError("TCP_MAXSEG", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, weakSegment)),
		)
	}); outer != nil {
		return outer
	}
	return err
}

// pace holds reads back to a rate.
type pace struct {
	ctx  context.Context // ends the waiting
	rate float64         // bits a second
	next time.Time       // what was read until now was due until then
}

// wait waits until more may be read, and says how much of room.
func (p *pace) wait(room int) int {
	now := time.Now()
	if earliest := now.Add(-paceSlack); p.next.Before(earliest) {
		p.next = earliest
	}
	if d := p.next.Sub(now); d > 0 {
		pause(p.ctx, d) // where that was cut short the connection is closed
	}
	return min(room, paceBytes)
}

// came notes that n bytes were read.
func (p *pace) came(n int) {
	p.next = p.next.Add(time.Duration(float64(8*n) / p.rate * float64(time.Second)))
}

// drop throws away what comes on a connection, without a copy of it: recv(2) with MSG_TRUNC,
// for which tcp(7) says that the kernel discards the bytes.
type drop struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // kept, so that it is allocated once

	want, got int
	err       error
}

// nowhere says how much is thrown away at once. Nothing is ever written to it.
var nowhere [1 << 20]byte

func newDrop(c *net.TCPConn) (*drop, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	d := &drop{raw: raw}
	d.try = func(fd uintptr) bool {
		for {
			d.got, _, d.err = unix.Recvfrom(int(fd), nowhere[:d.want], unix.MSG_TRUNC)
			if !errors.Is(d.err, unix.EINTR) {
				return !errors.Is(d.err, unix.EAGAIN)
			}
		}
	}
	return d, nil
}

// some throws away from 1 to n bytes once they are there. Its error at the end is io.EOF.
func (d *drop) some(n int64, p *pace) (int64, error) {
	d.want = int(min(n, int64(len(nowhere))))
	if p != nil {
		d.want = p.wait(d.want)
	}
	err := d.raw.Read(d.try)
	switch {
	case err != nil:
		return 0, reason(err)
	case d.err != nil:
		return 0, os.NewSyscallError("recv", d.err)
	case d.got == 0:
		return 0, io.EOF
	}
	if p != nil {
		p.came(d.got)
	}
	return int64(d.got), nil
}
