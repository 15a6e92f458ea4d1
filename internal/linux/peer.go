package linux

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PeerGroups returns the supplementary groups that the process at the other end of a connected
// Unix socket had when the process connected (SO_PEERGROUPS, unix(7)). The ids are of the
// caller's user namespace. The result does not include the peer's gid.
func PeerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errors.Is(errno, unix.ERANGE): // size holds the required size
			groups = make([]uint32, size/4)
		default:
			return nil, fmt.Errorf("groups of a socket's peer: %w", errno)
		}
	}
}
