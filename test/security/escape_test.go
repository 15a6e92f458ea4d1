package security

import (
	"bytes"
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
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

// CVE-2019-5736: no process can overwrite the runtime's program through /proc/self/exe. FRE's
// spawner is a sealed file in memory: even the host's root cannot write to the file, and as a
// program inside a sandbox the spawner has no special rights.
func TestOverwriteRuntime(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	spawner := memfd(t, "fre-spawner")
	before := content(t, spawner)
	for name, target := range map[string]string{"self": "/proc/self/exe", "one": "/proc/1/exe"} {
		if err := os.Symlink(target, filepath.Join(root, "bin", name)); err != nil {
			t.Fatal(err)
		}
		script := "#!" + target + " hold\n"
		if err := os.WriteFile(filepath.Join(root, "bin", name+".sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"/bin/self", "/bin/one", "/bin/self.sh", "/bin/one.sh"} {
		// With an open input "hold" would wait. It ends at once, because it may not make a user
		// namespace.
		in, w := pipe(t)
		spec := prog(root, "hold")
		spec.Args[0], spec.Stdin = name, in
		s, out := start(t, h, spec)
		attackProgram(t, s.PID())
		_ = w.Close()
		if text, err := io.ReadAll(out); err != nil || strings.Contains(string(text), "1") {
			t.Errorf("%s made a user namespace: %q, %v", name, text, err)
		}
		wait(t, s)
	}
	attackProgram(t, os.Getpid(), spawner)
	if after := content(t, memfd(t, "fre-spawner")); !bytes.Equal(after, before) {
		t.Error("the spawner's program has changed")
	}
	refused(t, h, root, func(s *sandbox.Spec) { s.User.UID = 0 }, list("EACCES", 0, "own program"))
}

// attackProgram tries, as the host's root, to write to a process's program and to the named open
// files. Functions have fewer rights.
func attackProgram(t testing.TB, pid int, names ...string) {
	t.Helper()
	for _, name := range append(names, fmt.Sprintf("/proc/%d/exe", pid)) {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			continue // ended, or busy: ETXTBSY
		}
		if _, err := f.Write([]byte("#!/bin/sh\n")); err == nil {
			t.Errorf("%s was written", name)
		}
		if err := f.Truncate(0); err == nil {
			t.Errorf("%s was truncated", name)
		}
		_ = f.Close()
	}
}

// CVE-2016-9962: no process of FRE enters a running sandbox, so no process with open files can be
// caught there. A watcher inside looks for other processes while many sandboxes start and report
// their usage.
func TestNothingJoins(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	in, end := pipe(t)
	spec := prog(root, "watch")
	spec.Stdin = in
	s, out, _ := startReady(t, h, spec)
	for range 100 {
		run(t, h, prog(root, "exit", "0"))
		if _, err := s.Stats(); err != nil {
			t.Fatal(err)
		}
		if err := s.Signal(unix.SIGURG); err != nil {
			t.Fatal(err)
		}
	}
	_ = end.Close()
	got, err := io.ReadAll(out)
	if err != nil || string(got) != "saw 0 in several looks: true\n" {
		t.Errorf("%q, %v", got, err)
	}
	wait(t, s)

	// The watcher sees a process that does enter.
	in, end = pipe(t)
	spec.Stdin = in
	s, out, _ = startReady(t, h, spec)
	intruder := join(t, s.PID())
	if line := readLine(t, out); line != "sees another" {
		t.Errorf("watcher with an intruder: %q", line)
	}
	_ = end.Close()
	if err := intruder.Kill(); err != nil {
		t.Error(err)
	}
	if _, err := intruder.Wait(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(out); err != nil || !strings.Contains(string(got), "saw 1 ") {
		t.Errorf("watcher with an intruder: %q, %v: the test proves nothing", got, err)
	}
	wait(t, s)
}

// join starts a process in the pid namespace of another process.
func join(t testing.TB, pid int) *os.Process {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var p *os.Process
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err = unix.Setns(fd, unix.CLONE_NEWPID); err == nil {
			p, err = os.StartProcess("/bin/sleep", []string{"sleep", "3600"}, &os.ProcAttr{})
		}
	})
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// CVE-2024-21626: a sandbox inherits no open directory of the host, neither by number nor as the
// working directory.
func TestLeakedFile(t *testing.T) {
	// Every child of this process inherits the descriptor, because it lacks O_CLOEXEC.
	leaked, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	h := openHost(t)
	root := fretest.Rootfs(t)
	if got := run(t, h, prog(root, "fds")); got != "0\n1\n2\n" {
		t.Errorf("open files of a function: %q", got)
	}
	for n := 3; n < 64; n++ {
		for _, dir := range []string{"/proc/self/fd/%d", "/proc/1/fd/%d", "/proc/self/fd/%d/..", "/dev/fd/%d"} {
			spec := prog(root, "exit", "0")
			spec.Dir = fmt.Sprintf(dir, n)
			s, err := h.Start(t.Context(), spec)
			if err == nil {
				s.Kill()
				t.Errorf("started in %s", spec.Dir)
			} else if failed := (*sandbox.StartError)(nil); !errors.As(err, &failed) || failed.Step != sandbox.StepDir {
				t.Errorf("start in %s: %v, want it to fail at its directory", spec.Dir, err)
			}
		}
	}
	if got := run(t, h, prog(root, "through")); strings.Contains(got, "out") {
		t.Errorf("through fd 3: %q", got)
	}
	// With one open directory the attack works.
	spec := prog(root, "through")
	spec.Channel = os.NewFile(uintptr(dup(t, leaked)), "leaked")
	defer spec.Channel.Close()
	if got := run(t, h, spec); got != "out\n" {
		t.Errorf("through a directory given as channel: %q: the test proves nothing", got)
	}
}

func dup(t testing.TB, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mountPoints lists the mount points of every sandbox with the kind of file system.
var mountPoints = map[string]string{"/": "", "/proc": "proc", "/dev": "tmpfs", "/tmp": "tmpfs", "/work": ""}

// swapped is the suffix of a mount point's second name.
const swapped = ".link"

// checkMounts reads a /proc/self/mountinfo. Each mount point of a sandbox must have exactly one
// mount, and no other mount may exist.
func checkMounts(info string) error {
	seen := map[string]int{}
	for line := range strings.Lines(info) {
		before, after, _ := strings.Cut(line, " - ")
		// A mount stays with its directory after a rename.
		point, kind := strings.TrimSuffix(strings.Fields(before)[4], swapped), strings.Fields(after)[0]
		want, known := mountPoints[point]
		if !known || want != "" && kind != want {
			return fmt.Errorf("mounted: %s", line)
		}
		seen[point]++
	}
	for point := range mountPoints {
		if seen[point] != 1 {
			return fmt.Errorf("%d mounts on %s:\n%s", seen[point], point, info)
		}
	}
	return nil
}

// CVE-2021-30465, CVE-2019-19921, CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881: a start never
// mounts through a symbolic link at a mount point of the image; the start fails.
func TestSymlinkedMountPoints(t *testing.T) {
	h := openHost(t)
	work := workDir(t, tenant)
	for _, point := range []string{"proc", "dev", "tmp", "work"} {
		for _, target := range []string{"/etc", "etc", "/", ".", "/proc/self/cwd", "/proc/1/root", "../../..", "/" + point} {
			t.Run(point+" to "+target, func(t *testing.T) {
				root := fretest.Rootfs(t)
				name := filepath.Join(root, point)
				if err := errors.Join(os.Remove(name), os.Symlink(target, name)); err != nil {
					t.Fatal(err)
				}
				spec := prog(root, "exit", "0")
				spec.Work = work
				s, err := h.Start(t.Context(), spec)
				if err == nil {
					s.Kill()
					t.Fatal("started")
				}
				step := sandbox.StepMount
				if point == "proc" {
					step = sandbox.StepProc
				}
				var failed *sandbox.StartError
				if !errors.As(err, &failed) || failed.Step != step || !errors.Is(err, unix.ELOOP) {
					t.Errorf("got %v, want ELOOP at the mount", err)
				}
			})
		}
	}
	t.Run("link to the root", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "root")
		if err := os.Symlink(fretest.Rootfs(t), link); err != nil {
			t.Fatal(err)
		}
		if s, err := h.Start(t.Context(), prog(link, "exit", "0")); err == nil {
			s.Kill()
			t.Error("started on a symbolic link")
		}
	})
}

// While another process swaps mount points and symbolic links, each sandbox that starts has its
// mounts in the right places.
func TestSwappedMountPoints(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	work := workDir(t, tenant)
	points := []string{"proc", "dev", "tmp", "work"}
	for _, point := range points {
		if err := os.Symlink("/etc", filepath.Join(root, point+swapped)); err != nil {
			t.Fatal(err)
		}
	}
	starts := 10_000
	if os.Getenv("FRE_V2") != "" { // emulation is slow
		starts = 400
	}
	stop := make(chan struct{})
	var swapping, group sync.WaitGroup
	swapping.Go(func() {
		// Several swaps for each start. Without a pause, path lookups that wait for renames would
		// starve.
		pace := time.NewTicker(20 * time.Microsecond)
		defer pace.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-pace.C:
			}
			name := filepath.Join(root, points[i/64%len(points)]) // a series of swaps for each mount point
			if err := unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, name+swapped, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var mu sync.Mutex
	var checked atomic.Int64
	stopped := map[string]int{} // by mount point; "" is /proc
	for range 4 {
		group.Go(func() {
			for range starts / 4 {
				spec := prog(root, "cat", "/proc/self/mountinfo")
				spec.Work = work
				r, w, err := os.Pipe()
				if err != nil {
					t.Error(err)
					return
				}
				spec.Stdout = w
				s, err := h.Start(t.Context(), spec)
				_ = w.Close()
				var failed *sandbox.StartError
				switch {
				case err == nil:
					info, err := io.ReadAll(r)
					if err == nil && len(info) > 0 { // a swap may hide /proc meanwhile
						err = checkMounts(string(info))
					}
					if err != nil {
						t.Error(err)
					}
					if wait(t, s).Code == 0 {
						checked.Add(1)
					}
				case errors.As(err, &failed) && errors.Is(err, unix.ELOOP):
				default:
					t.Errorf("neither started nor refused for a link: %v", err)
				}
				_ = r.Close()
				if failed != nil {
					mu.Lock()
					stopped[failed.Detail]++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	close(stop)
	swapping.Wait()
	t.Logf("%d started and had their mounts, refused for the link at: %v", checked.Load(), stopped)
	if checked.Load() == 0 || len(stopped) < len(points) {
		t.Error("the swaps did not meet every mount: the test proves nothing")
	}
}

// CVE-2019-16884: an image or volume with its own /proc does not replace the real one, so security
// settings never go to a plain file.
func TestImageProc(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	fake := []string{"proc/self/attr/exec", "proc/self/status", "proc/sys/kernel/core_pattern", "proc/1/uid_map", "dev/null", "sys/fs/cgroup/release_agent"}
	for _, name := range fake {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o777), os.WriteFile(name, []byte("fake"), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(t, h, prog(root, "cat", "/proc/self/status")); !strings.HasPrefix(got, "Name:\tprog\n") {
		t.Errorf("/proc/self/status: %q", got)
	}
	if got := run(t, h, prog(root, "cat", "/dev/null")); got != "" {
		t.Errorf("/dev/null: %q", got)
	}
	for _, name := range fake {
		if got := content(t, filepath.Join(root, name)); string(got) != "fake" {
			t.Errorf("%s was written: %q", name, got)
		}
	}
	for _, target := range []string{"/", "/proc", "/proc/self", "/proc/sys", "/dev", "/dev/null", "/sys", "/opt/../proc", "//proc", "/proc/"} {
		spec := prog(root, "exit", "0")
		spec.Mounts = []sandbox.Mount{{Source: root, Target: target, Writable: true}}
		if s, err := h.Start(t.Context(), spec); !errors.Is(err, unix.EINVAL) {
			if s != nil {
				s.Kill()
			}
			t.Errorf("mount over %s: %v, want %v", target, err, unix.EINVAL)
		}
	}
	// A link of the image does not help either.
	if err := os.Symlink("/proc", filepath.Join(root, "volume")); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/volume", "/volume/self"} {
		spec := prog(root, "exit", "0")
		spec.Mounts = []sandbox.Mount{{Source: root, Target: target}}
		if s, err := h.Start(t.Context(), spec); !errors.Is(err, unix.ELOOP) {
			if s != nil {
				s.Kill()
			}
			t.Errorf("mount over %s: %v, want %v", target, err, unix.ELOOP)
		}
	}
}

// A sandbox cannot change files that images share, not as the file's owner and not through another
// link.
func TestStoreTampering(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	own(t, root)
	shared := filepath.Join(t.TempDir(), "object") // as in the store: one file, two names
	if err := os.Link(filepath.Join(root, "bin/own"), shared); err != nil {
		t.Fatal(err)
	}
	var before unix.Stat_t
	if err := unix.Stat(shared, &before); err != nil {
		t.Fatal(err)
	}
	// The directory is open to all, so only the mount can prevent a change.
	if err := os.Chmod(filepath.Join(root, "bin"), 0o777); err != nil {
		t.Fatal(err)
	}
	work := workDir(t, tenant)
	inside := []string{"write", "write map", "touch", "set xattr", "chmod", "truncate", "create", "link", "rename", "remove"}
	across := []string{"link out", "link open fd", "rename out"} // to /work, a mount of its own
	for _, uid := range []uint32{0, 1000} {
		change := func(s *sandbox.Spec) { s.User.UID, s.User.GID, s.Work = uid, uid, work }
		for want, names := range map[string][]string{"EROFS": inside, "EXDEV": across} {
			for name, how := range outcomes(attempt(t, h, root, change, names...)) {
				if how != want {
					t.Errorf("%s as uid %d: %q, want %s", name, uid, how, want)
				}
			}
		}
	}
	var after unix.Stat_t
	if err := unix.Stat(shared, &after); err != nil {
		t.Fatal(err)
	}
	if got := content(t, shared); string(got) != "original" || after.Mode != before.Mode || after.Mtim != before.Mtim || after.Nlink != before.Nlink {
		t.Errorf("the shared file: %q, %+v, before %+v", got, after, before)
	}
	undefended := outcomes(bare(t, root, append([]string{"attack"}, across...)...))
	writable := func(s *sandbox.Spec) { s.Work, s.Without = work, sandbox.DefenceReadOnlyRoot }
	maps.Copy(undefended, outcomes(attempt(t, h, root, writable, inside...)))
	for name, how := range undefended {
		if how != "done" {
			t.Errorf("%s, undefended: %q: the test proves nothing", name, how)
		}
	}
}

// Mounts and open files show a function no path of the host except its own image and /work.
func TestHostPaths(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	work := workDir(t, tenant)
	spec := prog(root, "cat", "/proc/self/mountinfo", "/proc/self/mounts", "/proc/self/mountstats",
		"/proc/self/cgroup", "/proc/self/maps", "/proc/self/environ", "/proc/self/cmdline")
	spec.Work = work
	text := run(t, h, spec)
	spec = prog(root, "readlink", "/proc/self/exe", "/proc/self/cwd", "/proc/self/root", "/proc/self/fd/0")
	spec.Work = work
	text += run(t, h, spec)
	// The kernel names a bind mount by the directory's place in its file system: FRE's state
	// directory with the image's digest or the tenant's name.
	for _, named := range []string{root, work} {
		if !strings.Contains(text, named) {
			t.Errorf("%s is not among the mounts: the test proves nothing:\n%s", named, text)
		}
		text = strings.ReplaceAll(text, named, "")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{filepath.Dir(root), home + "/", cwd, "/fre-", "memfd", "/run/", "/var/"} {
		if strings.Contains(text, part) {
			t.Errorf("%q shows in a sandbox:\n%s", part, text)
		}
	}
}

// A tenant's mounts do not appear in another tenant's sandbox, and mounts of the host appear in
// neither.
func TestSharedMounts(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	work := workDir(t, tenant)
	spec := prog(root, "cat", "/proc/self/mountinfo")
	spec.Work = work
	info := run(t, h, spec)
	if err := checkMounts(info); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(info) {
		for _, propagated := range []string{" shared:", " master:", " propagate_from:"} {
			if strings.Contains(line, propagated) {
				t.Errorf("what is mounted there shows elsewhere, or the other way round: %s", line)
			}
		}
		options := strings.Split(strings.Fields(line)[5], ",")
		for _, want := range []string{"nosuid", "nodev"} {
			if !slices.Contains(options, want) && !strings.Contains(line, " /dev ") {
				t.Errorf("not %s: %s", want, line)
			}
		}
	}
	// The other sandbox does not contain this /work.
	if err := os.WriteFile(filepath.Join(work, "secret"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := prog(root, "cat", "/work/secret")
	other.User, other.Work = another, workDir(t, another)
	if got := run(t, h, other); !strings.Contains(got, "no such file") {
		t.Errorf("another tenant reads /work: %q", got)
	}
	if _, err := os.Stat(filepath.Join(other.Work, "secret")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	// Even with the directory mounted, another tenant cannot enter a directory with mode 0700.
	if err := os.Chmod(work, 0o700); err != nil {
		t.Fatal(err)
	}
	other.Work = work
	if got := run(t, h, other); !strings.Contains(got, "permission denied") {
		t.Errorf("another tenant's uid reads /work: %q", got)
	}
	other.User = tenant
	if got := run(t, h, other); got != "x" {
		t.Errorf("the tenant reads its own /work: %q: the test proves nothing", got)
	}
}
