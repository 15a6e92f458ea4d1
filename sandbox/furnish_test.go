package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// parked is a sandbox without a tenant whose program takes orders.
type parked struct {
	*Sandbox
	t    testing.TB
	in   *os.File
	out  *bufio.Reader
	root string
}

func park(t testing.TB, h *Host) *parked {
	t.Helper()
	root := fretest.Rootfs(t)
	for _, dir := range []string{"function", "opt/python"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return parkOn(t, h, root)
}

func parkOn(t testing.TB, h *Host, root string) *parked {
	t.Helper()
	inR, inW := pipe(t)
	outR, outW := pipe(t)
	spec := prog(root, "orders")
	spec.User = User{Own: true, UID: 1000, GID: 1000}
	spec.Background = true
	spec.Stdin, spec.Stdout, spec.Stderr = inR, outW, outW
	s, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		wait(t, s)
	})
	_, _ = inR.Close(), outW.Close()
	return newOrders(t, s, inW, outR, root)
}

// newOrders speaks to a program that obeys orders.
func newOrders(t testing.TB, s *Sandbox, in, out *os.File, root string) *parked {
	t.Helper()
	if err := out.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	p := &parked{s, t, in, bufio.NewReader(out), root}
	p.answer()
	return p
}

// answer reads the output up to and with the answer's line.
func (p *parked) answer() (printed, answer string) {
	p.t.Helper()
	for {
		line, err := p.out.ReadString('\n')
		if err != nil {
			p.t.Fatalf("after %q: %v", printed, err)
		}
		if answer, ok := strings.CutPrefix(line, "> "); ok {
			return printed, strings.TrimSpace(answer)
		}
		printed += line
	}
}

func (p *parked) order(command string) (printed, answer string) {
	p.t.Helper()
	if _, err := p.in.WriteString(command + "\n"); err != nil {
		p.t.Fatal(err)
	}
	return p.answer()
}

// want gives an order and compares the output and the answer.
func (p *parked) want(command, printed, answer string) {
	p.t.Helper()
	if gotPrinted, got := p.order(command); gotPrinted != printed || got != answer {
		p.t.Errorf("%s: printed %q and answered %q, want %q and %q", command, gotPrinted, got, printed, answer)
	}
}

// workDir is a tenant's /work in the engine's form: plain ids, closed to other users.
func workDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "work")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func owner(t testing.TB, path string) [2]uint32 {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return [2]uint32{sys.Uid, sys.Gid}
}

// TestFurnish: Furnish gives a parked sandbox its mounts, /work, host name and limits.
func TestFurnish(t *testing.T) {
	h := openHost(t)
	p := park(t, h)
	work, code := workDir(t), t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(code, "main.py"), []byte("code\n"), 0o644),
		os.WriteFile(filepath.Join(work, "kept"), []byte("data\n"), 0o600),
		os.Chown(filepath.Join(work, "kept"), 1000, 1000),
		os.Chmod(code, 0o755),
	); err != nil {
		t.Fatal(err)
	}

	p.want("ls /function /opt/python /work", "", "ok")
	p.want("host", "fre\n", "ok")
	p.want("write /work/early x", "", "open /work/early: read-only file system")

	err := p.Furnish(Furnishing{
		Work: work, Mounts: []Mount{{Source: code, Target: "/function"}}, Hostname: "hello",
		Limits: Limits{MemoryBytes: 96 << 20, CPUMillis: 500, Pids: 40, TmpBytes: 8 << 20, Files: 77},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.want("host", "hello\n", "ok")
	p.want("ls /function", "main.py\n", "ok")
	p.want("cat /function/main.py /work/kept", "code\ndata\n", "ok")
	p.want("write /function/x y", "", "open /function/x: read-only file system")
	p.want("stat /work", "40700 1000 1000\n", "ok")
	p.want("stat /work/kept", "100600 1000 1000\n", "ok")
	p.want("write /work/new y", "", "ok")
	p.want("stat /work/new", "100644 1000 1000\n", "ok")
	if got := owner(t, filepath.Join(work, "new")); got != [2]uint32{1000, 1000} {
		t.Errorf("a new file of /work belongs to %v on disk, want 1000", got)
	}
	if printed, answer := p.order("fill /tmp/full"); answer != "no space left on device" && !strings.Contains(answer, "space") {
		t.Errorf("filling /tmp: %q, %q", printed, answer)
	}
	if stats, err := p.Stats(); err != nil || stats.TmpBytes != 8<<20 {
		t.Errorf("/tmp holds %+v, %v; want 8 MiB", stats, err)
	}
	var files unix.Rlimit
	if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, nil, &files); err != nil || files != (unix.Rlimit{Cur: 77, Max: 77}) {
		t.Errorf("limit of files %+v, %v; want 77", files, err)
	}
	for mount, want := range map[string]string{"/function": "ro,nosuid,nodev", "/work": "rw,nosuid,nodev"} {
		info, _ := p.order("cat /proc/self/mountinfo")
		if !strings.Contains(info, " "+mount+" "+want) {
			t.Errorf("%s is not mounted %s:\n%s", mount, want, info)
		}
	}
}

// Before Furnish a parked sandbox holds no file of a tenant, and of the host only its root.
func TestParkedHoldsNothing(t *testing.T) {
	h := openHost(t)
	p := park(t, h)
	p.want("fds", "0\n1\n2\n", "ok")
	info, _ := p.order("cat /proc/self/mountinfo")
	var points []string
	for line := range strings.Lines(info) {
		points = append(points, strings.Fields(line)[4])
	}
	slices.Sort(points)
	if want := []string{"/", "/dev", "/proc", "/tmp"}; !slices.Equal(points, want) {
		t.Errorf("mounted are %v, want %v", points, want)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(maps)); !slices.Equal(got, []string{"0", fmt.Sprint(uint32(0x80000000)), "65536"}) {
		t.Errorf("ids are mapped %v", got)
	}
}

// Each parked sandbox has its own host ids, so that equal ids give no access to the files of
// another sandbox. A range is free again after the sandbox's end.
func TestOwnRanges(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	a, b := parkOn(t, h, root), parkOn(t, h, root)
	work := workDir(t)
	for _, p := range []*parked{a, b} {
		if err := p.Furnish(Furnishing{Work: work}); err != nil {
			t.Fatal(err)
		}
	}
	a.want("write /work/shared x", "", "ok")
	b.want("stat /work/shared", "100644 1000 1000\n", "ok")
	if a.base == b.base {
		t.Errorf("two live sandboxes have the host ids %d", a.base)
	}
	// An unmapped mount shows host ids, and the two ranges differ.
	extra := t.TempDir()
	if err := errors.Join(os.Chmod(extra, 0o755), os.WriteFile(filepath.Join(extra, "f"), []byte("x"), 0o600),
		os.Chown(filepath.Join(extra, "f"), int(a.base)+1000, int(a.base)+1000)); err != nil {
		t.Fatal(err)
	}
	c := park(t, h)
	if err := c.Furnish(Furnishing{Mounts: []Mount{{Source: extra, Target: "/function"}}}); err != nil {
		t.Fatal(err)
	}
	c.want("cat /function/f", "", "open /function/f: permission denied")
	base := a.base
	a.Kill()
	wait(t, a.Sandbox)
	d := parkOn(t, h, root)
	if d.base != base {
		t.Errorf("host ids %d of an ended sandbox were not used again: %d", base, d.base)
	}
}

// An ordinary sandbox of the tenant sees the same files in /work as a parked one.
func TestWorkMapped(t *testing.T) {
	h := openHost(t)
	work := workDir(t)
	spec := prog(fretest.Rootfs(t), "write", "/work/x", "y")
	spec.Work, spec.WorkMapped = work, true
	if out, status := run(t, h, spec); status.Code != 0 {
		t.Fatalf("ended with %+v: %s", status, out)
	}
	if got := owner(t, filepath.Join(work, "x")); got != [2]uint32{1000, 1000} {
		t.Errorf("a file belongs to %v on disk, want 1000", got)
	}
	p := park(t, h)
	if err := p.Furnish(Furnishing{Work: work}); err != nil {
		t.Fatal(err)
	}
	p.want("stat /work/x", "100644 1000 1000\n", "ok")
}

// Furnish takes the sandbox out of the background.
func TestBackground(t *testing.T) {
	h := openHost(t)
	p := park(t, h)
	if !p.group.Background() {
		t.Error("started, but not in the background")
	}
	if err := p.Furnish(Furnishing{}); err != nil {
		t.Fatal(err)
	}
	if p.group.Background() {
		t.Error("furnished, but still in the background")
	}
}

// The host puts a sandbox with many refused forks into the background, but not the next sandbox in
// the same group.
func TestForkBombGivesWay(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	spec := prog(root, "copies", "-1")
	spec.Limits.Pids = 20
	bomb, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer bomb.Kill()
	for deadline := time.Now().Add(within); !bomb.group.Background(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the bomb has its full share")
		}
	}
	group := bomb.group
	bomb.Kill()
	wait(t, bomb)
	// Only this group has these limits, so the pool prefers it once it is clean.
	spec.Args = prog(root, "sleep").Args
	for deadline := time.Now().Add(within); ; {
		next, err := h.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		again, background := next.group == group, next.group.Background()
		next.Kill()
		wait(t, next)
		if background {
			t.Fatal("the next sandbox pays for the bomb")
		}
		if again {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the group was not leased again")
		}
	}
}

// TestFurnishErrors: Furnish refuses invalid mounts, names and limits.
func TestFurnishErrors(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	source := t.TempDir()
	for name, test := range map[string]struct {
		f    Furnishing
		want error
	}{
		"no source":      {Furnishing{Mounts: []Mount{{Source: "/nowhere", Target: "/tmp"}}}, fs.ErrNotExist},
		"no target":      {Furnishing{Mounts: []Mount{{Source: source, Target: "/nowhere"}}}, fs.ErrNotExist},
		"reserved":       {Furnishing{Mounts: []Mount{{Source: source, Target: "/proc"}}}, unix.EINVAL},
		"relative":       {Furnishing{Mounts: []Mount{{Source: source, Target: "tmp"}}}, unix.EINVAL},
		"long host name": {Furnishing{Hostname: strings.Repeat("x", 65)}, unix.EINVAL},
		"files":          {Furnishing{Limits: Limits{Files: 1 << 40}}, unix.EINVAL},
	} {
		p := parkOn(t, h, root)
		if err := p.Furnish(test.f); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
	p := parkOn(t, h, root)
	p.Kill()
	wait(t, p.Sandbox)
	if err := p.Furnish(Furnishing{}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Furnish after the end: %v", err)
	}
	s, _ := startReady(t, h, prog(root, "sleep"))
	if err := s.Furnish(Furnishing{}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("furnishing a tenant's sandbox: %v", err)
	}
	s.Kill()
	wait(t, s)
	spec := prog(root, "exit", "0")
	spec.User = User{Own: true, Tenant: "a"}
	if _, err := h.Start(t.Context(), spec); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a tenant with a user namespace of its own: %v", err)
	}
}

// Furnish follows no symbolic link in the root, neither within the sandbox nor out of it.
func TestFurnishThroughLink(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	if err := os.Symlink("/proc", filepath.Join(root, "function")); err != nil {
		t.Fatal(err)
	}
	p := parkOn(t, h, root)
	err := p.Furnish(Furnishing{Mounts: []Mount{{Source: t.TempDir(), Target: "/function"}}})
	if !errors.Is(err, unix.ELOOP) {
		t.Errorf("got %v, want ELOOP", err)
	}
}

// Threads that enter a sandbox's namespaces return to the host's, and the main thread never enters
// one.
func TestVisitorsComeHome(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	ours := func(process string) (string, error) {
		mnt, err := os.Readlink(process + "/ns/mnt")
		if err != nil {
			return "", err
		}
		uts, err := os.Readlink(process + "/ns/uts")
		return mnt + uts, err
	}
	before, err := ours("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		p := parkOn(t, h, root)
		wg.Go(func() {
			if err := p.Furnish(Furnishing{Hostname: "elsewhere"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		got, err := ours("/proc/self/task/" + task.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // this thread has ended
		}
		if err != nil || got != before {
			t.Errorf("thread %s is in %s, %v, want %s", task.Name(), got, err, before)
		}
	}
	if name, err := os.Hostname(); err != nil || name == "elsewhere" {
		t.Errorf("the host's name is %q, %v", name, err)
	}
}

// BenchmarkFurnish measures a start in a parked sandbox.
func BenchmarkFurnish(b *testing.B) {
	h := openHost(b)
	root := fretest.Rootfs(b)
	if err := os.Mkdir(filepath.Join(root, "function"), 0o755); err != nil {
		b.Fatal(err)
	}
	f := Furnishing{
		Work: workDir(b), Mounts: []Mount{{Source: b.TempDir(), Target: "/function"}}, Hostname: "hello",
		Limits: Limits{MemoryBytes: 96 << 20, CPUMillis: 500, Pids: 40, TmpBytes: 8 << 20, Files: 77},
	}
	for b.Loop() {
		b.StopTimer()
		p := parkOn(b, h, root)
		p.PID() // computed while parked
		b.StartTimer()
		if err := p.Furnish(f); err != nil {
			b.Fatal(err)
		}
	}
}
