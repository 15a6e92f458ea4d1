package nettrace

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 70 8 9 10\ncpu2 1 2 3 4 5 6 5 8 9 10\nintr 5 0\nsoftirq 1 2\n"
	got, err := parseStat(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]time.Duration{700 * time.Millisecond, 0, 50 * time.Millisecond}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "cpu 1 2 3 4 5 6 7 8\n", "cpu0 1 2\n", "cpux 1 2 3 4 5 6 7 8\n", "cpu0 1 2 3 4 5 6 x 8\n", "cpu0 1 2 3 4 5 6 -7 8\n"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

func TestParseSchedstat(t *testing.T) {
	if got, err := parseSchedstat("1 2000 3\n"); err != nil || got != 2*time.Microsecond {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "1 2", "1 x 3", "1 -2 3", "1 2 3 4"} {
		if got, err := parseSchedstat(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

func FuzzProc(f *testing.F) {
	f.Add("cpu  9\ncpu0 1 2 3 4 5 6 70 8 9 10\n")
	f.Add("cpu65535 1 2 3 4 5 6 281474976710655 8")
	f.Add("cpu0 0 0 0 0 0 0 1000000000000 0") // more than a Duration holds
	f.Add("1 2000 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseStat(text)
		for _, d := range all {
			if err == nil && d < 0 {
				t.Errorf("%q: %v", text, all)
			}
		}
		if d, err := parseSchedstat(text); err == nil && d < 0 {
			t.Errorf("%q: %v", text, d)
		}
	})
}

func TestRunQueue(t *testing.T) {
	if got := runQueue(os.Getpid()); len(got) == 0 {
		t.Error("this process has no threads")
	}
	if got := runQueue(1 << 30); got != nil {
		t.Errorf("no process: %v", got)
	}
}

// The delay of a thread includes the time before the first sample, and stays in the sum after the
// thread's end.
func TestDelays(t *testing.T) {
	tracer := &Tracer{waited: map[int]time.Duration{}, delays: map[string]time.Duration{"gone": 5, "box": 7}}
	s := &Sample{}
	tracer.delay(s, []Owner{{ID: "box", Name: "f", PIDs: []int{1 << 30}}})
	if diff := cmp.Diff([]Delayed{{"box", "f", 7}}, s.RunQueue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := tracer.delays["gone"]; ok {
		t.Error("one that has ended is kept")
	}
}

func TestDescribe(t *testing.T) {
	four := connection{Family: unix.AF_INET, LocalPort: 80, RemotePort: [2]byte{1, 2}, Namespace: 5, Local: [16]byte{10, 0, 0, 1}, Remote: [16]byte{10, 0, 0, 2}}
	mapped := connection{Family: unix.AF_INET6, LocalPort: 1, Local: netip.MustParseAddr("::ffff:1.2.3.4").As16(), Remote: netip.MustParseAddr("2001:db8::1").As16()}
	got := []Retransmitted{four.describe(), mapped.describe()}
	want := []Retransmitted{
		{Local: netip.MustParseAddrPort("10.0.0.1:80"), Remote: netip.MustParseAddrPort("10.0.0.2:258"), Namespace: 5},
		{Local: netip.MustParseAddrPort("1.2.3.4:1"), Remote: netip.MustParseAddrPort("[2001:db8::1]:0")},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSince(t *testing.T) {
	at := netip.MustParseAddrPort("1.2.3.4:5")
	before := &Sample{
		Retransmissions: []Retransmitted{{Local: at, Count: 5}, {Local: at, Namespace: 1, Count: 9}},
		Drops:           []Dropped{{"A", 1}, {"B", 1}},
		Allocations:     []Allocated{{"x", 1, 4}},
		SoftIRQ:         []Interrupted{{0, 5}}, RunQueue: []Delayed{{"a", "", 5}, {"b", "", 5}},
	}
	now := &Sample{
		Missing:         []string{"m"},
		Retransmissions: []Retransmitted{{Local: at, Count: 7}, {Local: at, Namespace: 1, Count: 3}},
		Drops:           []Dropped{{"A", 1}, {"B", 3}, {"C", 4}},
		Allocations:     []Allocated{{"x", 1, 5}},
		SoftIRQ:         []Interrupted{{0, 5}, {1, 2}}, RunQueue: []Delayed{{"b", "", 6}, {"c", "", 2}},
	}
	want := &Sample{
		Missing:         []string{"m"},
		Retransmissions: []Retransmitted{{Local: at, Namespace: 1, Count: 3}, {Local: at, Count: 2}}, // the counter was reset
		Drops:           []Dropped{{"C", 4}, {"B", 2}},
		Allocations:     []Allocated{{"x", 1, 1}},
		SoftIRQ:         []Interrupted{{0, 0}, {1, 2}}, RunQueue: []Delayed{{"c", "", 2}, {"b", "", 1}},
	}
	if diff := cmp.Diff(want, now.Since(before), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
