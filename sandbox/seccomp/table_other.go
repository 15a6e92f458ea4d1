//go:build !amd64

package seccomp

import (
	"errors"
	"fmt"
	"runtime"
)

const arch, x32 = 0, 0

// The spawner runs on x86-64 only so far; another architecture brings a table
// of its own.
func (p Policy) rules() (map[uint32]rule, error) {
	return nil, fmt.Errorf("system call filter for %s: %w", runtime.GOARCH, errors.ErrUnsupported)
}
