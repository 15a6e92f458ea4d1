package volume

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestPrepared: A prepared volume equals a volume made by Attach. An existing volume at the path is
// kept, and the prepared one is removed.
func TestPrepared(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			m := p.open(t)
			path := filepath.Join(p.dir, "v")
			take := func() (*Volume, error) {
				t.Helper()
				prepared, err := m.Prepare(p.limits())
				if err != nil {
					t.Fatal(err)
				}
				return m.AttachPrepared(path, prepared)
			}
			nothingPrepared := func() {
				t.Helper()
				if left, err := os.ReadDir(m.cfg.Dir); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			}
			if p.kind != Image {
				if _, err := take(); !errors.Is(err, fs.ErrInvalid) {
					t.Errorf("attached: %v", err)
				}
				nothingPrepared()
				return
			}
			m.fail = func(step string) error {
				if step == "prepared moved" {
					return errors.New("cut short")
				}
				return nil
			}
			if _, err := take(); err == nil {
				t.Error("attached, though it was cut short")
			}
			m.fail = nil
			nothingPrepared()
			v, err := take()
			if err != nil {
				t.Fatal(err)
			}
			if p.attach(t, m, "v", p.limits()) != v || v.Path() != path || v.Limits() != p.limits().withDefaults() {
				t.Errorf("attached %+v", v)
			}
			nothingPrepared()
			if n, errno := fill(t, v, 100, 1<<20); !full(errno) || n < 62 {
				t.Errorf("%d MiB in a limit of 64: %v", n, errno)
			}
			want := walked(t, v)
			refused := func(what string) {
				t.Helper()
				if _, err := take(); !errors.Is(err, fs.ErrExist) {
					t.Errorf("a path that is %s: %v, want ErrExist", what, err)
				}
				nothingPrepared()
			}
			refused("attached")
			if err := v.Detach(); err != nil {
				t.Fatal(err)
			}
			refused("detached")
			if err := os.Remove(path); err != nil { // as after a crash right after the rename of the image
				t.Fatal(err)
			}
			refused("an image without a mount point")
			if got := usage(t, p.attach(t, m, "v", p.limits())); got != want {
				t.Errorf("attached again: counts %+v, want %+v", got, want)
			}
			if err := m.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(staging(path), "data", "kept"), 0o700); err != nil {
				t.Fatal(err)
			}
			refused("a directory that was to be an image")
			if _, err := os.Stat(filepath.Join(p.attach(t, m, "v", p.limits()).Dir(), "kept")); err != nil {
				t.Error(err)
			}
			if _, err := m.Prepare(p.limits()); err != nil {
				t.Fatal(err)
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			m = p.open(t)
			nothingPrepared()
		})
	}
}

// TestCountedWhileDetached: Usage during Detach neither counts the file system below the mount
// point nor writes a balloon there.
func TestCountedWhileDetached(t *testing.T) {
	for name, p := range places(t, false) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			v := p.attach(t, p.open(t), "v", Limits{Bytes: 40 << 20})
			if _, errno := fill(t, v, 8, 1<<20); errno != 0 {
				t.Fatal(errno)
			}
			if err := v.SetLimits(Limits{Bytes: 1 << 20}); err != nil { // less than the volume holds
				t.Fatal(err)
			}
			want := usage(t, v)
			counts := v.backing // Usage holds this when Detach comes
			if err := v.Detach(); err != nil {
				t.Fatal(err)
			}
			if got, err := counts.usage(); !errors.Is(err, fs.ErrClosed) && got.Bytes != want.Bytes {
				t.Errorf("counts %+v, %v; want %+v or ErrClosed", got, err, want)
			}
			if p.kind != Image {
				return
			}
			if names, err := os.ReadDir(v.Path()); err != nil || len(names) > 0 {
				t.Errorf("made in the mount point: %v, %v", names, err)
			}
		})
	}
}

// TestHostFull: A full disk of the host breaks off writes to an image and harms no older file. Once
// the disk has room, writes succeed again.
func TestHostFull(t *testing.T) {
	fretest.RequireRoot(t)
	p := place{testDir(t, os.TempDir()), Image}
	if err := unix.Mount("fre-volume-test", p.dir, "tmpfs", 0, "size=40m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(p.dir, 0); err != nil {
			t.Error(err)
		}
	})
	m := p.open(t)
	v := p.attach(t, m, "v", Limits{Bytes: 1 << 30})
	kept := filepath.Join(v.Dir(), "kept")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	flush(t, v)
	if n, errno := fill(t, v, 200, 1<<20); errno == 0 {
		t.Fatalf("%d MiB on a disk of 40", n)
	}
	if b, err := os.ReadFile(kept); err != nil || string(b) != "kept" {
		t.Errorf("the old file: %q, %v", b, err)
	}
	if err := unix.Mount("", p.dir, "", unix.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	if err := v.Detach(); err != nil {
		t.Fatal(err)
	}
	v = p.attach(t, m, "v", Limits{Bytes: 1 << 30})
	if b, err := os.ReadFile(kept); err != nil || string(b) != "kept" {
		t.Errorf("the old file, attached again: %q, %v", b, err)
	}
	if n, errno := fill(t, v, 100, 1<<20); errno != 0 {
		t.Errorf("with room again: %d MiB, %v", n, errno)
	}
	if got, want := usage(t, v), walked(t, v); got != want {
		t.Errorf("counts %+v, a walk finds %+v", got, want)
	}
}

// TestDamagedImage: Attach refuses a damaged image with the next step, whatever the superblock
// claims, and keeps the file.
func TestDamagedImage(t *testing.T) {
	for name, p := range places(t, false) {
		if p.kind != Image {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			m := p.open(t)
			v := p.attach(t, m, "v", p.limits())
			if err := v.Detach(); err != nil {
				t.Fatal(err)
			}
			image := imageFile(v.Path())
			sound, err := os.ReadFile(image)
			if err != nil {
				t.Fatal(err)
			}
			for name, damage := range map[string]func(b []byte) []byte{
				"cut":       func(b []byte) []byte { return b[:1000] },
				"empty":     func([]byte) []byte { return nil },
				"no magic":  func(b []byte) []byte { b[1024+0x38] ^= 1; return b },
				"no inodes": func(b []byte) []byte { copy(b[1024:], make([]byte, 4)); return b },
				"no blocks": func(b []byte) []byte { copy(b[1024+4:], make([]byte, 4)); return b },
				"one inode": func(b []byte) []byte { copy(b[1024:], []byte{1, 0, 0, 0}); return b },
				"too large": func(b []byte) []byte { copy(b[1024+0x150:], []byte{255, 255, 255, 255}); return b },
			} {
				if err := os.WriteFile(image, damage(bytes.Clone(sound)), 0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Attach(v.Path(), p.limits()); err == nil {
					t.Errorf("%s: attached", name)
				}
				if _, err := os.Stat(image); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := os.WriteFile(image, sound, 0o600); err != nil {
				t.Fatal(err)
			}
			p.attach(t, m, "v", p.limits())
		})
	}
}

// holdChild attaches a volume in its own mount namespace, as the engine does, writes a file and
// waits for SIGKILL.
func holdChild(dir string, kind Kind) {
	p := place{dir, kind}
	m, err := Open(p.config())
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	}
	if err == nil {
		var v *Volume
		if v, err = m.Attach(filepath.Join(dir, "v"), p.limits()); err == nil {
			err = os.WriteFile(filepath.Join(v.Dir(), "written"), []byte(kind), 0o600)
		}
	}
	fmt.Println(err)
	for { // the runtime takes an empty select for a deadlock
		_ = unix.Pause()
	}
}

// TestKilled: After the kill of an engine the next engine attaches its volumes at once, with all
// files. No loop device remains.
func TestKilled(t *testing.T) {
	for name, p := range places(t, true) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			for range 3 {
				cmd := exec.Command("/proc/self/exe")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=hold %s %s", childEnv, p.dir, p.kind))
				cmd.Stderr = os.Stderr
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
				out, err := cmd.StdoutPipe()
				if err == nil {
					err = cmd.Start()
				}
				if err != nil {
					t.Fatal(err)
				}
				defer cmd.Wait()         //nolint:errcheck // it is killed
				defer cmd.Process.Kill() //nolint:errcheck // it may be dead
				line, err := bufio.NewReader(out).ReadString('\n')
				if err != nil || line != "<nil>\n" {
					t.Errorf("child: %q, %v", line, err)
				}
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				m := p.open(t)
				v := p.attach(t, m, "v", p.limits())
				if b, err := os.ReadFile(filepath.Join(v.Dir(), "written")); err != nil || string(b) != string(p.kind) {
					t.Errorf("the written file: %q, %v", b, err)
				}
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
				checkLoops(t, p.dir)
			}
		})
	}
}

// TestImageInUse: An image is never mounted twice.
func TestImageInUse(t *testing.T) {
	for name, p := range places(t, false) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			first, second := p.open(t), p.open(t)
			v := p.attach(t, first, "v", p.limits())
			second.lockWithin = 50 * time.Millisecond
			_, err := second.Attach(v.Path(), p.limits())
			if p.kind == Image && (!errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), "in use")) {
				t.Errorf("attached by another: %v", err)
			}
			if p.kind == Quota && err != nil { // a shared directory does no harm
				t.Error(err)
			}
			if err := v.Detach(); err != nil {
				t.Fatal(err)
			}
			second.lockWithin = lockWithin
			p.attach(t, second, "v", p.limits())
		})
	}
}

// TestImageIsSparse: An image takes only the disk space of its files and returns the space of
// deleted files.
func TestImageIsSparse(t *testing.T) {
	for name, p := range places(t, false) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			if p.kind != Image {
				return
			}
			v := p.attach(t, p.open(t), "v", Limits{Bytes: 10 << 30})
			onHost := func() int64 {
				flush(t, v)
				var st unix.Stat_t
				if err := unix.Stat(imageFile(v.Path()), &st); err != nil {
					t.Fatal(err)
				}
				return st.Blocks * 512
			}
			var st unix.Statfs_t
			if err := unix.Statfs(v.Dir(), &st); err != nil {
				t.Fatal(err)
			}
			if free := int64(st.Bavail) * st.Bsize; free > 10<<30 || free < 10<<30-1<<20 {
				t.Errorf("df says %d bytes are free, want 10 GiB", free)
			}
			empty := onHost()
			if empty > 8<<20 {
				t.Errorf("an empty image of 10 GiB takes %d bytes", empty)
			}
			if n, errno := fill(t, v, 32, 1<<20); errno != 0 {
				t.Fatal(n, errno)
			}
			if got := onHost() - empty; got < 32<<20 || got > 36<<20 {
				t.Errorf("32 MiB take %d bytes", got)
			}
		})
	}
}

// mayResize reports whether this process has CAP_SYS_RESOURCE.
func mayResize(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "\nCapEff:")
	field, _, _ := strings.Cut(after, "\n")
	caps, err := strconv.ParseUint(strings.TrimSpace(field), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return caps>>unix.CAP_SYS_RESOURCE&1 == 1
}
