// Package linux holds the few system calls that golang.org/x/sys does not wrap, and RemoveAll,
// for trees too deep for the standard library. Only this package may use package unsafe.
package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kcmpVM compares address spaces (linux/kcmp.h).
const kcmpVM = 1

// SameMemory reports whether two processes share an address space, as after CLONE_VM (kcmp(2)).
// The error is ESRCH if a process has ended, ENOSYS on a kernel without CONFIG_KCMP.
func SameMemory(a, b int) (bool, error) {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	if errno != 0 {
		return false, fmt.Errorf("kcmp of %d and %d: %w", a, b, errno)
	}
	return order == 0, nil
}
