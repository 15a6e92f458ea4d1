package origin

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/video/asset"
)

// emptyOrigin returns an origin without assets, which ends with the test.
func emptyOrigin(t *testing.T) (*Origin, *asset.Library) {
	t.Helper()
	fretest.CheckLeaks(t)
	library, _, err := asset.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := New(Config{Library: library, Log: slog.New(slog.DiscardHandler), Prefix: "/assets"})
	t.Cleanup(func() {
		if err := errors.Join(o.Close(), library.Close()); err != nil {
			t.Error(err)
		}
	})
	return o, library
}

// TestShelvesAside: while an asset's playlists are made, further assets are served. A request for
// this asset waits for the same playlists, and the number of simultaneous preparations is bounded.
func TestShelvesAside(t *testing.T) {
	o, library := emptyOrigin(t)
	add := func() []byte {
		t.Helper()
		a := &asset.Asset{ID: asset.NewID(), State: asset.Ready, Made: asset.NewID(), Duration: 4, Renditions: []*asset.Rendition{{
			Name: "a0", Kind: "audio", Codec: "mp4a.40.2", TimeScale: 48000, Init: 700, Segments: []asset.Segment{{Offset: 700, Size: 9, Duration: 192_000, Key: 3}},
		}}}
		if err := library.Create(a); err != nil {
			t.Fatal(err)
		}
		return []byte(a.ID)
	}
	have := func(id []byte) *shelf {
		t.Helper()
		s, err := o.shelf(id)
		if err != nil || s == nil || s.texts["hls/master.m3u8"] == nil {
			t.Fatalf("%v, %v", s, err)
		}
		s.release()
		return s
	}
	there, next := add(), add()
	first := have(there)

	m := o.cache.makers
	places := runtime.GOMAXPROCS(0)
	for range places { // all are taken
		if err := m.enter(); err != nil {
			t.Fatal(err)
		}
	}
	const viewers = 3
	got := make([]*shelf, viewers)
	var all sync.WaitGroup
	for i := range viewers {
		all.Go(func() {
			s, err := o.shelf(next)
			if err != nil || s == nil {
				t.Errorf("%v, %v", s, err)
				return
			}
			got[i] = s
			s.release()
		})
	}
	if err := testdaemon.Until(t.Context(), func() error {
		m.mu.Lock()
		waiting := len(m.waiting)
		m.mu.Unlock()
		o.mu.Lock()
		defer o.mu.Unlock()
		users := 0
		if s := o.shelves[string(next)]; s != nil {
			s.mu.Lock()
			users = s.users
			s.mu.Unlock()
		}
		if waiting != 1 || users != viewers {
			return fmt.Errorf("%d make it, for %d", waiting, users)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if s := have(there); s != first {
		t.Error("its playlists were made again")
	}
	for range places {
		m.leave(0)
	}
	all.Wait()
	for _, s := range got {
		if s != got[0] {
			t.Error("they were made more than once")
		}
	}
}

// TestShelfRefused: after a failure, the next request makes the playlists again.
func TestShelfRefused(t *testing.T) {
	o, library := emptyOrigin(t)
	broken := &asset.Asset{ID: asset.NewID(), State: asset.Ready, Made: asset.NewID(), Renditions: []*asset.Rendition{nil}}
	if err := library.Create(broken); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if s, err := o.shelf([]byte(broken.ID)); err == nil {
			t.Errorf("%v", s)
		}
	}
	if len(o.shelves) > 0 || o.cache.makers.busy > 0 {
		t.Errorf("%d shelves, %d being made", len(o.shelves), o.cache.makers.busy)
	}
}
