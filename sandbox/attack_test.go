package sandbox

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestInherited: A sandbox inherits neither the priority nor the limits that a service manager gave
// the engine.
func TestInherited(t *testing.T) {
	fretest.RequireRoot(t)
	root := fretest.Rootfs(t)
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	const adjust = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(adjust)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		err := errors.Join(unix.Setpriority(unix.PRIO_PROCESS, 0, 20-nice), os.WriteFile(adjust, before, 0))
		if err != nil {
			t.Error(err)
		}
	}()
	// Without CAP_SYS_RESOURCE, as in a container, the engine has no such setting to pass on.
	if err := os.WriteFile(adjust, []byte("-500"), 0); err != nil && !errors.Is(err, unix.EACCES) {
		t.Fatal(err)
	}
	var locked unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &locked); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	// Only for this thread, which then forks the spawner.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -5); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0o77)
	defer unix.Umask(old)
	h := openHost(t)
	out, _ := run(t, h, prog(root, "inherited"))
	if want := "core 1/1 memlock 65536/65536 nice 0 oom 0 umask 22 session 1\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// TestSpawnerHangs: A start does not wait forever for a hanging spawner, and the next start has a
// new spawner.
func TestSpawnerHangs(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Spawners, c.Parked = 1, -1 })
	root := fretest.Rootfs(t)
	h.startWithin = 100 * time.Millisecond
	if err := h.spawners.slots[0].s.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if s, err := h.Start(t.Context(), prog(root, "sleep")); !errors.Is(err, errHung) {
		t.Fatalf("start with a stopped spawner: %v, %v; want %v", s, err, errHung)
	}
	h.startWithin = startWithin
	h.spawners.reading.Wait() // the reader is done with the old spawner
	if out, _ := run(t, h, prog(root, "args", "again")); out != "again\n" {
		t.Errorf("after the hang: %q", out)
	}
}

// TestNoRoomForPidfd: If the engine has no descriptor left, the kernel drops the pidfd of the new
// sandbox. The host then kills the sandbox, and the start fails.
func TestNoRoomForPidfd(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Spawners = 1 })
	root := fretest.Rootfs(t)
	sp := h.spawners.slots[0].s
	if err := sp.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	spec := prog(root, "sleep")
	spec.setDefaults()
	s := &Sandbox{host: &h.shared, number: 1 << 40, pidfd: -1, tmp: -1, ready: make(chan struct{}), done: make(chan struct{})}
	if _, err := h.launch(s, &spec); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}, nil)
	if err == nil {
		err = sp.cmd.Process.Signal(unix.SIGCONT)
		<-s.ready
	}
	if err := errors.Join(err, unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil)); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(s.err, unix.EMFILE) {
		t.Errorf("start: %v, want %v", s.err, unix.EMFILE)
	}
	if status := wait(t, s); status.Signal != int(unix.SIGKILL) {
		t.Errorf("ended with %+v, want it killed", status)
	}
}

// TestOutOfFiles: If the engine has no descriptor left, the start fails with this reason, and after
// the sandboxes' end the host works as before.
func TestOutOfFiles(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: limit.Max}, nil); err != nil {
		t.Fatal(err)
	}
	var failed error
	var all []*Sandbox
	var mu sync.Mutex
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			s, err := h.Start(t.Context(), prog(root, "stubborn"))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else {
				all = append(all, s)
			}
		})
	}
	group.Wait()
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(failed, unix.EMFILE) {
		t.Errorf("100 at once with room for 200 files: %v, want %v", failed, unix.EMFILE)
	}
	for _, s := range all {
		s.Kill()
		wait(t, s)
	}
	if out, _ := run(t, h, prog(root, "args", "again")); out != "again\n" {
		t.Errorf("after the shortage: %q", out)
	}
}

// TestTinyLimits: Limits too small for a sandbox's own start fail the start, and leave the spawner
// and a neighbour unharmed.
func TestTinyLimits(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Spawners = 1 })
	root := fretest.Rootfs(t)
	neighbour, _ := startReady(t, h, prog(root, "sleep"))
	long := strings.Repeat("x", 100<<10)
	for _, l := range []Limits{
		{MemoryBytes: 4096},
		{MemoryBytes: 64 << 10},
		{MemoryBytes: 256 << 10},
		{MemoryBytes: 1 << 20},
		{CPUMillis: 1},
		{Pids: 1},
		{Files: 1},
		{TmpBytes: 1},
		{TmpInodes: 1},
	} {
		spec := prog(root, "args", long, long, long, long, long, long, long, long)
		spec.Limits = l
		s, err := h.Start(t.Context(), spec)
		t.Logf("%+v: %v", l, err)
		if err == nil {
			wait(t, s)
		}
	}
	select {
	case <-neighbour.Done():
		t.Errorf("the neighbour ended: %+v", neighbour.Status())
	default:
	}
	neighbour.Kill()
	wait(t, neighbour)
}
