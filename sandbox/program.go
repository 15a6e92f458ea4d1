package sandbox

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"
)

// programs holds fre-spawner, the spawner, compiled by `make build`. On a fresh clone the
// directory holds only a .gitignore, with which the package still compiles.
//
//go:embed all:spawner/bin
var programs embed.FS

// ErrNotBuilt reports that the engine was compiled without fre-spawner.
var ErrNotBuilt = errors.New("fre was built without fre-spawner: run make build")

// openProgram returns fre-spawner as a sealed memory file, for [spawnerCommand]. The caller closes
// the file. The error is [ErrNotBuilt] if the engine has no fre-spawner.
func openProgram() (*os.File, error) {
	program, err := programs.ReadFile("spawner/bin/fre-spawner")
	if err != nil {
		return nil, ErrNotBuilt
	}
	return sealedFile("fre-spawner", program)
}

// spawnerCommand returns a command that runs program, fre-spawner, with files from fd 3 on, in an
// empty environment. The program is the file after files: the child has its files in place
// before the child executes /proc/self/fd/N, but the child's own pipe may be moved to any other
// N.
func spawnerCommand(program *os.File, files []*os.File, args ...string) *exec.Cmd {
	return &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", 3+len(files)),
		Args:       append([]string{"fre-spawner"}, args...),
		Env:        []string{}, // nil would mean the engine's environment
		Dir:        "/",
		ExtraFiles: append(slices.Clone(files), program),
	}
}

// sealedFile returns b as a memory file that no process can change, not even a process that
// finds the file through /proc. The caller closes the file.
func sealedFile(name string, b []byte) (_ *os.File, err error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := f.Write(b); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal %s: %w", name, err)
	}
	return f, nil
}
