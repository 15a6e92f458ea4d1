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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// orders starts testprog in a sandbox. The returned function gives the program a command and
// returns the output, the answer last.
func orders(t *testing.T, h *Host, spec Spec) (order func(string) string, s *Sandbox) {
	t.Helper()
	in, commands := pipe(t)
	answers, out := pipe(t)
	spec.Args, spec.Stdin, spec.Stdout, spec.Stderr = []string{"/bin/prog", "orders"}, in, out, out
	s, err := h.Start(t.Context(), spec)
	_ = in.Close()
	_ = out.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Kill(); <-s.Done() })
	if err := answers.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(answers)
	answer := func() string {
		var all []string
		for lines.Scan() {
			// The output need not end with a newline.
			printed, last, ok := strings.Cut(lines.Text(), "> ")
			if printed != "" {
				all = append(all, printed)
			}
			if !ok {
				continue
			}
			if len(all) > 0 && last == "ok" {
				return strings.Join(all, " ")
			}
			return strings.Join(append(all, last), " ")
		}
		t.Fatalf("sandbox ended instead of an answer (%v): %+v", lines.Err(), s.Status())
		return ""
	}
	if got := answer(); got != "ready" {
		t.Fatalf("sandbox said %q, want ready", got)
	}
	return func(command string) string {
		t.Helper()
		if _, err := fmt.Fprintln(commands, command); err != nil {
			t.Fatal(err)
		}
		return answer()
	}, s
}

// imageRoot is a root in the form of the store: two names of one file, owners, and a set-id bit,
// which the store never lets in.
func imageRoot(t *testing.T) string {
	t.Helper()
	root := fretest.Rootfs(t)
	for _, dir := range []string{"lib", "lib/deep", "home"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lib/a", "lib/deep/b", "home/own", "lib/set"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("image\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(
		os.Link(filepath.Join(root, "lib/a"), filepath.Join(root, "lib/same")),
		os.Chown(filepath.Join(root, "home"), 1000, 1000),
		os.Chown(filepath.Join(root, "home/own"), 1000, 1000),
		os.Chmod(filepath.Join(root, "lib/set"), 0o755|fs.ModeSetuid))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// state describes every file below root.
func state(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		var content []byte
		if d.Type().IsRegular() {
			content, err = os.ReadFile(path)
		}
		all[path] = fmt.Sprintf("%o %d:%d %d links, inode %d, changed %v, %d bytes, %.20q", st.Mode, st.Uid, st.Gid, st.Nlink, st.Ino, st.Ctim, len(content), content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestScratch: Writes to a writable root go to the sandbox's own layer and never to the store;
// files keep their owners.
func TestScratch(t *testing.T) {
	h := openHost(t)
	root := imageRoot(t)
	before := state(t, root)
	begun := t.TempDir() // by an engine that did not get as far as the owner
	if err := errors.Join(os.Mkdir(filepath.Join(begun, "work"), 0o700), os.Mkdir(filepath.Join(begun, "upper.new"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, scratch := range map[string]*Scratch{"memory": {}, "directory": {Dir: t.TempDir()}, "directory begun": {Dir: begun}} {
		t.Run(name, func(t *testing.T) {
			spec := prog(root)
			spec.User.UID, spec.User.GID = 0, 0
			spec.Scratch = scratch
			order, s := orders(t, h, spec)
			for _, step := range []struct{ command, want string }{
				{"stat /", "40755 0 0"},
				{"stat /bin/prog", "100755 0 0"},
				{"stat /home/own", "100644 1000 1000"},
				{"write /new x", "ok"},
				{"stat /new", "100644 0 0"},
				{"append /lib/a more", "ok"},
				{"cat /lib/a", "image more"},
				{"cat /lib/same", "image"}, // the same file in the store
				{"chmod 4711 /lib/deep/b", "ok"},
				{"stat /lib/deep/b", "104711 0 0"},
				{"stat /lib/set", "104755 0 0"},
				{"remove /lib/set", "ok"},
				{"stat /lib/set", "no such file or directory"},
				{"rename /lib/deep /moved", "ok"}, // a directory of the image
				{"cat /moved/b", "image"},
				{"ls /lib", "a same"},
				{"remove /moved", "ok"},
				{"mkdir /moved", "ok"},
				{"ls /moved", "ok"}, // the image's directory does not show through
				{"remove /bin", "ok"},
				{"append /home/own x", "open /home/own: permission denied"}, // root without a capability
				{"mount", "operation not permitted"},
				{"write /dev/x x", "open /dev/x: read-only file system"},
				{"ls /proc", "1 self thread-self"},
			} {
				if got := order(step.command); got != step.want {
					t.Errorf("%s: got %q, want %q", step.command, got, step.want)
				}
			}
			stats, err := s.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if inMemory := scratch.Dir == ""; inMemory != (stats.ScratchBytes > 0) || inMemory != (stats.ScratchInodes > 4) {
				t.Errorf("scratch uses %d bytes in %d inodes", stats.ScratchBytes, stats.ScratchInodes)
			}
			if diff := cmp.Diff(before, state(t, root)); diff != "" {
				t.Errorf("the image has changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestScratchLimits: A layer in memory has its limits in bytes and in files, and counts towards the
// sandbox's memory limit.
func TestScratchLimits(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	spec := prog(root)
	spec.User.UID, spec.User.GID = 0, 0
	spec.Scratch = &Scratch{Bytes: 1 << 20, Inodes: 100}
	order, s := orders(t, h, spec)
	if got, want := order("fill /full"), "1048576 write /full: no space left on device"; got != want {
		t.Errorf("fill: %q, want %q", got, want)
	}
	stats, err := s.Stats()
	if err != nil || stats.ScratchBytes != 1<<20 || stats.ScratchInodes != 1 {
		t.Errorf("stats %+v, %v; want 1 MiB in one file", stats, err)
	}
	if stats.MemoryBytes < 1<<20 {
		t.Errorf("the sandbox's memory is %d bytes, less than it wrote", stats.MemoryBytes)
	}
	order("remove /full")
	order("mkdir /many")
	if got := order("files /many"); !strings.HasSuffix(got, "no space left on device") {
		t.Errorf("files: %q, want no space left", got)
	}

	spec = prog(root, "fill", "/full")
	spec.Scratch = &Scratch{Bytes: 1 << 30}
	spec.User.UID, spec.User.GID = 0, 0
	spec.Limits.MemoryBytes = 32 << 20
	if _, status := run(t, h, spec); !status.OOMKilled {
		t.Errorf("ended with %+v, want killed for its memory", status)
	}
}

// TestScratchKept: The next sandbox finds the files of the previous one, even after changes to the
// mount points. Two sandboxes on one image share no file.
func TestScratchKept(t *testing.T) {
	h := openHost(t)
	root := imageRoot(t)
	extra := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(extra, []byte("given\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := prog(root)
	spec.User.UID, spec.User.GID = 0, 0
	spec.Scratch = &Scratch{Dir: t.TempDir()}
	other := spec
	other.Scratch = &Scratch{}
	outside, _ := orders(t, h, other)

	order, s := orders(t, h, spec)
	for _, command := range []string{
		"write /kept x", "remove /lib/a",
		"remove /opt", "symlink /../../etc /opt",
		"remove /work", "mkdir /etc/sub", "symlink /etc/passwd /etc/sub/hosts",
	} {
		if got := order(command); got != "ok" {
			t.Fatalf("%s: %s", command, got)
		}
	}
	if got := outside("ls / /lib"); strings.Contains(got, "kept") || !strings.Contains(got, " a ") {
		t.Errorf("another sandbox of the image sees %q", got)
	}
	s.Kill()
	<-s.Done()

	spec.Work = t.TempDir()
	spec.Mounts = []Mount{{Source: extra, Target: "/etc/sub/hosts"}, {Source: extra, Target: "/var/lib/new/hosts"}, {Source: t.TempDir(), Target: "/opt"}}
	order, s = orders(t, h, spec)
	for _, step := range []struct{ command, want string }{
		{"cat /kept", "x"},
		{"stat /lib/a", "no such file or directory"},
		{"cat /etc/sub/hosts", "given"},
		{"cat /var/lib/new/hosts", "given"},
		{"ls /opt", "ok"},
		{"ls /work", "ok"},
	} {
		if got := order(step.command); got != step.want {
			t.Errorf("%s: got %q, want %q", step.command, got, step.want)
		}
	}
	s.Kill()
	<-s.Done()

	// The host follows no link on the way to a mount point.
	upper := filepath.Join(spec.Scratch.Dir, "upper")
	if err := errors.Join(os.RemoveAll(filepath.Join(upper, "var")), os.Symlink("/etc", filepath.Join(upper, "var"))); err != nil {
		t.Fatal(err)
	}
	spec.Args = []string{"/bin/prog", "exit", "0"}
	if _, err := h.Start(t.Context(), spec); !errors.Is(err, unix.ELOOP) {
		t.Errorf("start with a link on the way to a mount point: %v, want ELOOP", err)
	}
	if names, err := os.ReadDir("/etc/lib"); err == nil {
		t.Errorf("the host's /etc/lib was made: %v", names)
	}
}

// TestScratchReadOnly: A read-only root keeps the owners of its files, and gets a working directory
// that the image lacks. Only mounts such as /tmp are writable.
func TestScratchReadOnly(t *testing.T) {
	h := openHost(t)
	spec := prog(imageRoot(t))
	spec.Scratch, spec.Dir = &Scratch{ReadOnly: true}, "/srv/app"
	order, _ := orders(t, h, spec)
	for _, step := range []struct{ command, want string }{
		{"stat /home/own", "100644 1000 1000"},
		{"stat .", "40755 1000 1000"},
		{"write /home/new x", "open /home/new: read-only file system"},
		{"write /srv/app/new x", "open /srv/app/new: read-only file system"},
		{"write /tmp/new x", "ok"},
	} {
		if got := order(step.command); got != step.want {
			t.Errorf("%s: got %q, want %q", step.command, got, step.want)
		}
	}
}

// TestWorkOwner: Inside, /work belongs to the sandbox's user, and on disk to its one owner. No
// other id can leave files there, least of all root with a set-id bit. A read-only /work belongs to
// the user, too.
func TestWorkOwner(t *testing.T) {
	h := openHost(t)
	work := t.TempDir()
	if err := errors.Join(os.Chown(work, 1000, 1000), os.Chmod(work, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []uint32{0, 33, 1000} {
		spec := container(fretest.Rootfs(t))
		spec.User.UID, spec.User.GID = uid, uid
		spec.Work, spec.WorkMapped, spec.WorkOwner = work, true, 1000
		order, _ := orders(t, h, spec)
		name := fmt.Sprint("/work/by", uid)
		for _, step := range []struct{ command, want string }{
			{"stat /work", fmt.Sprintf("40700 %d %d", uid, uid)},
			{"write " + name + " x", "ok"},
			{"stat " + name, fmt.Sprintf("100644 %d %d", uid, uid)},
			{"append " + name + " x", "ok"},
		} {
			if got := order(step.command); got != step.want {
				t.Errorf("uid %d: %s: got %q, want %q", uid, step.command, got, step.want)
			}
		}
		if uid == 0 {
			if got := order("chown 5 " + name); got == "ok" {
				t.Error("a file of /work was given to another id")
			}
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(work, filepath.Base(name)), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
			t.Errorf("on disk it belongs to %d:%d (%v), want 1000", st.Uid, st.Gid, err)
		}

		spec.WorkReadOnly = true
		order, _ = orders(t, h, spec)
		for _, step := range []struct{ command, want string }{
			{"cat " + name, "xx"},
			{"write /work/more x", "open /work/more: read-only file system"},
		} {
			if got := order(step.command); got != step.want {
				t.Errorf("read-only, uid %d: %s: got %q, want %q", uid, step.command, got, step.want)
			}
		}
	}
}

// TestScratchRefused: An invalid layer is refused.
func TestScratchRefused(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	file := filepath.Join(root, "etc/file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*Spec)
		want   error
	}{
		"no such directory":  {func(s *Spec) { s.Scratch.Dir = filepath.Join(root, "missing") }, unix.ENOENT},
		"a file":             {func(s *Spec) { s.Scratch.Dir = file }, unix.ENOTDIR},
		"relative":           {func(s *Spec) { s.Scratch.Dir = "layer" }, unix.EINVAL},
		"negative":           {func(s *Spec) { s.Scratch.Bytes = -1 }, unix.EINVAL},
		"of a fork server":   {func(s *Spec) { s.Forks = 1 }, unix.EINVAL},
		"a file on a folder": {func(s *Spec) { s.Mounts = []Mount{{Source: file, Target: "/opt"}} }, unix.EISDIR},
		"no such image":      {func(s *Spec) { s.Rootfs = filepath.Join(root, "missing") }, unix.ENOENT},
	} {
		t.Run(name, func(t *testing.T) {
			spec := prog(root, "exit", "0")
			spec.Scratch = &Scratch{}
			test.change(&spec)
			s, err := h.Start(t.Context(), spec)
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if s != nil {
				s.Kill()
				<-s.Done()
			}
		})
	}
	if left, err := os.ReadFile("/proc/self/mountinfo"); err != nil || slices.ContainsFunc(strings.Split(string(left), "\n"), func(l string) bool {
		return strings.Contains(l, layersDir(h.cfg.Dir))
	}) {
		t.Errorf("layers are still mounted (%v):\n%s", err, left)
	}
}
