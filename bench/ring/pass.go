package ring

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Send passes one side of a ring to the process at the other end of a Unix connection, with one
// byte of data (SCM_RIGHTS, unix(7)). The caller still owns f and must close f: an open copy would
// hide the receiver's death from the other side of the ring.
func Send(conn *net.UnixConn, f Files) error {
	memory, err := f.Memory.SyscallConn()
	if err != nil {
		return err
	}
	bell, err := f.Bell.SyscallConn()
	if err != nil {
		return err
	}
	var failed, inner error
	failed = memory.Control(func(m uintptr) {
		inner = bell.Control(func(b uintptr) {
			_, _, err = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(m), int(b)), nil)
		})
	})
	if err := errors.Join(failed, inner, err); err != nil {
		return fmt.Errorf("pass a ring: %w", err)
	}
	return nil
}

// Receive returns the files from Send. For any other number of files, Receive closes all of them
// and returns [ErrFiles]. NewProducer and NewConsumer check that the files belong to a ring.
func Receive(conn *net.UnixConn) (Files, error) {
	// Have room for surplus files: the process can close them only after it has received them.
	data, control := make([]byte, 1), make([]byte, unix.CmsgSpace(8*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(data, control) // sets MSG_CMSG_CLOEXEC
	if err != nil {
		return Files{}, fmt.Errorf("receive a ring: %w", err)
	}
	fds := received(control[:oobn])
	if n != 1 || len(fds) != 2 || flags&unix.MSG_CTRUNC != 0 {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return Files{}, fmt.Errorf("%w: %d files", ErrFiles, len(fds))
	}
	// os.NewFile registers only non-blocking descriptors with the poller.
	if err := unix.SetNonblock(fds[1], true); err != nil {
		return Files{}, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return Files{os.NewFile(uintptr(fds[0]), "ring"), os.NewFile(uintptr(fds[1]), "bell")}, nil
}

// received returns the fds in control messages.
func received(control []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}
