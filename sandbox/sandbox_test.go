package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashingEngine()
		return
	}
	if os.Geteuid() == 0 {
		if err := Isolate(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// tenant is the owner of the tests' sandboxes.
var tenant = User{Tenant: "a", HostBase: 10 << 16, UID: 1000, GID: 1000}

// within bounds the waits of a test; no measurement depends on it.
const within = 2 * time.Minute

func openHost(t testing.TB, change ...func(*Config)) *Host {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	cfg := Config{Dir: t.TempDir(), PoolSize: 4, Log: slog.New(slog.NewTextHandler(testLog{t}, nil))}
	for _, c := range change {
		c(&cfg)
	}
	h, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close host: %v", err)
		}
	})
	return h
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

// pipe returns a pipe and closes its ends with the test.
func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

func wait(t testing.TB, s *Sandbox) ExitStatus {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(within):
		t.Fatalf("sandbox %s did not end within %v", s.ID(), within)
	}
	return s.Status()
}

// run starts the sandbox, waits for its end and returns the output.
func run(t testing.TB, h *Host, spec Spec) (string, ExitStatus) {
	t.Helper()
	r, w := pipe(t)
	if spec.Stdout == nil {
		spec.Stdout = w
	}
	if spec.Stderr == nil {
		spec.Stderr = w
	}
	s, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("start %q: %v", spec.Args, err)
	}
	_ = w.Close()
	return readAll(t, r), wait(t, s)
}

// readAll reads the output of a program until all write ends are closed.
func readAll(t testing.TB, r *os.File) string {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("output: %v", err)
	}
	return string(out)
}

// startReady starts the sandbox and waits for its first line.
func startReady(t testing.TB, h *Host, spec Spec) (*Sandbox, *os.File) {
	t.Helper()
	r, w := pipe(t)
	spec.Stdout = w
	s, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("start %q: %v", spec.Args, err)
	}
	_ = w.Close()
	if err := r.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatalf("sandbox %q said nothing: %v", spec.Args, err)
	}
	return s, r
}

func prog(root string, args ...string) Spec {
	return Spec{Rootfs: root, Args: append([]string{"/bin/prog"}, args...), User: tenant}
}

// TestRun: A program sees exactly its arguments, environment, user, files and mounts.
func TestRun(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	work := t.TempDir()
	if err := os.Chown(work, int(tenant.HostBase)+1000, int(tenant.HostBase)+1000); err != nil {
		t.Fatal(err)
	}
	extra := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(extra, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/hosts"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 100<<10)

	with := func(spec Spec, change func(*Spec)) Spec {
		change(&spec)
		return spec
	}
	for _, test := range []struct {
		name   string
		spec   Spec
		want   string // the whole output
		has    string // a part of the output, instead of want
		code   int
		signal unix.Signal
	}{
		{name: "exit", spec: prog(root, "exit", "7"), code: 7},
		{name: "crash", spec: prog(root, "crash"), has: "nil pointer", code: 2},
		{name: "arguments", spec: prog(root, "args", "a b", "", "c"), want: "a b||c\n"},
		{name: "environment", spec: with(prog(root, "env"), func(s *Spec) { s.Env = []string{"A=1", "B=2 3"} }), want: "A=1|B=2 3\n"},
		{name: "no environment", spec: prog(root, "env"), want: "\n"},
		{name: "arguments beyond one packet", spec: prog(root, "args", long, long), want: long + "|" + long + "\n"},
		{name: "directory", spec: with(prog(root, "cwd"), func(s *Spec) { s.Dir = "/tmp" }), want: "/tmp\n"},
		{name: "host name", spec: with(prog(root, "host"), func(s *Spec) { s.Hostname = "fn" }), want: "fn\n"},
		{name: "ids", spec: prog(root, "ids"), want: "1000 1000 1000 1000 1\n"},
		{name: "fds", spec: prog(root, "fds"), want: "0\n1\n2\n"},
		{name: "streams default to null", spec: prog(root, "readlink", "/proc/self/fd/0"), want: "/null\n"},
		{name: "root is read-only", spec: prog(root, "write", "/bin/x", ""), has: "read-only file system", code: 100},
		{name: "dev is read-only", spec: prog(root, "write", "/dev/x", ""), has: "read-only file system", code: 100},
		{name: "dev", spec: prog(root, "ls", "/dev"), want: "fd\nfull\nnull\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n"},
		{name: "null can be written", spec: prog(root, "write", "/dev/null", "x")},
		{name: "proc of pids alone", spec: prog(root, "ls", "/proc"), want: "1\nself\nthread-self\n"},
		{name: "only loopback", spec: prog(root, "interfaces"), want: "lo true\n"},
		{name: "nothing to kill outside", spec: prog(root, "kill", "-1"), has: "no such process", code: 100},
		{name: "no mount", spec: prog(root, "mount"), has: "operation not permitted", code: 100},
		{
			name: "tmp bytes", spec: with(prog(root, "fill", "/tmp/x"), func(s *Spec) { s.Limits.TmpBytes = 1 << 20 }),
			want: "1048576\nwrite /tmp/x: no space left on device\n", code: 100,
		},
		{
			name: "tmp inodes", spec: with(prog(root, "files", "/tmp"), func(s *Spec) { s.Limits.TmpInodes = 20 }),
			want: "19\nopen /tmp/19: no space left on device\n", code: 100,
		},
		{
			name: "open files", spec: with(prog(root, "open"), func(s *Spec) { s.Limits.Files = 64 }),
			has: "too many open files", code: 100,
		},
		{name: "mount of a file", spec: with(prog(root, "cat", "/etc/hosts"), func(s *Spec) {
			s.Mounts = []Mount{{Source: extra, Target: "/etc/hosts"}}
		}), want: "127.0.0.1 localhost\n"},
		{name: "mount is read-only", spec: with(prog(root, "write", "/opt/x", ""), func(s *Spec) {
			s.Mounts = []Mount{{Source: work, Target: "/opt"}}
		}), has: "read-only file system", code: 100},
		{name: "work is written", spec: with(prog(root, "write", "/work/x", "kept"), func(s *Spec) { s.Work = work })},
		{name: "work is kept", spec: with(prog(root, "cat", "/work/x"), func(s *Spec) { s.Work = work }), want: "kept"},
		{name: "work has its owner", spec: with(prog(root, "stat", "/work/x"), func(s *Spec) { s.Work = work }), want: "100644 1000 1000\n"},
		{name: "tmp is the tenant's", spec: prog(root, "stat", "/tmp"), want: "41777 0 0\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, status := run(t, h, test.spec)
			if test.has != "" {
				if !strings.Contains(got, test.has) {
					t.Errorf("wrote %q, want a part %q", got, test.has)
				}
			} else if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("wrote (-want +got):\n%s", diff)
			}
			if status.Code != test.code || unix.Signal(status.Signal) != test.signal {
				t.Errorf("ended with %+v, want code %d, signal %d; it wrote %q", status, test.code, test.signal, got)
			}
		})
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(work, "x"), &st); err != nil {
		t.Fatal(err)
	}
	if want := tenant.HostBase + 1000; st.Uid != want || st.Gid != want {
		t.Errorf("on the host /work/x belongs to %d:%d, want %d", st.Uid, st.Gid, want)
	}
}

// TestNoPrivileges: A process in the sandbox can get no namespace, mount, capability, device,
// priority or kernel setting.
func TestNoPrivileges(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for _, uid := range []uint32{0, 1000} {
		t.Run(fmt.Sprint("uid ", uid), func(t *testing.T) {
			spec := prog(root, "cat", "/proc/self/status", "/proc/self/uid_map", "/proc/self/cgroup")
			spec.User.UID, spec.User.GID = uid, uid
			out, _ := run(t, h, spec)
			for _, want := range []string{
				"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
				"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1",
				"Groups:\t \n", "SigBlk:\t0000000000000000",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("/proc/self/status lacks %q:\n%s", want, out)
				}
			}
			if want := fmt.Sprintf("%10d %10d %10d\n", 0, tenant.HostBase, idCount); !strings.Contains(out, want) {
				t.Errorf("uid_map is not %q:\n%s", want, out)
			}
			if strings.Contains(out, "/fre-") {
				t.Errorf("cgroup paths of the host show:\n%s", out)
			}
		})
	}
}

// TestNamespaces: A sandbox has its own user, mount, pid, ipc, uts and network namespaces, with
// loopback only.
func TestNamespaces(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	names := []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}
	args := []string{"readlink"}
	for _, name := range names {
		args = append(args, "/proc/self/ns/"+name)
	}
	out, _ := run(t, h, prog(root, args...))
	lines := strings.Fields(out)
	if len(lines) != len(names) {
		t.Fatalf("got %q, want %d namespaces", out, len(names))
	}
	for i, name := range names {
		ours, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if lines[i] == ours {
			t.Errorf("%s is the engine's own", ours)
		}
	}
}

// TestStreams: The program gets the given streams.
func TestStreams(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	in, write := pipe(t)
	if _, err := write.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	spec := prog(root, "echo")
	spec.Stdin = in
	if out, _ := run(t, h, spec); out != "hellohello" {
		t.Errorf("echo to both streams wrote %q", out)
	}

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	spec = prog(root, "channel")
	spec.Channel = theirs
	s, err := h.Start(t.Context(), spec)
	_ = theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ours.WriteString("ping"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(ours); err != nil || string(got) != "PING" {
		t.Errorf("channel answered %q, %v; want PING", got, err)
	}
	wait(t, s)
}

func TestLimits(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	t.Run("memory", func(t *testing.T) {
		spec := prog(root, "eat", "200000000")
		spec.Limits.MemoryBytes = 32 << 20
		_, status := run(t, h, spec)
		if !status.OOMKilled || status.Signal != int(unix.SIGKILL) {
			t.Errorf("ended with %+v, want OOMKilled", status)
		}
		if status.MaxMemory < 16<<20 || status.MaxMemory > 33<<20 { // the kernel lets unfailing allocations exceed the limit
			t.Errorf("peak %d, want about 32 MiB", status.MaxMemory)
		}
	})
	t.Run("memory after a kill", func(t *testing.T) { // the counters of the recycled group
		_, status := run(t, h, prog(root, "exit", "0"))
		if status.OOMKilled {
			t.Errorf("ended with %+v", status)
		}
	})
	t.Run("pids", func(t *testing.T) {
		spec := prog(root, "bomb")
		spec.Limits.Pids = 40
		out, status := run(t, h, spec)
		if status.Code != 100 && status.Code != 2 { // 2: the runtime could not make a thread
			t.Errorf("fork bomb ended with %+v: %s", status, out)
		}
	})
	t.Run("files", func(t *testing.T) {
		spec := prog(root, "open")
		spec.Limits.Files = 50
		out, _ := run(t, h, spec)
		var opened int
		if _, err := fmt.Sscan(out, &opened); err != nil || opened > 50 {
			t.Errorf("opened %q files, limit 50: %v", out, err)
		}
	})
	t.Run("cpu", func(t *testing.T) {
		spec := prog(root, "spin")
		spec.Limits.CPUMillis = 100
		s, err := h.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		// The limit is a tenth of a CPU. The scheduler's tick enforces it, late on a busy machine,
		// and takes the excess from the next periods. Without a limit the share would be the whole
		// CPU.
		for began := time.Now(); ; {
			<-time.After(time.Second)
			stats, err := s.Stats()
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			if stats.CPU > 0 && stats.CPU <= took/4 {
				break
			}
			if took > within {
				t.Fatalf("used %v of CPU in %v, want a tenth", stats.CPU, took)
			}
		}
		s.Kill()
		wait(t, s)
	})
	t.Run("stats", func(t *testing.T) {
		s, _ := startReady(t, h, prog(root, "eat", "20000000"))
		stats, err := s.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if stats.MemoryBytes < 20e6 || stats.CPU == 0 || stats.Processes != 1 || stats.TmpBytes != 0 || stats.TmpInodes != 0 {
			t.Errorf("stats %+v of a sandbox that holds 20 MB and nothing in /tmp", stats)
		}
		if pid := s.PID(); unix.Kill(pid, 0) != nil {
			t.Errorf("PID %d is not there", pid)
		}
		s.Kill()
		if status := wait(t, s); status.Signal != int(unix.SIGKILL) || status.OOMKilled {
			t.Errorf("ended with %+v after Kill", status)
		}
		if _, err := s.Stats(); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("stats after the end: %v", err)
		}
	})
}

// TestKillReachesAll: A kill ends the whole process tree, including daemons and processes that
// ignore SIGTERM.
func TestKillReachesAll(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	s, out := startReady(t, h, prog(root, "daemons"))
	s.Kill()
	wait(t, s)
	// The daemons hold the write end: the end of file comes with their end.
	if _, err := io.ReadAll(out); err != nil {
		t.Errorf("daemons outlived the kill: %v", err)
	}
}

// TestSignal: A signal reaches the program; a signal after its end is an error.
func TestSignal(t *testing.T) {
	h := openHost(t)
	s, out := startReady(t, h, prog(fretest.Rootfs(t), "trap"))
	if err := s.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(out); err != nil || !strings.Contains(string(got), "terminated") {
		t.Errorf("wrote %q, %v", got, err)
	}
	wait(t, s)
	if err := s.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

// TestStartErrors: A failed start names its step and keeps the errno.
func TestStartErrors(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	if err := os.WriteFile(filepath.Join(root, "bin/text"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	bare := t.TempDir()
	linked := t.TempDir()
	if err := os.Symlink("/tmp", filepath.Join(linked, "proc")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		change func(*Spec)
		step   Step // 0: the Go side refuses
		err    error
	}{
		{"program missing", func(s *Spec) { s.Args = []string{"/bin/none"} }, StepExec, unix.ENOENT},
		{"program not executable", func(s *Spec) { s.Args = []string{"/bin/text"} }, StepExec, unix.EACCES},
		{"directory missing", func(s *Spec) { s.Dir = "/none" }, StepDir, unix.ENOENT},
		{"directory through an fd", func(s *Spec) { s.Dir = "/proc/self/fd/7" }, StepDir, unix.ENOENT},
		{"mount point missing", func(s *Spec) { s.Mounts = []Mount{{Source: root, Target: "/none"}} }, StepMount, unix.ENOENT},
		{"mount point a symlink", func(s *Spec) { s.Mounts = []Mount{{Source: root, Target: "/link"}} }, StepMount, unix.ELOOP},
		{"root without mount points", func(s *Spec) { s.Rootfs = bare }, StepProc, unix.ENOENT},
		{"proc a symlink", func(s *Spec) { s.Rootfs = linked }, StepProc, unix.ELOOP},
		{"arguments too long", func(s *Spec) { s.Args = append(s.Args, strings.Repeat("x", 3<<20)) }, StepExec, unix.E2BIG},
		{"strings beyond the message", func(s *Spec) { s.Args = append(s.Args, strings.Repeat("x", 5<<20)) }, StepMessage, unix.E2BIG},
		{"more open files than the host allows", func(s *Spec) { s.Limits.Files = 1 << 40 }, 0, unix.EINVAL},
		{"root missing", func(s *Spec) { s.Rootfs = "/none" }, 0, unix.ENOENT},
		{"root relative", func(s *Spec) { s.Rootfs = "x" }, 0, unix.EINVAL},
		{"no tenant", func(s *Spec) { s.User.Tenant = "" }, 0, unix.EINVAL},
		{"tenant's range changed", func(s *Spec) { s.User.HostBase++ }, 0, unix.EINVAL},
		{"mount over proc", func(s *Spec) { s.Mounts = []Mount{{Source: root, Target: "/proc/self"}} }, 0, unix.EINVAL},
		{"mount target not clean", func(s *Spec) { s.Mounts = []Mount{{Source: root, Target: "/opt/../proc"}} }, 0, unix.EINVAL},
		{"NUL in environment", func(s *Spec) { s.Env = []string{"A=\x00"} }, 0, unix.EINVAL},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec := prog(root, "exit", "0")
			test.change(&spec)
			s, err := h.Start(t.Context(), spec)
			if err == nil {
				s.Kill()
				t.Fatal("started")
			}
			if !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			var start *StartError
			if errors.As(err, &start) != (test.step != 0) || start != nil && start.Step != test.step {
				t.Errorf("got %#v, want step %v", err, test.step)
			}
		})
	}
	// The failures hold nothing: the ids are free again.
	if out, _ := run(t, h, prog(root, "args", "ok")); out != "ok\n" {
		t.Errorf("after the failures: %q", out)
	}
}

// TestStartContext: A start with a cancelled context fails.
func TestStartContext(t *testing.T) {
	h := openHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Start(ctx, prog(fretest.Rootfs(t), "sleep")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
