package engine

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
)

func TestRemoveImage(t *testing.T) {
	r := open(t)
	r.deploy("app", nil)
	ctx := t.Context()
	remove := func(ref string, o RemoveOptions, untagged []string, deleted bool) {
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
	if _, err := r.RemoveImage(ctx, string(img.Digest), RemoveOptions{}); !errors.Is(err, ErrSeveralNames) {
		t.Errorf("RemoveImage by digest: %v, want ErrSeveralNames", err)
	}
	remove("alias", RemoveOptions{}, []string{"alias:latest"}, false)
	if _, err := r.RemoveImage(ctx, string(img.Digest), RemoveOptions{Force: true}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("RemoveImage of a function's: %v, want ErrInUse", err)
	}
	r.mustCall("app", "/echo", "hello", "hello")
	if err := r.RemoveFunction(ctx, "app"); err != nil {
		t.Fatal(err)
	}
	// What is left of the function is on its way out, and waited for.
	remove(string(img.Digest), RemoveOptions{Force: true}, []string{"app:1", "other:2"}, true)
	// What registries call it goes with the last name from there.
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
	remove("reg/app:1", RemoveOptions{}, []string{"reg/app:1"}, false)
	remove("reg/app:2", RemoveOptions{}, []string{"reg/app:2", here}, false)
	if _, err := r.store.TagRemote(ctx, img.Digest, here); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(ctx, string(img.Digest), RemoveOptions{}); !errors.Is(err, ErrSeveralNames) {
		t.Errorf("RemoveImage of what two registries know: %v, want ErrSeveralNames", err)
	}
	remove("app:1", RemoveOptions{}, []string{"app:1", there}, false)
	remove(here, RemoveOptions{}, []string{here}, true)
	if _, err := r.Image("other:2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Image: %v, want not exist", err)
	}
}
