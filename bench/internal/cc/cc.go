// Package cc compiles the benchmarks' small C programs. The programs are static: they run in any
// root, and start as cheaply as possible.
package cc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Compile compiles a C source into an executable in dir, under the given name, and returns the
// path. Compile needs a C compiler ($CC, or cc) and, without the flag -nostdlib, a static libc.
func Compile(ctx context.Context, dir, name string, source []byte, flags ...string) (string, error) {
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	bin := filepath.Join(dir, name)
	args := slices.Concat([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"}, flags, []string{"-x", "c", "-o", bin, "-"})
	cmd := exec.CommandContext(ctx, compiler, args...)
	cmd.Stdin = bytes.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s with %s (make deps-build installs a compiler): %w: %s", name, compiler, err, bytes.TrimSpace(out))
	}
	return bin, nil
}
