package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestParseReference: ParseReference splits a reference into name, version, digest; Check refuses
// names that cannot be given.
func TestParseReference(t *testing.T) {
	d := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for _, test := range []struct {
		ref   string
		want  Reference
		parse bool // ParseReference accepts the text
		check bool // an image may take the name
	}{
		{"app", Reference{Name: "app"}, true, true},
		{"app:1.2", Reference{Name: "app", Version: "1.2"}, true, true},
		{"team/app", Reference{Name: "team/app"}, true, true},
		{"localhost:5000/team/app", Reference{Name: "localhost:5000/team/app"}, true, true},
		{"localhost:5000/team/app:1.2", Reference{Name: "localhost:5000/team/app", Version: "1.2"}, true, true},
		{"registry.example.org/a/b/c:v1", Reference{Name: "registry.example.org/a/b/c", Version: "v1"}, true, true},
		{"[fe80::1]:5000/app:1", Reference{Name: "[fe80::1]:5000/app", Version: "1"}, true, true},
		{"app@" + d, Reference{Name: "app", Digest: Digest(d)}, true, true},
		{"app:1@" + d, Reference{Name: "app", Version: "1", Digest: Digest(d)}, true, true},
		{"a__b-c.d", Reference{Name: "a__b-c.d"}, true, true},

		{"App", Reference{Name: "App"}, true, false},
		{"_base", Reference{Name: "_base"}, true, false},
		{"a//b", Reference{Name: "a//b"}, true, false},
		{"a..b", Reference{Name: "a..b"}, true, false},
		{"app:-1", Reference{Name: "app", Version: "-1"}, true, false},
		{"app:" + strings.Repeat("v", 129), Reference{Name: "app", Version: strings.Repeat("v", 129)}, true, false},
		{d[7:], Reference{Name: d[7:]}, true, false},
		{strings.Repeat("a", 256), Reference{Name: strings.Repeat("a", 256)}, true, false},
		{"host:port/app", Reference{Name: "host:port/app"}, true, false},

		{"", Reference{}, false, false},
		{":1", Reference{}, false, false},
		{"app:", Reference{}, false, false},
		{"app@sha256:0", Reference{}, false, false},
		{"@" + d, Reference{}, false, false},
	} {
		got, err := ParseReference(test.ref)
		if (err == nil) != test.parse || err != nil && !errors.Is(err, ErrName) {
			t.Errorf("ParseReference(%q): %v", test.ref, err)
			continue
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ParseReference(%q) (-want +got):\n%s", test.ref, diff)
		}
		if err != nil {
			continue
		}
		if got.String() != test.ref {
			t.Errorf("%q is written %q", test.ref, got)
		}
		if err := got.Check(); (err == nil) != test.check || err != nil && !errors.Is(err, ErrName) {
			t.Errorf("Check of %q: %v", test.ref, err)
		}
	}
}

// FuzzParseReference: A reference is written exactly as it was read.
func FuzzParseReference(f *testing.F) {
	for _, ref := range []string{"app", "app:1", "localhost:5000/a/b:1@sha256:" + strings.Repeat("0", 64), "a//b", ":", "@", "[::1]:1/a"} {
		f.Add(ref)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		r, err := ParseReference(ref)
		if err != nil {
			return
		}
		if r.String() != ref {
			t.Errorf("%q is written %q", ref, r)
		}
		if r.Check() == nil && r.Version != "" {
			// A lookup finds each permitted name.
			if k := splitName(r.Name + ":" + r.Version); k != (tag{r.Name, r.Version}) {
				t.Errorf("%q splits into %q", ref, k)
			}
		}
	})
}

// TestTag: An image may have several names, also with a registry's host and port; Untag removes one
// and leaves the others.
func TestTag(t *testing.T) {
	s := openStore(t, t.TempDir())
	ctx := t.Context()
	tree := putTree(t, s, map[string]string{"a": "a"})
	app := putImage(t, s, "app", "1", tree)
	web := putImage(t, s, "web", "1", tree)
	d := app.Digest
	for _, name := range []string{"alias", "localhost:5000/team/app:1.2", "alias:latest"} {
		img, err := s.Tag(ctx, d, name)
		if err != nil || img.Digest != d {
			t.Fatalf("Tag %s: %v, %v", name, img, err)
		}
	}
	names := func(d Digest) []string {
		t.Helper()
		img, err := s.Image(string(d))
		if err != nil {
			t.Fatal(err)
		}
		if len(img.Names) > 0 && img.Name+":"+img.Version != img.Names[0] {
			t.Errorf("%s is shown as %s:%s, want the first of %q", d, img.Name, img.Version, img.Names)
		}
		return img.Names
	}
	for range 2 {
		// The name of the build stays first.
		if diff := cmp.Diff([]string{"app:1", "alias:latest", "localhost:5000/team/app:1.2"}, names(d)); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
		s = reopen(t, s)
	}
	for ref, want := range map[string]string{
		"app": "app:1", "alias": "alias:latest", "localhost:5000/team/app:1.2": "localhost:5000/team/app:1.2",
		"localhost:5000/team/app": "localhost:5000/team/app:1.2", "alias@" + string(d): "", string(d)[7:19]: "",
	} {
		if img, name, err := s.Find(ref); err != nil || img.Digest != d || name != want {
			t.Errorf("Find(%q): %v, %q, %v, want %s by %q", ref, img, name, err, d, want)
		}
	}
	for _, ref := range []string{"alias:1", "localhost:5000/team", "web@" + string(d), "team/app"} {
		if _, err := s.Image(ref); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Image(%q): %v, want not exist", ref, err)
		}
	}

	if _, err := s.Tag(ctx, web.Digest, "alias"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"web:1", "alias:latest"}, names(web.Digest)); diff != "" {
		t.Errorf("names of the image that took one over (-want +got):\n%s", diff)
	}
	if err := s.Untag(ctx, "app:1"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"localhost:5000/team/app:1.2"}, names(d)); diff != "" {
		t.Errorf("names without the own one (-want +got):\n%s", diff)
	}
	if err := s.Untag(ctx, "app:1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Untag again: %v, want not exist", err)
	}
	putImage(t, s, "app", "1", tree)
	if got := names(d)[0]; got != "app:1" {
		t.Errorf("built again it is %s, want app:1 first", got)
	}

	for _, name := range []string{"Alias", "a:b:c", "alias@" + string(d), ""} {
		if _, err := s.Tag(ctx, d, name); !errors.Is(err, ErrName) {
			t.Errorf("Tag %q: %v, want ErrName", name, err)
		}
	}
	if _, err := s.Tag(ctx, emptyDigest, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Tag of no image: %v, want not exist", err)
	}
	if err := s.RemoveImage(ctx, d); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Image("localhost:5000/team/app:1.2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("name of a removed image: %v, want not exist", err)
	}
}

// TestRemotes: A registry's name finds the image, moves, and survives a restart and a lost
// database. The name goes with Untag or with the image.
func TestRemotes(t *testing.T) {
	s := openStore(t, t.TempDir())
	ctx := t.Context()
	app := putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "a"})).Digest
	web := putImage(t, s, "web", "1", putTree(t, s, map[string]string{"b": "b"})).Digest
	one, two := "localhost:5000/team/app@"+string(sumDigest([]byte("1"))), "app@"+string(sumDigest([]byte("2")))
	for _, remote := range []string{one, two, one} {
		if img, err := s.TagRemote(ctx, app, remote); err != nil || img.Digest != app {
			t.Fatalf("TagRemote %s: %v, %v", remote, img, err)
		}
	}
	check := func(when string, d Digest, want ...string) {
		t.Helper()
		img, err := s.Image(string(d))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, img.Remotes, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		for _, remote := range want {
			if img, name, err := s.Find(remote); err != nil || img.Digest != d || name != "" {
				t.Errorf("%s: Find(%q): %v, %q, %v, want %s", when, remote, img, name, err, d)
			}
		}
	}
	check("noted", app, two, one)
	s = reopen(t, s)
	check("opened again", app, two, one)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.disk.dir, dbName)); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.disk.dir)
	check("made anew", app, two, one)

	_, before := s.ImageList()
	if _, err := s.TagRemote(ctx, web, one); err != nil {
		t.Fatal(err)
	}
	check("moved away", app, two)
	check("moved here", web, one)
	if _, after := s.ImageList(); after == before {
		t.Error("lists do not see it")
	}
	if err := s.Untag(ctx, "app:1", one, "none:1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Untag with a missing name: %v, want not exist", err)
	}
	check("nothing untagged", web, one)
	if err := s.Untag(ctx, "web:1", one); err != nil {
		t.Fatal(err)
	}
	check("untagged", web)
	if err := s.RemoveImage(ctx, app); err != nil {
		t.Fatal(err)
	}
	for _, remote := range []string{one, two} {
		if _, err := s.Image(remote); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Image(%q): %v, want not exist", remote, err)
		}
	}
	for _, bad := range []string{"app:1", "App@" + string(app), "app:1@" + string(app), "app@sha256:1", ""} {
		if _, err := s.TagRemote(ctx, web, bad); !errors.Is(err, ErrName) {
			t.Errorf("TagRemote %q: %v, want ErrName", bad, err)
		}
	}
	if _, err := s.TagRemote(ctx, app, one); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("TagRemote of no image: %v, want not exist", err)
	}
}

// TestNamesAreRebuilt: A rebuilt database takes the names from the index, also from an index of the
// time when an image had one name.
func TestNamesAreRebuilt(t *testing.T) {
	s := openStore(t, t.TempDir())
	img := putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "a"}))
	if _, err := s.Tag(t.Context(), img.Digest, "team/alias:2"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		index string
		want  []string
	}{
		{"", []string{"app:1", "team/alias:2"}},
		{fmt.Sprintf(`{"images": [{"digest": %q, "created": "2026-01-02T03:04:05Z", "tagged": true}]}`, img.Digest), []string{"app:1"}},
		{fmt.Sprintf(`{"images": [{"digest": %q, "created": "2026-01-02T03:04:05Z"}]}`, img.Digest), nil},
	} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(s.disk.dir, dbName)); err != nil {
			t.Fatal(err)
		}
		if test.index != "" {
			if err := os.Remove(filepath.Join(s.disk.dir, indexLogName)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(s.disk.dir, indexName), []byte(test.index), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s = openStore(t, s.disk.dir)
		got, err := s.Image(string(img.Digest))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got.Names); diff != "" {
			t.Errorf("names after %s (-want +got):\n%s", test.index, diff)
		}
	}
}
