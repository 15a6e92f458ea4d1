package security

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		if err := sandbox.Isolate(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// The attacker and the victim.
var (
	tenant  = sandbox.User{Tenant: "a", HostBase: 10 << 16, UID: 1000, GID: 1000}
	another = sandbox.User{Tenant: "b", HostBase: 11 << 16, UID: 1000, GID: 1000}
)

// within bounds the waits of a test; no measurement depends on it.
const within = 2 * time.Minute

func openHost(t testing.TB) *sandbox.Host {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	h, err := sandbox.Open(sandbox.Config{Dir: t.TempDir(), PoolSize: 4, Log: log})
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

// prog is a sandbox that runs testprog.
func prog(root string, args ...string) sandbox.Spec {
	return sandbox.Spec{Rootfs: root, Args: append([]string{"/bin/prog"}, args...), User: tenant}
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// start starts a sandbox; out is its output.
func start(t testing.TB, h *sandbox.Host, spec sandbox.Spec) (s *sandbox.Sandbox, out *os.File) {
	t.Helper()
	out, w := pipe(t)
	spec.Stdout, spec.Stderr = w, w
	s, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("start %q: %v", spec.Args, err)
	}
	_ = w.Close()
	if err := out.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	return s, out
}

// startReady starts a sandbox and reads its first line.
func startReady(t testing.TB, h *sandbox.Host, spec sandbox.Spec) (s *sandbox.Sandbox, out *os.File, line string) {
	t.Helper()
	s, out = start(t, h, spec)
	t.Cleanup(func() { s.Kill(); wait(t, s) })
	return s, out, readLine(t, out)
}

// readLine reads byte by byte, so that the rest stays in the pipe.
func readLine(t testing.TB, r io.Reader) string {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := r.Read(b); err != nil {
			t.Fatalf("wrote %q and no whole line: %v", line, err)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

func wait(t testing.TB, s *sandbox.Sandbox) sandbox.ExitStatus {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(within):
		t.Fatalf("sandbox %s did not end within %v", s.ID(), within)
	}
	return s.Status()
}

// run starts a sandbox, waits for its end and returns its output.
func run(t testing.TB, h *sandbox.Host, spec sandbox.Spec) string {
	t.Helper()
	s, out := start(t, h, spec)
	text, err := io.ReadAll(out)
	if err != nil {
		t.Errorf("output of %q: %v", spec.Args, err)
	}
	wait(t, s)
	return string(text)
}

// bare runs testprog as in a plain container: as root with every capability, in new namespaces,
// with the whole /proc. An attack that fails even here proves nothing.
func bare(t testing.TB, root string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin/prog"), append([]string{"bare", root}, args...)...)
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWNET,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("bare %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// try is one attempt from testprog's list: its required end in a sandbox, and the defences without
// which the attempt succeeds. With off 0, either no defence is safe to switch off or the namespaces
// alone suffice; then the attempt must succeed bare.
type try struct {
	name, want string
	off        sandbox.Defence
}

// rare lists features that a kernel may lack, or that even the machine's root may not use. Then
// there is nothing to attack.
var rare = []string{
	"kexec", "kernel module", "kernel memory", "sysrq", "modules", "userfaultfd", "io_uring", "bpf", "perf_event_open",
	"vsock", "alg", "xdp", "tipc", "xfrm", "audit", "quotactl", "fanotify", "mount cgroup", "sysfs", "spare from the oom killer",
	"accounting", "kernel log", "symbols", "keys", "key users",
}

// refused runs every attempt in a sandbox, requires its failure, and requires its success without
// the defences. Of several defences each must suffice alone.
func refused(t *testing.T, h *sandbox.Host, root string, change func(*sandbox.Spec), tries []try) {
	t.Helper()
	spec := func(names []string, off sandbox.Defence) sandbox.Spec {
		s := prog(root, append([]string{"attack"}, names...)...)
		if change != nil {
			change(&s)
		}
		s.Without = off
		return s
	}
	var names []string
	switched := map[sandbox.Defence][]string{}
	for _, a := range tries {
		names = append(names, a.name)
		switched[a.off] = append(switched[a.off], a.name)
	}
	got, plain := outcomes(run(t, h, spec(names, 0))), outcomes(bare(t, root, append([]string{"attack"}, names...)...))
	for off, names := range switched {
		if off == 0 {
			continue
		}
		maps.Copy(plain, outcomes(run(t, h, spec(names, off))))
		for layer := sandbox.Defence(1); layer <= off; layer <<= 1 {
			if off&layer == 0 || off == layer {
				continue
			}
			for name, how := range outcomes(run(t, h, spec(names, off&^layer))) {
				if how == "done" {
					t.Errorf("%s: defence %b alone does not stop it", name, layer)
				}
			}
		}
	}
	lacks := []string{"ENOSYS", "ENOENT", "ENODEV", "EACCES", "EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT"}
	for _, a := range tries {
		how := plain[a.name]
		switch absent := slices.Contains(rare, a.name) && slices.Contains(lacks, how); {
		case got[a.name] != a.want && (!absent || got[a.name] == "done"):
			t.Errorf("%s: in a sandbox %q, want %q", a.name, got[a.name], a.want)
		case absent:
			t.Logf("%s: this machine has none: %s", a.name, how)
		case how != "done":
			t.Errorf("%s: undefended %q: the test proves nothing", a.name, how)
		}
	}
}

// outcomes parses the output of testprog's attack: lines of "name: result".
func outcomes(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(text) {
		name, how, _ := strings.Cut(strings.TrimSpace(line), ": ")
		found[name] = how
	}
	return found
}

// own adds a file to a sandbox's root that belongs to the tenant and is open to all.
func own(t testing.TB, root string) {
	t.Helper()
	name := filepath.Join(root, "bin/own")
	if err := os.WriteFile(name, []byte("original"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o777); err != nil { // independent of the umask
		t.Fatal(err)
	}
	if err := os.Chown(name, int(tenant.HostBase)+1000, int(tenant.HostBase)+1000); err != nil {
		t.Fatal(err)
	}
}

// copyFile copies a program.
func copyFile(t testing.TB, from, to string, mode os.FileMode) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, mode); err != nil {
		t.Fatal(err)
	}
}

// workDir makes a tenant's /work.
func workDir(t testing.TB, user sandbox.User) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chown(dir, int(user.HostBase)+1000, int(user.HostBase)+1000); err != nil {
		t.Fatal(err)
	}
	return dir
}

// memfd returns the path of this process's open memory file with the given name.
func memfd(t testing.TB, name string) string {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "/memfd:"+name) {
			return fd
		}
	}
	t.Fatalf("no memory file %s is open", name)
	return ""
}

// content reads a whole file, or fails the test.
func content(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(text)
}
