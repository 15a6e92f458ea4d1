package oci

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
)

// watch stands in front of a registry and records the requests.
type watch struct {
	host     string
	mu       sync.Mutex
	requests []string
	wrap     atomic.Pointer[func(http.Handler) http.Handler]
}

func watchRegistry(t testing.TB, behind string) *watch {
	t.Helper()
	w := &watch{}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind})
	proxy.Director = func(r *http.Request) { r.URL.Scheme, r.URL.Host = "http", behind } // Host stays: the registry's answers contain it
	proxy.ErrorLog = nil
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.requests = append(w.requests, r.Method+" "+r.URL.Path)
		w.mu.Unlock()
		var h http.Handler = proxy
		if wrap := w.wrap.Load(); wrap != nil {
			h = (*wrap)(h)
		}
		h.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.host = strings.TrimPrefix(server.URL, "http://")
	return w
}

// count returns the number of requests with this method and path part since the last call, which
// forgets them.
func (w *watch) count(method, part string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.requests {
		if strings.HasPrefix(r, method+" ") && strings.Contains(r, part) {
			n++
		}
	}
	w.requests = nil
	return n
}

func pullFrom(t testing.TB, s *store.Store, ref string) (*store.Image, Remote) {
	t.Helper()
	img, r, err := Pull(t.Context(), s, ref, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return img, r
}

// TestPushPull: Push sends and pull fetches only missing layers, and the pulled image is found by
// its digest at the registry.
func TestPushPull(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	one, two := twoLayers(t)
	odd := oddLayer(t, 100_000)
	config := configFor(t, one, two, odd)
	images, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, config, []string{"app:1"}, one, two, odd)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	name := w.host + "/team/app:1"
	named, err := s.Tag(t.Context(), images[0].Digest, name)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := Push(t.Context(), s, named, name, PushOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// To another store, the whole image.
	other := openStore(t)
	w.count("", "")
	img, got := pullFrom(t, other, name)
	if n := w.count("GET", "/blobs/"); n != 4 {
		t.Errorf("%d blobs were fetched, want a configuration and 3 layers", n)
	}
	if img.Digest != images[0].Digest {
		t.Errorf("pulled %s, pushed %s", img.Digest, images[0].Digest)
	}
	if want := (Remote{Name: name, Digest: sent.Digest, Size: sent.Size}); got != want {
		t.Errorf("pulled %+v, want %+v", got, want)
	}
	if diff := cmp.Diff([]string{name}, img.Names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(listing(t, s, images[0]), listing(t, other, img)); diff != "" {
		t.Errorf("files (-pushed +pulled):\n%s", diff)
	}

	// A second pull, also by digest, fetches only the manifest.
	for _, ref := range []string{name, w.host + "/team/app@" + string(sent.Digest)} {
		w.count("", "")
		if again, _ := pullFrom(t, other, ref); again.Digest != img.Digest {
			t.Errorf("%s: %s, then %s", ref, img.Digest, again.Digest)
		}
		if n := w.count("GET", "/blobs/"); n != 0 {
			t.Errorf("%s: %d blobs were fetched again", ref, n)
		}
	}
	remote := w.host + "/team/app@" + string(sent.Digest)
	for _, x := range []*store.Store{s, other} {
		if img, err := x.Image(remote); err != nil || img.Digest != images[0].Digest {
			t.Errorf("the image that registries call %s: %v, %v", remote, img, err)
		}
	}
	if n := len(other.Images()); n != 1 {
		t.Errorf("%d images, want one", n)
	}

	// A second push sends nothing, and the manifest is the same.
	w.count("", "")
	var steps []string
	again, err := Push(t.Context(), other, img, name, PushOptions{RegistryOptions: RegistryOptions{Options: Options{Report: func(e image.Progress) {
		if e.Step == "layer" {
			steps = append(steps, e.Message)
		}
	}}}})
	if err != nil || again != sent {
		t.Errorf("pushed again: %+v, %v, want %+v", again, err, sent)
	}
	if n := w.count("PATCH", ""); n != 0 {
		t.Errorf("%d blobs were sent again", n)
	}

	if diff := cmp.Diff([]string{"already in the registry", "already in the registry", "already in the registry"}, steps); diff != "" {
		t.Errorf("layers pushed again (-want +got):\n%s", diff)
	}

	// A push to a repository without the layers packs them, with the same result each time.
	elsewhere, err := Push(t.Context(), other, img, w.host+"/elsewhere:1", PushOptions{})
	if err != nil || elsewhere != sent {
		t.Errorf("pushed elsewhere: %+v, %v, want %+v", elsewhere, err, sent)
	}

	if _, err := other.Image(w.host + "/elsewhere@" + string(sent.Digest)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name for one push is known: %v", err)
	}

	// Another image on the same first layer fetches only the rest.
	three := pack(t, file("third", "3"))
	more, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, configFor(t, one, three), nil, one, three)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Push(t.Context(), s, more[0], w.host+"/team/more", PushOptions{}); err != nil {
		t.Fatal(err)
	}
	w.count("", "")
	pullFrom(t, other, w.host+"/team/more")
	if n := w.count("GET", "/blobs/"); n != 2 {
		t.Errorf("%d blobs were fetched, want a configuration and a layer", n)
	}
}

// TestPushOwn: An image that FRE built can be pushed and pulled as an ordinary image.
func TestPushOwn(t *testing.T) {
	host := fretest.Registry(t)
	s := openStore(t)
	own := ownImage(t, s)
	if _, err := Push(t.Context(), s, own, host+"/hello:0.1", PushOptions{AsImage: true}); err != nil {
		t.Fatal(err)
	}
	other := openStore(t)
	img, _ := pullFrom(t, other, host+"/hello:0.1")
	if diff := cmp.Diff(listing(t, s, own), listing(t, other, img)); diff != "" {
		t.Errorf("files (-built +pulled):\n%s", diff)
	}
}

// TestRegistryErrors: If a registry lies about digests or sizes, sends nonsense or fails, the pull
// fails with the registry's fault and keeps nothing.
func TestRegistryErrors(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	one, two := twoLayers(t)
	images, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, configFor(t, one, two), []string{"app:1"}, one, two)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Push(t.Context(), s, images[0], w.host+"/app:1", PushOptions{}); err != nil {
		t.Fatal(err)
	}
	nobody := fretest.Refusing(t)
	answer := func(status int) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		}
	}
	body := func(part string, change func([]byte) []byte) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, part) {
					h.ServeHTTP(w, r)
					return
				}
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, r)
				w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
				_, _ = w.Write(change(rec.Body.Bytes()))
			})
		}
	}
	flip := func(b []byte) []byte {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 1
		return b
	}
	// size changes the sizes after a media type in the manifest.
	size := func(after string) func(int) func([]byte) []byte {
		sizes := regexp.MustCompile(`(` + regexp.QuoteMeta(after) + `","size":)\d+`)
		return func(n int) func([]byte) []byte {
			return func(b []byte) []byte { return sizes.ReplaceAll(b, fmt.Appendf(nil, "${1}%d", n)) }
		}
	}
	config, layers := size("config.v1+json"), size("layer.v1.tar+gzip")
	for _, c := range []struct {
		name string
		ref  string
		wrap func(http.Handler) http.Handler
		o    PullOptions
		want error
		says string
	}{
		{"malformed", "No Name", nil, PullOptions{}, ErrReference, "No Name"},
		{"unknown tag", w.host + "/app:2", nil, PullOptions{}, fs.ErrNotExist, "MANIFEST_UNKNOWN"},
		{"unknown image", w.host + "/none", nil, PullOptions{}, fs.ErrNotExist, "none"},
		{"unknown digest", w.host + "/app@sha256:" + strings.Repeat("0", 64), nil, PullOptions{}, fs.ErrNotExist, "MANIFEST_UNKNOWN"},
		{"nobody there", nobody + "/app:1", nil, PullOptions{}, ErrRegistry, "cannot be reached"},
		{"not allowed", w.host + "/app:1", answer(http.StatusForbidden), PullOptions{}, fs.ErrPermission, "docker login"},
		{"another platform", w.host + "/app:1", nil, PullOptions{Platform: "linux/s390x"}, ErrPlatform, "s390x"},
		{"an index without this platform", w.host + "/app:1", func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", string(types.OCIImageIndex))
				_, _ = fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":"sha256:%064d","size":2,"platform":{"architecture":"s390x","os":"linux"}}]}`,
					types.OCIImageIndex, types.OCIManifestSchema1, 0)
			})
		}, PullOptions{}, ErrPlatform, "no image for " + platform()},
		{"no platform", w.host + "/app:1", nil, PullOptions{Platform: "a/b/c/d"}, ErrPlatform, "a/b/c/d"},
		{"blobs are damaged", w.host + "/app:1", body("/blobs/", flip), PullOptions{}, ErrRegistry, "sha256"},
		{"blobs break off", w.host + "/app:1", body("/blobs/", func(b []byte) []byte { return b[:len(b)/2] }), PullOptions{}, ErrRegistry, ""},
		{"manifest is no JSON", w.host + "/app:1", body("/manifests/", func([]byte) []byte { return []byte("]") }), PullOptions{}, ErrRegistry, "invalid character"},
		{"manifest does not end", w.host + "/app:1", body("/manifests/", func([]byte) []byte { return make([]byte, maxManifest+1) }), PullOptions{}, ErrLimit, "a manifest"},
		{"configuration of any size", w.host + "/app:1", body("/manifests/", config(-1)), PullOptions{}, ErrLimit, "configuration of -1 bytes"},
		{"configuration of another size", w.host + "/app:1", body("/manifests/", config(1)), PullOptions{}, ErrRegistry, "size"},
		{"layers of another size", w.host + "/app:1", body("/manifests/", layers(1)), PullOptions{}, ErrRegistry, "but the manifest says"},
		{"layers of less than nothing", w.host + "/app:1", body("/manifests/", layers(-1)), PullOptions{}, ErrLimit, "-1"},
		{"layers over the limit", w.host + "/app:1", body("/manifests/", layers(1<<60)), PullOptions{}, ErrLimit, "packed"},
		{"layers that are something else", w.host + "/app:1", body("/manifests/", func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("image.config.v1"), []byte("artifact.v1"))
		}), PullOptions{}, ErrArchive, "not an image"},
		{"over the limit", w.host + "/app:1", nil, PullOptions{RegistryOptions: RegistryOptions{Options: Options{Limits: Limits{Entries: 3}}}}, ErrLimit, "3 files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.wrap != nil {
				w.wrap.Store(&c.wrap)
				defer w.wrap.Store(nil)
			}
			other := openStore(t)
			_, _, err := Pull(t.Context(), other, c.ref, c.o)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.want, c.says)
			}
			nothingKept(t, other)
		})
	}
}

// TestPullCanceled: A pull that is cancelled in the middle of a layer ends and leaves nothing.
func TestPullCanceled(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	layer := pack(t, file("a", "1"))
	images, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, configFor(t, layer), nil, layer)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Push(t.Context(), s, images[0], w.host+"/app:1", PushOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("gave up")
	wrap := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				h.ServeHTTP(w, r)
				return
			}
			_, _ = w.Write([]byte("{")) // of unknown length
			_ = http.NewResponseController(w).Flush()
			cancel(gaveUp)
			<-r.Context().Done() // until the client disconnects
		})
	}
	w.wrap.Store(&wrap)
	other := openStore(t)
	if _, _, err := Pull(ctx, other, w.host+"/app:1", PullOptions{}); !errors.Is(err, gaveUp) {
		t.Errorf("error %v, want %v", err, gaveUp)
	}
	nothingKept(t, other)
}

// TestAuth: A registry that asks for a login gets the given login, or the one of the docker
// configuration.
func TestAuth(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	wrap := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "ann" || password != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	w.wrap.Store(&wrap)
	s := openStore(t)
	own := ownImage(t, s)
	name := w.host + "/own:1"
	config := t.TempDir()
	t.Setenv("DOCKER_CONFIG", config)
	if _, err := Push(t.Context(), s, own, name, PushOptions{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("without a login: %v", err)
	}
	if _, err := Push(t.Context(), s, own, name, PushOptions{RegistryOptions: RegistryOptions{Auth: &Auth{Username: "ann", Password: "wrong"}}}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("with a wrong login: %v", err)
	}
	if _, err := Push(t.Context(), s, own, name, PushOptions{RegistryOptions: RegistryOptions{Auth: &Auth{Username: "ann", Password: "secret"}}}); err != nil {
		t.Errorf("with the login: %v", err)
	}
	if err := Login(t.Context(), w.host, RegistryOptions{Auth: &Auth{Username: "ann", Password: "secret"}}); err != nil {
		t.Errorf("Login: %v", err)
	}
	if err := Login(t.Context(), w.host, RegistryOptions{Auth: &Auth{Username: "ann", Password: "wrong"}}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Login with a wrong password: %v", err)
	}
	if err := Login(t.Context(), "no host", RegistryOptions{Auth: &Auth{Username: "ann"}}); !errors.Is(err, ErrReference) {
		t.Errorf("Login at no host: %v", err)
	}
	login := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, w.host, base64.StdEncoding.EncodeToString([]byte("ann:secret")))
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(login), 0o600); err != nil {
		t.Fatal(err)
	}
	pullFrom(t, openStore(t), name)
	if _, _, err := Pull(t.Context(), openStore(t), name, PullOptions{RegistryOptions: RegistryOptions{Auth: &Auth{}}}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("as a tenant, who must not use this process's login: %v", err)
	}
}

// TestAuthElsewhere: A login goes only to its own registry, even if the registry redirects.
func TestAuthElsewhere(t *testing.T) {
	behind := fretest.Registry(t)
	s := openStore(t)
	own := ownImage(t, s)
	if _, err := Push(t.Context(), s, own, behind+"/own:1", PushOptions{}); err != nil {
		t.Fatal(err)
	}
	var asked, told atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "" {
			told.Add(1)
		}
		http.Redirect(w, r, "http://"+behind+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer elsewhere.Close()
	auth := &Auth{Username: "ann", Password: "secret"}
	for _, c := range []struct {
		name  string
		wrap  func(http.Handler) http.Handler
		asked bool
	}{
		{"blobs lie elsewhere", func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch _, _, ok := r.BasicAuth(); {
				case !ok:
					w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
					w.WriteHeader(http.StatusUnauthorized)
				case strings.Contains(r.URL.Path, "/blobs/"):
					http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
				default:
					h.ServeHTTP(w, r)
				}
			})
		}, true},
		{"tokens come from elsewhere", func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+elsewhere.URL+`/token",service="test"`)
				w.WriteHeader(http.StatusUnauthorized)
			})
		}, false},
	} {
		w := watchRegistry(t, behind)
		w.wrap.Store(&c.wrap)
		other := openStore(t)
		asked.Store(0)
		_, _, err := Pull(t.Context(), other, w.host+"/own:1", PullOptions{RegistryOptions: RegistryOptions{Auth: auth}})
		if c.asked != (asked.Load() > 0) || told.Load() > 0 {
			t.Errorf("%s: it was asked %d times, and told the login %d times (%v)", c.name, asked.Load(), told.Load(), err)
		}
		if !c.asked && !errors.Is(err, ErrRegistry) {
			t.Errorf("%s: error %v, want %v", c.name, err, ErrRegistry)
		}
	}
}

// TestSilence: A request to a registry that stops in the middle, or never begins, fails. A slow
// reader does not fail.
func TestSilence(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begins" {
			_, _ = w.Write([]byte("a"))
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Path != "/ends" {
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	for _, path := range []string{"/begins", "/never"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&guard{local: true, patience: 20 * time.Millisecond}).RoundTrip(r)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "silent for 20ms") {
			t.Errorf("%s: error %v, want %v", path, err, os.ErrDeadlineExceeded)
		}
	}
	slow := &answer{ReadCloser: io.NopCloser(strings.NewReader("ab")), ctx: t.Context(), left: 2, patience: time.Hour}
	slow.timer = time.AfterFunc(time.Hour, func() {})
	if _, err := slow.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if slow.timer.Stop() {
		t.Error("the clock runs without a reader")
	}
}

// TestInsecure: Requests without TLS go only to loopback and to named hosts. A remote registry
// cannot direct the client to loopback.
func TestInsecure(t *testing.T) {
	for _, c := range []struct {
		url      string
		insecure []string
		want     bool
	}{
		{"https://example.com/v2/", nil, true},
		{"http://10.0.0.1:5000/v2/", nil, false},
		{"http://registry.local/v2/", nil, false},
		{"http://localhost.example.com/v2/", nil, false},
		{"http://10.0.0.1:5000/v2/", []string{"10.0.0.1"}, false},
		{"http://10.0.0.1:5000/v2/", []string{"10.0.0.1:5000"}, true},
		{"http://localhost:5000/v2/", nil, true},
		{"http://127.0.0.2/v2/", nil, true},
		{"http://[::1]:5000/v2/", nil, true},
	} {
		r, err := http.NewRequestWithContext(canceled(t), http.MethodGet, c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		// The context is cancelled, so a permitted request fails with this error.
		for _, registry := range []string{r.URL.Host, "example.com"} {
			host, err := name.NewRegistry(registry)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := RegistryOptions{Insecure: c.insecure}.guard(host).RoundTrip(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			want := c.want && (!loopback(r.URL) || registry == r.URL.Host)
			if got := errors.Is(err, context.Canceled); got != want {
				t.Errorf("%s for %s with %q: let through %v (%v), want %v", c.url, registry, c.insecure, got, err, want)
			}
		}
	}
}

func canceled(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestLoadCanceled: A load whose input never ends can be cancelled.
func TestLoadCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("gave up")
	s := openStore(t)
	one, two := twoLayers(t)
	archive := dockerArchive(t, configFor(t, one, two), nil, one, two)
	_, err := Load(ctx, s, bytes.NewReader(archive), Options{Report: func(e image.Progress) {
		if e.Step == "layer" {
			cancel(gaveUp)
		}
	}})
	if !errors.Is(err, gaveUp) {
		t.Errorf("error %v, want %v", err, gaveUp)
	}
	nothingKept(t, s)
}

// TestFamiliar: Names are kept in docker's form.
func TestFamiliar(t *testing.T) {
	for ref, want := range map[string]string{
		"alpine": "alpine", "docker.io/library/alpine:3": "alpine:3", "docker.io/team/app": "team/app", "index.docker.io/library/x": "x",
		"library/alpine": "alpine", "library/alpine:3": "alpine:3", "library/team/x": "library/team/x", "docker.io/library/team/x": "library/team/x", "localhost:5000/library/x:1": "localhost:5000/library/x:1",
	} {
		if got := Familiar(ref); got != want {
			t.Errorf("Familiar(%q) = %q, want %q", ref, got, want)
		}
	}
}
