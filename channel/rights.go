package channel

import (
	"cmp"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// rightsReader reads the bytes of a channel, and the file descriptors that come
// along with them (unix(7), SCM_RIGHTS), for the frames that announce one to take. All
// others are closed, or never installed.
//
// One system call is all a read costs (see linux.Recv). The kernel ends a read after the message
// that brings a descriptor: what is held belongs to a frame of which some byte was
// in that read.
type rightsReader struct {
	raw  syscall.RawConn
	recv func(fd uintptr) bool // r.receive, made once

	// Of the call under way.
	p   []byte
	n   int
	err error

	total int64 // bytes that were read
	held  []heldFD
	oob   [rightsSpace]byte
}

// heldFD is a file descriptor that came with the channel's bytes from one on and up to
// another; -1 is more than one, or what the kernel could not give.
type heldFD struct {
	fd       int
	from, to int64
}

// mostHeld is how many may be held: one for a frame that has not come whole, one for the
// next, whose beginning was read with the end of that.
const mostHeld = 2

// rightsSpace is what the kernel may fill: two descriptors, because of alignment.
// It drops what is more, and says so (MSG_CTRUNC).
const rightsSpace = unix.SizeofCmsghdr + 8

func newRightsReader(conn *net.UnixConn) (*rightsReader, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &rightsReader{raw: raw, held: make([]heldFD, 0, mostHeld)}
	r.recv = r.receive
	return r, nil
}

func (r *rightsReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.p = p
	err := r.raw.Read(r.recv)
	r.p = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != nil:
		return 0, os.NewSyscallError("recvmsg", r.err)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// receive is called by the poller; false waits until there is something to read.
func (r *rightsReader) receive(fd uintptr) (done bool) {
	n, oobn, flags, err := linux.Recv(int(fd), r.p, r.oob[:], unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	from := r.total
	r.total += int64(max(n, 0))
	if oobn > 0 || flags&unix.MSG_CTRUNC != 0 {
		r.arrived(r.oob[:oobn], flags&unix.MSG_CTRUNC != 0, from)
	}
	r.n, r.err = n, err
	return true
}

// arrived takes what came along with the bytes since from.
func (r *rightsReader) arrived(oob []byte, truncated bool, from int64) {
	messages, err := unix.ParseSocketControlMessage(oob)
	var fds []int
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, ferr := unix.ParseUnixRights(&m)
		err = cmp.Or(err, ferr)
		fds = append(fds, more...)
	}
	h := heldFD{fd: -1, from: from, to: r.total}
	if len(fds) == 1 && !truncated && err == nil && len(r.held) < mostHeld {
		h.fd = fds[0]
	} else {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	if len(r.held) == mostHeld { // nobody sends so many that are announced
		h.from = r.held[0].from
		r.close()
	}
	r.held = append(r.held, h)
}

// take gives the descriptor that came with a frame, the channel's bytes from start up to
// end, to its caller; false where none came, or more than one.
func (r *rightsReader) take(start, end int64) (fd int, ok bool) {
	r.drop(start)
	if len(r.held) == 0 || r.held[0].from >= end {
		return -1, false
	}
	if len(r.held) > 1 && r.held[1].to <= end { // a second one
		r.drop(end)
		return -1, false
	}
	fd = r.shift()
	return fd, fd >= 0
}

// drop closes what came before byte start of the channel: no frame has announced it.
func (r *rightsReader) drop(start int64) {
	for len(r.held) > 0 && r.held[0].to <= start {
		if fd := r.shift(); fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// shift takes the oldest out of what is held.
func (r *rightsReader) shift() (fd int) {
	fd = r.held[0].fd
	r.held = append(r.held[:0], r.held[1:]...)
	return fd
}

func (r *rightsReader) close() { r.drop(math.MaxInt64) }
