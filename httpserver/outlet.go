package httpserver

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// outlet is what a client is sent things by: the connection's socket, below TLS where that is
// spoken, whose writes cannot go on once one has failed. It waits as long as the client takes
// something within each time to stall, however little, and however much there is to be sent.
type outlet struct {
	net.Conn                 // the socket
	raw      syscall.RawConn // nil where it is no TCP or Unix socket
	patience time.Duration   // the time to stall

	buffers net.Buffers // what is being sent
	one     [1][]byte
	sent    int
	fault   error
	sendFn  func(fd uintptr) bool // sendTo, made once

	queued int              // what the socket holds, in bytes, when it was asked last
	held   int              // and when the time to stall began
	askFn  func(fd uintptr) // ask, made once

	mu    sync.Mutex
	timed bool      // a deadline is set that is sooner than last
	last  time.Time // until when all has to be sent, whatever the client takes; zero for none
}

func (o *outlet) open(nc net.Conn, patience time.Duration) {
	o.Conn, o.patience = nc, patience
	switch nc := nc.(type) {
	case *net.TCPConn:
		o.raw, _ = nc.SyscallConn()
	case *net.UnixConn:
		o.raw, _ = nc.SyscallConn()
	}
	o.sendFn, o.askFn = o.sendTo, o.ask
}

// Write sends p.
func (o *outlet) Write(p []byte) (n int, err error) {
	o.one[0] = p
	err = o.send(o.one[:])
	n = len(p) - len(o.one[0])
	o.one[0] = nil
	return n, err
}

// send sends the parts, which it takes off.
func (o *outlet) send(parts [][]byte) error {
	o.buffers = parts
	defer func() { o.buffers = nil }()
	if err := o.unstall(); err != nil {
		return err
	}
	if whole, err := o.sendNow(); whole || err != nil {
		return err
	}
	if err := o.askNow(); err != nil {
		return err
	}
	if err := o.begin(); err != nil {
		return err
	}
	for {
		n, err := o.buffers.WriteTo(o.Conn)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !o.takes(n > 0) {
			return err
		}
	}
}

// sendNow sends what the socket takes at once; whole says that it is all. It asks the kernel by
// calls of which Go's scheduler is not told where little is moved (linux.Recv says why).
func (o *outlet) sendNow() (whole bool, err error) {
	if o.raw == nil {
		return false, nil
	}
	if err := o.raw.Write(o.sendFn); err != nil {
		return false, err
	}
	if o.fault != nil && !errors.Is(o.fault, unix.EAGAIN) {
		return false, os.NewSyscallError("sendmsg", o.fault)
	}
	for sent := o.sent; len(o.buffers) > 0; o.buffers = o.buffers[1:] {
		n := min(sent, len(o.buffers[0]))
		if o.buffers[0] = o.buffers[0][n:]; len(o.buffers[0]) > 0 {
			return false, nil
		}
		sent -= n
	}
	return true, nil
}

func (o *outlet) sendTo(fd uintptr) (done bool) {
	o.sent, o.fault = linux.Send(int(fd), o.buffers, nil, 0)
	return true
}

// ask asks the socket what it holds.
func (o *outlet) ask(fd uintptr) { o.queued, o.fault = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }

// askNow is ask for those who have not been given the socket's descriptor. Where there is no
// socket to ask, what can be told is whether something has moved.
func (o *outlet) askNow() error {
	if o.raw == nil {
		return nil
	}
	return o.raw.Control(o.askFn)
}

// begin begins the time to stall, now that the socket has been asked.
func (o *outlet) begin() error {
	if o.raw != nil && o.fault != nil {
		return os.NewSyscallError("ioctl", o.fault)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	until := now.Add(o.patience)
	if !o.last.IsZero() && o.last.Before(until) {
		if until = o.last; !now.Before(until) {
			return os.ErrDeadlineExceeded
		}
	}
	o.held, o.timed = o.queued, true
	return o.Conn.SetWriteDeadline(until)
}

// takes says, when the time to stall is over, whether the client has taken something meanwhile,
// and begins it anew then. That something has moved says so, and so does a socket that holds
// less: the kernel has one take more only when a third of what it holds has gone. That is a
// megabyte and more, for which a slow client may need longer.
func (o *outlet) takes(moved bool) bool {
	return o.askNow() == nil && (moved || o.queued < o.held) && o.begin() == nil
}

// unstall takes the time to stall back: it may have passed.
func (o *outlet) unstall() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.timed {
		return nil
	}
	o.timed = false
	return o.Conn.SetWriteDeadline(o.last)
}

// SetWriteDeadline says until when all has to be sent, whatever the client takes.
func (o *outlet) SetWriteDeadline(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timed, o.last = false, t
	return o.Conn.SetWriteDeadline(t)
}

// SetDeadline is that of net.Conn.
func (o *outlet) SetDeadline(t time.Time) error {
	return errors.Join(o.SetReadDeadline(t), o.SetWriteDeadline(t))
}

// CloseWrite closes the socket's direction to the client, where it has one of its own.
func (o *outlet) CloseWrite() error {
	if half, ok := o.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
