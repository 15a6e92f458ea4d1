package cgroup

import (
	"bytes"
	"io"
	"os"
	"strconv"
)

// The kernel charges file locks, some 192 bytes each, to no cgroup and has no limit for them
// (RLIMIT_LOCKS has had no effect since Linux 2.4). sysfs tells the number of locks in 15 µs.
// /proc/locks tells the owners, but stops all locking during the read, for a time that grows
// with the square of the number: 50 ms for 20,000 locks, half a second for 50,000. So the watch
// reads /proc/locks only after the number has grown by moreLocks.
const (
	mostLocks  = 20_000  // locks of one group
	moreLocks  = 8_000   // new locks of the host since the last read of /proc/locks
	locksBytes = 2 << 20 // most bytes read of /proc/locks: some 35,000 lines
)

// lockObjects holds the number of lock objects in allocated slabs, used or free. A kernel that
// merges caches of one size counts the objects of other caches too.
const lockObjects = "/sys/kernel/slab/file_lock_cache/total_objects"

// boundLocks ends the lease of every group whose processes hold more than mostLocks file locks.
func (w *watch) boundLocks(groups []*Group) {
	text, err := readFile(lockObjects)
	if err != nil {
		return // the engine is not root, or the kernel lacks SLUB's debugging
	}
	all := objects(text)
	if !w.grown(all) {
		return
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return
	}
	sample, err := io.ReadAll(io.LimitReader(f, locksBytes))
	_ = f.Close()
	if err != nil {
		return
	}
	of, lines := lockHolders(sample)
	for _, g := range groups {
		g.mu.Lock()
		lease := g.lease
		g.mu.Unlock()
		pids, err := g.Processes()
		if err != nil {
			continue
		}
		held := int64(0)
		for _, pid := range pids {
			held += of[pid]
		}
		if len(sample) == locksBytes { // truncated: scale the share in the sample up to the total
			held = held * all / max(lines, 1)
		}
		if held > mostLocks {
			g.flood(lease)
		}
	}
}

// grown reports whether the host's file locks have grown enough since the last read of
// /proc/locks to justify another read.
func (w *watch) grown(all int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.locks = min(w.locks, all)
	if all <= mostLocks || all < w.locks+moreLocks {
		return false
	}
	w.locks = all
	return true
}

// objects returns the total in a file of sysfs that also has a number for each NUMA node:
//
//	504 N0=504
func objects(text []byte) int64 {
	number, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte(" "))
	n, _ := strconv.ParseInt(string(number), 10, 64)
	return n
}

// lockHolders counts the locks of each process in the text of /proc/locks (proc(5)):
//
//	1: POSIX  ADVISORY  WRITE 3548 08:01:15863 0 0
func lockHolders(locks []byte) (of map[int]int64, lines int64) {
	of = map[int]int64{}
	for line := range bytes.Lines(locks) {
		if fields := bytes.Fields(line); len(fields) > 4 {
			pid, _ := strconv.Atoi(string(fields[4])) // no number for a waiting lock
			of[pid]++
			lines++
		}
	}
	return of, lines
}
