package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// putSized stores an image with its own file of bytesOwn bytes.
func (r *rig) putSized(name, version string, bytesOwn int, labels map[string]string) *store.Image {
	r.t.Helper()
	defer r.store.Hold()()
	w, err := r.store.Create()
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Abort()
	content := bytes.Repeat([]byte(name+version), bytesOwn/len(name+version)+1)
	if err := w.File("own", 0o644, time.Unix(1, 0), bytes.NewReader(content)); err != nil {
		r.t.Fatal(err)
	}
	d, err := w.Commit(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	cfg, err := json.Marshal(image.Config{Args: []string{"/own"}, Labels: labels})
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := r.store.PutImage(r.t.Context(), store.Manifest{Name: name, Version: version, Parts: []store.Part{{Kind: "code", Name: name, Tree: d}}, Config: cfg})
	if err != nil {
		r.t.Fatal(err)
	}
	return img
}

// gone lists the images of a report, as "name rule", sorted.
func gone(g *build.GCReport) []string {
	out := []string{}
	for _, x := range g.Images {
		out = append(out, x.Image.Built+" "+x.Rule)
	}
	slices.Sort(out)
	return out
}

// TestHold: an image that is made or used under Hold survives a prune and can be deployed. The
// function has its template's name.
func TestHold(t *testing.T) {
	r := open(t)
	prune := func() []string {
		t.Helper()
		report, err := r.GC(t.Context(), build.GCOptions{Policy: &build.GCPolicy{All: true, Nameless: true}})
		if err != nil {
			t.Fatal(err)
		}
		return gone(report)
	}
	r.image("old", nil)
	release := r.Hold()
	img := r.image("new", nil)
	if _, err := r.store.Tag(t.Context(), img.Digest, "registry.example.org/team/other:1"); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Untag(t.Context(), "new:1"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"old:1 all"}, prune()); diff != "" {
		t.Errorf("pruned (-want +got):\n%s", diff)
	}
	img, err := r.store.Image("registry.example.org/team/other:1")
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Deploy(t.Context(), "", img, DeployOptions{})
	if err != nil || f.Name != "new" {
		t.Fatalf("deployed %+v, %v", f, err)
	}
	release()
	if got := prune(); len(got) > 0 {
		t.Errorf("pruned %v of a deployed function", got)
	}
}

// TestGCPolicies: garbage collection removes images by the given rules, but no image that a
// function or a sandbox uses. A dry run lists the images only.
func TestGCPolicies(t *testing.T) {
	r := open(t)
	r.deploy("live", nil)
	fill := func() {
		r.putSized("app", "1", 1, nil)
		r.putSized("app", "2", 1, map[string]string{"tier": "test"})
		r.putSized("app", "3", 1, nil)
		r.putSized("nameless", "1", 1, nil)
		r.putSized("nameless", "1", 100, nil) // the image before has no name now
		r.putSized("base/x", "b", 1, map[string]string{image.LabelKind: image.KindBase})
		// On file systems with large files, the least recently used images count.
		r.putSized("big", "1", 1<<20, nil)
		r.putSized("big", "2", 1<<20, nil)
		img, err := r.store.Image("big:1")
		if err != nil || !r.store.Use(img.Digest) {
			t.Fatal(err)
		}
	}
	all := []string{"app:1", "app:2", "app:3", "big:1", "big:2", "nameless:1", "nameless:1"}
	with := func(rule string, names ...string) []string {
		out := []string{}
		for _, n := range names {
			out = append(out, n+" "+rule)
		}
		return out
	}
	total := func() int64 { return r.store.Sizes().Bytes }
	fill()
	for _, c := range []struct {
		name   string
		policy build.GCPolicy
		want   []string
	}{
		{"none", build.GCPolicy{}, []string{}},
		{"nameless", build.GCPolicy{Nameless: true}, with(build.RuleNameless, "nameless:1")},
		{"all", build.GCPolicy{All: true}, with(build.RuleAll, all...)},
		{"all but kept", build.GCPolicy{All: true, Keep: []string{"app", "big:[2-9]"}}, with(build.RuleAll, "big:1", "nameless:1", "nameless:1")},
		{"all with a label", build.GCPolicy{All: true, Labels: []string{"tier"}}, with(build.RuleAll, "app:2")},
		{"all with another value", build.GCPolicy{All: true, Labels: []string{"tier=production"}}, []string{}},
		{"all before the first", build.GCPolicy{All: true, Before: time.Unix(1, 0)}, []string{}},
		{"unused for an hour", build.GCPolicy{Unused: time.Hour}, []string{}},
		{"unused at all", build.GCPolicy{Unused: 1}, slices.Sorted(slices.Values(with(build.RuleUnused, append([]string{"base/x:b"}, all...)...)))},
		{"two of a name", build.GCPolicy{PerName: 2}, with(build.RulePerName, "app:1")},
		{"one of a name and the nameless", build.GCPolicy{PerName: 1, Nameless: true}, slices.Sorted(slices.Values(append(with(build.RulePerName, "app:1", "app:2", "big:1"), "nameless:1 "+build.RuleNameless)))},
		{"a byte too much", build.GCPolicy{MaxBytes: total() - 1, Keep: []string{"app", "nameless", "base/*"}, Nameless: true}, []string{"nameless:1 " + build.RuleNameless}},
		{"a megabyte too much", build.GCPolicy{MaxBytes: total() - 1<<19, Keep: []string{"app", "nameless", "base/*"}, Nameless: true}, []string{"big:2 " + build.RuleMaxBytes, "nameless:1 " + build.RuleNameless}},
	} {
		for _, dry := range []bool{true, false} {
			before := total()
			got, err := r.GC(t.Context(), build.GCOptions{DryRun: dry, Policy: &c.policy})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if diff := cmp.Diff(c.want, gone(got)); diff != "" {
				t.Errorf("%s, dry run %v (-want +got):\n%s", c.name, dry, diff)
			}
			if dry && total() != before {
				t.Errorf("%s: a dry run frees %d bytes", c.name, before-total())
			}
			if !dry && before-total() > got.Bytes {
				t.Errorf("%s: %d bytes freed, %d reported", c.name, before-total(), got.Bytes)
			}
		}
		if _, err := r.GC(t.Context(), build.GCOptions{Policy: &build.GCPolicy{Unused: 1}}); err != nil {
			t.Fatal(err)
		}
		fill()
	}
	if _, err := r.Image("live"); err != nil {
		t.Errorf("a function's image: %v", err)
	}
	var field *template.FieldError
	if _, err := r.GC(t.Context(), build.GCOptions{Policy: &build.GCPolicy{Keep: []string{"["}}}); !errors.As(err, &field) {
		t.Errorf("bad pattern: %v", err)
	}
}

// TestGCSparesBuilds: garbage collection spares images that a running build has found or made.
// After the build they may go.
func TestGCSparesBuilds(t *testing.T) {
	r := open(t)
	release := r.store.Hold()
	img := r.putSized("app", "1", 1, nil)
	all := build.GCOptions{Policy: &build.GCPolicy{All: true}}
	got, err := r.GC(t.Context(), all)
	if err != nil || len(got.Images) > 0 {
		t.Errorf("while a build runs: %v, %v", gone(got), err)
	}
	release()
	got, err = r.GC(t.Context(), all)
	if err != nil || len(got.Images) != 1 {
		t.Errorf("afterwards: %v, %v", gone(got), err)
	}
	if r.store.Use(img.Digest) {
		t.Error("the image can be used still")
	}
}

// TestGCWhileWorking: continuous garbage collection breaks no deployment, run or removal of
// functions.
func TestGCWhileWorking(t *testing.T) {
	r := open(t)
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := r.GC(t.Context(), build.GCOptions{Policy: &build.GCPolicy{Nameless: true, PerName: 1}}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := range 5 {
		name := fmt.Sprint("f", n%2)
		r.deploy(name, nil)
		if err := r.RemoveFunction(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	g.Wait()
	if images, _ := r.ImageList(); len(images) != 2 {
		t.Errorf("%d images left, want the newest of each name", len(images))
	}
}

// TestFsck: Fsck repairs under a running engine and never drops an image in use.
func TestFsck(t *testing.T) {
	r := open(t)
	r.deploy("live", nil)
	spare := r.putSized("spare", "1", 100, nil)
	live, err := r.Image("live")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{r.store.Rootfs(live.Digest) + "/function/fn", r.store.Rootfs(spare.Digest) + "/own"} {
		if err := os.Truncate(path, 10); err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	got, err := r.Fsck(t.Context(), store.CheckOptions{Repair: true, Report: func(p store.Problem) {
		if strings.HasPrefix(p.Path, "images/") {
			found = append(found, p.What+" → "+p.Repair)
		}
	}})
	if err != nil || got.Problems != 4 || got.Repaired != 3 {
		t.Errorf("Fsck: %+v, %v", got, err)
	}
	slices.Sort(found)
	want := []string{"the file function/fn is lost; in use by function live: build the image again → ", "the file own is lost → dropped: build or pull the image again"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	// A new build makes the function whole.
	if img := r.image("live", nil); img.Digest != live.Digest {
		t.Fatalf("built %s, want %s", img.Digest, live.Digest)
	}
	for _, want := range []store.Checked{{Problems: 1, Repaired: 1}, {}} {
		got, err = r.Fsck(t.Context(), store.CheckOptions{Repair: true})
		if err != nil || got.Problems != want.Problems || got.Repaired != want.Repaired {
			t.Errorf("Fsck after building: %+v, %v, want %+v", got, err, want)
		}
	}
	resp, err := r.Invoke(t.Context(), "live", &Request{})
	if err != nil {
		t.Fatalf("Invoke: %v", err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}

// TestFsckFetches: Fsck fetches a damaged file from a registry that still has it.
func TestFsckFetches(t *testing.T) {
	r := open(t)
	name := fretest.Registry(t) + "/own:1"
	img := r.putSized("own", "1", 100, nil)
	if _, err := r.TagImage(t.Context(), "own:1", name); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Push(t.Context(), name, "", nil, oci.PushOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(r.store.Rootfs(img.Digest), "own"), 10); err != nil {
		t.Fatal(err)
	}
	for _, repair := range []bool{false, true} {
		var found []string
		got, err := r.Fsck(t.Context(), store.CheckOptions{Repair: repair, Report: func(p store.Problem) { found = append(found, p.Repair) }})
		if err != nil || got.Problems != 1 {
			t.Errorf("Fsck: %+v, %v, want one problem", got, err)
		}
		if repair && (len(found) != 1 || !strings.HasPrefix(found[0], "fetched from "+strings.TrimSuffix(name, ":1")+"@sha256:")) {
			t.Errorf("repaired: %q, want it fetched", found)
		}
	}
	if got, err := r.Fsck(t.Context(), store.CheckOptions{}); err != nil || got.Problems != 0 {
		t.Errorf("Fsck after the repair: %+v, %v", got, err)
	}
}
