package httpserver

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// quantum limits the bytes of a body per write. A write that never blocks would starve other
	// connections on the same thread.
	quantum = 512 << 10

	// drained limits, in bytes, and lingering limits in time, how much of an unread body the
	// server reads to keep the connection usable.
	drained   = 256 << 10
	lingering = 500 * time.Millisecond
)

// link is a connection that carries bytes in both directions, of HTTP/1.1 and of tunnels.
type link struct {
	input
	outlet   outlet
	vector   [3][]byte // parts passed to outlet
	sending  sending
	lent     bool          // another process has had the socket
	patience time.Duration // longest stall of the client
}

// open takes nc. A config makes the connection use TLS.
func (l *link) open(p *pool, nc net.Conn, config *tls.Config, patience time.Duration) {
	l.patience = patience
	l.outlet.open(nc, patience)
	l.sending.open(&l.outlet)
	switch {
	case config != nil:
		l.input.open(p, tls.Server(&l.outlet, config), nil)
	case l.outlet.raw == nil:
		l.input.open(p, &l.outlet, nil)
	default:
		l.input.open(p, nc, l.outlet.raw)
	}
}

// write sends all parts, in one system call if possible, and at most a quantum at once.
func (l *link) write(parts ...[]byte) error {
	if l.raw == nil {
		return writeCopied(l.pool, l.nc, parts...)
	}
	defer clear(l.vector[:])
	for left := l.vector[:copy(l.vector[:], parts)]; len(left) > 0; {
		n, size := 0, 0
		for n < len(left) && size+len(left[n]) <= quantum {
			size += len(left[n])
			n++
		}
		var rest []byte
		if n < len(left) {
			rest = left[n][quantum-size:]
			left[n] = left[n][:quantum-size]
			n++
		}
		if err := l.outlet.send(left[:n]); err != nil {
			return err
		}
		if rest != nil {
			n--
			left[n] = rest
			runtime.Gosched()
		}
		left = left[n:]
	}
	return nil
}

// writeCopied joins parts before it writes them: every Write makes TLS records of its own.
func writeCopied(p *pool, nc net.Conn, parts ...[]byte) error {
	b, err := p.acquire(copySize)
	if err != nil {
		return err
	}
	defer b.Release()
	buf := b.Bytes()[:copySize]
	n := 0
	for _, part := range parts {
		for len(part) > 0 {
			m := copy(buf[n:], part)
			part, n = part[m:], n+m
			if n == len(buf) {
				n = 0
				if _, err := nc.Write(buf); err != nil {
					return err
				}
			}
		}
	}
	if n == 0 {
		return nil
	}
	_, err = nc.Write(buf[:n])
	return err
}

// sendFile has the kernel send head and file. The file's own offset does not move.
func (l *link) sendFile(head []byte, f *os.File, offset, length int64) error {
	if l.raw == nil {
		return l.copyFile(head, f, offset, length)
	}
	return l.sending.send(head, f, offset, length, l.lent)
}

// copyFile is sendFile for TLS, which must encrypt the bytes.
func (l *link) copyFile(head []byte, f *os.File, offset, length int64) error {
	b, err := l.pool.acquire(copySize)
	if err != nil {
		return err
	}
	defer b.Release()
	buf := b.Bytes()[:copySize]
	if err := l.write(head); err != nil {
		return err
	}
	for length > 0 {
		n, err := f.ReadAt(buf[:min(length, int64(len(buf)))], offset)
		if n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if err := l.write(buf[:n]); err != nil {
			return err
		}
		offset += int64(n)
		length -= int64(n)
	}
	return nil
}

// lend lets another process send chunks. It makes the socket nonblocking again afterwards: both
// processes share one open file description.
func (l *link) lend(to func(socket syscall.RawConn) (int64, error)) (n int64, err error) {
	l.lent = true
	patience := func(d time.Duration) {
		_ = l.raw.Control(func(fd uintptr) { // a Unix socket has no such option
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
	patience(l.patience)
	n, err = to(l.raw)
	patience(0)
	var nonblock error
	cerr := l.raw.Control(func(fd uintptr) { nonblock = unix.SetNonblock(int(fd), true) })
	if err = cmp.Or(err, cerr, nonblock); err != nil {
		l.shutdown()
	}
	return n, err
}

// shutdown ends the connection for every process with the socket.
func (l *link) shutdown() {
	_ = l.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// linger closes the sending direction and reads for a moment. Closing with unread data would
// reset the connection and lose the answer.
func linger(nc net.Conn, buf []byte) {
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if nc.SetReadDeadline(time.Now().Add(lingering)) != nil {
		return
	}
	if len(buf) == 0 {
		buf = make([]byte, 512)
	}
	for total := 0; total < drained; {
		n, err := nc.Read(buf)
		if err != nil {
			return
		}
		total += n
	}
}
