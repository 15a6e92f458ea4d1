package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
)

// pushedNoise pushes an artifact whose base has n incompressible bytes.
func pushedNoise(t testing.TB, ref string, n int) *store.Image {
	t.Helper()
	s := openStore(t)
	defer s.Hold()()
	noise := make([]byte, n)
	chance := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(chance.Uint32())
	}
	img := builtImage(t, s, "noise", part(t, s, "base", "noise", "", map[string]string{"noise": string(noise)}))
	if _, err := Push(t.Context(), s, img, ref, PushOptions{}); err != nil {
		t.Fatal(err)
	}
	return img
}

// breaking breaks the connection of each blob's answer after the given bytes, the given number of
// times.
type breaking struct {
	after  int64
	times  atomic.Int64 // left
	mu     sync.Mutex
	ranges []string // asked for
	sent   atomic.Int64
}

func (b *breaking) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			h.ServeHTTP(w, r)
			return
		}
		b.mu.Lock()
		b.ranges = append(b.ranges, r.Header.Get("Range"))
		b.mu.Unlock()
		h.ServeHTTP(&brokenAnswer{w, b, b.after}, r)
	})
}

type brokenAnswer struct {
	http.ResponseWriter
	b    *breaking
	left int64
}

func (a *brokenAnswer) Write(p []byte) (int, error) {
	if int64(len(p)) > a.left && a.b.times.Add(-1) >= 0 {
		n, _ := a.ResponseWriter.Write(p[:a.left])
		a.b.sent.Add(int64(n))
		_ = http.NewResponseController(a.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	a.left -= int64(len(p))
	a.b.sent.Add(int64(len(p)))
	return a.ResponseWriter.Write(p)
}

func (a *brokenAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func noPause(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// TestResume: A broken download goes on from its last byte, in the same pull and in a later one. No
// byte comes twice, and the cache is empty at the end.
func TestResume(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	const size = 1 << 20
	ref := w.host + "/noise:1"
	want := pushedNoise(t, ref, size)
	for _, c := range []struct {
		name  string
		times int64 // number of breaks
		pulls int
		cache bool
		most  int64 // bytes sent
	}{
		{"at once", 3, 1, false, size + 64<<10},
		{"in later pulls", 3 * retries, 3, true, size + 64<<10},
		{"in later pulls without a cache", retries, 2, false, 3*size + 64<<10},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &breaking{after: 100_000}
			b.times.Store(c.times)
			wrap := b.wrap
			w.wrap.Store(&wrap)
			defer w.wrap.Store(nil)
			s := openStore(t)
			o := PullOptions{RegistryOptions: RegistryOptions{pause: noPause}}
			if c.cache {
				o.Cache = filepath.Join(t.TempDir(), "blobs")
				b.after = 10_000
			}
			var img *store.Image
			var err error
			pulls := 0
			for img == nil && pulls < 20 {
				// Each pull may break only a few times in a row without progress.
				pulls++
				ctx, cancel := context.WithCancel(t.Context())
				if c.pulls > 1 && pulls < c.pulls { // the pull is cancelled in the middle
					o.pause = func(context.Context, time.Duration) error { cancel(); return context.Canceled }
				} else {
					o.pause = noPause
				}
				img, _, err = Pull(ctx, s, ref, o)
				cancel()
			}
			if err != nil || img.Digest != want.Digest || pulls != c.pulls {
				t.Fatalf("after %d pulls: %+v, %v; want %s after %d", pulls, img, err, want.Digest, c.pulls)
			}
			if n := b.sent.Load(); n > c.most {
				t.Errorf("%d bytes were sent for %d (ranges %q)", n, size, b.ranges)
			}
			if !slices.ContainsFunc(b.ranges, func(s string) bool { return strings.HasPrefix(s, "bytes=") }) && (c.cache || c.pulls == 1) {
				t.Errorf("the pull did not ask for the rest: %q", b.ranges)
			}
			if c.cache {
				left, err := os.ReadDir(o.Cache)
				if err != nil || len(left) > 0 {
					t.Errorf("the cache holds %v, %v; want nothing", left, err)
				}
			}
		})
	}
}

// TestGivenUp: A cancelled pull keeps its complete parts and layers, and the received bytes of the
// incomplete layer. The next pull fetches only the rest.
func TestGivenUp(t *testing.T) {
	const size = 400_000
	noise := make([]byte, size)
	chance := rand.New(rand.NewPCG(3, 4))
	for i := range noise {
		noise[i] = byte(chance.Uint32())
	}
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	defer s.Hold()()
	layers := [][]byte{pack(t, file("a", "one")), pack(t, file("b", string(noise))), pack(t, file("c", "three"))}
	images, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, configFor(t, layers...), []string{"app:1"}, layers...)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, img := range map[string]*store.Image{
		"image": images[0],
		"artifact": builtImage(t, s, "fn",
			part(t, s, "base", "native", "", map[string]string{"a": "one"}),
			part(t, s, "pip", "large", "usr/lib/large", map[string]string{"noise": string(noise)}),
			part(t, s, "code", "fn", "function", map[string]string{"bin/x": "three"})),
	} {
		t.Run(name, func(t *testing.T) {
			ref := w.host + "/" + name + ":1"
			if _, err := Push(t.Context(), s, img, ref, PushOptions{}); err != nil {
				t.Fatal(err)
			}
			// The large layer stops in the middle until the other layers and most of its sent bytes
			// have arrived. Then the pull is cancelled.
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			var first, whole atomic.Int64
			other := openStore(t)
			o := PullOptions{RegistryOptions: RegistryOptions{Cache: filepath.Join(t.TempDir(), "blobs")}}
			o.Report = func(e image.Progress) {
				if e.Step == "layer" && e.Message == "done" {
					whole.Add(1)
				}
			}
			hold := func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
						rw = &heldAnswer{ResponseWriter: rw, n: &first, hold: func() {
							for whole.Load() < 2 || cached(o.Cache) < heldAfter*3/4 {
								select {
								case <-time.After(time.Millisecond):
								case <-t.Context().Done():
									return
								}
							}
							giveUp()
						}}
					}
					h.ServeHTTP(rw, r)
				})
			}
			w.wrap.Store(&hold)
			if _, _, err := Pull(ctx, other, ref, o); !errors.Is(err, context.Canceled) {
				t.Fatalf("given up: %v", err)
			}
			if n := len(other.Images()); n != 0 {
				t.Errorf("%d images are there", n)
			}
			var second atomic.Int64
			count := func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if strings.Contains(r.URL.Path, "/blobs/") {
						rw = &countedAnswer{rw, &second}
					}
					h.ServeHTTP(rw, r)
				})
			}
			w.wrap.Store(&count)
			defer w.wrap.Store(nil)
			w.count("", "")
			o.Report = nil
			got, _, err := Pull(t.Context(), other, ref, o)
			if err != nil || got.Digest != img.Digest {
				t.Fatalf("the second time: %+v, %v", got, err)
			}
			if n := w.count("GET", "/blobs/"); n > 2 {
				t.Errorf("%d blobs were asked for, want the configuration at most and one part", n)
			}
			if n := first.Load() + second.Load(); n > size+64<<10 || second.Load() > size*3/4 {
				t.Errorf("%d bytes and %d were sent for %d", first.Load(), second.Load(), size)
			}
		})
	}
}

// cached returns the number of bytes in a cache that wait for the next pull.
func cached(dir string) (n int64) {
	list, _ := os.ReadDir(dir) // the cache is missing at first
	for _, e := range list {
		if st, err := e.Info(); err == nil {
			n += st.Size()
		}
	}
	return n
}

// heldAfter is the number of bytes after which a heldAnswer stops.
const heldAfter = 200_000

// heldAnswer calls hold in the middle of a longer answer and ends the answer there.
type heldAnswer struct {
	http.ResponseWriter
	n    *atomic.Int64
	hold func()
	sent int
}

func (a *heldAnswer) Write(p []byte) (int, error) {
	if a.sent+len(p) <= heldAfter {
		n, err := a.ResponseWriter.Write(p)
		a.sent += n
		a.n.Add(int64(n))
		return n, err
	}
	n, err := a.ResponseWriter.Write(p[:heldAfter-a.sent])
	a.n.Add(int64(n))
	if err == nil {
		err = http.NewResponseController(a.ResponseWriter).Flush()
	}
	a.hold()
	return n, errors.Join(err, context.Canceled)
}

func (a *heldAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// TestResumeDamaged: A damaged file in the cache costs only a new download. A file in use by
// another pull is left alone.
func TestResumeDamaged(t *testing.T) {
	host := fretest.Registry(t)
	ref := host + "/noise:1"
	want := pushedNoise(t, ref, 300_000)
	for name, content := range map[string][]byte{
		"empty": {}, "zeros": make([]byte, 100_000), "too long": make([]byte, 1<<20), "all of it, wrong": make([]byte, 300_160),
	} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			for _, d := range blobsOf(t, ref) {
				if err := os.WriteFile(filepath.Join(cache, d+partSuffix), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			img, _, err := Pull(t.Context(), openStore(t), ref, PullOptions{RegistryOptions: RegistryOptions{Cache: cache}})
			if err != nil || img.Digest != want.Digest {
				t.Errorf("pulled %+v, %v; want %s", img, err, want.Digest)
			}
			if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
				t.Errorf("the cache holds %v, %v; want nothing", left, err)
			}
		})
	}
	t.Run("two at once", func(t *testing.T) {
		cache := t.TempDir()
		s := openStore(t)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if img, _, err := Pull(t.Context(), s, ref, PullOptions{RegistryOptions: RegistryOptions{Cache: cache}}); err != nil || img.Digest != want.Digest {
					t.Errorf("pulled %+v, %v; want %s", img, err, want.Digest)
				}
			})
		}
		all.Wait()
		if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
			t.Errorf("the cache holds %v, %v; want nothing", left, err)
		}
	})
	t.Run("old ones go", func(t *testing.T) {
		cache := t.TempDir()
		for name, age := range map[string]time.Duration{"a.part": partsExpire + time.Hour, "b.part": time.Hour, "c": 2 * partsExpire} {
			path := filepath.Join(cache, name)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			at := time.Now().Add(-age)
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := Pull(t.Context(), openStore(t), ref, PullOptions{RegistryOptions: RegistryOptions{Cache: cache}}); err != nil {
			t.Fatal(err)
		}
		var left []string
		list, err := os.ReadDir(cache)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			left = append(left, e.Name())
		}
		if diff := cmp.Diff([]string{"b.part", "c"}, left); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
}

// blobsOf returns the hexadecimal digests of an image's configuration and layers at a registry.
func blobsOf(t testing.TB, ref string) []string {
	t.Helper()
	s := openStore(t)
	j := newJob(s, Options{})
	_, a, _, _, err := j.find(t.Context(), ref, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := []string{strings.TrimPrefix(string(digestOf(a.raw)), "sha256:")}
	for _, l := range a.layers {
		out = append(out, l.packed.Digest.Hex)
	}
	return out
}

// TestRegistryAgain: A pull asks a busy registry again after the requested time, within limits. A
// refusal is final.
func TestRegistryAgain(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	ref := w.host + "/noise:1"
	want := pushedNoise(t, ref, 100)
	for _, c := range []struct {
		status int
		after  string
		times  int
		want   error
		pauses []time.Duration // lower bounds; a quarter more is fine
		says   string
	}{
		{429, "7", 2, nil, []time.Duration{7 * time.Second, 7 * time.Second}, ""},
		{503, "", 3, nil, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}, ""},
		{500, "0", 1, nil, []time.Duration{0}, ""},
		{502, "", 100, ErrRegistry, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond}, "502"},
		{429, "3600", 1, ErrRegistry, nil, "429"},
		{401, "1", 1, fs.ErrPermission, nil, "log in"},
		{403, "1", 1, fs.ErrPermission, nil, "log in"},
		{404, "1", 1, fs.ErrNotExist, nil, "404"},
		{501, "1", 1, ErrRegistry, nil, "501"},
	} {
		t.Run(fmt.Sprint(c.status, c.after, c.times), func(t *testing.T) {
			var left atomic.Int64
			left.Store(int64(c.times))
			wrap := func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.Contains(r.URL.Path, "/manifests/") && left.Add(-1) >= 0 {
						if c.after != "" {
							w.Header().Set("Retry-After", c.after)
						}
						w.WriteHeader(c.status)
						return
					}
					h.ServeHTTP(w, r)
				})
			}
			w.wrap.Store(&wrap)
			defer w.wrap.Store(nil)
			var pauses []time.Duration
			o := PullOptions{RegistryOptions: RegistryOptions{pause: func(_ context.Context, d time.Duration) error {
				pauses = append(pauses, d)
				return nil
			}}}
			img, _, err := Pull(t.Context(), openStore(t), ref, o)
			if !errors.Is(err, c.want) || err == nil && img.Digest != want.Digest || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.want, c.says)
			}
			ok := len(pauses) == len(c.pauses)
			for i := range min(len(pauses), len(c.pauses)) {
				ok = ok && pauses[i] >= c.pauses[i] && pauses[i] <= c.pauses[i]*5/4+1
			}
			if !ok {
				t.Errorf("pauses %v, want about %v", pauses, c.pauses)
			}
		})
	}
}

// TestNoRanges: A registry without ranges sends the whole blob again. Wrong ranges are an error.
func TestNoRanges(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	ref := w.host + "/noise:1"
	want := pushedNoise(t, ref, 300_000)
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request, h http.Handler)
		says   string
	}{
		{"all again", func(w http.ResponseWriter, r *http.Request, h http.Handler) {
			r.Header.Del("Range")
			h.ServeHTTP(w, r)
		}, ""},
		{"another range", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Range", "bytes 5-9/300000")
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(http.StatusPartialContent)
		}, `has the Content-Range "bytes 5-9/300000"`},
		{"another length", func(w http.ResponseWriter, r *http.Request, h http.Handler) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			w.Header().Set("Content-Range", rec.Header().Get("Content-Range"))
			w.Header().Set("Content-Length", strconv.Itoa(rec.Body.Len()-1))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(rec.Body.Bytes()[1:])
		}, "but the manifest says"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &breaking{after: 100_000}
			b.times.Store(1)
			wrap := func(h http.Handler) http.Handler {
				h = b.wrap(h)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Range") != "" {
						c.answer(w, r, h)
						return
					}
					h.ServeHTTP(w, r)
				})
			}
			w.wrap.Store(&wrap)
			defer w.wrap.Store(nil)
			s := openStore(t)
			img, _, err := Pull(t.Context(), s, ref, PullOptions{RegistryOptions: RegistryOptions{pause: noPause, Cache: t.TempDir()}})
			switch {
			case c.says == "" && (err != nil || img.Digest != want.Digest):
				t.Errorf("pulled %+v, %v; want %s", img, err, want.Digest)
			case c.says != "" && (!errors.Is(err, ErrRegistry) || !strings.Contains(fmt.Sprint(err), c.says)):
				t.Errorf("error %v, want one that says %q", err, c.says)
			case c.says != "":
				nothingKept(t, s)
			}
		})
	}
}
