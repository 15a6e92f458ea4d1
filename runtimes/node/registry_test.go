package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

// pack makes a package's archive.
func pack(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range entries {
		body := h.Linkname
		if h.Typeflag == tar.TypeReg || h.Typeflag == 0 {
			h.Size, h.Linkname = int64(len(body)), ""
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// file is an entry; Linkname holds its content until pack.
func file(name, content string, mode int64) tar.Header {
	return tar.Header{Name: name, Linkname: content, Mode: mode}
}

func integrity(b []byte) string {
	sum := sha512.Sum512(b)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// registriesOf returns the registries of a host with the npmrc rc.
func registriesOf(t *testing.T, rc string, env ...string) *registries {
	t.Helper()
	name := filepath.Join(t.TempDir(), "npmrc")
	if err := os.WriteFile(name, []byte(rc), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := newRegistries(image.Settings{Tools: []any{Settings{RC: name}}, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	r.wait = time.Millisecond
	t.Cleanup(r.close)
	return r
}

// scratch is the file for a fetched archive.
func scratch(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "archive"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestRegistry fetches archives from well-behaved and from misbehaving registries.
func TestRegistry(t *testing.T) {
	good := pack(t, file("package/index.js", "1", 0o644))
	var mu sync.Mutex
	calls := map[string]int{}
	var host string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /good/a/-/a-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good) })
	mux.HandleFunc("GET /good/@s/b/-/b-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good) })
	mux.HandleFunc("GET /other/a", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"versions":{"1.0.0":{"dist":{"tarball":"%s/elsewhere/a.tgz"}}}}`, host)
	})
	mux.HandleFunc("GET /elsewhere/a.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good) })
	mux.HandleFunc("GET /bad/a", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"versions":{"1.0.0":{"dist":{"tarball":"file:///etc/passwd"}}}}`)
	})
	mux.HandleFunc("GET /older/a", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"versions":{"0.9.0":{}}}`) })
	mux.HandleFunc("GET /private/", func(w http.ResponseWriter, r *http.Request) {
		if user, word, _ := r.BasicAuth(); r.Header.Get("Authorization") != "Bearer s3cret" && (user != "me" || word != "s3cret") {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(good)
	})
	mux.HandleFunc("GET /forbidden/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	mux.HandleFunc("GET /busy/", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if calls[r.URL.Path]++; calls[r.URL.Path] < 3 {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(good)
	})
	mux.HandleFunc("GET /limited/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "slowly", http.StatusTooManyRequests) })
	mux.HandleFunc("GET /down/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oh", http.StatusBadGateway) })
	mux.HandleFunc("GET /short/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(good)+9))
		_, _ = w.Write(good)
	})
	mux.HandleFunc("GET /changed/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(pack(t, file("package/index.js", "2", 0o644)))
	})
	mux.HandleFunc("GET /huge/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(int64(maxArchive)+1))
	})
	mux.HandleFunc("GET /loop/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) })
	server := httptest.NewServer(mux)
	defer server.Close()
	host = server.URL
	bare := strings.TrimPrefix(host, "http:")
	t.Setenv("FRE_TEST_TOKEN", "s3cret")

	for name, tt := range map[string]struct {
		rc, pkg, want string // of the error
		cause         image.PackageCause
	}{
		"usual address":       {"registry=" + host + "/good/", "a", "", 0},
		"scope":               {"registry=" + host + "/down\n@s:registry = " + host + "/good", "@s/b", "", 0},
		"unusual address":     {"registry=" + host + "/other", "a", "", 0},
		"bad address":         {"registry=" + host + "/bad", "a", "bad address", image.SiteDown},
		"no such version":     {"registry=" + host + "/older", "a", "no version 1.0.0", image.PackageGone},
		"unknown package":     {"registry=" + host + "/good", "nope", "404", image.PackageGone},
		"token":               {"registry=" + host + "/private/\n" + bare + "/private/:_authToken=s3cret", "a", "", 0},
		"token of a variable": {"registry=" + host + "/private/\n" + bare + "/:_authToken=${FRE_TEST_TOKEN}", "a", "", 0},
		"_auth":               {"registry=" + host + "/private/\n" + bare + "/private/:_auth=" + base64.StdEncoding.EncodeToString([]byte("me:s3cret")), "a", "", 0},
		"password":            {"registry=" + host + "/private/\n" + bare + "/private/:username=me\n" + bare + "/private/:_password=" + base64.StdEncoding.EncodeToString([]byte("s3cret")), "a", "", 0},
		"in the address":      {"registry=" + strings.Replace(host, "//", "//me:s3cret@", 1) + "/private/", "a", "", 0},
		"wrong word":          {"registry=" + strings.Replace(host, "//", "//me:s3cret2@", 1) + "/private/", "a", "401 Unauthorized: the credentials in npm's configuration", image.SiteRefused},
		"another's token":     {"registry=" + host + "/private/\n" + bare + "/good/:_authToken=s3cret", "a", "401", image.SiteRefused},
		"forbidden":           {"registry=" + host + "/forbidden/", "a", "missing or wrong", image.SiteRefused},
		"busy":                {"registry=" + host + "/busy", "a", "", 0},
		"too many requests":   {"registry=" + host + "/limited", "a", "429 Too Many Requests: too many requests, several attempts apart", image.SiteBusy},
		"down":                {"registry=" + host + "/down", "a", "502", image.SiteDown},
		"truncated":           {"registry=" + host + "/short", "a", "ended after", image.SiteDown},
		"changed":             {"registry=" + host + "/changed", "a", "EINTEGRITY", image.PackageChanged},
		"huge":                {"registry=" + host + "/huge", "a", "larger than is allowed", image.PackageBad},
		"endless redirects":   {"registry=" + host + "/loop", "a", "redirects", image.SiteDown},
		"unreachable":         {"registry=http://127.0.0.1:1/", "a", "connection refused", image.SiteDown},
		"no address":          {"registry=::", "a", "bad address", image.SiteDown},
	} {
		t.Run(name, func(t *testing.T) {
			f := scratch(t)
			err := registriesOf(t, tt.rc).archive(t.Context(), tt.pkg, "1.0.0", integrity(good), f)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				var e *image.PackageError
				if !errors.As(fetched(err, "a 1.0.0"), &e) || e.Cause != tt.cause || !strings.Contains(e.Error(), "packages.npm: a 1.0.0: ") || e.Next() == "" {
					t.Errorf("got %+v, want the cause %d", e, tt.cause)
				}
				if err != nil && strings.Contains(err.Error(), "s3cret") {
					t.Errorf("the error repeats a password: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, good) {
				t.Errorf("%d bytes, want %d: %v", len(got), len(good), err)
			}
		})
	}
	if registriesOf(t, "registry=http://a", "npm_config_registry=http://b").of("x") != "http://b/" {
		t.Error("the environment does not come before the file")
	}
}

// Credentials go only to their own address, even after a redirect.
func TestRegistryRedirect(t *testing.T) {
	good := pack(t, file("package/index.js", "1", 0o644))
	var seen []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		_, _ = w.Write(good)
	}))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/a.tgz", http.StatusFound))
	defer server.Close()
	rc := "registry=" + server.URL + "\n" + strings.TrimPrefix(server.URL, "http:") + "/:_authToken=s3cret\n"
	if err := registriesOf(t, rc).archive(t.Context(), "a", "1.0.0", integrity(good), scratch(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{""}, seen); diff != "" {
		t.Errorf("sent elsewhere: %s", diff)
	}
}

// TestGivenUp: A cancelled build keeps its complete packages. The next build fetches only the rest.
func TestGivenUp(t *testing.T) {
	l := &packageLock{ByPlace: map[string]lockedPackage{}}
	archives := map[string][]byte{}
	var places []string
	for _, name := range []string{"a", "b", "c"} {
		archive := pack(t, file("package/index.js", name, 0o644))
		archives["/"+name+"/-/"+name+"-1.0.0.tgz"] = archive
		place := "node_modules/" + name
		l.ByPlace[place] = lockedPackage{Version: "1.0.0", Integrity: integrity(archive)}
		places = append(places, place)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var mu sync.Mutex
	var asked []string
	whole := make(chan struct{}, len(places))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		archive := archives[r.URL.Path]
		if r.URL.Path == "/c/-/c-1.0.0.tgz" && ctx.Err() == nil { // stops until the others are complete
			_, _ = w.Write(archive[:len(archive)/2])
			_ = http.NewResponseController(w).Flush()
			<-whole
			<-whole
			giveUp()
			<-r.Context().Done() // an end would look like the archive's end
			return
		}
		_, _ = w.Write(archive)
	}))
	defer server.Close()
	rc := filepath.Join(t.TempDir(), "npmrc")
	if err := os.WriteFile(rc, []byte("registry="+server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	st := openStore(t)
	s := &site{step: &image.Step{Store: st, Scratch: t.TempDir(), Settings: image.Settings{Tools: []any{Settings{RC: rc}}}, Report: func(e image.Progress) {
		if e.Step == "packages" && e.End {
			whole <- struct{}{}
		}
	}}}
	release := st.Hold()
	if _, err := s.install(ctx, l, places); !errors.Is(err, context.Canceled) {
		t.Fatalf("given up: %v", err)
	}
	release()
	asked = nil
	defer st.Hold()()
	parts, err := s.install(t.Context(), l, places)
	if err != nil || len(parts) != len(places) {
		t.Fatalf("the second time: %v, %v", parts, err)
	}
	if diff := cmp.Diff([]string{"/c/-/c-1.0.0.tgz"}, asked); diff != "" {
		t.Errorf("asked for the second time (-want +got):\n%s", diff)
	}
}

// TestStrongest: The strongest hash of an integrity counts; a weak or malformed one is refused.
func TestStrongest(t *testing.T) {
	one := integrity([]byte("a"))
	if p, err := strongest("sha1-" + strings.Repeat("A", 27) + "= " + one + "?x"); err != nil || len(p.want) != 64 || p.algorithm != "sha512" {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, bad := range []string{"", "md5-AAAA", "sha512-", "sha512-AAAA", "sha512-" + strings.Repeat("!", 88), "sha512"} {
		if _, err := strongest(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// newWriter is a tree of the test's own store.
func newWriter(t testing.TB, s *store.Store) *store.Writer {
	t.Helper()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Abort)
	return w
}

func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestUnpack(t *testing.T) {
	s := openStore(t)
	w := newWriter(t, s)
	links, err := unpack(bytes.NewReader(pack(t,
		tar.Header{Name: "package/", Typeflag: tar.TypeDir, Mode: 0o777},
		file("package/package.json", "{}", 0o4755),
		file("other-name/bin/cli.js", "#!", 0o644),
		file("./package/README", "x", 0o600),
		file("package/readme", "y", 0o600),
		tar.Header{Name: "package/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "package/hard", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"},
	)), map[string]bool{"bin/cli.js": true}, install.NewCounter().Package("p"), w)
	if err != nil || links != 2 {
		t.Fatalf("%d links, %v", links, err)
	}
	digest, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tree, err := s.Tree(digest)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	for _, e := range tree.Entries {
		if e.Kind == store.KindFile {
			got[e.Path] = fs.FileMode(e.Mode)
		}
	}
	want := map[string]fs.FileMode{"package.json": 0o755, "bin/cli.js": 0o755, "README": 0o644, "readme": 0o644}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestUnpackRefuses: An npm archive with a wrong hash, a path out, a device or too much content is
// refused.
func TestUnpackRefuses(t *testing.T) {
	s := openStore(t)
	whole := pack(t, file("package/index.js", strings.Repeat("x", 4096), 0o644))
	many := make([]tar.Header, 300)
	for i := range many {
		many[i] = file(fmt.Sprintf("package/%d", i), "", 0o644)
	}
	for name, tt := range map[string]struct {
		archive []byte
		want    string
	}{
		"no archive":           {[]byte("hello, this is no archive"), "gzip"},
		"nothing":              {nil, "EOF"},
		"cut short":            {whole[:len(whole)/2], "unexpected EOF"},
		"..":                   {pack(t, file("package/../../x", "", 0o644)), "leads out"},
		".. first":             {pack(t, file("../x", "", 0o644)), "leads out"},
		"absolute":             {pack(t, file("/etc/passwd", "", 0o644)), "leads out"},
		"device":               {pack(t, tar.Header{Name: "package/x", Typeflag: tar.TypeBlock}), "device"},
		"fifo":                 {pack(t, tar.Header{Name: "package/x", Typeflag: tar.TypeFifo}), "device"},
		"file at the top":      {pack(t, file("x", "", 0o644)), "not below a directory"},
		"file for a directory": {pack(t, file("package/a", "x", 0o644), file("package/a/b", "x", 0o644)), "a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := unpack(bytes.NewReader(tt.archive), nil, install.NewCounter().Package("p"), newWriter(t, s))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// nowhere accepts files like a store and drops them.
type nowhere struct{ files map[string]bool }

func (n nowhere) File(p string, _ fs.FileMode, _ time.Time, r io.Reader) error {
	n.files[p] = true
	_, err := io.Copy(io.Discard, r)
	return err
}

func (n nowhere) Directory(p string, _ fs.FileMode, _ time.Time) error {
	n.files[p] = true
	return nil
}

// Unpack refuses a package by its stated size, and never reads more than the stated size.
func TestBomb(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "package/x", Mode: 0o644, Size: 5 << 30}), z.Close()); err != nil {
		t.Fatal(err)
	}
	_, err := unpack(&b, nil, install.NewCounter().Package("p"), nowhere{map[string]bool{}})
	if !errors.Is(err, install.ErrTooLarge) || !strings.Contains(err.Error(), "p unpacks to more") {
		t.Errorf("got %v", err)
	}
}

// FuzzUnpack: Any archive writes only clean paths within its package.
func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, file("package/index.js", "1", 0o644), tar.Header{Name: "package/l", Typeflag: tar.TypeSymlink, Linkname: "x"}))
	f.Add(pack(f, file("package/../x", "1", 0o644)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		n := nowhere{map[string]bool{}}
		_, err := unpack(bytes.NewReader(raw), nil, install.NewCounter().Package("p"), n)
		for name := range n.files {
			if name == "" || path.IsAbs(name) || path.Clean(name) != name || strings.HasPrefix(name, "..") {
				t.Errorf("wrote %q (%v)", name, err)
			}
		}
	})
}
