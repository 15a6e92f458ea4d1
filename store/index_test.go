package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rebuilt closes the store, loses its database, and opens it again.
func rebuilt(t *testing.T, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.disk.dir, dbName)); err != nil {
		t.Fatal(err)
	}
	return openStore(t, s.disk.dir)
}

// TestIndexLog: The index records each change. Most changes append one line.
func TestIndexLog(t *testing.T) {
	s := openStore(t, t.TempDir())
	populate(t, s)
	if s.meta.index.end == 0 || s.meta.index.base != 0 {
		t.Errorf("index.json has %d bytes, index.log %d; want lines only", s.meta.index.base, s.meta.index.end)
	}
	check := func(what string) {
		t.Helper()
		want := stateOf(s)
		s = rebuilt(t, s)
		if diff := cmp.Diff(want, stateOf(s)); diff != "" {
			t.Fatalf("%s: state (-before +after):\n%s", what, diff)
		}
	}
	check("lines only")
	tag := func(i int) {
		t.Helper()
		if _, err := s.Tag(t.Context(), s.Images()[i%len(s.Images())].Digest, fmt.Sprintf("%s:%d", strings.Repeat("n", 100), i)); err != nil {
			t.Fatal(err)
		}
	}
	tag(0) // the first change after Open writes index.json
	if s.meta.index.end != 0 || s.meta.index.base == 0 {
		t.Errorf("index.json has %d bytes, index.log %d; want the former only", s.meta.index.base, s.meta.index.end)
	}
	check("index.json only")
	tag(1)
	tag(2)
	tag(3)
	if err := s.RemoveFunction(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := s.Untag(t.Context(), "web:latest"); err != nil {
		t.Fatal(err)
	}
	if s.meta.index.end == 0 || s.meta.index.base == 0 {
		t.Errorf("index.json has %d bytes, index.log %d; want both", s.meta.index.base, s.meta.index.end)
	}
	check("both")
	tag(4)
	tag(5)
	s.meta.index.end = minIndexLog // simulates a long log
	tag(6)
	if s.meta.index.end != 0 {
		t.Error("the log grows without end")
	}
	tag(7)
	check("written whole in between")
}

// TestIndexLogOfFailures: The index does not hold failed changes. Open ignores a truncated line.
func TestIndexLogOfFailures(t *testing.T) {
	s := openStore(t, t.TempDir())
	populate(t, s)
	broken := errors.New("broken")
	s.disk.failAt = func(point string) error {
		if point == "before commit" {
			return broken
		}
		return nil
	}
	fail := func() {
		t.Helper()
		if err := s.RemoveFunction(t.Context(), "one"); !errors.Is(err, broken) {
			t.Fatalf("RemoveFunction: %v, want %v", err, broken)
		}
	}
	fail()
	want := stateOf(s)
	s = rebuilt(t, s)
	if diff := cmp.Diff(want, stateOf(s)); diff != "" {
		t.Errorf("after a failed change (-before +after):\n%s", diff)
	}
	// This is the first change after Open, which writes index.json: the next change must write the
	// file again.
	s.disk.failAt = func(string) error { return broken }
	fail()
	s.disk.failAt = nil
	if _, err := s.Tenant(t.Context(), "third"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tenant(t.Context(), "fourth"); err != nil {
		t.Fatal(err)
	}
	want = stateOf(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(s.disk.dir, indexLogName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.WriteString("garbage\n\n{\"no_function\": \"tw"); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.disk.dir)
	s = rebuilt(t, s)
	if diff := cmp.Diff(want, stateOf(s)); diff != "" {
		t.Errorf("after a line that was cut off (-before +after):\n%s", diff)
	}
}

// TestOrderIsThatOfArrival: The list shows the newest arrival first, also after the clock went
// back, after Open, and after a lost database.
func TestOrderIsThatOfArrival(t *testing.T) {
	s := openStore(t, t.TempDir())
	var want []string
	for i := range 4 {
		img := putImage(t, s, "app", fmt.Sprint(i), putTree(t, s, map[string]string{"a": fmt.Sprint(i)}))
		// As if the clock had gone back before this image.
		at := testTime.Add(-time.Duration(i) * time.Hour).UTC()
		err := s.meta.update(true, func(t *tx) error {
			turned := *img
			turned.Created = at
			_, err := t.sql.Exec(`UPDATE images SET created = ? WHERE digest = ?`, at.UnixNano(), img.Digest)
			t.replaceImage(t.next.byDigest[img.Digest], &turned)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		want = append([]string{fmt.Sprintf("app:%d", i)}, want...)
	}
	check := func(what string) {
		t.Helper()
		var got []string
		for _, img := range s.Images() {
			got = append(got, img.Names...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if img, err := s.Image("app"); err != nil || img.Version != "3" {
			t.Errorf("%s: app is %v, %v, want app:3", what, img, err)
		}
	}
	check("at first")
	s = reopen(t, s)
	check("opened again")
	s = rebuilt(t, s)
	check("rebuilt from lines")
	if _, err := s.Tenant(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	s = rebuilt(t, s)
	check("rebuilt from index.json")
}

// FuzzReadIndex: Any index is read without a panic.
func FuzzReadIndex(f *testing.F) {
	f.Add(`{"images": [{"digest": "sha256:00", "created": "2026-01-02T03:04:05Z"}], "functions": [null]}`, `{"image": {"digest": "sha256:00"}}`)
	f.Add(`{"tenants": [{"name": "a", "id": 1}]}`, "{\"tenant\": {\"name\": \"b\", \"id\": 1}}\n{\"no_function\": \"f\"}\n{\"function\": {}}\n")
	f.Add("", "\n\n{")
	f.Fuzz(func(t *testing.T, base, log string) {
		k := &disk{dir: t.TempDir(), log: testLog(t)}
		for name, content := range map[string]string{indexName: base, indexLogName: log} {
			if err := os.WriteFile(filepath.Join(k.dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		x := k.readIndex()
		if _, err := json.Marshal(x); err != nil {
			t.Error(err)
		}
		seen := map[Digest]bool{}
		for _, i := range x.Images {
			if seen[i.Digest] && log != "" && base == "" {
				t.Errorf("%s is there twice", i.Digest)
			}
			seen[i.Digest] = true
		}
	})
}
