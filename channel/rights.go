package channel

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// rightsReader reads the bytes of a channel, and the file descriptors that come
// along with them (unix(7), SCM_RIGHTS): at most one is held at a time, for the
// frame that announces one to take. All others are closed, or never installed.
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

	held   int  // file descriptor, -1 for none
	excess bool // more than one came at once, or the kernel could not give it: none is held
	oob    [rightsSpace]byte
}

// rightsSpace is what the kernel may fill: two descriptors, because of alignment.
// It drops what is more, and says so (MSG_CTRUNC).
const rightsSpace = unix.SizeofCmsghdr + 8

func newRightsReader(conn *net.UnixConn) (*rightsReader, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &rightsReader{raw: raw, held: -1}
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
	if oobn > 0 || flags&unix.MSG_CTRUNC != 0 {
		r.arrived(r.oob[:oobn], flags&unix.MSG_CTRUNC != 0)
	}
	r.n, r.err = n, err
	return true
}

// arrived takes what came along with a read: one descriptor is held, of two none.
func (r *rightsReader) arrived(oob []byte, truncated bool) {
	messages, err := unix.ParseSocketControlMessage(oob)
	r.excess = r.excess || truncated || err != nil
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&m)
		r.excess = r.excess || err != nil || len(fds) > 1 || r.held >= 0
		for _, fd := range fds {
			if r.excess {
				_ = unix.Close(fd)
			} else {
				r.held = fd
			}
		}
	}
	if r.excess {
		r.close()
	}
}

// take gives the descriptor that came with a frame to its caller; false where none
// came, or more than one.
func (r *rightsReader) take() (fd int, ok bool) {
	fd, ok = r.held, r.held >= 0 && !r.excess
	if ok {
		r.held = -1
	}
	return fd, ok
}

// drop closes what no frame has announced: between two frames.
func (r *rightsReader) drop() {
	r.close()
	r.excess = false
}

func (r *rightsReader) close() {
	if r.held >= 0 {
		_ = unix.Close(r.held)
		r.held = -1
	}
}
