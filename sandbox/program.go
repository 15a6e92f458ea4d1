package sandbox

import (
	"embed"
	"errors"
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

// openProgram returns fre-shell as a sealed memory file, to be run by its /proc/self/fd path.
// The caller closes it. [ErrNotBuilt] if there is none.
func openProgram() (*os.File, error) {
	program, err := programs.ReadFile("shell/bin/fre-shell")
	if err != nil {
		return nil, ErrNotBuilt
	}
	f, err := sealedFile("fre-shell", program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	high, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, lowest)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(high), "fre-shell"), nil
}
