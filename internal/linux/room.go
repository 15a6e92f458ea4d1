package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// HasRoom returns nil if the file system of dir, after more bytes are written, still has the
// reserve free with which the engine accepts events. The reserve is a twentieth of the file
// system, at most 1 GiB and 100,000 inodes. Otherwise the error is ENOSPC.
func HasRoom(dir string, more int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("room on the disk: statfs %s: %w", dir, err)
	}
	free, reserve := st.Bavail*uint64(st.Bsize), min(1<<30, st.Blocks*uint64(st.Bsize)/20)
	// A file system without a fixed number of inodes reports 0.
	if inodes := min(100_000, st.Files/20); st.Ffree < inodes {
		return fmt.Errorf("too little room on the disk of %s: %d inodes are free, and %d stay free for events: %w", dir, st.Ffree, inodes, unix.ENOSPC)
	}
	if free >= reserve && free-reserve >= uint64(max(more, 0)) {
		return nil
	}
	return fmt.Errorf("too little room on the disk of %s: %d bytes are to come, %d are free, and %d stay free for events: %w", dir, more, free, reserve, unix.ENOSPC)
}
