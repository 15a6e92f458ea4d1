package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLocks(t *testing.T) {
	const slabs = "slabinfo - version: 2.1\n# name            <active_objs> <num_objs>\nfile_lock_ctx 80 80 56\nfile_lock_cache   100370 100546    192   21    1\n"
	if got := locksIn([]byte(slabs)); got != 100370 {
		t.Errorf("%d locks, want 100370", got)
	}
	if got := locksIn([]byte("kmalloc-192 5 6\n")); got != 0 {
		t.Errorf("%d locks without a cache of their own, want 0", got)
	}
	of, lines := lockHolders([]byte("1: POSIX  ADVISORY  WRITE 3548 08:01:15863 0 0\n1: -> POSIX  ADVISORY  WRITE 3549 08:01:15863 0 0\n" +
		"2: FLOCK  ADVISORY  WRITE 77 00:2b:1 0 EOF\n3: POSIX  ADVISORY  READ 3548 08:01:15863 5 5\n4: OFDLCK ADVISORY  READ -1 00:06:17 0 EOF\n5: POS"))
	if diff := cmp.Diff(map[int]int64{3548: 2, 77: 1, 0: 1, -1: 1}, of); diff != "" || lines != 5 {
		t.Errorf("%d lines (-want +got):\n%s", lines, diff)
	}
}
