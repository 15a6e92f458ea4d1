package engine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// TestTemporary: a temporary function beside another function of the same image has a /work and a
// user of its own. No trace remains after a removal, a failed deployment or the engine's end.
func TestTemporary(t *testing.T) {
	r := open(t)
	r.deploy("lasting", nil)
	img := r.image("lasting", nil)
	left := func() (names []string) {
		for _, f := range r.Functions() {
			names = append(names, f.Name)
		}
		for _, dir := range []string{"tenants/" + temporaryName, "logs"} {
			entries, err := os.ReadDir(filepath.Join(r.state, dir))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				names = append(names, dir+"/"+e.Name())
			}
		}
		return names
	}
	temporary := func(name string) error {
		_, err := r.Deploy(t.Context(), name, img, DeployOptions{Temporary: true})
		return err
	}
	if err := temporary("lasting"); !errors.Is(err, ErrNameTaken) {
		t.Errorf("under the name of another: got error %v, want ErrNameTaken", err)
	}
	r.mustCall("lasting", "/", "x", "x")
	for _, name := range []string{"one", "two"} {
		if err := temporary(name); err != nil {
			t.Fatal(err)
		}
		r.mustCall(name, "/", "y", "y")
		if err := os.WriteFile(filepath.Join(r.state, "tenants", temporaryName, name, "work", "note"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := temporary("one"); !errors.Is(err, ErrNameTaken) {
		t.Errorf("the same again: got error %v, want ErrNameTaken", err)
	}
	if _, err := r.Deploy(t.Context(), "one", img, DeployOptions{Replace: true}); !errors.Is(err, ErrNameTaken) {
		t.Errorf("one that lasts, of the same template: got error %v, want ErrNameTaken", err)
	}
	if got, _, err := r.call(t.Context(), "one", "/look", "x"); err != nil {
		t.Errorf("after it could not be replaced: %q, error %v", got, err)
	}
	if err := r.RemoveFunction(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	want := []string{"lasting", "two", "tenants/_temporary/two", "logs/lasting", "logs/two"}
	if diff := cmp.Diff(want, left()); diff != "" {
		t.Errorf("once the first was removed (-want +got):\n%s", diff)
	}
	r.stop()
	r.start(Config{})
	want = []string{"lasting", "logs/lasting"}
	if diff := cmp.Diff(want, left()); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	img = r.image("huge", func(c *image.Config) { c.Network.Mode = template.NetworkHost }) // not allowed
	if err := temporary("three"); err == nil {
		t.Error("a function that may not be deployed was")
	}
	if diff := cmp.Diff(want, left()); diff != "" {
		t.Errorf("after one that could not be deployed (-want +got):\n%s", diff)
	}
}
