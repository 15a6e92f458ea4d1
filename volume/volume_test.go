package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

// quotaDirsEnv names directories, separated by colons, on file systems with project quotas. test/v2
// sets it.
const quotaDirsEnv = "FRE_TEST_QUOTA_DIRS"

// childEnv makes this test binary one of the children below.
const childEnv = "FRE_TEST_VOLUME_CHILD"

func TestMain(m *testing.M) {
	switch args := strings.Fields(os.Getenv(childEnv)); {
	case len(args) == 0:
		// In the host's mount namespace, copies of it in other programs would keep the mounts of a
		// test.
		if os.Geteuid() == 0 {
			if err := sandbox.Isolate(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	case args[0] == "fill":
		fillChild(args[1], args[2])
	case args[0] == "hold":
		holdChild(args[1], Kind(args[2]))
	}
}

// fillChild writes files of the given size into the directory at fd 3 until all are written or a
// write fails, and prints the number and the errno.
func fillChild(files, size string) {
	n, _ := strconv.Atoi(files)
	length, _ := strconv.Atoi(size)
	data := bytes.Repeat([]byte{1}, length)
	for i := range n {
		fd, err := unix.Openat(3, fmt.Sprintf("fill-%d-%d", os.Getpid(), i), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
		for rest := data; err == nil && len(rest) > 0; {
			var k int
			if k, err = unix.Write(fd, rest); err == nil {
				rest = rest[k:]
			}
		}
		if err == nil {
			err = unix.Fsync(fd)
		}
		var errno unix.Errno
		if errors.As(err, &errno) {
			fmt.Println(i, int(errno))
			return
		}
		unix.Close(fd)
	}
	fmt.Println(n, 0)
}

// fill writes as a sandbox does: as root of its own user namespace.
func fill(t *testing.T, v *Volume, files, size int) (int, unix.Errno) {
	t.Helper()
	dir, err := os.Open(v.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := dir.Chown(1000, 1000); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=fill %d %d", childEnv, files, size))
	cmd.ExtraFiles = []*os.File{dir}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var n, errno int
	if _, err := fmt.Sscan(string(out), &n, &errno); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return n, unix.Errno(errno)
}

func full(errno unix.Errno) bool { return errno == unix.ENOSPC || errno == unix.EDQUOT }

// place is a directory for volumes of one kind.
type place struct {
	dir  string
	kind Kind
}

// places are the places of a test by name: one for each kind of volume with limits on this host,
// and with plain one for Plain, too.
func places(t *testing.T, plain bool) map[string]place {
	t.Helper()
	fretest.RequireRoot(t)
	named := map[string]place{"image": {os.TempDir(), Image}}
	for _, dir := range filepath.SplitList(os.Getenv(quotaDirsEnv)) {
		named["quota on "+dir] = place{dir, Quota}
	}
	if plain {
		named["plain"] = place{os.TempDir(), Plain}
	}
	return named
}

// testDir makes a directory below base, and checks and removes it at the end.
func testDir(t *testing.T, base string) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "fre-volume-") //nolint:usetesting // another file system
	if err != nil {
		t.Fatal(err)
	}
	fretest.CheckLeaks(t)
	t.Cleanup(func() { checkLoops(t, dir); _ = os.RemoveAll(dir) })
	return dir
}

// checkLoops fails the test if a loop device still uses a file below dir after Close.
func checkLoops(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		left := loops(t, dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("loop devices left behind: %q", left)
			return
		}
	}
}

func loops(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(name string) bool {
		b, err := os.ReadFile(name)
		return err != nil || !strings.HasPrefix(string(b), dir+"/")
	})
}

func (p place) open(t *testing.T) *Manager {
	t.Helper()
	m, err := Open(p.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if m.Kind() != p.kind {
		t.Fatalf("new volumes below %s are %s, want %s (quota: %v, images: %v)", p.dir, m.Kind(), p.kind, m.quota, m.images)
	}
	return m
}

func (p place) config() Config {
	cfg := Config{Dir: filepath.Join(p.dir, "removed")}
	if p.kind != Quota {
		cfg.Avoid = append(cfg.Avoid, Quota)
	}
	if p.kind == Plain {
		cfg.Avoid = append(cfg.Avoid, Image)
	}
	return cfg
}

func (p place) attach(t *testing.T, m *Manager, name string, l Limits) *Volume {
	t.Helper()
	v, err := m.Attach(filepath.Join(p.dir, name), l)
	if err != nil {
		t.Fatal(err)
	}
	if v.Kind() != p.kind {
		t.Fatalf("%s is %s, want %s", name, v.Kind(), p.kind)
	}
	return v
}

func usage(t *testing.T, v *Volume) Usage {
	t.Helper()
	for {
		u, err := v.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if !u.AsOf.IsZero() {
			u.AsOf = time.Time{}
			return u
		}
		<-time.After(time.Millisecond) // the first walk
	}
}

// walked returns the usage found by a walk.
func walked(t *testing.T, v *Volume) Usage {
	t.Helper()
	flush(t, v)
	u, err := Walk(t.Context(), v.Dir())
	if err != nil {
		t.Fatal(err)
	}
	u.AsOf = time.Time{}
	return u
}

// flush makes the file system allocate the written blocks.
func flush(t *testing.T, v *Volume) {
	t.Helper()
	f, err := os.Open(v.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
}

// TestUsage: Usage agrees with a walk in blocks and inodes, for all kinds of files.
func TestUsage(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			var limits Limits
			if p.kind != Plain {
				limits.Bytes = 64 << 20
			}
			v := p.attach(t, p.open(t), "v", limits)
			if p.kind != Plain {
				if got, want := usage(t, v), walked(t, v); got != want {
					t.Errorf("empty: got %+v, a walk finds %+v", got, want)
				}
			}
			populate(t, v.Dir(), 1000)
			flush(t, v)
			want := walked(t, v)
			if got := usage(t, v); got != want {
				t.Errorf("got %+v, a walk finds %+v", got, want)
			}
			// 1000 small files and a few more; blocks rather than sizes.
			if want.Inodes < 1000 || want.Bytes < 1000*1024 || want.Bytes > 16<<20 {
				t.Errorf("a walk finds %+v", want)
			}
		})
	}
}

// populate makes files of all kinds below dir, and the given number of small ones.
func populate(t *testing.T, dir string, small int) {
	t.Helper()
	var errs []error
	for i := range small {
		errs = append(errs, os.WriteFile(filepath.Join(dir, fmt.Sprint("small", i)), bytes.Repeat([]byte{1}, 3000), 0o600))
	}
	large := filepath.Join(dir, "large")
	errs = append(
		errs,
		os.WriteFile(large, bytes.Repeat([]byte{1}, 3<<20), 0o640), os.Link(large, filepath.Join(dir, "linked")),
		os.WriteFile(filepath.Join(dir, "holes"), nil, 0o600), os.Truncate(filepath.Join(dir, "holes"), 1<<30),
		os.Symlink("large", filepath.Join(dir, "short link")), os.Symlink("/"+strings.Repeat("x", 1000), filepath.Join(dir, "long link")),
		os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755), unix.Mkfifo(filepath.Join(dir, "a/fifo"), 0o600),
		os.WriteFile(filepath.Join(dir, "a/b/new\nline \xff"), []byte("x"), 0o444), os.Lchown(filepath.Join(dir, "a"), 7, 8),
		os.Chtimes(large, time.Unix(1, 0), time.Unix(2, 0)),
	)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestLimit: A volume holds exactly its limit in bytes and in inodes. Its neighbour is not
// affected.
func TestLimit(t *testing.T) {
	for name, p := range places(t, false) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			m := p.open(t)
			const limit = 20 << 20
			v, other := p.attach(t, m, "v", Limits{Bytes: limit}), p.attach(t, m, "other", Limits{Bytes: limit})
			n, errno := fill(t, v, 1000, 256<<10)
			if !full(errno) {
				t.Fatalf("%d files of 256 KiB in 20 MiB: errno %v", n, errno)
			}
			if got := usage(t, v); got.Bytes > limit || got.Bytes < limit-256<<10 {
				t.Errorf("full: uses %+v of %d", got, limit)
			}
			if n, errno := fill(t, other, 40, 256<<10); errno != 0 {
				t.Errorf("its neighbour took %d of 40 files: %v", n, errno)
			}
			small := p.attach(t, m, "small", Limits{Bytes: limit, Inodes: 100})
			n, errno = fill(t, small, 5000, 0)
			if !full(errno) || n < 50 || n > 2000 { // ext4 rounds the number up
				t.Errorf("a limit of 100 inodes: %d files, errno %v", n, errno)
			}
			if got := usage(t, small); got.Inodes != int64(n)+1 {
				t.Errorf("%d files and the directory: counts %d inodes", n, got.Inodes)
			}
		})
	}
}

// TestLimitChanges: A limit changes while the volume is in use: below the usage, up, and far beyond
// the first limit.
func TestLimitChanges(t *testing.T) {
	for name, p := range places(t, false) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			m := p.open(t)
			v := p.attach(t, m, "v", Limits{Bytes: 40 << 20})
			if n, errno := fill(t, v, 100, 256<<10); errno != 0 {
				t.Fatalf("%d of 25 MiB: %v", n, errno)
			}
			before := usage(t, v)
			for _, again := range []bool{false, true} {
				if again { // the limit holds for the next attachment, too
					if err := v.Detach(); err != nil {
						t.Fatal(err)
					}
					v = p.attach(t, m, "v", Limits{Bytes: 10 << 20})
				} else if err := v.SetLimits(Limits{Bytes: 10 << 20}); err != nil {
					t.Fatal(err)
				}
				if got := usage(t, v); got.Bytes != before.Bytes {
					t.Errorf("lowered below use: counts %+v, before %+v", got, before)
				}
				if n, errno := fill(t, v, 10, 256<<10); n != 0 || !full(errno) {
					t.Errorf("lowered below use (again: %v): %d files, %v", again, n, errno)
				}
			}
			// Above the limit, deleted files do not make room.
			names, err := filepath.Glob(filepath.Join(v.Dir(), "fill-*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names[:10] {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
			flush(t, v)
			usage(t, v)
			if n, errno := fill(t, v, 10, 256<<10); n > 0 || !full(errno) {
				t.Errorf("still over: %d files, %v", n, errno)
			}
			for _, limit := range []int64{60 << 20, 300 << 20} {
				err := v.SetLimits(Limits{Bytes: limit})
				if errors.Is(err, unix.EPERM) && !mayResize(t) {
					if err = v.Detach(); err == nil {
						v, err = m.Attach(v.Path(), Limits{Bytes: limit})
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if n, errno := fill(t, v, 10000, 1<<20); !full(errno) {
					t.Errorf("raised to %d: %d files, %v", limit, n, errno)
				}
				if got := usage(t, v); got.Bytes > limit || got.Bytes < limit-1<<20 {
					t.Errorf("raised to %d and filled: counts %+v", limit, got)
				}
			}
			if got, want := v.Limits(), (Limits{Bytes: 300 << 20, Inodes: 300 << 20 / inodeBytes}); got != want {
				t.Errorf("limits %+v, want %+v", got, want)
			}
			if got, want := usage(t, v), walked(t, v); got != want {
				t.Errorf("got %+v, a walk finds %+v", got, want)
			}
		})
	}
}

// TestAgain: A volume keeps its files and its usage over Detach and Attach. Attach of an attached
// volume returns the same volume.
func TestAgain(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			m := p.open(t)
			v := p.attach(t, m, "v", p.limits())
			if p.attach(t, m, "v", p.limits()) != v {
				t.Error("attached twice: two volumes")
			}
			populate(t, v.Dir(), 50)
			want := walked(t, v)
			before := list(t, v.Dir())
			if err := errors.Join(v.Detach(), v.Detach()); err != nil {
				t.Fatal(err)
			}
			if _, err := v.Usage(); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("detached: %v", err)
			}
			v = p.attach(t, m, "v", p.limits())
			if got := usage(t, v); got != want {
				t.Errorf("attached again: counts %+v, want %+v", got, want)
			}
			if diff := cmp.Diff(before, list(t, v.Dir())); diff != "" {
				t.Errorf("files differ (-before +after):\n%s", diff)
			}
		})
	}
}

func (p place) limits() Limits {
	if p.kind == Plain {
		return Limits{}
	}
	return Limits{Bytes: 64 << 20}
}

// list describes all files below dir.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		link, _ := os.Readlink(path)
		line := fmt.Sprintf("%q %o %d:%d -> %q", rel, st.Mode, st.Uid, st.Gid, link)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			line += fmt.Sprintf(" %d bytes, %d links, of %d", st.Size, st.Nlink, st.Mtim.Sec)
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRemove: Remove deletes a volume with all files, even during use or after an interrupted
// attempt. Its name is free again.
func TestRemove(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			for _, step := range []string{"", "remove 0", "remove 1", "remove 2", "remove 3", "remove renamed"} {
				m := p.open(t)
				v := p.attach(t, m, "v", p.limits())
				populate(t, v.Dir(), 50)
				used, err := os.OpenFile(filepath.Join(v.Dir(), "large"), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				m.fail = func(s string) error {
					if s == step {
						return errors.New("cut short")
					}
					return nil
				}
				if err := m.Remove(v.Path()); (err != nil) != (step != "") {
					t.Fatalf("cut short at %q: %v", step, err)
				}
				m.fail = nil
				if err := m.Remove(v.Path()); err != nil {
					t.Fatal(err)
				}
				if _, err := used.WriteAt([]byte("still there"), 0); err != nil {
					t.Errorf("the open file: %v", err)
				}
				if _, err := v.Usage(); !errors.Is(err, fs.ErrClosed) {
					t.Errorf("removed: %v", err)
				}
				again := p.attach(t, m, "v", p.limits())
				if names, err := os.ReadDir(again.Dir()); err != nil || len(names) > 0 {
					t.Errorf("made again after %q: %v, %v", step, names, err)
				}
				if err := errors.Join(used.Close(), m.Remove(v.Path()), m.Remove(v.Path()), m.Close()); err != nil {
					t.Fatal(err)
				}
				p.open(t) // completes the interrupted removal
				var left []string
				for _, dir := range []string{p.dir, filepath.Join(p.dir, "removed")} {
					names, err := os.ReadDir(dir)
					if err != nil {
						t.Fatal(err)
					}
					for _, name := range names {
						left = append(left, name.Name())
					}
				}
				if diff := cmp.Diff([]string{"removed"}, left); diff != "" {
					t.Errorf("left after %q (-want +got):\n%s", step, diff)
				}
			}
		})
	}
}

// TestRemoveDeep: Remove deletes directories of any depth, and so does Open after an earlier
// engine.
func TestRemoveDeep(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			m := p.open(t)
			v := p.attach(t, m, "v", p.limits())
			fretest.NestDirs(t, v.Dir(), 300)
			left := filepath.Join(p.dir, "removed", "volume-left")
			if err := os.Mkdir(left, 0o700); err != nil {
				t.Fatal(err)
			}
			fretest.NestDirs(t, left, 300)
			fretest.LimitFiles(t, 100)
			if err := errors.Join(m.Remove(v.Path()), m.Close()); err != nil {
				t.Fatal(err)
			}
			p.open(t)
			if names, err := os.ReadDir(filepath.Dir(left)); err != nil || len(names) > 0 {
				t.Errorf("left: %v, %v; want nothing", names, err)
			}
		})
	}
}

// TestOpenWithoutRemoving: A leftover that Open cannot remove does not stop it.
func TestOpenWithoutRemoving(t *testing.T) {
	fretest.RequireRoot(t)
	dir := t.TempDir()
	stays := filepath.Join(dir, "volume-stays")
	if err := errors.Join(os.Mkdir(stays, 0o700), unix.Mount(t.TempDir(), stays, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(stays, unix.MNT_DETACH) }()
	if err := os.Mkdir(filepath.Join(dir, "volume-goes"), 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left: %v, %v; want volume-stays", names, err)
	}
}

// TestOverlay: Writes through an overlay, also by root, count and are limited in the volume of the
// upper layer. A removed file of the lower layer can be made again.
func TestOverlay(t *testing.T) {
	for name, p := range places(t, false) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			v := p.attach(t, p.open(t), "v", Limits{Bytes: 20 << 20})
			lower, merged := filepath.Join(p.dir, "lower"), filepath.Join(p.dir, "merged")
			upper, work := filepath.Join(v.Dir(), "upper"), filepath.Join(v.Dir(), "work")
			for _, dir := range []string{lower, merged, upper, work} {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(lower, "file"), []byte("below"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := unix.Unmount(merged, 0); err != nil {
					t.Error(err)
				}
			}()
			if err := errors.Join(os.Remove(filepath.Join(merged, "file")), os.WriteFile(filepath.Join(merged, "file"), []byte("above"), 0o600)); err != nil {
				t.Error(err)
			}
			f, err := os.Create(filepath.Join(merged, "large"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for range 40 {
				if _, err = f.Write(bytes.Repeat([]byte{1}, 1<<20)); err != nil {
					break
				}
			}
			if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
				t.Errorf("40 MiB in 20 MiB: %v", err)
			}
			if got := usage(t, v); got.Bytes > 20<<20 || got.Bytes < 18<<20 {
				t.Errorf("full: counts %+v", got)
			}
		})
	}
}

// TestAtOnce: Many goroutines attach, count, limit, detach and remove volumes at once.
func TestAtOnce(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			m := p.open(t)
			r := fretest.Rand(t)
			var wg sync.WaitGroup
			for range 6 {
				seed := r.Uint64()
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, 0))
					for range 12 {
						path := filepath.Join(p.dir, fmt.Sprint("v", r.IntN(3)))
						v, err := m.Attach(path, p.limits())
						if err != nil {
							t.Errorf("attach: %v", err)
							return
						}
						_, err = v.Usage()
						if p.kind != Plain && err == nil {
							err = v.SetLimits(Limits{Bytes: int64(16+r.IntN(48)) << 20})
						}
						if err == nil {
							switch r.IntN(3) {
							case 0:
								err = v.Detach()
							case 1:
								err = m.Remove(path)
							}
						}
						if err != nil && !errors.Is(err, fs.ErrClosed) { // another goroutine has detached the volume
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestNoLimits: On a file system without quotas, a limit for a directory fails with the next step.
func TestNoLimits(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			if p.kind != Plain {
				p.attach(t, p.open(t), "v", p.limits())
				return
			}
			m := p.open(t)
			_, err := m.Attach(filepath.Join(p.dir, "v"), Limits{Bytes: 1 << 20})
			if !errors.Is(err, ErrNoLimits) || !strings.Contains(err.Error(), "prjquota") {
				t.Errorf("a limit: %v", err)
			}
			v := p.attach(t, m, "v", Limits{})
			if err := v.SetLimits(Limits{Bytes: 1}); !errors.Is(err, ErrNoLimits) {
				t.Errorf("a limit: %v", err)
			}
			for _, bad := range []string{"v", "/", "/tmp/../x", ""} {
				if _, err := m.Attach(bad, Limits{}); err == nil {
					t.Errorf("attach %q: no error", bad)
				}
			}
			for _, bad := range []Limits{{Bytes: -1}, {Bytes: 1, Inodes: -1}, {Inodes: 1}} {
				if _, err := m.Attach(filepath.Join(p.dir, "w"), bad); err == nil || errors.Is(err, ErrNoLimits) {
					t.Errorf("limits %+v: %v", bad, err)
				}
			}
		})
	}
}
