package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenTerminal makes a pseudoterminal (pty(7)) whose terminal belongs to a host
// id: for Spec.TTY, as all three of its streams. It has a devpts of its own, so
// that no sandbox learns of the host's terminals. The caller owns both files;
// what is read of master ends with EIO once the last process has closed the
// terminal.
func OpenTerminal(owner uint32) (master, terminal *os.File, err error) {
	fail := func(what string, err error) error { return fmt.Errorf("open terminal: %s: %w", what, err) }
	id := strconv.FormatUint(uint64(owner), 10)
	dir, err := newMount("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"uid", id}, [2]string{"gid", id}, [2]string{"mode", "0620"}, [2]string{"max", "1"})
	if err != nil {
		return nil, nil, fail("its file system", err)
	}
	defer unix.Close(dir)
	// Watched by the poller: what a program prints is read by a goroutine.
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

// ResizeTerminal tells the programs at a terminal how large it is, in characters.
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
