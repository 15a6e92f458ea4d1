package sandbox

import (
	"embed"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// programs holds fre-shell, which `make build` compiles; without it only the
// directory's .gitignore is there, so that the package builds on a fresh clone.
//
//go:embed all:shell/bin
var programs embed.FS

// ErrNotBuilt says that the engine was compiled without fre-shell.
var ErrNotBuilt = errors.New("fre-shell was not built into this program: run make build")

// lowest is the smallest fd number openProgram returns. os/exec places a child's files
// from 3 upward before it runs the path /proc/self/fd/N: N must not be among
// them.
const lowest = 64

// openProgram returns fre-shell as a sealed memory file, which no process can change,
// not even one that finds it through /proc. Run it by its /proc/self/fd path.
// The caller closes it. [ErrNotBuilt] if there is none.
func openProgram() (*os.File, error) {
	program, err := programs.ReadFile("shell/bin/fre-shell")
	if err != nil {
		return nil, ErrNotBuilt
	}
	fd, err := unix.MemfdCreate("fre-shell", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd)
	for rest := program; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return nil, fmt.Errorf("write fre-shell: %w", err)
		}
		rest = rest[n:]
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal fre-shell: %w", err)
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, lowest)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(high), "fre-shell"), nil
}
