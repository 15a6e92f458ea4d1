package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// tinyProject is a runtime whose code lists its packages in the file "asks".
type tinyProject struct{ tinyCompiled }

func (*tinyProject) Requests(code fs.FS) (site, file string, text []byte, err error) {
	text, err = fs.ReadFile(code, "asks")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", nil, nil
	case string(text) == "wrong":
		return "maven", "asks", nil, &template.FieldError{Field: "code.path", Message: "asks: wrong"}
	}
	return "maven", "asks", text, err
}

// tinyMaven records the requested packages and locks them.
type tinyMaven struct {
	emptySite
	asked *[]string
}

func (s tinyMaven) Packages(_ context.Context, _ *Step, t *template.Template, lock *Lock) ([]store.Part, error) {
	*s.asked = append(*s.asked, t.Packages.Of("maven").File+" "+string(t.Packages.Of("maven").Text)+strings.Join(t.Packages.Of("maven").List, " "))
	if lock.Sites["maven"] == nil {
		lock.Sites["maven"] = &LockedPackages{Request: t.Packages.Of("maven").Key()}
	}
	return nil, nil
}

// TestProjectRequests: The code declares its packages; the template's own list takes precedence,
// and a locked build compares the code's list with the lock.
func TestProjectRequests(t *testing.T) {
	rig := func(fret string, files map[string]string) (*builderRig, *[]string) {
		r := newRig(t, files)
		r.write(t, map[string]string{"fret.yaml": "id: f\nbase: native\nruntime: tiny\nhandler: main\n" + fret})
		asked := &[]string{}
		r.Runtimes = append(r.Runtimes, &tinyProject{tinyCompiled{named: "tiny"}})
		r.Sites = append(r.Sites, tinyMaven{emptySite{"maven", "native"}, asked})
		return r, asked
	}
	build := func(r *builderRig, o BuildOptions) error {
		_, lock, err := r.Build(WithOptions(t.Context(), o), r.root, nil)
		if err == nil {
			err = WriteLock(r.root, lock)
		}
		return err
	}
	locked := BuildOptions{Locked: true}
	var drift *LockError

	r, asked := rig("code: {path: src}\n", map[string]string{"src/asks": "a", "src/main.source": "x"})
	if err := build(r, BuildOptions{}); err != nil || strings.Join(*asked, ",") != "src/asks a" {
		t.Errorf("in a directory: %v, asked for %q", err, *asked)
	}
	if err := build(r, locked); err != nil {
		t.Errorf("with the lock: %v", err)
	}
	r.write(t, map[string]string{"src/asks": "b"})
	if err := build(r, locked); !errors.As(err, &drift) || !strings.Contains(err.Error(), "maven: locked for another request") {
		t.Errorf("other requests than the lock's: %v", err)
	}
	r.write(t, map[string]string{"src/asks": "wrong"})
	var faults template.Errors
	if err := build(r, BuildOptions{}); !errors.As(err, &faults) || !strings.Contains(err.Error(), "asks: wrong") {
		t.Errorf("got %v, want a fault of the code's", err)
	}

	r, asked = rig("packages: {maven: ['a:b:1']}\n", map[string]string{"asks": "wrong", "main.source": "x"})
	if err := build(r, BuildOptions{}); err != nil || strings.Join(*asked, ",") != " a:b:1" {
		t.Errorf("the template asks: %v, asked for %q", err, *asked)
	}
	r, asked = rig("code: {path: main}\n", map[string]string{"main": "x"})
	if err := build(r, BuildOptions{}); err != nil || len(*asked) > 0 {
		t.Errorf("a file: %v, asked for %q", err, *asked)
	}

	r, asked = rig("code: {git: {url: 'https://example.org/x'}}\n", nil)
	g := &tinyGit{make: func(dir string) error {
		return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "asks"), []byte("g"), 0o644), os.WriteFile(filepath.Join(dir, "main.source"), []byte("x"), 0o644))
	}}
	r.Git = g
	if err := WriteLock(r.root, &Lock{Base: LockedBase{Name: "native"}}); err != nil {
		t.Fatal(err)
	}
	if err := build(r, locked); !errors.As(err, &drift) || !strings.Contains(err.Error(), "git: not locked") || g.fetches > 0 {
		t.Errorf("no commit in the lock: %v, %d fetches", err, g.fetches)
	}
	if err := build(r, BuildOptions{}); err != nil || strings.Join(*asked, ",") != "asks g" || g.fetches != 1 {
		t.Errorf("out of a repository: %v, asked for %q, %d fetches", err, *asked, g.fetches)
	}
	if err := build(r, locked); err != nil || g.fetches != 1 {
		t.Errorf("a repository with the lock: %v, %d fetches", err, g.fetches)
	}
}
