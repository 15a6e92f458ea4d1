package httpserver

import (
	"errors"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel/rawio"
	"github.com/fre-engine/fre/internal/linux"
)

// fileQuantum limits the bytes of a file per turn, as nginx does (sendfile_max_chunk). The bytes
// are not copied: 2 MiB take some 300 microseconds. A quarter of the size costs a twentieth more
// CPU time.
const fileQuantum = 2 << 20

// unwatchedFrom is the length in bytes from which a file is sent without telling the runtime: see
// sendPiece. For shorter files the check costs more than it saves.
const unwatchedFrom = 512<<10 + 1

// corkedFrom is the length in bytes from which TCP_CORK holds back partial segments until the end
// of the file. Go's sockets have no Nagle's algorithm: every acknowledgment sends the available
// bytes at once, on the CPU that received it. That makes a third more segments of 2 MiB over
// loopback, and some overtake others, which makes congestion control slow down. Shorter files fit
// into the socket at once, and are not worth the two calls.
const corkedFrom = 128 << 10

// sending is a head and a part of a file that the kernel sends.
type sending struct {
	outlet *outlet
	sendFn func(fd uintptr) bool // sendSome, allocated once

	head    []byte
	file    int
	offset  int64
	left    int64
	moved   bool // bytes were sent since the last call of outlet.begin
	watched bool // the runtime sees the system calls: see sendPiece
	corked  bool // TCP_CORK is set
	vector  [1][]byte
	room    [1]unix.PollFd
	piece   unix.CachestatRange
	cached  unix.Cachestat_t
	err     error
}

func (s *sending) open(o *outlet) { s.outlet, s.sendFn = o, s.sendSome }

// send sends head and file. watched tells the runtime of each system call.
func (s *sending) send(head []byte, f *os.File, offset, length int64, watched bool) error {
	if err := s.outlet.unstall(); err != nil {
		return err
	}
	*s = sending{
		outlet: s.outlet, sendFn: s.sendFn,
		head: head, file: int(f.Fd()), offset: offset, left: length, moved: true, watched: watched || length < unwatchedFrom,
	}
	defer runtime.KeepAlive(f)
	for len(s.head) > 0 || s.left > 0 {
		before := s.left
		if err := s.outlet.raw.Write(s.sendFn); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && s.outlet.takes(false) {
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

// sendSome is called by the poller when the socket is writable. It returns false to wait. It
// sends at most a fileQuantum with few system calls: when sendfile(2) stops at a full socket, it
// waits for room before the next try.
func (s *sending) sendSome(fd uintptr) (done bool) {
	for len(s.head) > 0 {
		if err := s.sendHead(int(fd)); err != nil {
			return s.stopped(fd, "sendto", err)
		}
	}
	for sent := int64(0); s.left > 0 && sent < fileQuantum; {
		want := min(s.left, fileQuantum-sent)
		n, err := s.sendPiece(int(fd), int(want))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return s.stopped(fd, "sendfile", err)
		}
		if n == 0 { // the file has become shorter
			s.err = io.ErrUnexpectedEOF
			return true
		}
		s.left -= int64(n)
		sent += int64(n)
		s.moved = true
		if int64(n) < want && !s.hasRoom(fd) {
			return s.wait(fd)
		}
	}
	if s.left == 0 && s.corked {
		if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 0); err != nil {
			return s.stopped(fd, "setsockopt", err)
		}
	}
	return true
}

// sendHead sends the head, or a part.
func (s *sending) sendHead(fd int) error {
	flags := 0
	if s.left > 0 {
		flags = unix.MSG_MORE // the file follows in the same segment
	}
	if s.left >= corkedFrom && !s.corked {
		s.corked = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, 1) == nil // fails on a Unix socket
	}
	s.vector[0] = s.head
	n, err := rawio.Send(fd, s.vector[:], nil, flags)
	s.vector[0] = nil
	if err == nil {
		s.head, s.moved = s.head[n:], true
	}
	return err
}

// sendPiece sends at most n bytes of the file. Go's runtime takes the processor away from a
// goroutine in a long system call and wakes another thread. That thread does the same for the
// next connection, until as many threads as connections share the processors in slices of
// milliseconds, each with its socket locked.
//
// Therefore the runtime is not told if the call cannot wait: the bytes are in memory, and the
// socket is nonblocking. A socket that another process has had may be blocking.
func (s *sending) sendPiece(fd, n int) (int, error) {
	if s.watched || !s.inMemory(n) {
		return unix.Sendfile(fd, s.file, &s.offset, n)
	}
	return linux.SendFile(fd, s.file, &s.offset, n)
}

// inMemory reports whether the page cache holds the next n bytes of the file (cachestat(2), Linux
// 6.5).
func (s *sending) inMemory(n int) bool {
	page := int64(os.Getpagesize())
	s.piece = unix.CachestatRange{Off: uint64(s.offset), Len: uint64(n)} //nolint:gosec // neither is negative
	err := unix.Cachestat(uint(s.file), &s.piece, &s.cached, 0)          //nolint:gosec // descriptors are not
	pages := (s.offset+int64(n)+page-1)/page - s.offset/page
	return err == nil && s.cached.Cache >= uint64(pages) //nolint:gosec // likewise
}

// hasRoom reports whether the socket is writable. A short sendfile(2) does not prove a full
// socket: a signal ends the call early too (Linux 4.3), and a writable socket sends no event to
// wait for. A poll costs less than a failing send, which looks up pages, and makes the kernel
// report new room (tcp_poll sets SOCK_NOSPACE).
func (s *sending) hasRoom(fd uintptr) bool {
	s.room[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT} //nolint:gosec // descriptors are that small
	n, err := unix.Poll(s.room[:], 0)
	return n > 0 || err != nil
}

func (s *sending) stopped(fd uintptr, call string, err error) (done bool) {
	if errors.Is(err, unix.EAGAIN) {
		return s.wait(fd)
	}
	s.err = os.NewSyscallError(call, err)
	return true
}

// wait makes the poller wait. A new period of patience begins if bytes were sent.
func (s *sending) wait(fd uintptr) (done bool) {
	if s.moved {
		s.moved = false
		s.outlet.ask(fd)
		s.err = s.outlet.begin()
	}
	return s.err != nil
}
