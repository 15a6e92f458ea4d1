package oci

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
)

// flipObject changes a bit of the object of a file in an image's tree.
func flipObject(t *testing.T, s *store.Store, tree store.Digest, path string) {
	t.Helper()
	read, err := s.Tree(tree)
	if err != nil {
		t.Fatal(err)
	}
	for i := range read.Entries {
		e := &read.Entries[i]
		if e.Path != path {
			continue
		}
		r, err := s.OpenFile(e)
		if err != nil {
			t.Fatal(err)
		}
		object := r.(*os.File)
		defer object.Close()
		names, err := filepath.Glob(filepath.Join(s.Dir(), "objects", object.Name()))
		if err != nil || len(names) != 1 {
			t.Fatalf("%s: %q, %v", object.Name(), names, err)
		}
		st, err := object.Stat()
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(names[0])
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := errors.Join(os.WriteFile(names[0], b, 0), os.Chtimes(names[0], st.ModTime(), st.ModTime())); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("%s is not in tree %s", path, tree)
}

// repair checks and repairs the store with content from registries.
func repair(t *testing.T, s *store.Store) []store.Problem {
	t.Helper()
	f := NewRefetcher(s, RegistryOptions{pause: noPause})
	var found []store.Problem
	_, err := s.Check(t.Context(), store.CheckOptions{Repair: true, Fetch: f.Open, FetchTree: f.Tree, Report: func(p store.Problem) { found = append(found, p) }})
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left below tmp: %v, %v", left, err)
	}
	return found
}

// TestRefetch: A repair fetches damaged content from the registry, each layer once: files, recipes
// for saving and configurations, also of images that FRE built. Content missing at the registry is
// dropped and reported.
func TestRefetch(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	one, two := twoLayers(t)
	odd := oddLayer(t, 100_000)
	archive := dockerArchive(t, configFor(t, one, two, odd), []string{"app:1"}, one, two, odd)
	images, err := Load(t.Context(), s, bytes.NewReader(archive), Options{})
	if err != nil {
		t.Fatal(err)
	}
	own := ownImage(t, s)
	refs := []string{w.host + "/team/app:1", w.host + "/own:1"}
	var remotes []string
	for i, img := range []*store.Image{images[0], own} {
		sent, err := Push(t.Context(), s, img, refs[i], PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(refs[i], ":1")
		remotes = append(remotes, name+"@"+string(sent.Digest))
	}
	if own, err = s.TagRemote(t.Context(), own.Digest, remotes[1]); err != nil {
		t.Fatal(err)
	}
	other := openStore(t)
	img, _ := pullFrom(t, other, refs[0])

	// damage breaks each kind of object of the pulled image.
	damage := func() {
		t.Helper()
		for _, part := range img.Parts {
			tree, err := other.Tree(part.Tree)
			if err != nil {
				t.Fatal(err)
			}
			for i := range tree.Entries {
				if e := &tree.Entries[i]; e.Kind == store.KindFile && e.Size > 0 && part.Tree != img.Parts[1].Tree {
					flipObject(t, other, part.Tree, e.Path)
				}
			}
		}
	}
	damage()
	// One file list is missing, and the configuration's is invalid.
	manifest := func(part store.Part) string {
		_, hex, _ := strings.Cut(string(part.Tree), ":")
		return filepath.Join(other.Dir(), "trees", hex+".json")
	}
	last := img.Parts[len(img.Parts)-1]
	if err := errors.Join(os.Remove(manifest(img.Parts[0])), os.Truncate(manifest(last), 10)); err != nil {
		t.Fatal(err)
	}
	w.count("", "")
	found := repair(t, other)
	if len(found) < 5 {
		t.Errorf("%d problems, want some", len(found))
	}
	for _, p := range found {
		if p.Repair != "fetched from "+remotes[0] {
			t.Errorf("%+v, want it fetched from %s", p, remotes[0])
		}
	}
	if n := w.count("GET", "/blobs/"); n != 3 {
		t.Errorf("%d blobs were fetched, want a configuration and two layers of three", n)
	}
	if found := repair(t, other); len(found) > 0 {
		t.Errorf("after the repair: %+v", found)
	}
	if diff := cmp.Diff(listing(t, s, images[0]), listing(t, other, img)); diff != "" {
		t.Errorf("files (-pushed +repaired):\n%s", diff)
	}
	if _, err := Push(t.Context(), other, img, w.host+"/elsewhere:1", PushOptions{}); err != nil {
		t.Errorf("the recipe for a push: %v", err)
	}

	// An image that FRE built, with layers only at the registry.
	before := listing(t, s, own)
	damaged := 0
	for _, part := range own.Parts {
		tree, err := s.Tree(part.Tree)
		if err != nil {
			t.Fatal(err)
		}
		for i := range tree.Entries {
			if e := &tree.Entries[i]; e.Kind == store.KindFile && e.Size > 0 {
				flipObject(t, s, part.Tree, e.Path)
				damaged++
			}
		}
	}
	if found := repair(t, s); len(found) != damaged || slices.ContainsFunc(found, func(p store.Problem) bool { return p.Repair != "fetched from "+remotes[1] }) {
		t.Errorf("of %d files of an image that FRE built: %+v", damaged, found)
	}
	if diff := cmp.Diff(before, listing(t, s, own)); diff != "" {
		t.Errorf("files (-built +repaired):\n%s", diff)
	}

	// No registry answers; each gets one request.
	damage()
	var asked atomic.Int64
	wrap := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(http.StatusNotFound)
		})
	}
	w.wrap.Store(&wrap)
	found = repair(t, other)
	dropped := 0
	for _, p := range found {
		if strings.HasPrefix(p.Path, "objects/") && !strings.Contains(p.What, "nor fetched: "+remotes[0]+": registry "+w.host) {
			t.Errorf("%+v does not say why", p)
		}
		if strings.HasPrefix(p.Path, "images/") && p.Repair == "dropped: build or pull the image again" {
			dropped++
		}
	}
	if dropped != 1 || len(other.Images()) != 0 {
		t.Errorf("%d images dropped, %d left; want the only one dropped: %+v", dropped, len(other.Images()), found)
	}
	if n := asked.Load(); n == 0 || n > int64(3*len(img.Parts)) {
		t.Errorf("asked %d times for %d objects", n, len(found)-1)
	}
	w.wrap.Store(nil)
	if again, _ := pullFrom(t, other, refs[0]); again.Digest != img.Digest {
		t.Errorf("pulled again it is %s, not %s", again.Digest, img.Digest)
	}
	if found := repair(t, other); len(found) > 0 {
		t.Errorf("after the pull: %+v", found)
	}
}

// TestRefetchUnreachable: A repair waits only once for an unreachable registry.
func TestRefetchUnreachable(t *testing.T) {
	s := openStore(t)
	one, two := twoLayers(t)
	images, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, configFor(t, one, two), []string{"app:1"}, one, two)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	var hangUp sync.WaitGroup
	hangUp.Go(func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			_ = c.Close()
		}
	})
	defer hangUp.Wait()
	defer silent.Close()
	img, err := s.TagRemote(t.Context(), images[0].Digest, silent.Addr().String()+"/app@sha256:"+strings.Repeat("1", 64))
	if err != nil {
		t.Fatal(err)
	}
	f := NewRefetcher(s, RegistryOptions{pause: noPause})
	defer f.Close()
	var first int64
	for _, p := range img.Parts {
		lost := &store.Entry{Path: "a", Kind: store.KindFile, Size: 1, Digest: img.Digest}
		_, _, err := f.Open(t.Context(), lost, map[store.Digest]bool{p.Tree: true})
		if !errors.Is(err, ErrRegistry) || !strings.Contains(err.Error(), "cannot be reached") {
			t.Errorf("error %v, want %v that says that it cannot be reached", err, ErrRegistry)
		}
		if first == 0 {
			first = calls.Load()
		}
	}
	if n := calls.Load(); n != first || n == 0 {
		t.Errorf("called %d times for the first of %d layers, %d times in all", first, len(img.Parts), n)
	}
}
