package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/pool"
)

func TestParseMountinfo(t *testing.T) {
	for _, test := range []struct {
		name    string
		in      string
		mounts  map[Controller]string
		unified string
	}{
		{
			name:   "v2",
			in:     "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			mounts: map[Controller]string{}, unified: "/sys/fs/cgroup",
		},
		{
			name: "v1, cpu and cpuacct together, and a unified mount",
			in: "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"39 31 0:36 / /sys/fs/cgroup/pids rw shared:9 master:1 - cgroup cgroup rw,pids\n" +
				"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			mounts: map[Controller]string{
				CPU: "/sys/fs/cgroup/cpu,cpuacct", CPUAcct: "/sys/fs/cgroup/cpu,cpuacct",
				Memory: "/sys/fs/cgroup/memory", Pids: "/sys/fs/cgroup/pids",
			},
			unified: "/sys/fs/cgroup/unified",
		},
		{
			name:   "escaped path",
			in:     "35 31 0:32 / /mnt/a\\040b rw - cgroup cgroup rw,memory\n",
			mounts: map[Controller]string{Memory: "/mnt/a b"},
		},
		{name: "malformed", in: "\n1 2 3\n - cgroup\n", mounts: map[Controller]string{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			layout, unified, err := parseMountinfo(strings.NewReader(test.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.mounts, layout.Mounts); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			if unified != test.unified {
				t.Errorf("unified at %q, want %q", unified, test.unified)
			}
		})
	}
}

func openPool(t *testing.T) *Pool {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	p, err := Open(Config{Parent: fmt.Sprintf("fre-test-%d", os.Getpid()), Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close pool: %v", err)
		}
	})
	return p
}

var small = Limits{MemoryBytes: 32 << 20, CPUMillis: 500, Pids: 10}

// TestLimitsAreWritten: The limits of a lease are in force in its group.
func TestLimitsAreWritten(t *testing.T) {
	p := openPool(t)
	for _, l := range []Limits{small, {MemoryBytes: 64 << 20, CPUMillis: 2000, Pids: 20}, small} {
		g, err := p.Acquire(l)
		if err != nil {
			t.Fatal(err)
		}
		quota := strconv.FormatInt(l.CPUMillis*100, 10)
		want := []string{strconv.FormatInt(l.MemoryBytes, 10), quota, strconv.FormatInt(l.Pids, 10)}
		names := []string{"memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max"}
		if g.V2() {
			names = []string{"memory.max", "cpu.max", "pids.max"}
			want[1] += " 100000"
		}
		var got []string
		for i, c := range []Controller{Memory, CPU, Pids} {
			b, err := os.ReadFile(filepath.Join(g.dirs[c], names[i]))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimSpace(string(b)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v for %+v (-want +got):\n%s", names, l, diff)
		}
		p.Release(g)
	}
}

// TestNoSwapAccounting: Without swap accounting a memory limit is set without the swap limit. Files
// take the place of a v1 host booted with swapaccount=0.
func TestNoSwapAccounting(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"memory.limit_in_bytes", "memory.swappiness"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &Group{dirs: map[Controller]string{Memory: dir}}
	if err := g.setMemory(1 << 20); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"memory.limit_in_bytes": "1048576", "memory.swappiness": "0"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

// TestLimitsHalfWritten: A half-written memory limit is not in force: the pool writes the limit
// again and does not lease the group again.
func TestLimitsHalfWritten(t *testing.T) {
	for _, test := range []struct {
		v2            bool
		first, second string // the files of the limit, in the order of writing
	}{
		{false, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"},
		{true, "memory.max", "memory.swap.max"},
	} {
		g := fakeGroup(t, test.v2, map[string]string{test.first: "", "memory.usage_in_bytes": "0\n", "memory.current": "0\n"})
		second := filepath.Join(g.dirs[Memory], test.second)
		if err := os.Mkdir(second, 0o700); err != nil { // a directory, which refuses the write
			t.Fatal(err)
		}
		less := small
		less.MemoryBytes /= 2
		if err := g.set(less); !errors.Is(err, unix.EISDIR) {
			t.Fatalf("limit whose %s cannot be written: %v, want %v", test.second, err, unix.EISDIR)
		}
		if v := g.clean(); v != pool.Spoilt {
			t.Errorf("clean with half a limit: %v, want %v", v, pool.Spoilt)
		}
		if err := os.Remove(second); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(second, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.set(small); err != nil {
			t.Fatal(err)
		}
		want := strconv.FormatInt(small.MemoryBytes, 10)
		if got, err := os.ReadFile(filepath.Join(g.dirs[Memory], test.first)); err != nil || string(got) != want {
			t.Errorf("%s once the limit is written again: %q, %v; want %q", test.first, got, err, want)
		}
		if v := g.clean(); v != pool.Ready {
			t.Errorf("clean with the whole limit: %v, want %v", v, pool.Ready)
		}
	}
}

// TestWriteInterrupted: Signals, such as Go's own to its threads, do not interrupt a slow write to
// a control file.
func TestWriteInterrupted(t *testing.T) {
	p := openPool(t)
	g, err := p.Acquire(Limits{MemoryBytes: 64 << 20, CPUMillis: 500, Pids: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release(g)
	fretest.Charge(t, 40<<20, g.Add)
	name, value, want := "memory.force_empty", "0", error(nil)
	if g.V2() {
		name, value, want = "memory.reclaim", "41943040", unix.EAGAIN
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	sent := make(chan error, 1)
	go func() {
		var err error
		for range 200 {
			err = errors.Join(err, unix.Tgkill(os.Getpid(), thread, unix.SIGURG))
			<-time.After(100 * time.Microsecond)
		}
		sent <- err
	}()
	for {
		if err := g.write(Memory, name, value); !errors.Is(err, want) {
			t.Errorf("write while signals come: %v, want %v", err, want)
		}
		select {
		case err := <-sent:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// TestAcquireBeyondPool: A pool makes further groups on demand and leases none twice.
func TestAcquireBeyondPool(t *testing.T) {
	p := openPool(t)
	names := map[string]bool{}
	var all []*Group
	for range 10 {
		g, err := p.Acquire(small)
		if err != nil {
			t.Fatal(err)
		}
		if names[g.name] {
			t.Errorf("group %s leased twice", g.name)
		}
		names[g.name] = true
		all = append(all, g)
	}
	for _, g := range all {
		p.Release(g)
	}
}

// TestBadLimits: Limits of zero are refused.
func TestBadLimits(t *testing.T) {
	p := openPool(t)
	if g, err := p.Acquire(Limits{}); err == nil {
		p.Release(g)
		t.Error("limits of zero were accepted")
	}
}

// TestClosed: A closed pool leases no group.
func TestClosed(t *testing.T) {
	p := openPool(t)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Acquire(small); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("acquire after Close: %v, want %v", err, fs.ErrClosed)
	}
}

// TestBusyGroup: A group with a running process is not leased before the process has ended, and
// Close kills the process.
func TestBusyGroup(t *testing.T) {
	p := openPool(t)
	g, err := p.Acquire(small)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for _, dir := range g.unique {
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	p.Release(g)
	for range 5 {
		other, err := p.Acquire(small)
		if err != nil {
			t.Fatal(err)
		}
		if other.name == g.name {
			t.Errorf("group %s leased with a process in it", g.name)
		}
		defer p.Release(other)
	}
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute): // the pool has killed the process, which ends once it is scheduled
		t.Error("process outlived the pool")
		_ = cmd.Process.Kill()
	}
}

// TestHeldMemory: A group charged with memory of another process is not leased again.
func TestHeldMemory(t *testing.T) {
	p := openPool(t)
	g, err := p.Acquire(Limits{MemoryBytes: 64 << 20, CPUMillis: 500, Pids: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release(g)
	held := fretest.Charge(t, 40<<20, g.Add)
	if s, err := g.Stats(); err != nil || s.MemoryBytes < 40<<20 {
		t.Fatalf("charged with %d bytes, %v, want 40 MiB", s.MemoryBytes, err)
	}
	if v := g.clean(); v != pool.Spoilt {
		t.Errorf("clean while 40 MiB are held: %v, want %v", v, pool.Spoilt)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if v := g.clean(); v != pool.Ready {
		t.Errorf("clean once nothing is held: %v, want %v", v, pool.Ready)
	}
}

// TestClean: A group whose memory the kernel does not reclaim is not leased again. Files take the
// place of the group.
func TestClean(t *testing.T) {
	const few, many = "1048576\n", "41943040\n"
	for _, test := range []struct {
		name  string
		v2    bool
		files map[string]string
		want  pool.Verdict
	}{
		{"v1, few", false, map[string]string{"memory.usage_in_bytes": few, "memory.memsw.usage_in_bytes": few}, pool.Ready},
		{"v1, many", false, map[string]string{"memory.usage_in_bytes": many, "memory.memsw.usage_in_bytes": many}, pool.Spoilt},
		{"v1, swapped out", false, map[string]string{"memory.usage_in_bytes": few, "memory.memsw.usage_in_bytes": many}, pool.Spoilt},
		{"v1, few, swap not accounted", false, map[string]string{"memory.usage_in_bytes": few}, pool.Ready},
		{"v1, many, swap not accounted", false, map[string]string{"memory.usage_in_bytes": many}, pool.Spoilt},
		{"v2, few", true, map[string]string{"memory.current": few}, pool.Ready},
		{"v2, many", true, map[string]string{"memory.current": many}, pool.Spoilt},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := fakeGroup(t, test.v2, test.files)
			if got := g.clean(); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestFlooded: If the sockets of a lease hold twice their limit, the pool ends the lease, once, and
// counts an out-of-memory kill. The next lease starts from zero.
func TestFlooded(t *testing.T) {
	g := fakeGroup(t, false, map[string]string{
		socketLimit: "", socketUsage: "1048577\n", "memory.limit_in_bytes": "", "memory.memsw.limit_in_bytes": "",
		"memory.usage_in_bytes": "0\n", "memory.memsw.usage_in_bytes": "0\n",
	})
	if err := errors.Join(g.setMemory(2<<20), g.openCounters()); err != nil {
		t.Fatal(err)
	}
	defer g.close()
	g.watch, g.leased = newWatch(), true
	ends := 0
	queued := int64(0)
	g.Watch(func() { ends++ }, func() int64 { return queued })
	usage := filepath.Join(g.unique[0], socketUsage)
	for _, c := range []struct {
		held string
		want int
	}{{"1048576\n", 0}, {"1048577\n", 0}, {"1048578\n", 1}, {"4194304\n", 1}} {
		if err := os.WriteFile(usage, []byte(c.held), 0o600); err != nil {
			t.Fatal(err)
		}
		if g.boundSockets(); ends != c.want {
			t.Errorf("with %q of 524288 ended %d times, want %d", c.held, ends, c.want)
		}
	}
	if s, err := g.Stats(); err != nil || s.OOMKills != 1 || s.MemoryBytes != 4<<20 {
		t.Errorf("stats %+v, %v, want one end for memory and 4 MiB", s, err)
	}
	g.watch.end(g)
	if err := os.WriteFile(usage, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := g.clean(); got != pool.Ready {
		t.Errorf("clean: %v, want %v", got, pool.Ready)
	}
	if s, err := g.Stats(); err != nil || s.OOMKills != 0 {
		t.Errorf("stats of the next lease %+v, %v", s, err)
	}
	g.leased = true
	g.Watch(func() { ends++ }, func() int64 { return queued })
	if g.boundSockets(); ends != 1 {
		t.Error("the memory of the last lease ends the next lease")
	}
	queued = 1<<19 + 1
	if g.boundSockets(); ends != 2 {
		t.Errorf("with %d bytes in netlink's queues ended %d times, want 2", queued, ends)
	}
	g.watch.end(g)
}

// fakeGroup is a group with its files in a directory: the files that clean needs, and the given
// ones.
func fakeGroup(t *testing.T, v2 bool, files map[string]string) *Group {
	t.Helper()
	dir := t.TempDir()
	all := map[string]string{
		"pids.current": "0\n", "cpu.cfs_quota_us": "", "cpuacct.usage": "0\n", "memory.oom_control": "oom_kill 0\n",
		"memory.force_empty": "", "memory.max_usage_in_bytes": "0\n",
	}
	if v2 {
		all = map[string]string{
			"pids.current": "0\n", "cpu.max": "", "cpu.stat": "usage_usec 0\n", "memory.events": "oom_kill 0\n",
			"memory.reclaim": "",
		}
	}
	maps.Copy(all, files)
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &Group{
		name: "fake", v2: v2, unique: []string{dir}, limits: small,
		dirs: map[Controller]string{CPU: dir, CPUAcct: dir, Memory: dir, Pids: dir},
	}
}

// TestReconcile: Reconcile removes the groups and processes of a crashed pool.
func TestReconcile(t *testing.T) {
	p := openPool(t)
	g, err := p.Acquire(small)
	if err != nil {
		t.Fatal(err)
	}
	again := &Pool{cfg: p.cfg, layout: p.layout, parents: p.parents, unique: p.unique}
	p.Release(g)
	p.pool.Close() // simulates the crash: the old pool's goroutines have ended
	if err := again.Reconcile(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range p.unique {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}
