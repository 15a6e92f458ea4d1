package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
	"github.com/fre-engine/fre/store"
)

// registryEngine has the images of a real store.
type registryEngine struct {
	*servertest.Engine
	store *store.Store
}

func (e registryEngine) Image(ref string) (*store.Image, error) { return e.store.Image(ref) }
func (e registryEngine) Changes() *store.Changes                { return e.store.Changes() }
func (e registryEngine) ImageList() ([]*store.Image, uint64)    { return e.store.ImageList() }
func (e registryEngine) Sizes() *store.Sizes                    { return e.store.Sizes() }

// While clients build and delete, each list is the state of some moment and has all acknowledged
// images, and a follower of the changes ends up with the list. 64 clients list, 8 build and 4
// delete.
func TestListsWhileChanging(t *testing.T) {
	const builders, deleters, readers, builds = 8, 4, 64, 6
	st, err := store.Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	w, err := st.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.File("a", 0o644, time.Unix(1, 0), strings.NewReader("a")); err != nil {
		t.Fatal(err)
	}
	tree, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, version string) (*store.Image, error) {
		// Each image has a configuration of its own.
		config := json.RawMessage(fmt.Sprintf(`{"base":"b","env":[%q]}`, name+version))
		return st.PutImage(t.Context(), store.Manifest{Name: name, Version: "1", Config: config, Parts: []store.Part{{Kind: "code", Name: "c", Tree: tree}}})
	}
	if _, err := put("stays", "0"); err != nil {
		t.Fatal(err)
	}
	c := connect(t, func(cfg *server.Config) { cfg.Engine = registryEngine{cfg.Engine.(*servertest.Engine), st} })

	// list checks the properties of every list.
	list := func() (map[string]bool, error) {
		images, err := c.Images().List(t.Context())
		if err != nil {
			return nil, err
		}
		digests, names := map[string]bool{}, map[string]bool{}
		for _, img := range images {
			if digests[img.Digest] {
				return nil, fmt.Errorf("%s is in a list twice", img.Digest)
			}
			digests[img.Digest] = true
			for _, name := range img.Names {
				if names[name] {
					return nil, fmt.Errorf("two images of a list are called %s", name)
				}
				names[name] = true
			}
		}
		// A build moves its name in one step, and no client removes this name.
		if !names["stays:1"] {
			return nil, fmt.Errorf("no image of a list is called stays:1: %v", names)
		}
		return digests, nil
	}
	var group, reading errgroup.Group
	built := make(chan string, builders*builds)
	var building sync.WaitGroup
	for b := range builders {
		building.Add(1)
		group.Go(func() error {
			defer building.Done()
			for i := range builds {
				name := "stays"
				if i%2 == 1 {
					name = fmt.Sprintf("app-%d", b)
				}
				img, err := put(name, fmt.Sprintf("%d-%d", b, i))
				if err != nil {
					return err
				}
				digests, err := list()
				if err != nil {
					return err
				}
				if !digests[string(img.Digest)] {
					return fmt.Errorf("%s is not in the list after it was built", img.Digest)
				}
				if name != "stays" {
					built <- string(img.Digest)
				}
			}
			return nil
		})
	}
	go func() { building.Wait(); close(built) }()
	for range deleters {
		group.Go(func() error {
			for digest := range built {
				if err := st.RemoveImage(t.Context(), store.Digest(digest)); err != nil {
					return err
				}
				digests, err := list()
				if err != nil {
					return err
				}
				if digests[digest] {
					return fmt.Errorf("%s is in the list after it was removed", digest)
				}
			}
			return nil
		})
	}
	done := make(chan struct{})
	var lists atomic.Int64
	for r := range readers {
		reading.Go(func() error {
			followed := map[string]api.Image{}
			for since, last := uint64(0), false; ; {
				select {
				case <-done:
					last = true
				default:
				}
				if _, err := list(); err != nil {
					return err
				}
				lists.Add(1)
				changes, err := c.Images().Changes(t.Context(), since)
				if err != nil {
					return err
				}
				if changes.Generation < since || changes.Complete != (since == 0) {
					return fmt.Errorf("changes since %d: generation %d, complete: %t", since, changes.Generation, changes.Complete)
				}
				since = changes.Generation
				for _, digest := range changes.Removed {
					delete(followed, digest)
				}
				for _, img := range changes.Changed {
					followed[img.Digest] = img
				}
				if !last {
					continue
				}
				images, err := c.Images().List(t.Context())
				if err != nil {
					return err
				}
				want := map[string]api.Image{}
				for _, img := range images {
					want[img.Digest] = img
				}
				if diff := cmp.Diff(want, followed); diff != "" {
					return fmt.Errorf("reader %d has not ended up with the list (-list +followed):\n%s", r, diff)
				}
				return nil
			}
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	close(done)
	if err := reading.Wait(); err != nil {
		t.Error(err)
	}
	if n := lists.Load(); n < readers {
		t.Errorf("%d lists were read, want %d at least", n, readers)
	}
}

// listEngine has n images and n sandboxes.
type listEngine struct {
	*servertest.Engine
	images  []*store.Image
	boxes   []*live.Sandbox
	changes *store.Changes
}

func newListEngine(n int) *listEngine {
	e := &listEngine{Engine: servertest.New(), changes: store.NewChanges(1)}
	for i := range n {
		name := fmt.Sprintf("image-%d", i)
		img := &store.Image{
			Digest: store.Digest(fmt.Sprintf("sha256:%064x", i)), Names: []string{name + ":1"}, Built: name + ":1",
			Created: servertest.Epoch.Add(time.Duration(i) * time.Second), Size: 50 << 20, Files: 1000,
		}
		img.Name, img.Version, img.Config = name, "1", json.RawMessage(`{"base":"python","labels":{}}`)
		e.images = append(e.images, img)
		e.boxes = append(e.boxes, &live.Sandbox{
			ID: fmt.Sprintf("%012x", i), Function: name, Image: name + ":1", Tenant: "default", Command: "/usr/bin/python3 /opt/fre/bootstrap.py",
			State: live.StateIdle, PID: 1000 + i, Created: img.Created, Defences: []string{"seccomp", "capabilities", "landlock", "userns"},
		})
	}
	return e
}

func (e *listEngine) ImageList() ([]*store.Image, uint64) { return e.images, e.changes.Generation() }
func (e *listEngine) Sandboxes(bool) []*live.Sandbox      { return slices.Clone(e.boxes) }

// The benchmark asks for lists over the socket on a kept connection, as a poller does. The time
// covers client and server, without decoding. "same" has the list already; "one changed" follows a
// change of one item each.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{1000, 2000, 10000} {
		for _, path := range []string{"images", "sandboxes", "sandboxes?size=1"} {
			for _, how := range []string{"full", "same", "one changed"} {
				if how == "same" && strings.Contains(path, "size") {
					continue
				}
				b.Run(fmt.Sprintf("%s/%d/%s", path, n, how), func(b *testing.B) {
					e := newListEngine(n)
					dir := b.TempDir()
					l, err := server.Listen(filepath.Join(dir, "s"), "")
					if err != nil {
						b.Fatal(err)
					}
					s := &http.Server{Handler: server.New(server.Config{Engine: e, Log: slog.New(slog.DiscardHandler)})}
					go func() { _ = s.Serve(l) }()
					defer s.Close()
					hc := &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
						return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "s"))
					}}}
					defer hc.CloseIdleConnections()
					etag := ""
					buf := make([]byte, 256<<10)
					ask := func() {
						req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://fre/v1/"+path, http.NoBody)
						if err != nil {
							b.Fatal(err)
						}
						if how == "same" && etag != "" {
							req.Header.Set("If-None-Match", etag)
						}
						resp, err := hc.Do(req)
						if err != nil {
							b.Fatal(err)
						}
						size, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf)
						if err != nil {
							b.Fatal(err)
						}
						b.SetBytes(size)
						etag = resp.Header.Get("ETag")
						_ = resp.Body.Close()
					}
					ask()
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						if how == "one changed" {
							img, box := *e.images[i%n], *e.boxes[i%n]
							e.images, e.boxes = slices.Clone(e.images), slices.Clone(e.boxes)
							e.images[i%n], e.boxes[i%n] = &img, &box
							e.changes.Add(store.Change{Kind: store.ChangeImage})
						}
						ask()
					}
				})
			}
		}
	}
}
