package oci

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
)

// TestDiskFull: On a full disk a load or pull fails with ENOSPC and leaves only files that a sweep
// removes. The disks grow, so that each is full at another step.
func TestDiskFull(t *testing.T) {
	fretest.RequireRoot(t)
	noise := make([]byte, 300<<10)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(noise) // never fails
	one := pack(t, file("a", string(noise[:100<<10])), file("b", string(noise[100<<10:])))
	two := pack(t, file("c", string(noise[:200<<10])))
	archive := dockerArchive(t, configFor(t, one, two), []string{"app:1"}, one, two)
	w := watchRegistry(t, fretest.Registry(t))
	here := openStore(t)
	defer here.Hold()()
	images, err := Load(t.Context(), here, bytes.NewReader(archive), Options{})
	if err != nil {
		t.Fatal(err)
	}
	built := builtImage(t, here, "fn", part(t, here, "base", "native", "", map[string]string{"a": string(noise[:100<<10])}),
		part(t, here, "code", "fn", "function", map[string]string{"b": string(noise[100<<10:])}))
	for name, img := range map[string]*store.Image{"image": images[0], "artifact": built} {
		if _, err := Push(t.Context(), here, img, w.host+"/"+name+":1", PushOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pulled := func(name string) func(*store.Store, string) error {
		return func(s *store.Store, dir string) error {
			// Downloads are on the same disk, as in the engine.
			_, _, err := Pull(t.Context(), s, w.host+"/"+name+":1", PullOptions{RegistryOptions: RegistryOptions{Cache: filepath.Join(dir, "blobs")}})
			return err
		}
	}
	for name, take := range map[string]func(s *store.Store, dir string) error{
		"load": func(s *store.Store, _ string) error {
			_, err := Load(t.Context(), s, bytes.NewReader(archive), Options{})
			return err
		},
		"pull":           pulled("image"),
		"pull artifacts": pulled("artifact"),
	} {
		t.Run(name, func(t *testing.T) { fillDisks(t, take) })
	}
}

func fillDisks(t *testing.T, take func(s *store.Store, dir string) error) {
	t.Helper()
	full := 0
	for kib := 800; ; kib += 50 {
		fits := false
		t.Run(fmt.Sprint(kib, "KiB"), func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("fre-oci-test", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", kib)); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Errorf("unmount: %v", err)
					_ = unix.Unmount(dir, unix.MNT_DETACH)
				}
			}()
			s, err := store.Open(filepath.Join(dir, "store"), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			err = take(s, dir)
			switch {
			case err == nil:
				fits = true
			case errors.Is(err, unix.ENOSPC):
				full++
				nothingKept(t, s)
			default:
				t.Errorf("error %v, want ENOSPC", err)
			}
		})
		if fits || t.Failed() || kib > 10_000 {
			break
		}
	}
	if full < 3 {
		t.Errorf("%d disks were full, want some", full)
	}
}
