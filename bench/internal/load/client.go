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
	clientBuffer = 4 << 10  // holds a header and the beginning of a body
	secureBuffer = 16 << 10 // a TLS record (RFC 8446, 5.1)
	maxText      = 8 << 20  // of a body kept as text
)

// A weak network is simulated by a receive buffer with a small window, short segments, and reads of
// at most paceBytes.
const (
	paceBytes   = 16 << 10
	paceSlack   = 50 * time.Millisecond // reads late by up to this time are caught up
	weakWindow  = 64 << 10
	weakSegment = 1200
)

// ClientConfig describes the server and the network of a Client.
type ClientConfig struct {
	URL     string        // required: http or https; the path is not used
	TLS     *tls.Config   // for https; default: the system's certificates
	Timeout time.Duration // of one request, from sending; default 30 s

	// Dial makes connections, usually TCP; default: net.Dialer. On a connection of a custom Dial
	// the simulation of a weak network only reads slowly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Rate is the throughput of a weak network towards the client, in bits per second; 0: no limit.
	// The receiver enforces Rate: it reads no faster, and advertises a window of at most 64 KiB and
	// segments of 1200 bytes (SO_RCVBUF and TCP_MAXSEG, set before connecting). Then the server's
	// socket fills and the server's writes wait, as behind a slow link. Delay, loss and queues of a
	// real link are not simulated. SO_MAX_PACING_RATE on the client would pace only the requests.
	Rate float64
}

// Answer describes the answer to a request.
type Answer struct {
	Status     int
	Bytes      int64         // of the body, without the framing of chunks
	FirstByte  time.Time     // arrival of the first byte of the answer; zero: no byte arrived
	RetryAfter time.Duration // from Retry-After; 0: absent
}

// Client sends one request at a time on a connection of its own, and connects again after the
// connection has ended. A Client takes a few KiB; the kernel discards the bodies that the caller
// does not want. Only one goroutine at a time may use a Client.
type Client struct {
	remote
	host string
	rate float64
	conn *conn // nil: not connected
}

// NewClient returns a client, which the caller closes. The client connects at the first request.
// Errors are ErrConfig.
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

// Host returns the value for the requests' Host header.
func (c *Client) Host() string { return c.host }

// Do sends a whole request and reads the answer. The request must not be HEAD and has no body. The
// answer's body goes to text, or is discarded if text is nil. The end of ctx closes the connection:
// pass the same ctx for all requests.
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

// Close ends the connection. The next request opens a new connection.
func (c *Client) Close() {
	if c.conn != nil {
		c.conn.close()
		c.conn = nil
	}
}

// narrow sets a socket's options for a weak network before the socket is connected.
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

// pace limits reads to a rate.
type pace struct {
	ctx  context.Context // ends waits
	rate float64         // bits a second
	next time.Time       // when the bytes read so far are due
}

// wait blocks until the next read is due, and returns the size of the read, at most room.
func (p *pace) wait(room int) int {
	now := time.Now()
	if earliest := now.Add(-paceSlack); p.next.Before(earliest) {
		p.next = earliest
	}
	if d := p.next.Sub(now); d > 0 {
		pause(p.ctx, d) // if ctx ends the pause, the connection is closed
	}
	return min(room, paceBytes)
}

// came records that n bytes were read.
func (p *pace) came(n int) {
	p.next = p.next.Add(time.Duration(float64(8*n) / p.rate * float64(time.Second)))
}

// drop discards the bytes of a connection without copying: recv(2) with MSG_TRUNC makes the kernel
// discard the bytes (tcp(7)).
type drop struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // stored once, to avoid an allocation per read

	want, got int
	err       error
}

// nowhere bounds the bytes discarded by one call. The kernel never writes to nowhere.
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

// some discards from 1 to n bytes, after waiting for the first. At the end the error is io.EOF.
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
