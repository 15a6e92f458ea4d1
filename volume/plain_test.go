package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestPlainGetsLimit: A directory without a limit gets a limit and keeps all files, even if each
// attempt but the last is cut short.
func TestPlainGetsLimit(t *testing.T) {
	for name, p := range places(t, false) {
		t.Run(name, func(t *testing.T) {
			p.dir = testDir(t, p.dir)
			for _, step := range []string{"", "image staged", "image made", "image named", "image looped", "image mounted", "quota entered"} {
				t.Run(step, func(t *testing.T) {
					path := filepath.Join(p.dir, "v"+step)
					if err := os.Mkdir(path, 0o700); err != nil {
						t.Fatal(err)
					}
					populate(t, path, 50)
					want := list(t, path)
					m := p.open(t)
					reached := false
					m.fail = func(s string) error {
						if s == step {
							reached = true
							return errors.New("cut short")
						}
						return nil
					}
					if _, err := m.Attach(path, Limits{Bytes: 64 << 20}); (err != nil) != reached {
						t.Fatalf("cut short at %q (reached: %v): error %v", step, reached, err)
					}
					m = p.open(t)
					if reached {
						v, err := m.Attach(path, Limits{Bytes: 64 << 20})
						if err != nil {
							t.Fatal(err)
						}
						if diff := cmp.Diff(want, list(t, v.Dir())); diff != "" {
							t.Errorf("files differ (-before +after):\n%s", diff)
						}
						if got, want := usage(t, v), walked(t, v); p.kind == Image && got != want {
							t.Errorf("counts %+v, a walk finds %+v", got, want)
						}
						if n, errno := fill(t, v, 1000, 1<<20); !full(errno) {
							t.Errorf("%d files of 1 MiB in 64 MiB: %v", n, errno)
						}
						if left, err := filepath.Glob(path + ".staged*"); err != nil || len(left) > 0 {
							t.Errorf("left behind: %q, %v", left, err)
						}
					}
				})
			}
		})
	}
}

// TestWalkDeep: Walk counts a directory at the end of a path of any length.
func TestWalkDeep(t *testing.T) {
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	const depth = 50
	for range depth { // 10 KB in all
		name := strings.Repeat("x", 200)
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	err = unix.Symlinkat("/", at, "link")
	unix.Close(at)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := Walk(t.Context(), dir); err != nil || u.Inodes != depth+2 {
		t.Errorf("%+v, %v; want %d inodes", u, err, depth+2)
	}
}

// TestWalkWhileItChanges: Walk ignores vanishing files, and does not follow a link that takes the
// place of a directory.
func TestWalkWhileItChanges(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	const files = 3000
	for i := range files {
		if err := os.WriteFile(filepath.Join(outside, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := filepath.Join(dir, strconv.Itoa(i%7))
			err := os.MkdirAll(filepath.Join(name, "a/b"), 0o700)
			if err == nil {
				err = os.WriteFile(filepath.Join(name, "a/file"), nil, 0o600)
			}
			if err == nil {
				err = os.RemoveAll(name)
			}
			if err == nil {
				err = os.Symlink(outside, name)
			}
			if err == nil {
				err = os.Remove(name)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 1000 {
		u, err := Walk(t.Context(), dir)
		if err != nil || u.Inodes < 1 || u.Inodes >= files {
			t.Errorf("%+v, %v", u, err)
			break
		}
	}
	close(stop)
	changing.Wait()
}
