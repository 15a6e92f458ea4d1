package sandbox

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
)

// programs holds fre-shell, which `make build` compiles; without it only the
// directory's .gitignore is there, so that the package builds on a fresh clone.
//
//go:embed all:shell/bin
var programs embed.FS

// ErrNotBuilt says that the engine was compiled without fre-shell.
var ErrNotBuilt = errors.New("fre-shell was not built into this program: run make build")

// openProgram returns fre-shell as a sealed memory file, for [shellCommand]. The
// caller closes it. [ErrNotBuilt] if there is none.
func openProgram() (*os.File, error) {
	program, err := programs.ReadFile("shell/bin/fre-shell")
	if err != nil {
		return nil, ErrNotBuilt
	}
	return sealedFile("fre-shell", program)
}

// shellCommand returns a command that runs program, fre-shell, with files from fd 3
// upward, in an empty environment. The program is the file behind them: a child is
// given its files before it runs the path /proc/self/fd/N, and any other N can be
// what the child's own pipe is moved to.
func shellCommand(program *os.File, files []*os.File, args ...string) *exec.Cmd {
	return &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", 3+len(files)),
		Args:       append([]string{"fre-shell"}, args...),
		Env:        []string{}, // not nil, which would mean the engine's
		Dir:        "/",
		ExtraFiles: append(slices.Clone(files), program),
	}
}
