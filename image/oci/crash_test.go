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
	"github.com/fre-engine/fre/store"
)

// TestMain is the child of TestCrash when FRE_OCI_CRASH names a store: it loads
// the archive and says on stdout how far it is.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FRE_OCI_CRASH"); dir != "" {
		if err := crashChild(dir, os.Getenv("FRE_OCI_ARCHIVE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func crashChild(dir, archive string) error {
	s, err := store.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	_, err = Load(context.Background(), s, f, Options{Report: func(e image.Event) { fmt.Println(e.Step, e.Message) }})
	if err != nil {
		return err
	}
	fmt.Println("acknowledged")
	return s.Close()
}

// TestCrash kills a load after each line it reports: the image is whole, with
// its names, or not there, and then nothing else is.
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
	killed := 0
	for after := 1; ; after++ {
		dir := t.TempDir()
		acknowledged := crashAfter(t, dir, path, after)
		s, err := store.Open(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		switch images := s.Images(); {
		case len(images) > 1 || acknowledged && len(images) == 0:
			t.Errorf("killed after line %d, acknowledged %v: %d images", after, acknowledged, len(images))
		case len(images) == 1:
			if images[0].Digest != want[0].Digest {
				t.Errorf("killed after line %d: image %s, want %s", after, images[0].Digest, want[0].Digest)
			}
			if diff := cmp.Diff(listing(t, ref, want[0]), listing(t, s, images[0])); diff != "" {
				t.Errorf("killed after line %d (-want +got):\n%s", after, diff)
			}
			if acknowledged {
				if diff := cmp.Diff(want[0].Names, images[0].Names); diff != "" {
					t.Errorf("names (-want +got):\n%s", diff)
				}
			}
		default:
			killed++
			nothingKept(t, s)
		}
		again, err := Load(t.Context(), s, bytes.NewReader(archive), Options{})
		if err != nil || again[0].Digest != want[0].Digest {
			t.Errorf("loaded after a crash: %v, %v", again, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if acknowledged {
			break
		}
	}
	if killed == 0 {
		t.Error("no load was killed in the middle")
	}
}

// crashAfter kills a load into dir after so many lines and says whether it was
// acknowledged before.
func crashAfter(t *testing.T, dir, archive string, lines int) (acknowledged bool) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "FRE_OCI_CRASH="+dir, "FRE_OCI_ARCHIVE="+archive)
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
	_ = cmd.Wait() // it was killed; the store's lock is free once it is reaped
	return acknowledged
}
