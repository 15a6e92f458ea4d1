package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// HasRoom returns nil if the file system of a directory has a twentieth free, or 1 GiB and
// 100,000 inodes; else an error that is ENOSPC.
func HasRoom(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("room on the disk: statfs %s: %w", dir, err)
	}
	// A file system without a fixed number of inodes says 0.
	if st.Bavail*uint64(st.Bsize) >= min(1<<30, st.Blocks*uint64(st.Bsize)/20) && st.Ffree >= min(100_000, st.Files/20) {
		return nil
	}
	return fmt.Errorf("too little room on the disk of %s, of which a twentieth or 1 GiB stays free for events: remove images or what builds have downloaded (fre image prune, fre system gc --cache): %w", dir, unix.ENOSPC)
}
