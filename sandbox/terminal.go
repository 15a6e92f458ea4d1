package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenTerminal makes a pseudoterminal (pty(7)) for Spec.TTY, as all three streams. owner is the
// host id that owns the terminal. The terminal has a devpts of its own, so that no sandbox
// learns of the host's terminals. The caller owns both files. After the last process has closed
// the terminal, a read from master fails with EIO.
func OpenTerminal(owner uint32) (master, terminal *os.File, err error) {
	fail := func(what string, err error) error { return fmt.Errorf("open terminal: %s: %w", what, err) }
	id := strconv.FormatUint(uint64(owner), 10)
	dir, err := newMount("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"uid", id}, [2]string{"gid", id}, [2]string{"mode", "0620"}, [2]string{"max", "1"})
	if err != nil {
		return nil, nil, fail("file system", err)
	}
	defer unix.Close(dir)
	// Non-blocking, for Go's poller: a goroutine reads the program's output.
	fd, err := unix.Openat(dir, "ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fail("ptmx", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		fd, err = unix.Openat(dir, strconv.Itoa(number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, fail("other end", err)
	}
	return master, os.NewFile(uintptr(fd), "tty"), nil
}

// ResizeTerminal sets the size of the terminal, in characters, and notifies its programs.
func ResizeTerminal(master *os.File, rows, columns uint16) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}
