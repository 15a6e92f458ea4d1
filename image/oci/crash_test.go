package oci

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
)

// TestMain is the child of TestCrash if FRE_OCI_CRASH names a store: it loads the archive or pulls
// the reference, and prints its progress.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FRE_OCI_CRASH"); dir != "" {
		if err := crashChild(dir, os.Getenv("FRE_OCI_ARCHIVE"), os.Getenv("FRE_OCI_REFERENCE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func crashChild(dir, archive, ref string) error {
	s, err := store.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	o := Options{Report: func(e image.Progress) { fmt.Println(e.Step, e.Message) }}
	if ref != "" {
		_, _, err = Pull(context.Background(), s, ref, PullOptions{RegistryOptions: RegistryOptions{Options: o}})
	} else {
		var f *os.File
		if f, err = os.Open(archive); err != nil {
			return err
		}
		_, err = Load(context.Background(), s, f, o)
	}
	if err != nil {
		return err
	}
	fmt.Println("acknowledged")
	return s.Close()
}

// TestCrash: After a kill at any line of its progress, a load or pull has left the whole image with
// its names, or nothing.
func TestCrash(t *testing.T) {
	one, two := twoLayers(t)
	archive := dockerArchive(t, configFor(t, one, two), []string{"app:1", "app:2"}, one, two)
	path := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(path, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	ref := openStore(t)
	want, err := Load(t.Context(), ref, bytes.NewReader(archive), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("load", func(t *testing.T) {
		crashes(t, ref, want[0], want[0].Names, "FRE_OCI_ARCHIVE="+path)
	})
	t.Run("pull", func(t *testing.T) {
		name := fretest.Registry(t) + "/app:1"
		if _, err := Push(t.Context(), ref, want[0], name, PushOptions{}); err != nil {
			t.Fatal(err)
		}
		crashes(t, ref, want[0], []string{name}, "FRE_OCI_REFERENCE="+name)
	})
}

// crashes kills a child after one line, two lines and so on, until the child finishes.
func crashes(t *testing.T, ref *store.Store, want *store.Image, names []string, what string) {
	t.Helper()
	killed := 0
	for after, acknowledged := 1, false; !acknowledged; after++ {
		dir := t.TempDir()
		acknowledged = crashAfter(t, dir, what, after)
		s, err := store.Open(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		switch images := s.Images(); {
		case len(images) > 1 || acknowledged && len(images) == 0:
			t.Errorf("killed after line %d, acknowledged %v: %d images", after, acknowledged, len(images))
		case len(images) == 1:
			if images[0].Digest != want.Digest {
				t.Errorf("killed after line %d: image %s, want %s", after, images[0].Digest, want.Digest)
			}
			if diff := cmp.Diff(listing(t, ref, want), listing(t, s, images[0])); diff != "" {
				t.Errorf("killed after line %d (-want +got):\n%s", after, diff)
			}
			if acknowledged {
				if diff := cmp.Diff(names, images[0].Names); diff != "" {
					t.Errorf("names (-want +got):\n%s", diff)
				}
			}
		default:
			killed++
			nothingKept(t, s)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		// The same again, without a kill.
		if !crashAfter(t, dir, what, 1<<20) {
			t.Errorf("killed after line %d: the next one does not succeed", after)
		}
	}
	if killed == 0 {
		t.Error("nothing was killed in the middle")
	}
}

// crashAfter kills a child after the given number of lines and reports whether the child had
// acknowledged the image.
func crashAfter(t *testing.T, dir, what string, lines int) (acknowledged bool) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "FRE_OCI_CRASH="+dir, what)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for scan := bufio.NewScanner(out); lines > 0 && scan.Scan(); lines-- {
		acknowledged = acknowledged || strings.HasPrefix(scan.Text(), "acknowledged")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // the store's lock is free once the child is reaped
	return acknowledged
}
