package engine

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
)

// TestTravel: what the engine adds to package oci: limits, references, and an end
// with the engine.
func TestTravel(t *testing.T) {
	r := open(t)
	r.cfg.ImageLimits = oci.Limits{Entries: 2}
	archive := func(names ...string) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range names {
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	ctx := t.Context()
	if _, err := r.Import(ctx, archive("a", "b", "c"), oci.ImportOptions{}, nil); !errors.Is(err, oci.ErrLimit) {
		t.Errorf("Import over the limit: %v", err)
	}
	steps := 0
	img, err := r.Import(ctx, archive("a"), oci.ImportOptions{Name: "root:1", Message: "m"}, func(image.Event) { steps++ })
	if err != nil {
		t.Fatal(err)
	}
	if steps == 0 {
		t.Error("nothing is reported")
	}
	var saved bytes.Buffer
	if err := r.Save(ctx, &saved, []string{"root"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(ctx, "root", RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	images, err := r.Load(ctx, &saved, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"root:1"}, images[0].Names); diff != "" || images[0].Digest != img.Digest {
		t.Errorf("loaded %s, saved %s:\n%s", images[0].Digest, img.Digest, diff)
	}
	if history, err := r.History("root"); err != nil || len(history) != 1 || history[0].Comment != "m" {
		t.Errorf("History: %v, %v", history, err)
	}
	if _, err := r.Push(ctx, string(img.Digest), "", nil, nil); !errors.Is(err, oci.ErrReference) {
		t.Errorf("Push by digest: %v", err)
	}
	if _, err := r.Push(ctx, "none", "", nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Push of nothing: %v", err)
	}
	if _, _, err := r.Pull(ctx, "root:1", "linux/none", nil, nil); !errors.Is(err, oci.ErrPlatform) {
		t.Errorf("Pull for another platform: %v", err)
	}
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Load(ctx, archive("a"), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Load into an engine that stops: %v", err)
	}
}
