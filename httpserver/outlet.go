package httpserver

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel/rawio"
)

// outlet writes to a connection's socket, below TLS, whose writes cannot continue after an error.
// It waits as long as the client reads at least one byte in each period of patience, however many
// bytes remain.
type outlet struct {
	net.Conn                 // the socket
	raw      syscall.RawConn // nil unless a TCP or Unix socket
	patience time.Duration   // longest stall of the client

	buffers net.Buffers // unsent parts
	one     [1][]byte
	sent    int
	fault   error
	sendFn  func(fd uintptr) bool // sendTo, allocated once

	queued int              // unacknowledged bytes in the socket, when last asked
	held   int              // queued at the start of the current period
	askFn  func(fd uintptr) // ask, allocated once

	mu    sync.Mutex
	timed bool      // a deadline earlier than last is set
	last  time.Time // final deadline, even if the client reads; zero for none
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

// send sends the parts and consumes the slice.
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

// sendNow sends as much as fits into the socket. whole reports whether everything fitted. Short
// sends use system calls that Go's scheduler does not see (see rawio.Recv).
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
	o.sent, o.fault = rawio.Send(int(fd), o.buffers, nil, 0)
	return true
}

// ask records how many bytes the socket holds.
func (o *outlet) ask(fd uintptr) { o.queued, o.fault = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }

// askNow is ask without a descriptor at hand. Without a raw socket, only the progress of a write
// shows whether the client reads.
func (o *outlet) askNow() error {
	if o.raw == nil {
		return nil
	}
	return o.raw.Control(o.askFn)
}

// begin starts a period of patience, after ask.
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

// takes reports, at the end of a period, whether the client has read in the period, and if so
// starts the next one. Proof is a write that made progress or a socket that holds less than
// before: the kernel accepts more only after a third of the socket's bytes has gone. A third can
// be a megabyte and more, longer than one period for a slow client.
func (o *outlet) takes(moved bool) bool {
	return o.askNow() == nil && (moved || o.queued < o.held) && o.begin() == nil
}

// unstall removes the deadline of the current period, which may have passed.
func (o *outlet) unstall() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.timed {
		return nil
	}
	o.timed = false
	return o.Conn.SetWriteDeadline(o.last)
}

// SetWriteDeadline sets the final deadline, even if the client reads.
func (o *outlet) SetWriteDeadline(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timed, o.last = false, t
	return o.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (o *outlet) SetDeadline(t time.Time) error {
	return errors.Join(o.SetReadDeadline(t), o.SetWriteDeadline(t))
}

// CloseWrite closes the socket's sending direction, if supported.
func (o *outlet) CloseWrite() error {
	if half, ok := o.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
