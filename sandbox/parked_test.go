package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/cgroup"
)

// waitParked waits until the host has parked enough sandboxes.
func waitParked(t testing.TB, h *Host, enough func(ParkedStats) bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !enough(h.Parked()); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not enough parked sandboxes after %v: %+v", within, h.Parked())
		}
	}
}

func someBare(s ParkedStats) bool { return s.Bare > 0 }

// warmUp makes the host expect more starts like spec, and waits for the parked sandboxes.
func warmUp(t testing.TB, h *Host, spec Spec) {
	t.Helper()
	spec.Args = []string{"/bin/prog", "args"}
	spec.Repeats = true
	run(t, h, spec)
	waitParked(t, h, func(s ParkedStats) bool { return s.Attached > 0 })
}

// TestParkedSandboxes: A program sees the same surroundings in each kind of sandbox.
func TestParkedSandboxes(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	work := t.TempDir()
	for _, args := range [][]string{
		{"args", "a", "", "b c"},
		{"env"},
		{"cwd"},
		{"host"},
		{"ids"},
		{"fds"},
		{"inherited"},
		{"denied"},
		{"interfaces"},
		{"ls", "/", "/dev", "/proc/self", "/tmp", "/work"},
		{"stat", "/tmp"},
		{"readlink", "/proc/self"},
		{"cat", "/proc/self/cgroup", "/proc/self/limits", "/proc/self/oom_score_adj", "/proc/self/uid_map"},
	} {
		t.Run(args[0], func(t *testing.T) {
			base := prog(root, args...)
			base.Hostname, base.Dir, base.Env, base.Work = "somehost", "/tmp", []string{"A=1", "B="}, work
			base.Limits = Limits{MemoryBytes: 48 << 20, CPUMillis: 500, Pids: 17, TmpBytes: 3 << 20, Files: 99}
			of := func(kind StartKind, repeats bool) string {
				t.Helper()
				spec := base
				spec.Repeats = repeats
				r, w := pipe(t)
				spec.Stdout, spec.Stderr = w, w
				s, err := h.Start(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				_ = w.Close()
				if s.Kind() != kind {
					t.Fatalf("was of the kind %s, want %s: %+v", s.Kind(), kind, h.Parked())
				}
				out := readAll(t, r)
				wait(t, s)
				return out
			}
			waitParked(t, h, someBare)
			bare := of(StartBare, false)
			warmUp(t, h, base)
			attached := of(StartAttached, true)
			spawned := runSpawner(t, h, base)
			if diff := cmp.Diff(spawned, bare); diff != "" {
				t.Errorf("bare parked sandbox (+) against spawner (-):\n%s", diff)
			}
			if diff := cmp.Diff(spawned, attached); diff != "" {
				t.Errorf("attached parked sandbox (+) against spawner (-):\n%s", diff)
			}
		})
	}
}

// runSpawner runs spec through the spawner alone and returns the output.
func runSpawner(t *testing.T, h *Host, spec Spec) string {
	t.Helper()
	spec.setDefaults()
	r, w := pipe(t)
	spec.Stdout, spec.Stderr = w, w
	s, err := h.startSpawner(t.Context(), &spec, nil)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out := readAll(t, r)
	wait(t, s)
	return out
}

// TestParkedLimits: The control groups of a parked sandbox have the limits of its start, and the
// earlier use does not count.
func TestParkedLimits(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	waitParked(t, h, someBare)
	spec := prog(root, "eat", fmt.Sprint(200<<20))
	spec.Limits.MemoryBytes = 64 << 20
	if _, status := run(t, h, spec); !status.OOMKilled {
		t.Errorf("used 200 MiB of 64 in a bare parked sandbox: %+v", status)
	}
	spec.Args[2] = fmt.Sprint(160 << 20)
	spec.Limits.MemoryBytes = 256 << 20
	waitParked(t, h, someBare)
	r, w := pipe(t)
	spec.Stdout = w
	s, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 64)); n == 0 { // once the program holds the memory
		t.Errorf("160 MiB of 256 in a bare parked sandbox: %v", err)
	}
	s.Kill()
	wait(t, s)
}

// TestParkedOfAnother: After a directory took the place of a root or of a /work, no start uses a
// parked sandbox of the old directory.
func TestParkedOfAnother(t *testing.T) {
	h := openHost(t)
	for _, what := range []string{"root", "work"} {
		t.Run(what, func(t *testing.T) {
			root, work := fretest.Rootfs(t), t.TempDir()
			spec := prog(root, "ls", "/work")
			spec.Work = work
			warmUp(t, h, spec)
			replaced := map[string]string{"root": root, "work": work}[what]
			if err := os.Rename(replaced, replaced+".old"); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(replaced, os.DirFS(replaced+".old")); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(replaced + ".old"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(work, "note"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			spec.Repeats, spec.Args = true, []string{"/bin/prog", "ls", "/work"}
			if out, status := run(t, h, spec); status.Code != 0 || !strings.Contains(out, "note") {
				t.Errorf("it has %q in /work, %+v", out, status)
			}
		})
	}
}

// TestParkedTooBig: A start with a memory limit near the memory kept in a parked sandbox's group
// uses no parked sandbox. Otherwise the kernel would kill the parked sandbox, and with it the
// spawner, which shares its memory.
func TestParkedTooBig(t *testing.T) {
	h := openHost(t)
	waitParked(t, h, func(s ParkedStats) bool { return s.Bare == 4 })
	for _, limit := range []int64{4096, cgroup.MostKept + 1<<20, 4*cgroup.MostKept - 4096} {
		spec := prog(fretest.Rootfs(t), "args", "on")
		spec.Limits.MemoryBytes = limit
		s, err := h.Start(t.Context(), spec)
		if err == nil {
			if s.Kind() != StartSpawner {
				t.Errorf("%d bytes: started by %s, want %s", limit, s.Kind(), StartSpawner)
			}
			if status := wait(t, s); limit == 4096 && !status.OOMKilled {
				t.Errorf("ran in a page: %+v", status)
			}
		}
		if now := h.Parked(); now.Bare != 4 || now.Died != 0 {
			t.Errorf("%d bytes: parked sandboxes after a start that none of them could do: %+v", limit, now)
		}
	}
}

// TestParkedHoldsTooMuch: A start succeeds even if the group of the parked sandbox is charged with
// more than the start's limit.
func TestParkedHoldsTooMuch(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Spawners, c.Parked = 1, 1 })
	waitParked(t, h, someBare)
	sp := h.spawners.slots[0].s
	sp.mu.Lock()
	parked := slices.Collect(maps.Values(sp.live))
	sp.mu.Unlock()
	if len(parked) != 1 {
		t.Fatalf("%d parked sandboxes, want 1", len(parked))
	}
	if parked[0].group.V2() { // v2 kills for such a limit; v1 refuses to set it
		t.Log("cgroup v2: nothing to see")
		return
	}
	fretest.Charge(t, 40<<20, parked[0].group.Add)
	spec := prog(fretest.Rootfs(t), "args", "on")
	spec.Limits.MemoryBytes = 32 << 20
	if out, _ := run(t, h, spec); out != "on\n" {
		t.Errorf("start where a parked sandbox holds more than the limit: %q", out)
	}
	wait(t, parked[0])
}

// TestParkedFailures: A failed start says why, and the next start works.
func TestParkedFailures(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for _, repeats := range []bool{false, true} {
		good := prog(root, "args", "on")
		good.Repeats = repeats
		if repeats {
			warmUp(t, h, good)
		}
		for _, test := range []struct {
			name   string
			change func(*Spec)
			step   Step
		}{
			{"no such program", func(s *Spec) { s.Args = []string{"/bin/nothing"} }, StepExec},
			{"no such directory", func(s *Spec) { s.Dir = "/nothing" }, StepDir},
			{"no mount point", func(s *Spec) { s.Mounts = []Mount{{Source: root, Target: "/nothing"}} }, StepMount},
		} {
			waitParked(t, h, someBare)
			spec := good
			test.change(&spec)
			s, err := h.Start(t.Context(), spec)
			var e *StartError
			if !errors.As(err, &e) || e.Step != test.step || e.Err != unix.ENOENT {
				t.Errorf("%s: %v, %v; want ENOENT at %s", test.name, s, err, test.step)
			}
			if out, _ := run(t, h, good); out != "on\n" {
				t.Errorf("after %s: %q", test.name, out)
			}
		}
	}
}

// TestParkedNames: A name in use is refused, and the parked sandbox taken for the start ends.
func TestParkedNames(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	waitParked(t, h, someBare)
	spec := prog(root, "sleep")
	spec.ID = "taken"
	s, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Start(t.Context(), spec); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second start of the name: %v, want %v", err, fs.ErrExist)
	}
	s.Kill()
	wait(t, s)
}

// TestParkedCancelled: A cancelled start leaves no sandbox.
func TestParkedCancelled(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	waitParked(t, h, someBare)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if s, err := h.Start(ctx, prog(root, "sleep")); err == nil {
			s.Kill()
			wait(t, s)
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled start: %v", err)
		}
	}
}

// TestParkedSandboxesDie: The host replaces and counts parked sandboxes that are killed. No start
// notices.
func TestParkedSandboxesDie(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Spawners = 1 })
	root := fretest.Rootfs(t)
	waitParked(t, h, func(s ParkedStats) bool { return s.Bare == 4 })
	sp := h.spawners.slots[0].s
	sp.mu.Lock()
	waiting := slices.Collect(maps.Values(sp.live))
	sp.mu.Unlock()
	for _, sb := range waiting {
		sb.Kill()
	}
	for _, sb := range waiting { // a dying one may still read a start
		wait(t, sb)
	}
	if out, _ := run(t, h, prog(root, "args", "on")); out != "on\n" {
		t.Errorf("start after the parked sandboxes' death: %q", out)
	}
	waitParked(t, h, func(s ParkedStats) bool { return s.Bare >= 3 && s.Died >= 3 })

	// A dead spawner takes its parked sandboxes along; its successor parks new ones.
	if err := sp.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for !sp.ended() {
		<-time.After(time.Millisecond)
	}
	if out, _ := run(t, h, prog(root, "args", "on")); out != "on\n" {
		t.Errorf("start after the spawner's death: %q", out)
	}
	waitParked(t, h, func(s ParkedStats) bool { return s.Bare >= 3 && s.Died >= 6 })
}

// TestParkedDiesUnread: If a parked sandbox accepts a start and dies before it has read the
// message, the host starts the program another way.
func TestParkedDiesUnread(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Spawners = 1 })
	waitParked(t, h, func(s ParkedStats) bool { return s.Bare == 4 })
	sp := h.spawners.slots[0].s
	sp.mu.Lock()
	parked := slices.Collect(maps.Values(sp.live))
	sp.mu.Unlock()
	for _, sb := range parked {
		if err := sb.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for stopped := false; !stopped; <-time.After(time.Millisecond) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", sb.PID()))
			if err != nil {
				t.Fatal(err)
			}
			stopped = strings.Contains(string(stat), ") T ")
		}
	}
	for _, sb := range parked {
		go func() {
			for sb.parked.Load() { // until it is taken and its start is sent
				<-time.After(time.Millisecond)
			}
			<-time.After(20 * time.Millisecond)
			sb.Kill()
		}()
	}
	spec := prog(fretest.Rootfs(t), "args", "on")
	spec.ID = "named" // the name passes from one parked sandbox to the next
	if out, _ := run(t, h, spec); out != "on\n" {
		t.Errorf("start whose parked sandboxes die: %q", out)
	}
	if now := h.Parked(); now.Died == 0 {
		t.Error("no parked sandbox was counted as dead")
	}
}

// TestParkedBurst: A burst beyond the number of parked sandboxes is served, and the next burst
// finds more of them parked.
func TestParkedBurst(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	warmUp(t, h, prog(root, "args"))
	burst := func() map[StartKind]int {
		var mu sync.Mutex
		count := map[StartKind]int{}
		var group sync.WaitGroup
		for i := range 40 {
			group.Go(func() {
				spec := prog(root, "args", fmt.Sprint(i))
				spec.Repeats = true
				r, w := pipe(t)
				spec.Stdout = w
				s, err := h.Start(t.Context(), spec)
				_ = w.Close()
				if err != nil {
					t.Error(err)
					return
				}
				if out := readAll(t, r); strings.TrimSpace(out) != fmt.Sprint(i) {
					t.Errorf("start %d printed %q", i, out)
				}
				wait(t, s)
				mu.Lock()
				defer mu.Unlock()
				count[s.Kind()]++
			})
		}
		group.Wait()
		return count
	}
	// The demand of a burst depends on the speed of the answers: at most 12 of Config.Parked.
	wanted := func() (n int) {
		h.parked.mu.Lock()
		defer h.parked.mu.Unlock()
		for _, p := range h.parked.pools {
			_, want := p.Len()
			n += want
		}
		return min(n, 12)
	}
	few := wanted()
	first := burst()
	more := wanted()
	if more <= few {
		t.Errorf("%d parked sandboxes wanted after a burst, %d before", more, few)
	}
	waitParked(t, h, func(s ParkedStats) bool { return s.Attached >= more && s.Bare == 4 })
	if second := burst(); second[StartAttached] < more {
		t.Errorf("kinds of two bursts: %v, %v; want %d by those parked before the second", first, second, more)
	}
}

// TestParkedSandboxHoldsNothing: A bare parked sandbox knows no tenant. A parked sandbox has only
// one open file of the engine: the socket for its start.
func TestParkedSandboxHoldsNothing(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	warmUp(t, h, prog(root, "args"))
	waitParked(t, h, someBare)
	var parked []*Sandbox
	for i := range h.spawners.slots {
		sp := h.spawners.slots[i].s
		sp.mu.Lock()
		for _, sb := range sp.live {
			if sb.parked.Load() {
				parked = append(parked, sb)
			}
		}
		sp.mu.Unlock()
	}
	if len(parked) < 2 {
		t.Fatalf("%d sandboxes are parked", len(parked))
	}
	for _, sb := range parked {
		dir := fmt.Sprintf("/proc/%d/fd", sb.PID())
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			target, err := os.Readlink(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			allowed := target == "/dev/null" || target == "/null" || strings.HasPrefix(target, "socket:") ||
				e.Name() == "5" && strings.HasPrefix(target, "pipe:") || // for its reports
				target == "anon_inode:[landlock-ruleset]" || // a kernel object of the spawner
				sb.kind == StartBare && e.Name() == "7" && target == "/" // its /proc, not yet attached
			if !allowed {
				t.Errorf("%s sandbox has fd %s open: %s", sb.kind, e.Name(), target)
			}
		}
	}
}

// TestPin: A pinned sandbox begins on one CPU and gets all CPUs later, together with its children
// and threads.
func TestPin(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Log("one CPU: nothing to see")
		return
	}
	h := openHost(t)
	root := fretest.Rootfs(t)
	for _, pin := range []bool{true, false} {
		spec := prog(root, "daemons")
		spec.Pin = pin
		r, w := pipe(t)
		spec.Stdout = w
		s, err := h.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		var cpus unix.CPUSet
		if err := unix.SchedGetaffinity(s.PID(), &cpus); err != nil {
			t.Fatal(err)
		}
		if one := cpus.Count() == 1; one != pin {
			s.mu.Lock()
			late := s.unpin != nil && !s.unpin.Stop() // a busy machine: the time is already over
			s.mu.Unlock()
			if !late {
				t.Errorf("began on %d CPUs, pin is %v", cpus.Count(), pin)
			}
		}
		if _, err := io.ReadFull(r, make([]byte, 3*len("ready\n"))); err != nil { // each child's line
			t.Fatal(err)
		}
		s.unpinNow()
		threads, err := s.group.Threads()
		if err != nil || len(threads) < 4 {
			t.Fatalf("threads of four Go programs: %v, %v", threads, err)
		}
		for _, tid := range threads {
			if err := unix.SchedGetaffinity(tid, &cpus); err != nil || cpus != h.cpus {
				t.Errorf("thread %d has %d CPUs, %v; want all", tid, cpus.Count(), err)
			}
		}
		s.Kill()
		wait(t, s)
	}
}
