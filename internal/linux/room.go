package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// HasRoom returns nil if the file system of a directory, with so many bytes more on it, has the
// reserve free that keeps events accepted: a twentieth, or 1 GiB and 100,000 inodes; else an
// error that is ENOSPC.
func HasRoom(dir string, more int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("room on the disk: statfs %s: %w", dir, err)
	}
	free, reserve := st.Bavail*uint64(st.Bsize), min(1<<30, st.Blocks*uint64(st.Bsize)/20)
	// A file system without a fixed number of inodes says 0.
	if inodes := min(100_000, st.Files/20); st.Ffree < inodes {
		return fmt.Errorf("too little room on the disk of %s: %d inodes are free, and %d stay free for events: %w", dir, st.Ffree, inodes, unix.ENOSPC)
	}
	if free >= reserve && free-reserve >= uint64(max(more, 0)) {
		return nil
	}
	return fmt.Errorf("too little room on the disk of %s: %d bytes are to come, %d are free, and %d stay free for events: %w", dir, more, free, reserve, unix.ENOSPC)
}
