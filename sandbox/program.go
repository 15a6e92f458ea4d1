package sandbox

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
)

// programs holds fre-shell, the spawner, compiled by `make build`. On a fresh clone the
// directory holds only a .gitignore, with which the package still compiles.
//
//go:embed all:shell/bin
var programs embed.FS

// ErrNotBuilt reports that the engine was compiled without fre-shell.
var ErrNotBuilt = errors.New("fre was built without fre-shell: run make build")

// openProgram returns fre-shell as a sealed memory file, for [shellCommand]. The caller closes
// the file. The error is [ErrNotBuilt] if the engine has no fre-shell.
func openProgram() (*os.File, error) {
	program, err := programs.ReadFile("shell/bin/fre-shell")
	if err != nil {
		return nil, ErrNotBuilt
	}
	return sealedFile("fre-shell", program)
}

// shellCommand returns a command that runs program, fre-shell, with files from fd 3 on, in an
// empty environment. The program is the file after files: the child has its files in place
// before the child executes /proc/self/fd/N, but the child's own pipe may be moved to any other
// N.
func shellCommand(program *os.File, files []*os.File, args ...string) *exec.Cmd {
	return &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", 3+len(files)),
		Args:       append([]string{"fre-shell"}, args...),
		Env:        []string{}, // nil would mean the engine's environment
		Dir:        "/",
		ExtraFiles: append(slices.Clone(files), program),
	}
}
