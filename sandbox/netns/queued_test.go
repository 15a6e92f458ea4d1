package netns

import "testing"

// TestQueuedOf: The bytes queued in netlink sockets and the number of sockets are read from /proc.
func TestQueuedOf(t *testing.T) {
	const table = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n" +
		"000000001d0e32d4 0   0          00000000 0        0        0     2        0        10\n" +
		"00000000a1b2c3d4 0   4100       00000000 212992   0        0     2        7        20\n" +
		"00000000a1b2c3d5 0   4101       00000000 2304     0        0     2        0        21\n"
	if got := netlinkQueued([]byte(table)); got != 215296 {
		t.Errorf("queued %d, want 215296", got)
	}
	for text, want := range map[string]int{"sockets: used 12\nTCP: inuse 0": 12, "sockets: used 3": 3, "": 0, "x": 0} {
		if got := socketsUsed([]byte(text)); got != want {
			t.Errorf("%q: %d sockets, want %d", text, got, want)
		}
	}
}
