package sandbox

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestManyAtOnce: 256 sandboxes start at once.
func TestManyAtOnce(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	var group sync.WaitGroup
	for range 256 {
		group.Go(func() {
			s, err := h.Start(t.Context(), prog(root, "exit", "5"))
			if err != nil {
				t.Errorf("start: %v", err)
				return
			}
			if status := wait(t, s); status.Code != 5 {
				t.Errorf("ended with %+v", status)
			}
		})
	}
	group.Wait()
}

// TestSpawnerKilled: After kill -9 of the spawner its sandboxes end, and the engine goes on.
func TestSpawnerKilled(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	var all []*Sandbox
	for range 3 {
		s, _ := startReady(t, h, prog(root, "sleep"))
		all = append(all, s)
	}
	for i := range h.spawners.slots {
		if err := h.spawners.slots[i].s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range all {
		if status := wait(t, s); status.Signal != int(unix.SIGKILL) {
			t.Errorf("%s ended with %+v, want SIGKILL", s.ID(), status)
		}
	}
	if out, _ := run(t, h, prog(root, "args", "again")); out != "again\n" {
		t.Errorf("after the spawner's death: %q", out)
	}
}

// TestIDInUse: The id of a live sandbox is refused, and is free again after the sandbox's end.
func TestIDInUse(t *testing.T) {
	h := openHost(t)
	spec := prog(fretest.Rootfs(t), "sleep")
	spec.ID = "one"
	s, _ := startReady(t, h, spec)
	if _, err := h.Start(t.Context(), spec); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second start: %v, want %v", err, fs.ErrExist)
	}
	s.Kill()
	wait(t, s)
	again, _ := startReady(t, h, spec)
	again.Kill()
	wait(t, again)
}

// TestClose: Close ends all sandboxes and leaves no mount, cgroup, namespace, process or
// descriptor; a later start fails.
func TestClose(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	s, _ := startReady(t, h, prog(root, "daemons"))
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	default:
		t.Error("sandbox not ended after Close")
	}
	for _, repeats := range []bool{false, true} {
		spec := prog(root, "exit", "0")
		spec.Repeats = repeats
		if _, err := h.Start(t.Context(), spec); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("start after Close, repeats %v: %v", repeats, err)
		}
	}
}

// crashEnv turns this test binary into an engine that starts a sandbox in the named root, prints
// its pid and waits for SIGKILL.
const crashEnv = "FRE_TEST_CRASH"

func crashingEngine() {
	check := func(err error) {
		if err != nil {
			println(err.Error())
			os.Exit(1)
		}
	}
	check(Isolate())
	root, dir, _ := strings.Cut(os.Getenv(crashEnv), ":")
	h, err := Open(Config{Dir: dir})
	check(err)
	s, err := h.Start(context.Background(), prog(root, "daemons"))
	check(err)
	os.Stdout.WriteString(strconv.Itoa(s.PID()) + "\n")
	select {}
}

// After kill -9 of an engine its sandboxes die. The next engine on the same directory removes the
// leftovers.
func TestEngineKilled(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	root, dir := fretest.Rootfs(t), t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+root+":"+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("engine said %q: %v", line, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ended := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(ended, int(within/time.Millisecond)); n != 1 {
		t.Fatalf("sandbox outlived its engine: poll %d, %v", n, err)
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/fre-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("left to reconcile: %q", left)
	h, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := run(t, h, prog(root, "args", "ok")); out != "ok\n" {
		t.Errorf("on the crashed engine's directory: %q", out)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}
