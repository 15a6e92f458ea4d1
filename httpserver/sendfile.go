package httpserver

import (
	"errors"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// fileQuantum is how much of a file goes out at once, in bytes: as much as nginx sends at once
// (sendfile_max_chunk). It is not copied, so that 2 MiB take some 300 microseconds; a quarter of
// it each time costs a twentieth more of the processor.
const fileQuantum = 2 << 20

// unwatchedFrom is the length in bytes from which on the runtime is not told of what a file's
// sending takes: see sendPiece. To ask whether it may be so costs shorter ones more than it gives.
const unwatchedFrom = 512<<10 + 1

// corkedFrom is the length in bytes from which on a file leaves in whole segments only, but for
// its end. Go's sockets have no Nagle's algorithm: each acknowledgment that comes while the file
// is being sent has what is there then go out at once, and on the CPU that it came on. That
// makes a third more segments of 2 MiB by loopback, and some of them overtake others, for which
// congestion control slows down. What the kernel takes at once is not worth the two calls.
const corkedFrom = 128 << 10

// sending is what the kernel sends of a file, after a head.
type sending struct {
	head    []byte
	file    int
	offset  int64
	left    int64
	moved   bool // something went out since the time to stall began
	watched bool // by the runtime: see sendPiece
	corked  bool // only whole segments leave (TCP_CORK)
	room    [1]unix.PollFd
	piece   unix.CachestatRange
	cached  unix.Cachestat_t
	err     error
}

// sendFile has the kernel send them. The file's own offset does not move.
func (c *conn) sendFile(head []byte, f *os.File, offset, length int64) error {
	if c.raw == nil {
		return c.copyFile(head, f, offset, length)
	}
	if err := c.outlet.unstall(); err != nil {
		return err
	}
	s := &c.sending
	*s = sending{head: head, file: int(f.Fd()), offset: offset, left: length, moved: true, watched: c.lent || length < unwatchedFrom}
	defer runtime.KeepAlive(f)
	for len(s.head) > 0 || s.left > 0 {
		before := s.left
		if err := c.raw.Write(c.sendFn); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && c.outlet.takes(false) {
				continue
			}
			return err
		}
		if s.err != nil {
			return s.err
		}
		if before-s.left >= fileQuantum {
			runtime.Gosched()
		}
	}
	return nil
}

// sendSome is called by the poller whenever the socket takes something; false waits for
// that. It sends a fileQuantum at most, and asks the kernel as seldom as it can: what sendfile(2)
// leaves over when the socket is full is not tried again before there is room.
func (c *conn) sendSome(fd uintptr) (done bool) {
	s := &c.sending
	for len(s.head) > 0 {
		flags := 0
		if s.left > 0 {
			flags = unix.MSG_MORE // the file follows in the same segment
		}
		if s.left >= corkedFrom && !s.corked {
			s.corked = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) == nil // a Unix socket has none
		}
		c.vector[0] = s.head
		n, err := linux.Send(int(fd), c.vector[:1], nil, flags)
		c.vector[0] = nil
		if err != nil {
			return c.stopped(fd, "sendto", err)
		}
		s.head, s.moved = s.head[n:], true
	}
	for sent := int64(0); s.left > 0 && sent < fileQuantum; {
		want := min(s.left, fileQuantum-sent)
		n, err := c.sendPiece(int(fd), int(want))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return c.stopped(fd, "sendfile", err)
		}
		if n == 0 { // it has become shorter
			s.err = io.ErrUnexpectedEOF
			return true
		}
		s.left -= int64(n)
		sent += int64(n)
		s.moved = true
		if int64(n) < want && !s.hasRoom(fd) {
			return c.wait(fd)
		}
	}
	if s.left == 0 && s.corked {
		if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 0); err != nil {
			return c.stopped(fd, "setsockopt", err)
		}
	}
	return true
}

// sendPiece sends n bytes of the file at most. The runtime takes the processor from a system call
// that takes as long as this one, and wakes a thread, which does the same for the next connection:
// as many threads as connections share the processors then by the kernel's slices of
// milliseconds, each with its socket locked. So the runtime is not told where nothing has to be
// waited for: all of it is in memory, and the socket never blocks, which of one that another
// process has had nobody knows.
func (c *conn) sendPiece(fd, n int) (int, error) {
	s := &c.sending
	if s.watched || !s.inMemory(n) {
		return unix.Sendfile(fd, s.file, &s.offset, n)
	}
	return linux.SendFile(fd, s.file, &s.offset, n)
}

// inMemory says whether the kernel has the next n bytes of the file in memory (cachestat(2),
// Linux 6.5).
func (s *sending) inMemory(n int) bool {
	page := int64(os.Getpagesize())
	s.piece = unix.CachestatRange{Off: uint64(s.offset), Len: uint64(n)} //nolint:gosec // neither is negative
	err := unix.Cachestat(uint(s.file), &s.piece, &s.cached, 0)          //nolint:gosec // descriptors are not
	pages := (s.offset+int64(n)+page-1)/page - s.offset/page
	return err == nil && s.cached.Cache >= uint64(pages) //nolint:gosec // likewise
}

// hasRoom says whether a socket takes something. Less than was asked for does not say that it
// is full: a signal ends sendfile(2) early too (Linux 4.3), and a socket that is not full has
// no event to be waited for. To ask costs less than to send in vain, which looks up pages, and
// has the kernel tell of the room when there is some (tcp_poll sets SOCK_NOSPACE).
func (s *sending) hasRoom(fd uintptr) bool {
	s.room[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT} //nolint:gosec // descriptors are that small
	n, err := unix.Poll(s.room[:], 0)
	return n > 0 || err != nil
}

func (c *conn) stopped(fd uintptr, call string, err error) (done bool) {
	if errors.Is(err, unix.EAGAIN) {
		return c.wait(fd)
	}
	c.sending.err = os.NewSyscallError(call, err)
	return true
}

// wait has the poller wait. The time to stall begins anew when something went out.
func (c *conn) wait(fd uintptr) (done bool) {
	s := &c.sending
	if s.moved {
		s.moved = false
		c.outlet.ask(fd)
		s.err = c.outlet.begin()
	}
	return s.err != nil
}

// copyFile is sendFile where the bytes have to pass by here: TLS encrypts them.
func (c *conn) copyFile(head []byte, f *os.File, offset, length int64) error {
	b, err := c.s.acquire(copySize)
	if err != nil {
		return err
	}
	defer b.Release()
	buf := b.Bytes()[:copySize]
	if err := c.write(head); err != nil {
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
		if err := c.write(buf[:n]); err != nil {
			return err
		}
		offset += int64(n)
		length -= int64(n)
	}
	return nil
}
