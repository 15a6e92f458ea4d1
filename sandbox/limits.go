package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// HostMemory is the host's memory in bytes.
func HostMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the host's memory: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}
