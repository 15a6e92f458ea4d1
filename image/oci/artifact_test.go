package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// builtImage puts an image in the form of the builder: a base and further parts.
func builtImage(t testing.TB, s *store.Store, id string, parts ...store.Part) *store.Image {
	t.Helper()
	config, err := json.Marshal(builtConfig())
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.PutImage(t.Context(), store.Manifest{Name: id, Version: "1", Parts: parts, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func builtConfig() image.Config {
	return image.Config{
		Base: "native", Handler: "bin/x", Args: []string{"/function/bin/x"}, Env: []string{"A=b"}, Protocol: image.ProtocolStdio, Tenant: "default",
		Instances: template.Instances{Isolation: template.IsolationEvent, Fork: template.ForkAuto, Concurrency: 1, Max: 64},
		Resources: template.Resources{MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 64, TmpBytes: 64 << 20, Files: 1024, Timeout: 1e9},
		Network:   template.Network{Mode: template.NetworkNone},
	}
}

// part makes a part of files, a directory and links.
func part(t testing.TB, s *store.Store, kind, name, prefix string, files map[string]string) store.Part {
	t.Helper()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for name, body := range files {
		mode := os.FileMode(0o644)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		if err := w.File(name, mode, testTime, strings.NewReader(body)); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return store.Part{Kind: kind, Name: name, Version: "1.0", Tree: tree, Prefix: prefix}
}

func basePart(t testing.TB, s *store.Store) store.Part {
	t.Helper()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	large := strings.Repeat("a large file\n", 100_000)
	must(w.File("bin/sh", 0o755, testTime, strings.NewReader(large)))
	must(w.File("bin/same", 0o755, testTime, strings.NewReader(large)))
	must(w.File("etc/other-mode", 0o600, testTime, strings.NewReader(large)))
	must(w.File("etc/empty", 0o644, testTime, strings.NewReader("")))
	must(w.SetOwner(1000, 100))
	must(w.File("home/owned", 0o640, testTime, strings.NewReader("mine")))
	must(w.SetOwner(0, 0))
	must(w.Symlink("usr/bin", "../bin", testTime))
	must(w.Directory("var/empty dir", 0o700, testTime))
	must(w.Aside("aside", strings.NewReader("kept beside")))
	tree, err := w.Commit(t.Context())
	must(err)
	return store.Part{Kind: "base", Name: "native", Version: "bookworm", Tree: tree}
}

// TestArtifact: A pulled artifact equals the image that FRE built. Push and pull move only the
// missing parts.
func TestArtifact(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	release := s.Hold()
	defer release()
	base := basePart(t, s)
	lib := part(t, s, "pip", "@scope/lib", "usr/lib/python3/lib", map[string]string{"lib.py": strings.Repeat("lib", 50_000)})
	one := builtImage(t, s, "one", base, lib, part(t, s, "code", "one", "function", map[string]string{"bin/x": "one"}))
	two := builtImage(t, s, "two", base, lib, part(t, s, "code", "two", "function", map[string]string{"bin/x": "two"}))

	sent, err := Push(t.Context(), s, one, w.host+"/team/fn:1", PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other := openStore(t)
	w.count("", "")
	got, remote := pullFrom(t, other, w.host+"/team/fn:1")
	if n := w.count("GET", "/blobs/"); n != 4 {
		t.Errorf("%d blobs were fetched, want a manifest of FRE's and 3 parts", n)
	}
	if got.Digest != one.Digest || remote.Digest != sent.Digest || !got.Foreign {
		t.Errorf("pulled %s as %s (foreign: %v), want %s as %s", got.Digest, remote.Digest, got.Foreign, one.Digest, sent.Digest)
	}
	if diff := cmp.Diff(one.Parts, got.Parts); diff != "" {
		t.Errorf("parts (-built +pulled):\n%s", diff)
	}
	if diff := cmp.Diff(string(one.Config), string(got.Config)); diff != "" {
		t.Errorf("configuration (-built +pulled):\n%s", diff)
	}
	if diff := cmp.Diff([]string{w.host + "/team/fn:1"}, got.Names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if got.Built != "one:1" {
		t.Errorf("it was built as %q, want one:1", got.Built)
	}
	if _, err := other.Image("one:1"); err == nil {
		t.Error("a pull gave the image an unrequested name")
	}
	if diff := cmp.Diff(listing(t, s, one), listing(t, other, got)); diff != "" {
		t.Errorf("files (-built +pulled):\n%s", diff)
	}

	// A second function on the same base and package moves only its own part.
	var moved atomic.Int64
	count := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(&countedAnswer{rw, &moved}, r)
		})
	}
	if _, err := Push(t.Context(), s, two, w.host+"/team/fn:2", PushOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wrap.Store(&count)
	w.count("", "")
	got, _ = pullFrom(t, other, w.host+"/team/fn:2")
	w.wrap.Store(nil)
	if n := w.count("GET", "/blobs/"); n != 2 || got.Digest != two.Digest {
		t.Errorf("%d blobs were fetched for %s, want a manifest of FRE's and a part for %s", n, got.Digest, two.Digest)
	}
	if n := moved.Load(); n > 8<<10 {
		t.Errorf("%d bytes moved for a part of 3", n)
	}

	// A push from the second store sends the same manifest and packs no part again.
	var steps []string
	on, err := Push(t.Context(), other, got, w.host+"/team/fn:3", PushOptions{RegistryOptions: RegistryOptions{Options: Options{Report: func(e image.Progress) {
		if e.Step == "layer" {
			steps = append(steps, e.Message)
		}
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := pullFrom(t, s, w.host+"/team/fn@"+string(on.Digest)); got.Digest != two.Digest || got.Foreign {
		t.Errorf("pulled back %s (foreign: %v), want our own %s", got.Digest, got.Foreign, two.Digest)
	}
	if diff := cmp.Diff(slices.Repeat([]string{"already in the registry"}, 3), steps); diff != "" {
		t.Errorf("parts pushed on (-want +got):\n%s", diff)
	}

	// An equal image built here is our own.
	release2 := other.Hold()
	defer release2()
	again, err := other.PutImage(t.Context(), store.Manifest{Name: "two", Version: "1", Parts: two.Parts, Config: two.Config})
	if err != nil || again.Digest != two.Digest || again.Foreign {
		t.Errorf("built again: %+v, %v", again, err)
	}
}

type countedAnswer struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *countedAnswer) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func (c *countedAnswer) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// TestArtifactAfterFailedBuild: A pull fetches a part whose tree remained from a failed build
// without its objects.
func TestArtifactAfterFailedBuild(t *testing.T) {
	host := fretest.Registry(t)
	s, other := openStore(t), openStore(t)
	files := map[string]string{"bin/x": "shared", "own": "two"}
	release := s.Hold()
	two := builtImage(t, s, "two", basePart(t, s), part(t, s, "code", "two", "function", files))
	release()
	if _, err := Push(t.Context(), s, two, host+"/team/two:1", PushOptions{}); err != nil {
		t.Fatal(err)
	}
	release = other.Hold()
	one := builtImage(t, other, "one", part(t, other, "code", "one", "function", map[string]string{"bin/x": "shared"}))
	part(t, other, "code", "two", "function", files) // without an image
	release()
	if err := other.RemoveImage(t.Context(), one.Digest); err != nil {
		t.Fatal(err)
	}
	got, _ := pullFrom(t, other, host+"/team/two:1")
	if diff := cmp.Diff(listing(t, s, two), listing(t, other, got)); diff != "" {
		t.Errorf("files (-built +pulled):\n%s", diff)
	}
}

// TestArtifactRefused: A manipulated artifact becomes the pushed image or none.
func TestArtifactRefused(t *testing.T) {
	s := openStore(t)
	release := s.Hold()
	defer release()
	base := basePart(t, s)
	code := part(t, s, "code", "one", "function", map[string]string{"bin/x": "one"})
	config, err := json.Marshal(builtConfig())
	if err != nil {
		t.Fatal(err)
	}
	m := store.Manifest{Name: "one", Version: "1", Parts: []store.Part{base, code}, Config: config}
	change := func(f func(*store.Manifest)) func(*served) {
		return func(x *served) {
			m := m
			m.Parts = slices.Clone(m.Parts)
			f(&m)
			x.config = marshal(t, m)
		}
	}
	configured := func(f func(*image.Config)) func(*served) {
		return change(func(m *store.Manifest) {
			c := builtConfig()
			f(&c)
			m.Config = marshal(t, c)
		})
	}
	for _, c := range []struct {
		name   string
		change func(*served)
		ref    string
		want   error
		says   string
	}{
		{"as it was pushed", func(*served) {}, "", nil, ""},
		{"for another platform", func(x *served) { x.m.Annotations[annotationPlatform] = "linux/other" }, "", ErrPlatform, "linux/other"},
		{"for none", func(x *served) { x.m.Annotations = nil }, "", ErrPlatform, "build the image for the engine's platform"},
		{"a part too few", func(x *served) { x.parts = x.parts[:1] }, "", ErrArchive, "1 layers"},
		{"parts in another order", func(x *served) { slices.Reverse(x.parts) }, "", ErrArchive, "the digest is"},
		{"a part that is something else", func(x *served) { x.parts[1] = []byte("nothing of this") }, "", ErrArchive, "truncated"},
		{"a part with another list", func(x *served) { x.parts[1] = pack(t, file(partTree, `{"entries":[]}`)) }, "", ErrArchive, "the digest is"},
		{"a part without its files", func(x *served) { x.parts[1] = pack(t, file(partTree, treeOf(t, s, code))) }, "", ErrArchive, "ends before 0"},
		{"a file of another content", func(x *served) {
			x.parts[1] = pack(t, file(partTree, treeOf(t, s, code)), file("0", "two"))
		}, "", ErrArchive, "got 3 of sha256"},
		{"a file of another size", func(x *served) {
			x.parts[1] = pack(t, file(partTree, treeOf(t, s, code)), file("0", "three"))
		}, "", ErrArchive, "to have 3 bytes and has 5"},
		{"a file more", func(x *served) {
			x.parts[1] = pack(t, file(partTree, treeOf(t, s, code)), file("0", "one"), file("1", "one"))
		}, "", ErrArchive, "after the last file"},
		{"files by name", func(x *served) {
			x.parts[1] = pack(t, file(partTree, treeOf(t, s, code)), file("../../etc/passwd", "one"))
		}, "", ErrArchive, "instead of the file 0"},
		{"a link for a file", func(x *served) {
			x.parts[1] = pack(t, file(partTree, treeOf(t, s, code)), link('2', "0", "/etc/passwd"))
		}, "", ErrArchive, "instead of the file 0"},
		{"much behind its end", func(x *served) {
			x.parts[1] = append(pack(t, file(partTree, treeOf(t, s, code)), file("0", "one")), make([]byte, 2<<20)...)
		}, "", ErrArchive, "data after the end"},
		{"a manifest that is none", func(x *served) { x.config = []byte("{}}") }, "", ErrArchive, "the image's manifest"},
		{"a manifest in another spelling", func(x *served) { x.config = append(x.config, '\n') }, "", ErrArchive, "canonical"},
		{"a manifest of what is not known", func(x *served) { x.config = []byte(`{"name":"one","newer":1}`) }, "", ErrArchive, "newer"},
		{"a path out of the root", change(func(m *store.Manifest) { m.Parts[1].Prefix = "../x" }), "", ErrArchive, "form no image"},
		{"a name that is none", change(func(m *store.Manifest) { m.Name = "a/../b\x00" }), "", ErrArchive, "form no image"},
		{"a tree that is none", change(func(m *store.Manifest) { m.Parts[1].Tree = "../../x" }), "", ErrArchive, "malformed"},
		{"a tenant that is a path", configured(func(c *image.Config) { c.Tenant = "../root" }), "", ErrArchive, "tenant"},
		{"an instance too many", configured(func(c *image.Config) { c.Instances.Max = 1 << 30 }), "", ErrArchive, "instances.max"},
		{"less than no memory", configured(func(c *image.Config) { c.Resources.MemoryBytes = -1 }), "", ErrArchive, "resources.memory"},
		{"an unknown network", configured(func(c *image.Config) { c.Network.Mode = "all" }), "", ErrArchive, "network"},
		{"an unknown protocol", configured(func(c *image.Config) { c.Protocol = "new" }), "", ErrArchive, "protocol"},
		{"no program", configured(func(c *image.Config) { c.Args = nil }), "", ErrArchive, "no program"},
		{"a NUL", configured(func(c *image.Config) { c.Env = []string{"A=\x00"} }), "", ErrArchive, "NUL"},
		{"an image of others", configured(func(c *image.Config) { c.Container = &image.Container{} }), "", ErrArchive, "foreign"},
		{"a layer of another type", func(x *served) { x.media = "application/vnd.fre.part.v2.tar+zstd" }, "", ErrArchive, "the engine knows"},
		{"over the limit of files", func(x *served) { x.limits.Entries = 3 }, "", ErrLimit, "3 files"},
		{"over the limit of bytes", func(x *served) { x.limits.Bytes = 1 << 20 }, "", ErrLimit, "1048576 bytes"},
		{"over the limit of lists", func(x *served) { x.limits.Names = 100 }, "", ErrLimit, "100 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &served{m: v1.Manifest{Annotations: map[string]string{annotationPlatform: platform()}}, config: marshal(t, m), media: mediaPart}
			for _, p := range m.Parts {
				x.parts = append(x.parts, archiveOfPart(t, s, p))
			}
			c.change(x)
			other := openStore(t)
			_, _, err := Pull(t.Context(), other, x.serve(t)+"/x:1", PullOptions{RegistryOptions: RegistryOptions{Options: Options{Limits: x.limits}}})
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.want, c.says)
			}
			if c.want != nil {
				nothingKept(t, other)
			}
		})
	}
}

// TestArtifactReserved: A pull gives no image a reserved name, where builds look for trusted
// images.
func TestArtifactReserved(t *testing.T) {
	s := openStore(t)
	j := newJob(s, Options{})
	for _, name := range []string{"base/python:bookworm", "tools/python-1:x"} {
		if _, err := j.take(t.Context(), &artifact{manifest: store.Manifest{Config: marshal(t, builtConfig())}}, []string{name}); !errors.Is(err, ErrReference) {
			t.Errorf("%s: error %v, want %v", name, err, ErrReference)
		}
	}
}

func treeOf(t testing.TB, s *store.Store, p store.Part) string {
	t.Helper()
	b, err := s.TreeBytes(p.Tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func archiveOfPart(t testing.TB, s *store.Store, p store.Part) []byte {
	t.Helper()
	var b bytes.Buffer
	j := newJob(s, Options{})
	z, err := zstdWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if err := archiveOf(func(ctx context.Context, w *tar.Writer) error { return j.packPart(ctx, w, p.Tree) })(t.Context(), z); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// served is a registry of one artifact with correct digests for any content.
type served struct {
	m      v1.Manifest
	config []byte
	parts  [][]byte
	media  string
	limits Limits
}

func (x *served) serve(t testing.TB) string {
	t.Helper()
	blobs := map[string][]byte{}
	describe := func(media string, b []byte) v1.Descriptor {
		d, err := descriptor(types.MediaType(media), digestOf(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		blobs[d.Digest.String()] = b
		return d
	}
	x.m.SchemaVersion, x.m.MediaType, x.m.ArtifactType = 2, "application/vnd.oci.image.manifest.v1+json", mediaImage
	x.m.Config = describe(mediaManifest, x.config)
	for _, p := range x.parts {
		x.m.Layers = append(x.m.Layers, describe(x.media, p))
	}
	manifest := marshal(t, x.m)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch _, digest, ok := strings.Cut(r.URL.Path, "/blobs/"); {
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", string(x.m.MediaType))
			_, _ = w.Write(manifest)
		case ok && blobs[digest] != nil:
			_, _ = w.Write(blobs[digest])
		case r.URL.Path != "/v2/":
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}
