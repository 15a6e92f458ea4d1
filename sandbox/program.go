package sandbox

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
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
