package image

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
)

// functionImage puts an image f:1 with a file of code and a note.
func functionImage(t *testing.T, s *store.Store, c Config) *store.Image {
	t.Helper()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for name, text := range map[string]string{"function/main.py": "code", "function/note": "note"} {
		if err := w.File(name, 0o644, time.Unix(1, 0), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.PutImage(t.Context(), store.Manifest{Name: "f", Version: "1", Parts: []store.Part{{Kind: "code", Name: "f", Tree: tree}}, Config: raw})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestReconfigure: Reconfigure makes a nameless image of the same files with another configuration
// and the given links. The original stays unchanged.
func TestReconfigure(t *testing.T) {
	r := newRig(t, nil)
	of := functionImage(t, r.Store, Config{Protocol: ProtocolChannel, Args: []string{"python"}, Env: []string{"A=b"}, Parked: &ParkedInterpreter{Args: []string{"python"}}})
	take := func(name string, links map[string]string, edit func(*Config) error) (*store.Image, Config, error) {
		img, err := r.Reconfigure(t.Context(), of, name, links, edit)
		if err != nil {
			return nil, Config{}, err
		}
		c, err := ConfigOf(img)
		return img, c, err
	}
	img, c, err := take("other", map[string]string{"var/keys": "/run/keys", "function/note": "/run/note"}, func(c *Config) error {
		c.Tenant, c.Instances.Min = "acme", 3
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Tenant != "acme" || c.Instances.Min != 3 || c.Parked == nil || img.Digest == of.Digest {
		t.Errorf("configured otherwise: %+v", c)
	}
	if len(img.Names) != 0 {
		t.Errorf("it has the names %v", img.Names)
	}
	if diff := cmp.Diff([]string{"function/main.py 644 code", "function/note -> /run/note", "var/keys -> /run/keys"}, list(t, r.Store.Rootfs(img.Digest))); diff != "" {
		t.Errorf("its files -want +got:\n%s", diff)
	}
	a, err := os.Stat(filepath.Join(r.Store.Rootfs(img.Digest), "function/main.py"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Stat(filepath.Join(r.Store.Rootfs(of.Digest), "function/main.py"))
	if err != nil || !os.SameFile(a, b) {
		t.Errorf("the code is there twice, or %v", err)
	}

	// A parked interpreter does not fit another environment.
	if _, c, err := take("other", nil, func(c *Config) error { c.Env = append(c.Env, "B=c"); return nil }); err != nil || c.Parked != nil {
		t.Errorf("with another environment its parked interpreter is %+v, %v", c.Parked, err)
	}
	again, _, err := take("f", nil, func(*Config) error { return nil })
	if err != nil || len(again.Names) != 0 || again.Digest == of.Digest {
		t.Errorf("by its own name: %v, %v", again, err)
	}
	if named, err := r.Store.Image("f"); err != nil || named.Digest != of.Digest {
		t.Errorf("f is %v, %v: want it unchanged", named, err)
	}

	before := len(r.Store.Images())
	refused := errors.New("refused")
	if _, _, err := take("other", nil, func(*Config) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("an edit that fails: %v", err)
	}
	if _, _, err := take("other", map[string]string{"function": "/run/code"}, func(c *Config) error { c.Tenant = "x"; return nil }); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a link in the place of a directory: %v, want %v", err, store.ErrConflict)
	}
	if n := len(r.Store.Images()); n != before {
		t.Errorf("the refused change left %d images", n-before)
	}
	if _, err := r.Store.Image("other"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the name other: %v", err)
	}
}
