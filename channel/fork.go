package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// Fork asks a fork server for one child with the given channel, stdout, stderr and network
// namespace. With a nil network the child makes a namespace. The files stay the caller's. The
// child reports on its channel (see [Forked]); if it cannot be made, its channel closes.
func (c *Conn) Fork(channel, stdout, stderr, network *os.File) error {
	files := []*os.File{channel, stdout, stderr}
	if network != nil {
		files = append(files, network)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn() // File.Fd would make the shared file description blocking
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return fmt.Errorf("fork: %w", err)
		}
	}
	frame := wire.Header{Kind: wire.KindFork, FDs: len(fds)}.Append(nil)
	// The frame can bypass the writer's queue: a fork server's channel carries only STOP besides,
	// and 16 bytes go out whole.
	_, _, err := c.conn.WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
	if err != nil {
		return fmt.Errorf("%w: fork: %w", ErrClosed, err)
	}
	return nil
}

// ExpectFork prepares the engine's end of a child's channel for [Forked]. Call it before Fork.
func ExpectFork(conn *net.UnixConn) error {
	return setPassPIDFD(conn, 1)
}

// setPassPIDFD turns on or off that the kernel adds a pidfd of the sender to each message.
func setPassPIDFD(conn *net.UnixConn, on int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSPIDFD, on)
	})
	return errors.Join(err, set)
}

// Forked waits for the report of a fork server's child and returns a pidfd of the child, owned by
// the caller. The pidfd comes from the kernel, not from the child. The child then waits for
// [Conn.Go], and conn is ready for NewConn. Forked returns ErrClosed if no child was made, and
// ErrProtocol for any other frame.
func Forked(ctx context.Context, conn *net.UnixConn) (pidfd int, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			unix.Close(pidfd)
			err = context.Cause(ctx)
		}
	}()
	frame := make([]byte, wire.HeaderSize)
	oob := make([]byte, unix.CmsgSpace(4*maxStrayFDs))
	n, oobn, _, _, err := conn.ReadMsgUnix(frame, oob)
	pidfd, perr := senderOf(oob[:oobn])
	want := string(wire.Header{Kind: wire.KindForked}.Append(nil))
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, io.EOF) || n == 0 && err == nil:
		err = ErrClosed
	case err != nil:
		err = fmt.Errorf("%w: read: %w", ErrClosed, err)
	case perr != nil || string(frame[:n]) != want || pidfd < 0 || setPassPIDFD(conn, 0) != nil:
		err = fmt.Errorf("%w: not FORKED", ErrProtocol)
	default:
		return pidfd, nil
	}
	if pidfd >= 0 {
		unix.Close(pidfd)
	}
	return -1, err
}

// senderOf returns the pidfd in a control message, -1 for none. It closes other descriptors: a child
// may send none.
func senderOf(oob []byte) (pidfd int, err error) {
	pidfd = -1
	messages, err := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		switch {
		case m.Header.Level != unix.SOL_SOCKET:
		case m.Header.Type == unix.SCM_PIDFD && len(m.Data) >= 4:
			m.Header.Type = unix.SCM_RIGHTS // both types carry ints
			if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
				pidfd = fds[0]
			}
		case m.Header.Type == unix.SCM_RIGHTS:
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
	return pidfd, err
}

// maxStrayFDs is how many unexpected descriptors Forked receives and closes. The kernel drops the
// rest.
const maxStrayFDs = 16

// Go lets a [Forked] child become an instance. READY follows.
func (c *Conn) Go() error {
	return c.w.Send(context.Background(), wire.KindGo, 0, 0, nil, nil)
}
