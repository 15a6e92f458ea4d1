package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a tmpfs and unmounts it after the test.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	requireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("fre-store-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// TestDiskFull: On a full disk a build fails with ENOSPC, the earlier images stay whole, and
// nothing else remains. The disks differ in size, so that ENOSPC strikes at different steps.
func TestDiskFull(t *testing.T) {
	for _, inodes := range []bool{false, true} {
		for i := range 8 {
			options := fmt.Sprintf("size=%dk", 2100+i*12)
			if inodes {
				options = fmt.Sprintf("size=64m,nr_inodes=%d", 96+i*2)
			}
			t.Run(options, func(t *testing.T) {
				s := openStore(t, filepath.Join(smallDisk(t, options), "store"))
				kept := putImage(t, s, "kept", "1", putTree(t, s, map[string]string{"a": "a", "b/c": "c"}))
				before := stateOf(s)
				var err error
				for n := 0; err == nil && n < 100; n++ {
					before = stateOf(s)
					err = fillDisk(t, s, n)
				}
				if !errors.Is(err, unix.ENOSPC) {
					t.Fatalf("got %v, want ENOSPC", err)
				}
				t.Logf("%d images, then: %v", len(s.Images()), err)
				if diff := cmp.Diff(before.Images, stateOf(s).Images); diff != "" {
					t.Errorf("images (-before +after):\n%s", diff)
				}
				checkStore(t, s)
				s = reopen(t, s)
				if diff := cmp.Diff(before.Images, stateOf(s).Images); diff != "" {
					t.Errorf("images after reopening (-before +after):\n%s", diff)
				}
				// Removals make room on a full disk.
				for _, img := range s.Images() {
					if img.Digest == kept.Digest {
						continue
					}
					if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
						t.Fatalf("RemoveImage on a full disk: %v", err)
					}
				}
				if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
					t.Fatal(err)
				}
				if err := fillDisk(t, s, 1000); err != nil {
					t.Errorf("after making room: %v", err)
				}
			})
		}
	}
}

// TestFullAtEachStep: If the disk is full at one step of a build, a removal or a sweep, only this
// operation fails, and a retry succeeds.
func TestFullAtEachStep(t *testing.T) {
	for _, point := range []string{
		"tree synced", "objects linked", "tree renamed", "image synced", "image renamed", "before commit",
		"image row removed", "parts swept", "trees swept", "objects swept",
	} {
		t.Run(point, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			kept := putImage(t, s, "kept", "1", putTree(t, s, map[string]string{"a": "a", "b/c": "c"}))
			full := func(full string) {
				s.disk.failAt = func(point string) error {
					if point == full {
						s.disk.failAt = nil
						return unix.ENOSPC
					}
					return nil
				}
			}
			full(point)
			if err := fillDisk(t, s, 1); (err == nil) != (s.disk.failAt != nil) || err != nil && !errors.Is(err, unix.ENOSPC) {
				t.Errorf("build: %v", err)
			}
			clean := func(images int) {
				t.Helper()
				if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
					t.Fatal(err)
				}
				checkNothingLoose(t, s)
				if n := len(s.Images()); n != images {
					t.Errorf("%d images, want %d", n, images)
				}
				if t.Failed() {
					t.FailNow()
				}
			}
			for _, gone := range []bool{false, true} {
				if err := fillDisk(t, s, 1); err != nil {
					t.Fatalf("built again: %v", err)
				}
				clean(2)
				full(point)
				d := s.Images()[0].Digest
				err := s.RemoveImage(t.Context(), d)
				s.disk.failAt = nil
				if _, left := s.Image(string(d)); left == nil {
					t.Errorf("RemoveImage: %v, and the image is there", err)
				}
				if gone {
					clean(1)
				}
			}
			checkImage(t, s, kept)
			s = reopen(t, s)
			if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
				t.Errorf("Check: %q", found)
			}
		})
	}
}

// TestRepairOnFullDisk: A lack of room never makes a repair drop content; the repair succeeds once
// the disk has room.
func TestRepairOnFullDisk(t *testing.T) {
	for _, options := range []string{"size=4m", "size=64m,nr_inodes=300"} {
		for room := range 14 {
			t.Run(fmt.Sprintf("%s,room=%d", options, room), func(t *testing.T) {
				disk := smallDisk(t, options)
				s, img := damagedStoreIn(t, filepath.Join(disk, "store"), func(s *Store, img *Image, object func(string) string) {
					copyFile(t, object("own")+".1", object("own"))
					flip(t, object("own"))
					root := s.Rootfs(img.Digest)
					flip(t, filepath.Join(filepath.Dir(root), "manifest.json"))
					other := filepath.Dir(s.Rootfs(s.Images()[0].Digest))
					_, err := s.meta.db.ExecContext(t.Context(), `UPDATE images SET manifest = '{}' WHERE digest <> ?`, img.Digest)
					for _, err := range []error{
						err, os.Remove(object("hidden")), os.RemoveAll(filepath.Join(root, "usr")),
						os.RemoveAll(filepath.Join(other, "rootfs")),
					} {
						if err != nil {
							t.Fatal(err)
						}
					}
				})
				ballast := leaveRoom(t, filepath.Join(disk, "ballast"), room)
				before := stateOf(s)
				found := checkAll(t, s, CheckOptions{Repair: true})
				if room == 0 && !slices.ContainsFunc(found, func(line string) bool { return strings.Contains(line, "no space left") }) {
					t.Errorf("the disk was not full: %q", found)
				}
				ballast()
				found = checkAll(t, s, CheckOptions{Repair: true})
				for _, line := range found {
					if !strings.Contains(line, " → ") {
						t.Errorf("with room: %s", line)
					}
				}
				if found = checkAll(t, s, CheckOptions{}); len(found) > 0 {
					t.Errorf("after the repair: %q", found)
				}
				s = reopen(t, s)
				if diff := cmp.Diff(before, stateOf(s)); diff != "" {
					t.Errorf("state (-before +after):\n%s", diff)
				}
				checkImage(t, s, img)
			})
		}
	}
}

// leaveRoom fills the disk except for room pages or inodes; empty deletes the filling.
func leaveRoom(t *testing.T, dir string, room int) (empty func()) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var files []string
	for n := 0; ; n++ { // each file takes a page and an inode
		path := filepath.Join(dir, fmt.Sprint(n))
		err := os.WriteFile(path, make([]byte, 4096), 0o600)
		if errors.Is(err, unix.ENOSPC) {
			_ = os.Remove(path)
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	for _, path := range files[len(files)-room:] {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// fillDisk puts an image of about 30 KiB in four files and links a few more.
func fillDisk(t *testing.T, s *Store, n int) error {
	t.Helper()
	defer s.Hold()()
	w, err := s.Create()
	if err != nil {
		return err
	}
	defer w.Abort()
	r := rand.NewChaCha8([32]byte{byte(n)})
	dir := t.TempDir()
	for _, size := range []int{1, 5000, 9000, 14000} {
		b := make([]byte, size)
		_, _ = r.Read(b)
		path := filepath.Join(dir, fmt.Sprint(size))
		if err := errors.Join(os.WriteFile(path, b, 0o644), os.Chtimes(path, testTime, testTime)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := w.AddDir(root, ""); err != nil {
		return err
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		return err
	}
	_, err = s.PutImage(t.Context(), testManifest("fill", fmt.Sprint(n), d))
	return err
}
