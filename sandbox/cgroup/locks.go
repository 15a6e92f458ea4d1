package cgroup

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"time"
)

// File locks are kernel memory that is charged to nobody, some 192 bytes each, and the
// kernel has no limit of them (RLIMIT_LOCKS counts nothing since 2.4). Their number is
// in /proc/slabinfo where their cache is not merged with others. Whose they are is in
// /proc/locks, which stops all locking while it is read: it is, only where there are
// very many.
const (
	manyLocks  = 50_000 // of the host: then the groups' are counted
	mostLocks  = 20_000 // of a group's, then
	locksEvery = 100 * time.Millisecond
	locksRead  = 4 << 20 // of /proc/locks, some 70,000 lines
)

// boundLocks ends the leases of groups whose processes hold very many file locks.
func (w *watch) boundLocks(groups []*Group) {
	w.mu.Lock()
	due := time.Since(w.locksSeen) >= locksEvery
	if due {
		w.locksSeen = time.Now()
	}
	w.mu.Unlock()
	if !due {
		return
	}
	slabs, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		return // of root, on kernels that have it
	}
	all := locksIn(slabs)
	if all < manyLocks {
		return
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return
	}
	sample, err := io.ReadAll(io.LimitReader(f, locksRead))
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
		if lines > 0 && held*all/lines > mostLocks {
			g.flood(lease)
		}
	}
}

// locksIn is how many locks there are, by the text of /proc/slabinfo (slabinfo(5)).
func locksIn(slabs []byte) int64 {
	for line := range bytes.Lines(slabs) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "file_lock_cache" {
			n, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			return n
		}
	}
	return 0
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
