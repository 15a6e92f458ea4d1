package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRemovalLeavesNothingToSweep: The removal of an image removes exactly what a full sweep would,
// although it looks only at the image's contents. Files hidden by later parts stay with their
// trees.
func TestRemovalLeavesNothingToSweep(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := openStore(t, t.TempDir())
	s.disk.linkLimit = 4 // gives objects several copies
	release := s.Hold()
	var trees []Digest
	for range 12 {
		files := make(map[string]string)
		for range 1 + r.IntN(6) {
			files[fmt.Sprint("f", r.IntN(8))] = fmt.Sprint(r.IntN(5))
		}
		trees = append(trees, putTree(t, s, files))
	}
	for i := range 30 {
		var parts []Digest
		for range 1 + r.IntN(4) {
			parts = append(parts, trees[r.IntN(len(trees))])
		}
		putImage(t, s, "image", fmt.Sprint(i), parts...)
	}
	release()
	if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil { // removes trees without an image
		t.Fatal(err)
	}
	for len(s.Images()) > 0 {
		img := s.Images()[r.IntN(len(s.Images()))]
		if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
			t.Fatal(err)
		}
		left, err := s.Sweep(t.Context(), SweepOptions{DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Swept{}, left); diff != "" {
			t.Fatalf("left after removing %s (-want +got):\n%s", img.Digest, diff)
		}
		for _, img := range s.Images() {
			for _, p := range img.Parts {
				keys, err := s.disk.treeKeys(p.Tree)
				if err != nil {
					t.Fatal(err)
				}
				for _, key := range keys {
					if links, _ := s.disk.objectLinks(objectName(key, 0)); links == 0 {
						t.Fatalf("object %s of tree %s is gone", key, p.Tree)
					}
				}
			}
		}
	}
	if names := objectNames(t, s); len(names) != 0 {
		t.Errorf("objects left: %q", names)
	}
}

// TestRemovalSparesLooseParts: A removal of images spares a part of an earlier build. The next
// build finds the part with all of its objects.
func TestRemovalSparesLooseParts(t *testing.T) {
	s := openStore(t, t.TempDir())
	release := s.Hold()
	loose := putTree(t, s, map[string]string{"shared": "shared", "loose": "loose"})
	if err := s.PutPart(t.Context(), "loose", Part{Name: "loose", Tree: loose}); err != nil {
		t.Fatal(err)
	}
	release() // without an image
	img := putImage(t, s, "image", "1", putTree(t, s, map[string]string{"shared": "shared", "own": "own"}))
	if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
		t.Fatal(err)
	}
	if names := objectNames(t, s); len(names) != 2 {
		t.Errorf("objects: %q, want the two of the part", names)
	}
	defer s.Hold()()
	p, ok := s.Part("loose")
	if !ok {
		t.Fatal("the part is gone")
	}
	putImage(t, s, "next", "1", p.Tree)
}

// TestHasTreeWithoutObjects: After a sweep has removed a shared object, HasTree denies the tree of
// a failed build. A new put makes the tree whole again.
func TestHasTreeWithoutObjects(t *testing.T) {
	s := openStore(t, t.TempDir())
	files := map[string]string{"shared": "shared", "loose": "loose", "empty": ""}
	loose := putTree(t, s, files)
	img := putImage(t, s, "image", "1", putTree(t, s, map[string]string{"shared": "shared"}))
	if !s.HasTree(loose) {
		t.Error("the tree is not there, with all of its objects")
	}
	if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
		t.Fatal(err)
	}
	defer s.Hold()()
	if s.HasTree(loose) {
		t.Error("the tree is there without an object")
	}
	if d := putTree(t, s, files); d != loose || !s.HasTree(loose) {
		t.Errorf("put anew: %s, there: %v; want %s", d, s.HasTree(loose), loose)
	}
	putImage(t, s, "next", "1", loose)
}

// TestSweepDryRun: A dry run counts exactly what a sweep then removes.
func TestSweepDryRun(t *testing.T) {
	s := openStore(t, t.TempDir())
	kept := putTree(t, s, map[string]string{"a": "a", "both": "both"})
	loose := putTree(t, s, map[string]string{"b": strings.Repeat("b", 5000), "both": "both"})
	putImage(t, s, "kept", "1", kept)
	if err := s.PutPart(t.Context(), "loose", Part{Name: "loose", Tree: loose}); err != nil {
		t.Fatal(err)
	}
	var got []Swept
	for _, o := range []SweepOptions{{DryRun: true}, {DryRun: true}, {}, {}} {
		n, err := s.Sweep(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, n)
	}
	// The block count of a file depends on the file system.
	want := Swept{Parts: 1, Trees: 1, Objects: 1, Inodes: 2, Bytes: got[0].Bytes}
	if diff := cmp.Diff([]Swept{want, want, want, {}}, got); diff != "" || want.Bytes < 5000 {
		t.Errorf("swept (-want +got):\n%s", diff)
	}
}

// TestSweepEnds: A sweep cancelled after the trees leaves their objects to the next sweep.
func TestSweepEnds(t *testing.T) {
	s := openStore(t, t.TempDir())
	putTree(t, s, map[string]string{"a": "a"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.disk.failAt = func(point string) error {
		if point == "trees swept" {
			cancel()
		}
		return nil
	}
	if n, err := s.Sweep(ctx, SweepOptions{}); !errors.Is(err, context.Canceled) || n.Trees != 1 || n.Objects != 0 {
		t.Errorf("Sweep: %+v, %v; want one tree, context.Canceled", n, err)
	}
	if n, err := s.Sweep(t.Context(), SweepOptions{}); err != nil || n.Trees != 0 || n.Objects != 1 {
		t.Errorf("the next Sweep: %+v, %v; want one object", n, err)
	}
	checkNothingLoose(t, s)
}

// TestLeases: A part in use under a lease stays until the end of the last lease that existed at the
// time of the use, and no longer.
func TestLeases(t *testing.T) {
	s := openStore(t, t.TempDir())
	sweep := func(want ...Digest) {
		t.Helper()
		if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := s.sweeper.deadTrees(nil)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("trees (-want +got):\n%s", diff)
		}
		if got, want := len(objectNames(t, s)), len(want); got != want {
			t.Errorf("%d objects, want %d", got, want)
		}
	}
	tree := func(content string) Digest { return putTree(t, s, map[string]string{"f": content}) }

	first := s.Hold()
	a := tree("a")
	if err := s.PutPart(t.Context(), "a", Part{Name: "a", Tree: a}); err != nil {
		t.Fatal(err)
	}
	sweep(a)
	second := s.Hold()
	b := tree("b")
	sweep(a, b)
	first()
	third := s.Hold()
	sweep(a, b) // the second lease existed when a was used
	c := tree("c")
	if _, ok := s.Part("a"); !ok {
		t.Error("part a is gone")
	}
	second()
	sweep(a, c) // b is older than the third lease
	third()
	sweep()
	if _, ok := s.Part("a"); ok {
		t.Error("part a is there")
	}
	if _, err := s.Tree(a); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tree a: %v", err)
	}
}

// TestUnreadableTreeUnderLease: If a tree under a lease is unreadable, a sweep removes no object,
// because it cannot tell which objects are in use.
func TestUnreadableTreeUnderLease(t *testing.T) {
	s := openStore(t, t.TempDir())
	release := s.Hold()
	d := putTree(t, s, map[string]string{"a": "a"})
	release()
	release = s.Hold()
	defer release()
	if err := writeFileAt(int(s.disk.trees.Fd()), d.hex()+".json", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tree(d); !errors.Is(err, ErrTree) {
		t.Fatalf("Tree: %v, want ErrTree", err)
	}
	if _, err := s.Sweep(t.Context(), SweepOptions{}); !errors.Is(err, ErrTree) {
		t.Errorf("Sweep: %v, want ErrTree", err)
	}
	if names := objectNames(t, s); len(names) != 1 {
		t.Errorf("objects: %q, want the one", names)
	}
}

// checkNothingLoose checks a swept store without leases: all parts, trees and objects belong to
// images.
func checkNothingLoose(t testing.TB, s *Store) {
	t.Helper()
	live := s.meta.snap.Load().liveTrees()
	if dead, err := s.sweeper.deadTrees(live); err != nil || len(dead) > 0 {
		t.Errorf("trees of no image: %q (%v)", dead, err)
	}
	for key, p := range s.meta.snap.Load().parts {
		if !live[p.Tree] {
			t.Errorf("part %s has a tree of no image", key)
		}
	}
	keys := make(map[string]bool)
	for d := range live {
		list, err := s.disk.treeKeys(d)
		if err != nil {
			t.Error(err)
		}
		for _, key := range list {
			keys[key] = true
		}
	}
	for _, name := range objectNames(t, s) {
		key, _, ok := parseObjectName(filepath.Base(name))
		if !ok || !keys[key] {
			t.Errorf("object %s is of no tree", name)
		}
		delete(keys, key)
	}
	for key := range keys {
		t.Errorf("object %s is missing", key)
	}
}
