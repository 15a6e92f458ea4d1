package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Fork asks a fork server for one child: its channel, stdout and stderr, and the
// network namespace it is to join (nil: it makes one). The files are the
// caller's again on return. The child reports on its channel (see [Forked]); one
// that cannot be made closes it.
func (c *Conn) Fork(channel, stdout, stderr, network *os.File) error {
	files := []*os.File{channel, stdout, stderr}
	if network != nil {
		files = append(files, network)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn() // Fd would make it blocking, for all who share it
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return fmt.Errorf("fork: %w", err)
		}
	}
	frame := header{kind: kindFork, fds: len(fds)}.append(nil)
	// A fork server's channel carries no other frames towards it but STOP, so that
	// this one needs no place in the writer's queue: 16 bytes go out whole.
	_, _, err := c.conn.WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
	if err != nil {
		return fmt.Errorf("%w: fork: %w", ErrClosed, err)
	}
	return nil
}

// ExpectFork prepares our end of a channel for [Forked]; before Fork.
func ExpectFork(conn *net.UnixConn) error {
	return setPassPIDFD(conn, 1)
}

// setPassPIDFD has the kernel say who sends, with each message, or no more.
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

// Forked waits for a fork server's child to report, and returns a pidfd of the
// process that did, which the caller owns: the kernel says who that is, and not
// the process. The child then waits for [Conn.Go]: conn is for NewConn now.
// ErrClosed if there will be no child, ErrProtocol if it says anything else.
func Forked(ctx context.Context, conn *net.UnixConn) (pidfd int, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			unix.Close(pidfd)
			err = context.Cause(ctx)
		}
	}()
	frame := make([]byte, headerSize)
	oob := make([]byte, unix.CmsgSpace(4*maxStrayFDs))
	n, oobn, _, _, err := conn.ReadMsgUnix(frame, oob)
	pidfd = -1
	messages, perr := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		switch {
		case m.Header.Level != unix.SOL_SOCKET:
		case m.Header.Type == unix.SCM_PIDFD && len(m.Data) >= 4:
			m.Header.Type = unix.SCM_RIGHTS // the same shape: one int
			if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
				pidfd = fds[0]
			}
		case m.Header.Type == unix.SCM_RIGHTS: // nothing a child may send
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
	want := string(header{kind: kindForked}.append(nil))
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

// maxStrayFDs is how many fds that nobody asked for are taken and closed; the
// kernel drops any more.
const maxStrayFDs = 16

// Go lets a child that was [Forked] become an instance; READY follows.
func (c *Conn) Go() error {
	return c.w.send(context.Background(), kindGo, 0, 0, nil, nil)
}
