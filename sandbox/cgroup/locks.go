package cgroup

import (
	"bytes"
	"io"
	"os"
	"strconv"
)

// File locks are kernel memory that is charged to nobody, some 192 bytes each, and the
// kernel has no limit of them (RLIMIT_LOCKS counts nothing since 2.4). sysfs tells their
// number in 15 µs. /proc/locks tells their owners, but stops all locking while it is read,
// in a time that grows with the square of their number: 50 ms for 20,000, half a second for
// 50,000. So the watch reads /proc/locks only after the number has grown by moreLocks.
const (
	mostLocks  = 20_000  // of a group
	moreLocks  = 8_000   // of the host, since /proc/locks was read last
	locksBytes = 2 << 20 // are read of it, some 35,000 lines
)

// lockObjects holds the number of objects for which the cache of file locks has memory.
// A kernel that merges caches of one size counts the objects of other caches too.
const lockObjects = "/sys/kernel/slab/file_lock_cache/total_objects"

// boundLocks ends the leases of groups whose processes hold very many file locks.
func (w *watch) boundLocks(groups []*Group) {
	text, err := readFile(lockObjects)
	if err != nil {
		return // not root, or a kernel without SLUB's debugging
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
		if len(sample) == locksBytes { // there are more, held in like proportion
			held = held * all / max(lines, 1)
		}
		if held > mostLocks {
			g.flood(lease)
		}
	}
}

// grown says whether the number of the host's file locks has grown enough since the last
// reading of /proc/locks to read it again.
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

// objects returns the total in a file of sysfs that also tells the number of each node:
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
			pid, _ := strconv.Atoi(string(fields[4])) // of one that waits it is no number
			of[pid]++
			lines++
		}
	}
	return of, lines
}
