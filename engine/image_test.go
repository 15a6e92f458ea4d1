package engine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// TestRemoveImage: RemoveImage removes one name of an image. The image goes with its last name, and
// only when it is unused.
func TestRemoveImage(t *testing.T) {
	r := open(t)
	r.deploy("app", nil)
	ctx := t.Context()
	remove := func(ref string, o build.RemoveOptions, untagged []string, deleted bool) {
		t.Helper()
		got, err := r.RemoveImage(ctx, ref, o)
		if err != nil {
			t.Fatalf("RemoveImage(%q): %v", ref, err)
		}
		if diff := cmp.Diff(untagged, got.Untagged); diff != "" || got.Deleted != deleted {
			t.Errorf("RemoveImage(%q): deleted %v, untagged (-want +got):\n%s", ref, got.Deleted, diff)
		}
	}
	for _, name := range []string{"alias", "other:2"} {
		if _, err := r.TagImage(ctx, "app", name); err != nil {
			t.Fatal(err)
		}
	}
	img, err := r.Image("alias")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(ctx, string(img.Digest), build.RemoveOptions{}); !errors.Is(err, build.ErrSeveralNames) {
		t.Errorf("RemoveImage by digest: %v, want ErrSeveralNames", err)
	}
	remove("alias", build.RemoveOptions{}, []string{"alias:latest"}, false)
	if _, err := r.RemoveImage(ctx, string(img.Digest), build.RemoveOptions{Force: true}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("RemoveImage of a function's: %v, want ErrInUse", err)
	}
	r.mustCall("app", "/echo", "hello", "hello")
	if err := r.RemoveFunction(ctx, "app"); err != nil {
		t.Fatal(err)
	}
	// The removal waits for the function's last sandboxes.
	remove(string(img.Digest), build.RemoveOptions{Force: true}, []string{"app:1", "other:2"}, true)
	// An image's registry names go with the last name from that registry.
	img = r.putSized("app", "1", 1, nil)
	here, there := "reg/app@"+string(img.Digest), "app@sha256:"+strings.Repeat("1", 64)
	for _, remote := range []string{here, there} {
		if _, err := r.store.TagRemote(ctx, img.Digest, remote); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"reg/app:1", "reg/app:2"} {
		if _, err := r.TagImage(ctx, "app:1", name); err != nil {
			t.Fatal(err)
		}
	}
	remove("reg/app:1", build.RemoveOptions{}, []string{"reg/app:1"}, false)
	remove("reg/app:2", build.RemoveOptions{}, []string{"reg/app:2", here}, false)
	if _, err := r.store.TagRemote(ctx, img.Digest, here); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(ctx, string(img.Digest), build.RemoveOptions{}); !errors.Is(err, build.ErrSeveralNames) {
		t.Errorf("RemoveImage of what two registries know: %v, want ErrSeveralNames", err)
	}
	remove("app:1", build.RemoveOptions{}, []string{"app:1", there}, false)
	remove(here, build.RemoveOptions{}, []string{here}, true)
	if _, err := r.Image("other:2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Image: %v, want not exist", err)
	}
}

// TestRemovedAndBuiltAgain: an image that is removed and built again stands at the same path. No
// parked sandbox of the removed image serves the new image.
func TestRemovedAndBuiltAgain(t *testing.T) {
	r := open(t)
	attached := func() int { return r.cfg.Sandboxes.Parked().Attached }
	remove := map[string]func(ref string) error{
		"removed": func(ref string) error {
			_, err := r.RemoveImage(t.Context(), ref, build.RemoveOptions{})
			return err
		},
		"collected": func(string) error {
			_, err := r.GC(t.Context(), build.GCOptions{Policy: &build.GCPolicy{All: true}})
			return err
		},
	}
	for name, remove := range remove {
		fresh := func(c *image.Config) { c.Instances.Isolation, c.Env = template.IsolationEvent, []string{"OF=" + name} }
		r.deploy("f", fresh)
		old, err := r.Image("f")
		if err != nil {
			t.Fatal(err)
		}
		before := attached()
		r.mustCall("f", "/", "x", "x")
		eventually(t, "a parked sandbox to be attached to the image", func() bool { return attached() > before })
		if err := r.RemoveFunction(t.Context(), "f"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the image to be gone", func() bool { // its sandbox may not have ended yet
			if err := remove("f"); err != nil && !errors.Is(err, store.ErrInUse) {
				t.Fatal(err)
			}
			_, err := r.Image("f")
			return errors.Is(err, fs.ErrNotExist)
		})
		r.deploy("f", fresh)
		if again, err := r.Image("f"); err != nil || again.Digest != old.Digest {
			t.Fatalf("%s: made again it is %v (%v), not %s", name, again, err, old.Digest)
		}
		for range attached() + 1 {
			if got, _, err := r.call(t.Context(), "f", "/", "x"); err != nil || got != "x" {
				t.Fatalf("%s, and made again: %q, %v", name, got, err)
			}
		}
		if err := r.RemoveFunction(t.Context(), "f"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDropImage: the image of a replaced revision is removed after its last event. An image with a
// name, or with a new use, stays.
func TestDropImage(t *testing.T) {
	r := open(t)
	ctx := t.Context()
	of := r.image("app", nil)
	revise := func(more int) *store.Image {
		t.Helper()
		img, err := r.Reconfigure(ctx, of, "app", nil, func(c *image.Config) error { c.Instances.Max = 8 + more; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Deploy(ctx, "app", img, DeployOptions{Replace: true}); err != nil {
			t.Fatal(err)
		}
		return img
	}
	first := revise(1)
	event, end := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		resp, err := r.Invoke(event, "app", &Request{Method: "POST", Path: "/slurp", Length: -1, Body: pr})
		if err == nil {
			err = resp.Body.Close()
		}
		ended <- err
	}()
	if _, err := pw.Write([]byte("it works on this")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an instance to work", func() bool {
		return slices.ContainsFunc(r.Sandboxes(false), func(s *live.Sandbox) bool { return s.Digest == first.Digest && s.State == live.StateBusy })
	})
	second := revise(2)
	if err := r.RemoveRevision(ctx, "app", "1"); err != nil {
		t.Fatal(err)
	}
	for _, img := range []*store.Image{first, second, of} {
		if err := r.DropImage(img.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.RemoveImage(ctx, string(first.Digest), build.RemoveOptions{}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("while it works: %v, want ErrInUse", err)
	}
	if err := pw.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	end()
	eventually(t, "the first image to go", func() bool { _, err := r.Image(string(first.Digest)); return errors.Is(err, fs.ErrNotExist) })
	for _, img := range []*store.Image{second, of} {
		if _, err := r.Image(string(img.Digest)); err != nil {
			t.Error(err)
		}
	}
	r.mustCall("app", "/", "x", "x")
}
