package registry

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestClient: The library that FRE and many other clients use pushes, pulls, copies and deletes.
func TestClient(t *testing.T) {
	addr := serve(t, open(t, t.TempDir(), Config{}))
	ref := func(s string) name.Reference {
		r, err := name.ParseReference(addr + "/" + s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	index, err := random.Index(100_000, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref("lib/a:1"), index, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	got, err := remote.Index(ref("lib/a:1"), remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(got); err != nil {
		t.Error(err)
	}
	// The push to another repository mounts the blobs.
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref("lib/a@"+m.Manifests[0].Digest.String()), remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref("b:1"), img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	copied, err := remote.Image(ref("b:1"), remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(copied); err != nil {
		t.Error(err)
	}
	if err := remote.Delete(ref("b:1"), remote.WithContext(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := remote.Head(ref("b:1"), remote.WithContext(t.Context())); err == nil {
		t.Error("a deleted tag is there")
	}
}
