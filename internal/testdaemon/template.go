package testdaemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CopyTemplate copies the template directory src to dst, which must not exist. The lock file that a
// deployment writes beside the template then stays out of the source tree. If src holds a Go
// program, CopyTemplate builds the program into dst, under the last part of the template's name:
// "native-clock" gives "clock". Without a go command, CopyTemplate uses the program already in the
// copy.
func CopyTemplate(ctx context.Context, src, dst string) error {
	if err := os.CopyFS(dst, os.DirFS(src)); err != nil {
		return fmt.Errorf("copy template: %w", err)
	}
	if _, err := os.Stat(filepath.Join(src, "main.go")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	name := filepath.Base(src)
	program := filepath.Join(dst, name[strings.LastIndexByte(name, '-')+1:])
	if _, err := exec.LookPath("go"); err != nil {
		if _, err := os.Stat(program); err == nil {
			return nil
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, ".")
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build template %s: %w: %s", name, err, out)
	}
	return nil
}
