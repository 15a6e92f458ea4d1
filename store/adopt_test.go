package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAdopt: The store adopts the file of a sandbox if nobody can change the file afterwards, and
// copies it otherwise. Both ways give the same tree.
func TestAdopt(t *testing.T) {
	requireRoot(t)
	const user = 100000
	before, after := bytes.Repeat([]byte("before "), bufferSize/4), []byte("after")
	for _, test := range []struct {
		name    string
		adopted bool
		// prepare acts on the file at path as the sandbox would; change, unless nil, acts once the
		// file is in the store.
		prepare func(t *testing.T, path string) (change func() error)
	}{
		{name: "plain", adopted: true},
		{name: "set-id", adopted: true, prepare: func(t *testing.T, path string) func() error {
			t.Helper()
			must(t, os.Chmod(path, 0o777|fs.ModeSetuid|fs.ModeSetgid))
			return nil
		}},
		{name: "two names", adopted: true, prepare: func(t *testing.T, path string) func() error {
			t.Helper()
			must(t, os.Link(path, path+".other"))
			fd, err := unix.Open(path+".other", unix.O_PATH|unix.O_CLOEXEC, 0)
			must(t, err)
			name := fmt.Sprintf("/proc/self/fd/%d", fd) // bypasses the permissions of the directories above
			return func() error {
				// Setfsuid drops the thread's file capabilities, too.
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				must(t, unix.Setfsuid(user))
				_, reads := os.ReadFile(name)
				writes := os.WriteFile(name, after, 0o644)
				must(t, unix.Setfsuid(0))
				if reads != nil || !errors.Is(writes, fs.ErrPermission) {
					t.Errorf("its owner before: read %v, write %v", reads, writes)
				}
				return unix.Close(fd)
			}
		}},
		{name: "open for writing", prepare: func(t *testing.T, path string) func() error {
			t.Helper()
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			return func() error {
				_, err := f.Write(after)
				return errors.Join(err, f.Close())
			}
		}},
		{name: "mapped", prepare: func(t *testing.T, path string) func() error {
			t.Helper()
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			m, err := unix.Mmap(int(f.Fd()), 0, len(before), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, errors.Join(err, f.Close()))
			return func() error {
				copy(m, after)
				return unix.Munmap(m)
			}
		}},
		{name: "attributes", prepare: func(t *testing.T, path string) func() error {
			t.Helper()
			must(t, unix.Setxattr(path, "user.fre", []byte("x"), 0))
			return nil
		}},
		{name: "preallocated", prepare: func(t *testing.T, path string) func() error {
			t.Helper()
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			must(t, errors.Join(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 16<<20), f.Close()))
			return nil
		}},
		{name: "root's", prepare: func(t *testing.T, path string) func() error {
			t.Helper()
			must(t, os.Chown(path, 0, 0))
			return func() error { return os.WriteFile(path, after, 0o644) }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			dir, err := s.MkdirScratch()
			must(t, err)
			path := filepath.Join(dir, "file")
			must(t, errors.Join(os.Chmod(dir, 0o777), os.WriteFile(path, before, 0o600), os.Chown(path, user, user)))
			var change func() error
			if test.prepare != nil {
				change = test.prepare(t, path)
			}
			img, adopted := adopt(t, s, path)
			if adopted != test.adopted {
				t.Errorf("adopted: %t, want %t", adopted, test.adopted)
			}
			if change != nil {
				must(t, change())
			}
			must(t, os.RemoveAll(dir))
			checkImage(t, s, img) // bytes, owner, mode, mtime
			got, err := os.ReadFile(filepath.Join(s.Rootfs(img.Digest), "file"))
			if err != nil || !bytes.Equal(got, before) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	t.Run("another file system", func(t *testing.T) {
		dir, err := os.MkdirTemp("/dev/shm", "fre-adopt-") //nolint:usetesting // not where the store is
		must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		path := filepath.Join(dir, "file")
		must(t, errors.Join(os.WriteFile(path, before, 0o600), os.Chown(path, user, user)))
		s := openStore(t, t.TempDir())
		if img, adopted := adopt(t, s, path); adopted {
			t.Error("adopted")
		} else {
			checkImage(t, s, img)
		}
	})
}

// adopt makes an image of the file at path under the name "file", and reports whether the image
// holds the very inode. A second path and mode give a second object.
func adopt(t *testing.T, s *Store, path string) (_ *Image, adopted bool) {
	t.Helper()
	w, err := s.Create()
	must(t, err)
	defer w.Abort()
	for name, mode := range map[string]fs.FileMode{"file": 0o644, "again": 0o755} {
		f, err := os.Open(path)
		must(t, err)
		must(t, errors.Join(w.Adopt(name, mode, testTime, f), f.Close()))
	}
	d, err := w.Commit(t.Context())
	must(t, err)
	source, err := os.Stat(path)
	must(t, err)
	img := putImage(t, s, "x", "1", d)
	for _, name := range []string{"file", "again"} {
		st, err := os.Stat(filepath.Join(s.Rootfs(img.Digest), name))
		must(t, err)
		adopted = adopted || os.SameFile(source, st)
	}
	return img, adopted
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
