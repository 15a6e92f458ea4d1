package wire

import (
	"cmp"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel/rawio"
)

// rightsReader reads the bytes of a channel and the file descriptors sent along (unix(7),
// SCM_RIGHTS). A frame that announces a descriptor takes it. All other descriptors are closed, or
// never installed.
//
// A read costs one system call (see rawio.Recv). The kernel ends a read after the message with a
// descriptor. Therefore a held descriptor belongs to a frame with at least one byte in that read.
type rightsReader struct {
	raw  syscall.RawConn
	recv func(fd uintptr) bool // r.receive, allocated once

	// Of the current call.
	p   []byte
	n   int
	err error

	total int64 // bytes read so far
	held  []heldFD
	oob   [rightsSpace]byte
}

// heldFD is a descriptor that came with the bytes [from, to) of the channel. fd is -1 if several
// came, or if the kernel could not install the descriptor.
type heldFD struct {
	fd       int
	from, to int64
}

// mostHeld limits the held descriptors: one for a frame that is not complete, one for the next
// frame, whose start was read together with the end of the former.
const mostHeld = 2

// rightsSpace is the control buffer's size. Because of alignment it takes two descriptors. The
// kernel drops any more and sets MSG_CTRUNC.
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

// receive is called by the poller. It returns false to wait until the socket is readable.
func (r *rightsReader) receive(fd uintptr) (done bool) {
	n, oobn, flags, err := rawio.Recv(int(fd), r.p, r.oob[:], unix.MSG_CMSG_CLOEXEC)
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

// arrived holds or closes the descriptors that came with the bytes since from.
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
	if len(r.held) == mostHeld { // a correct peer never has so many announced
		h.from = r.held[0].from
		r.close()
	}
	r.held = append(r.held, h)
}

// take returns the descriptor of the frame with the bytes [start, end), owned by the caller. ok
// is false if the frame came with none, or with several.
func (r *rightsReader) take(start, end int64) (fd int, ok bool) {
	r.drop(start)
	if len(r.held) == 0 || r.held[0].from >= end {
		return -1, false
	}
	if len(r.held) > 1 && r.held[1].to <= end { // a second descriptor
		r.drop(end)
		return -1, false
	}
	fd = r.shift()
	return fd, fd >= 0
}

// drop closes descriptors that came before byte start of the channel: no frame has announced
// them.
func (r *rightsReader) drop(start int64) {
	for len(r.held) > 0 && r.held[0].to <= start {
		if fd := r.shift(); fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// shift removes and returns the oldest held descriptor.
func (r *rightsReader) shift() (fd int) {
	fd = r.held[0].fd
	r.held = append(r.held[:0], r.held[1:]...)
	return fd
}

func (r *rightsReader) close() { r.drop(math.MaxInt64) }
