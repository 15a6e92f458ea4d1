package image

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLocked: With --locked a build refuses requests that the lock does not cover, by name, before
// it resolves packages.
func TestLocked(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {pip: [lib==1]}\n", "main.py": ""})
	locked := WithOptions(t.Context(), BuildOptions{Locked: true})
	refused := func(why string, want ...string) {
		t.Helper()
		runs := len(r.runner.runs)
		_, _, err := r.Build(locked, r.root, nil)
		var drift *LockError
		if !errors.As(err, &drift) || !strings.Contains(err.Error(), "build without --locked") {
			t.Fatalf("%s: got %v", why, err)
		}
		if diff := cmp.Diff(want, drift.Drift); diff != "" {
			t.Errorf("%s: %s", why, diff)
		}
		for _, run := range r.runner.runs[runs:] {
			if strings.HasPrefix(run, "install") {
				t.Errorf("%s: ran %q", why, run)
			}
		}
	}
	refused("no lock", "the file is missing")
	img, lock, err := r.Build(t.Context(), r.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteLock(r.root, lock); err != nil {
		t.Fatal(err)
	}
	again, same, err := r.Build(locked, r.root, nil)
	if err != nil || again.Digest != img.Digest || !cmp.Equal(lock, same, cmp.AllowUnexported(Lock{})) {
		t.Fatalf("the lock answers, and %v", err)
	}
	r.write(t, map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {pip: [lib==2]}\n"})
	refused("another request", "pip: locked for another request")
	r.write(t, map[string]string{"fret.yaml": "id: f\nbase: python\n"})
	refused("no request", "pip: locked for another request")

	// Debian's archive cannot go back: the build reports the new base and continues.
	r.write(t, map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {pip: [lib==1]}\n"})
	older := *lock
	older.Base.Packages = maps.Clone(lock.Base.Packages)
	older.Base.Packages["python"] = "0.9-1"
	if err := WriteLock(r.root, &older); err != nil {
		t.Fatal(err)
	}
	warned := false
	_, kept, err := r.Build(locked, r.root, func(e Progress) { warned = warned || e.Step == "warning" && e.Name == "python" })
	if err != nil || !warned || kept.Base.Packages["python"] != "0.9-1" {
		t.Errorf("another base: warned %v, lock %+v, %v", warned, kept, err)
	}
}

// TestOffline: With --offline a build uses no network and names the missing parts.
func TestOffline(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: python\npackages: {pip: [lib==1]}\n", "main.py": ""})
	offline := WithOptions(t.Context(), BuildOptions{Offline: true})
	if _, _, err := r.Build(offline, r.root, nil); !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(), "base environment python") {
		t.Errorf("without a base: %v", err)
	}
	if n := r.archive.unpacks.Load(); n != 0 {
		t.Errorf("%d bases unpacked", n)
	}
	img, lock, err := r.Build(t.Context(), r.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(WriteLock(r.root, lock), os.WriteFile(filepath.Join(r.dir, "other.py"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	runs := len(r.runner.runs)
	again, _, err := r.Build(offline, r.root, nil)
	if err != nil || again.Digest == img.Digest || len(r.runner.runs) != runs {
		t.Errorf("with everything there: ran %q, %v", r.runner.runs[runs:], err)
	}

	for _, o := range []BuildOptions{{}, {Offline: true}} {
		err := guard{r.runner}.Run(WithOptions(t.Context(), o), Command{Args: []string{"/usr/bin/npm", "install", "secret"}, Network: true, Rootfs: "/nowhere"})
		if errors.Is(err, ErrOffline) != o.Offline || strings.Contains(err.Error(), "secret") {
			t.Errorf("a step with a network, %+v: %v", o, err)
		}
	}
}
