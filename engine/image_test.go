package engine

import (
	"errors"
	"io/fs"
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
	if err := r.RemoveFunction(ctx, "app"); err != nil {
		t.Fatal(err)
	}
	remove(string(img.Digest), RemoveOptions{Force: true}, []string{"app:1", "other:2"}, true)
	if _, err := r.Image("other:2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Image: %v, want not exist", err)
	}
}
