//go:build !amd64

package seccomp

import (
	"errors"
	"fmt"
	"runtime"
)

const arch, x32 = 0, 0

// rules fails: the spawner runs on x86-64 only so far. Another architecture needs its own
// table.
func (p Policy) rules() (map[uint32]rule, error) {
	return nil, fmt.Errorf("system call filter for %s: %w", runtime.GOARCH, errors.ErrUnsupported)
}
