package store

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestChanges: The store notes the changes of each call in order. Each list has the generation of
// its own last change.
func TestChanges(t *testing.T) {
	s := openStore(t, t.TempDir())
	a := putTree(t, s, map[string]string{"a": "a"})
	b := putTree(t, s, map[string]string{"a": "b"})
	start := s.Changes().Generation()
	var first, second *Image
	for _, step := range []struct {
		name string
		do   func() error
		want func() []Change
	}{
		{"new image", func() error { first = putImage(t, s, "app", "1", a); return nil }, func() []Change {
			return []Change{
				{Kind: ChangeImage, Action: ActionCreate, ID: string(first.Digest)},
				{Kind: ChangeImage, Action: ActionTag, ID: string(first.Digest), Name: "app:1"},
			}
		}},
		{"the same again", func() error { putImage(t, s, "app", "1", a); return nil }, func() []Change { return nil }},
		{"another takes the name", func() error { second = putImage(t, s, "app", "1", b); return nil }, func() []Change {
			return []Change{
				{Kind: ChangeImage, Action: ActionCreate, ID: string(second.Digest)},
				{Kind: ChangeImage, Action: ActionUntag, ID: string(first.Digest), Name: "app:1"},
				{Kind: ChangeImage, Action: ActionTag, ID: string(second.Digest), Name: "app:1"},
			}
		}},
		{"deployed", func() error { return s.PutFunction(t.Context(), Function{Name: "f", Image: second.Digest}) }, func() []Change { return nil }},
		{"removed in vain", func() error { _ = s.RemoveImage(t.Context(), second.Digest); return nil }, func() []Change { return nil }},
		{"function removed", func() error { return s.RemoveFunction(t.Context(), "f") }, func() []Change { return nil }},
		{"image removed", func() error { return s.RemoveImage(t.Context(), second.Digest) }, func() []Change {
			return []Change{
				{Kind: ChangeImage, Action: ActionUntag, ID: string(second.Digest), Name: "app:1"},
				{Kind: ChangeImage, Action: ActionDelete, ID: string(second.Digest)},
			}
		}},
		{"a tenant", func() error { _, err := s.Tenant(t.Context(), "t"); return err }, func() []Change { return nil }},
	} {
		before := s.Changes().Generation()
		_, imagesBefore := s.ImageList()
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got, ok := s.Changes().Since(before)
		want := step.want()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Change{}, "Generation", "Time", "Config")); diff != "" || !ok {
			t.Errorf("%s: %t (-want +got):\n%s", step.name, ok, diff)
		}
		for i, c := range got {
			if c.Generation != before+uint64(i)+1 || c.Time.IsZero() {
				t.Errorf("%s: change %d has generation %d and time %s after %d", step.name, i, c.Generation, c.Time, before)
			}
		}
		wantImages := imagesBefore
		if len(want) > 0 {
			wantImages = s.Changes().Generation()
		}
		if _, images := s.ImageList(); images != wantImages || images != s.Changes().GenerationOf(ChangeImage) {
			t.Errorf("%s: list of images has generation %d, want %d", step.name, images, wantImages)
		}
	}
	if got := s.Changes().GenerationOf(ChangeSandbox); got != start {
		t.Errorf("generation of sandboxes: %d, want %d", got, start)
	}
}

// TestChangesForgotten: The ring keeps the latest changes and says when it cannot answer.
func TestChangesForgotten(t *testing.T) {
	var reserved []uint64
	c := NewChanges(100)
	c.keep(func(upTo uint64) { reserved = append(reserved, upTo) })
	const added = 2*changesKept + 10
	for i := range added {
		if i == 5 {
			if got, ok := c.Since(100); !ok || len(got) != 5 {
				t.Fatalf("after 5: %d changes, %t", len(got), ok)
			}
		}
		c.Add(Change{ID: strconv.Itoa(i)})
	}
	last := uint64(100 + added)
	if got := c.Generation(); got != last {
		t.Fatalf("generation %d, want %d", got, last)
	}
	for since, want := range map[uint64]int{last: 0, last - 1: 1, last - changesKept: changesKept, last - changesKept - 1: -1, 0: -1, last + 1: -1} {
		got, ok := c.Since(since)
		if ok != (want >= 0) || len(got) != max(want, 0) {
			t.Errorf("Since(%d): %d changes, %t, want %d", since, len(got), ok, want)
		}
		for i, ch := range got {
			if ch.Generation != since+1+uint64(i) || ch.ID != strconv.Itoa(int(ch.Generation)-101) {
				t.Fatalf("Since(%d)[%d]: %+v", since, i, ch)
			}
		}
	}
	if diff := cmp.Diff([]uint64{100 + reserveAhead}, reserved); diff != "" {
		t.Errorf("reserved (-want +got):\n%s", diff)
	}
}

// TestChangesClock: The times of changes never go back, even if the clock does.
func TestChangesClock(t *testing.T) {
	c := NewChanges(0)
	clock := testTime
	c.now = func() time.Time { return clock }
	for _, at := range []time.Duration{0, time.Hour, -time.Hour, time.Minute, 2 * time.Hour} {
		clock = testTime.Add(at)
		c.Add(Change{})
	}
	got, _ := c.Since(0)
	var times []time.Duration
	for _, ch := range got {
		times = append(times, ch.Time.Sub(testTime))
	}
	if diff := cmp.Diff([]time.Duration{0, time.Hour, time.Hour, time.Hour, 2 * time.Hour}, times); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
	for at, want := range map[time.Duration]uint64{-time.Second: 0, 0: 0, time.Second: 1, time.Hour: 1, 90 * time.Minute: 4, 3 * time.Hour: 5} {
		if got := c.Before(testTime.Add(at)); got != want {
			t.Errorf("Before(%s): %d, want %d", at, got, want)
		}
	}
}

// TestChangesAfter: After returns a channel that closes at the next change.
func TestChangesAfter(t *testing.T) {
	c := NewChanges(7)
	after := c.After(7)
	select {
	case <-after:
		t.Fatal("closed without a change")
	default:
	}
	go c.Add(Change{})
	<-after
	<-c.After(7)
	<-c.After(3) // forgotten: Since reports this
}

// TestGenerationNeverRepeats: A generation never repeats: after clean and unclean ends, a clock
// turned back, a lost or damaged file, and more changes than were reserved.
func TestGenerationNeverRepeats(t *testing.T) {
	s := openStore(t, t.TempDir())
	path := filepath.Join(s.disk.dir, generationName)
	last := s.Changes().Generation()
	ahead := func(what string, s *Store) {
		t.Helper()
		first := s.Changes().Add(Change{})
		if first <= last {
			t.Errorf("%s: generation %d after %d", what, first, last)
		}
		last = s.Changes().Add(make([]Change, 100)...)
	}
	ahead("new store", s)
	s = reopen(t, s)
	ahead("closed and opened", s)

	// As after kill -9: only the file tells the last generation.
	for s.Changes().reserved == s.Changes().start+reserveAhead {
		s.Changes().Add(make([]Change, reserveAhead/16)...)
	}
	ahead("beyond the reserve", s)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.ParseUint(string(b[:len(b)-1]), 10, 64); err != nil || n < last {
		t.Errorf("file holds %q after generation %d", b, last)
	}

	// The clock is far behind the file.
	last = uint64(time.Now().Add(100*365*24*time.Hour).UnixMilli()) << 10
	if err := os.WriteFile(path, []byte(strconv.FormatUint(last, 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	ahead("clock turned back", s)

	last = uint64(time.Now().UnixMilli())<<10 - 1 // an earlier run's value, derived from the clock
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	ahead("damaged file", s)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	ahead("lost file", s)
}
