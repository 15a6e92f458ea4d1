package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLocks: The watch looks for the holders of file locks once the locks of the host have grown
// enough.
func TestLocks(t *testing.T) {
	for text, want := range map[string]int64{"504 N0=504\n": 504, "100546 N0=100000 N1=546\n": 100546, "7\n": 7, "": 0, "x": 0} {
		if got := objects([]byte(text)); got != want {
			t.Errorf("%q: %d locks, want %d", text, got, want)
		}
	}
	w := &watch{}
	for i, step := range []struct {
		all  int64
		want bool
	}{
		{100, false},
		{mostLocks, false},
		{mostLocks + 1, true},
		{mostLocks + moreLocks, false}, // few more since the last look at the holders
		{mostLocks + moreLocks + 1, true},
		{5_000, false}, // many locks were released
		{mostLocks + 2, true},
	} {
		if got := w.grown(step.all); got != step.want {
			t.Errorf("step %d, %d locks: %v, want %v", i, step.all, got, step.want)
		}
	}
	of, lines := lockHolders([]byte("1: POSIX  ADVISORY  WRITE 3548 08:01:15863 0 0\n1: -> POSIX  ADVISORY  WRITE 3549 08:01:15863 0 0\n" +
		"2: FLOCK  ADVISORY  WRITE 77 00:2b:1 0 EOF\n3: POSIX  ADVISORY  READ 3548 08:01:15863 5 5\n4: OFDLCK ADVISORY  READ -1 00:06:17 0 EOF\n5: POS"))
	if diff := cmp.Diff(map[int]int64{3548: 2, 77: 1, 0: 1, -1: 1}, of); diff != "" || lines != 5 {
		t.Errorf("%d lines (-want +got):\n%s", lines, diff)
	}
}
