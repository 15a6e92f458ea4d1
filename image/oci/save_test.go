package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// unpackArchive returns the files of an archive by name.
func unpackArchive(t testing.TB, b []byte) map[string]string {
	t.Helper()
	got := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			got[h.Name] = string(body)
		}
	}
}

func save(t testing.TB, s *store.Store, refs ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Save(t.Context(), s, &b, refs, Options{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// oddLayer has properties that a tree does not keep; the recipe restores them. Its one large file
// has 16 × big bytes.
func oddLayer(t testing.TB, big int) []byte {
	t.Helper()
	b := pack(t,
		dir("."), file("./a", "1"),
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o4755, Uid: 5, Gid: 6, Uname: "x", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01"}}, "setuid"},
		entry{tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("long/", 40) + "name", Mode: 0o600, ModTime: time.Unix(1, 500)}, "long"},
		file("big", strings.Repeat("0123456789abcdef", big)),
		file("dir/.wh.gone", ""), file("dir/.wh..wh..opq", ""), file(".wh..wh.plnk/1.2", "aufs"),
		link(tar.TypeLink, "hard", "big"),
		entry{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}, ""},
	)
	return append(b, make([]byte, 8192)...) // padding of tar -b
}

// TestSaveGivesTheSame: Save gives the configuration, ids and layers of a foreign image bit for bit
// as they came. The load reported the ignored attributes.
func TestSaveGivesTheSame(t *testing.T) {
	s := openStore(t)
	one, two := twoLayers(t)
	odd := oddLayer(t, 100_000)
	config := configFor(t, one, two, odd)
	var warnings []string
	images, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, config, []string{"app:1", "app:2"}, one, gzipped(t, two), odd)), Options{Report: func(e image.Progress) {
		if e.Step == "warning" {
			warnings = append(warnings, e.Name+": "+e.Message[:17])
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(warnings)
	if diff := cmp.Diff([]string{"su: file capabilities", "su: set-user-id and s"}, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	archive := save(t, s, "app:1", "app:2")
	got := unpackArchive(t, archive)
	for name, want := range map[string][]byte{"config": config, "one": one, "two": two, "odd": odd} {
		if got["blobs/sha256/"+sum(want)[7:]] != string(want) {
			t.Errorf("%s is not in the archive as it was", name)
		}
	}
	if !strings.Contains(got["manifest.json"], `"RepoTags":["app:1","app:2"]`) {
		t.Errorf("manifest.json: %s", got["manifest.json"])
	}
	if !bytes.Equal(archive, save(t, s, "app:1", "app:2")) {
		t.Error("saving twice gives two archives")
	}
	// Loaded through docker's manifest or the layout's index, it is the same image again.
	for _, name := range []string{"manifest.json", "index.json"} {
		other := openStore(t)
		var entries []entry
		for n, body := range got {
			if n == name || strings.HasPrefix(n, "blobs/") {
				entries = append(entries, file(n, body))
			}
		}
		again, err := Load(t.Context(), other, bytes.NewReader(pack(t, entries...)), Options{})
		if err != nil {
			t.Fatalf("load by %s: %v", name, err)
		}
		if again[0].Digest != images[0].Digest {
			t.Errorf("by %s it is %s, was %s", name, again[0].Digest, images[0].Digest)
		}
		var names []string
		for _, img := range other.Images() {
			names = append(names, img.Names...)
		}
		if diff := cmp.Diff([]string{"app:1", "app:2"}, names); diff != "" {
			t.Errorf("names by %s (-want +got):\n%s", name, diff)
		}
	}
}

// ownImage puts an image into the store as the builder does.
func ownImage(t testing.TB, s *store.Store) *store.Image {
	t.Helper()
	release := s.Hold()
	defer release()
	tree := func(files map[string]string) store.Digest {
		w, err := s.Create()
		if err != nil {
			t.Fatal(err)
		}
		for name, body := range files {
			if err := w.File(name, 0o755, testTime, strings.NewReader(body)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Symlink("usr/link", "bin", testTime); err != nil {
			t.Fatal(err)
		}
		d, err := w.Commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	config := builtConfig()
	config.Args, config.Labels = []string{"/function/lib/handler"}, map[string]string{"l": "m"}
	img, err := s.PutImage(t.Context(), store.Manifest{Name: "hello", Version: "0.1", Parts: []store.Part{
		{Kind: "base", Name: "native", Version: "x", Tree: tree(map[string]string{"bin/sh": "shell", "etc/passwd": "root"})},
		{Kind: "code", Name: "src", Tree: tree(map[string]string{"handler": "code"}), Prefix: "function/lib"},
	}, Config: marshal(t, config)})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestSaveOwn: A saved image that FRE built is an ordinary image.
func TestSaveOwn(t *testing.T) {
	s := openStore(t)
	own := ownImage(t, s)
	archive := save(t, s, "hello:0.1")
	if !bytes.Equal(archive, save(t, s, "hello:0.1")) {
		t.Error("saving twice gives two archives")
	}
	other := openStore(t)
	images, err := Load(t.Context(), other, bytes.NewReader(archive), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(listing(t, s, own), listing(t, other, images[0])); diff != "" {
		t.Errorf("files (-built +loaded):\n%s", diff)
	}
	c, err := image.ConfigOf(images[0])
	if err != nil {
		t.Fatal(err)
	}
	want := &image.Container{
		ID: c.Container.ID, Chain: c.Container.Chain, Created: own.Created, Platform: platform(),
		User: "1000:1000", Cmd: []string{"/function/lib/handler"}, WorkingDir: "/function",
		Labels: map[string]string{"l": "m", labelConfig: string(own.Config)},
	}
	if diff := cmp.Diff(want, c.Container); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	steps, err := History(other, images[0])
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range steps {
		lines = append(lines, s.CreatedBy)
	}
	if diff := cmp.Diff([]string{"fre: mount points", "fre: base native x", "fre: code src"}, lines); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if own, err := History(s, own); err != nil || len(own) != 2 || own[0].Size != 9 {
		t.Errorf("history of the image itself: %v, %v", own, err)
	}
}

// TestSaveUnknown: Save of an unknown image fails with fs.ErrNotExist.
func TestSaveUnknown(t *testing.T) {
	s := openStore(t)
	if err := Save(t.Context(), s, io.Discard, []string{"nope:1"}, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestImport: An imported archive becomes an image with the configuration of the given
// instructions.
func TestImport(t *testing.T) {
	s := openStore(t)
	one, _ := twoLayers(t)
	img, err := Import(t.Context(), s, bytes.NewReader(zstandard(t, one)), ImportOptions{
		Name: "root:1", Message: "from a disk",
		Changes: []string{
			`CMD ["/bin/sh", "-c", "true"]`, "ENTRYPOINT exec it", "ENV A=b", `env A="c d"`, "ENV B x", "LABEL k=v", "EXPOSE 80 53/udp",
			`VOLUME ["/a", "/b"]`, "VOLUME /c", "USER web", "WORKDIR /srv", "STOPSIGNAL 9",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := image.ConfigOf(img)
	if err != nil {
		t.Fatal(err)
	}
	want := image.Config{
		Args: []string{"/bin/sh", "-c", "exec it", "/bin/sh", "-c", "true"}, Env: []string{"A=c d", "B=x"}, Protocol: image.ProtocolNone,
		Container: &image.Container{
			ID: c.Container.ID, Chain: store.Digest(sum(one)), Created: c.Container.Created, Platform: platform(),
			User: "web", WorkingDir: "/srv", Cmd: []string{"/bin/sh", "-c", "true"}, Entrypoint: []string{"/bin/sh", "-c", "exec it"},
			Labels: map[string]string{"k": "v"}, ExposedPorts: []string{"53/udp", "80/tcp"}, Volumes: []string{"/a", "/b", "/c"}, StopSignal: "9",
		},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"root:1"}, img.Names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if got := listing(t, s, img)["bin/sh"]; got != "shell" {
		t.Errorf("bin/sh holds %q", got)
	}
	if steps, err := History(s, img); err != nil || len(steps) != 1 || steps[0].Comment != "from a disk" {
		t.Errorf("history %v, %v", steps, err)
	}
}

// TestImportRefuses: Import refuses a damaged archive or a faulty instruction and keeps nothing.
func TestImportRefuses(t *testing.T) {
	one, _ := twoLayers(t)
	for _, c := range []struct {
		name  string
		input []byte
		o     ImportOptions
		want  error
	}{
		{"nothing", nil, ImportOptions{}, ErrArchive},
		{"no tar", []byte(strings.Repeat("x", 1024)), ImportOptions{}, ErrArchive},
		{"unknown instruction", one, ImportOptions{Changes: []string{"RUN true"}}, ErrChange},
		{"empty instruction", one, ImportOptions{Changes: []string{"CMD"}}, ErrChange},
		{"two variables at once", one, ImportOptions{Changes: []string{"ENV A=b C=d"}}, ErrChange},
		{"two quoted labels at once", one, ImportOptions{Changes: []string{`LABEL a="b c" d="e"`}}, ErrChange},
		{"environment without a value", one, ImportOptions{Changes: []string{"ENV A"}}, ErrChange},
		{"bad name", one, ImportOptions{Name: "No Name"}, ErrReference},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			if _, err := Import(t.Context(), s, bytes.NewReader(c.input), c.o); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			nothingKept(t, s)
		})
	}
}

// TestSavedIsValid: Another implementation accepts all digests, sizes and diff ids of a saved
// archive.
func TestSavedIsValid(t *testing.T) {
	s := openStore(t)
	one, two := twoLayers(t)
	odd := oddLayer(t, 100_000)
	if _, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, configFor(t, one, two, odd), []string{"app:1"}, one, two, odd)), Options{}); err != nil {
		t.Fatal(err)
	}
	ownImage(t, s)
	for _, name := range []string{"app:1", "hello:0.1"} {
		archive := save(t, s, name)
		opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }
		img, err := tarball.Image(opener, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(img); err != nil {
			t.Errorf("%s by manifest.json: %v", name, err)
		}
		dir := t.TempDir()
		for n, body := range unpackArchive(t, archive) {
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(n)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, n), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		index, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			t.Fatal(err)
		}
		m, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		inside, err := index.Image(m.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkBlobs(t, inside)
	}
}

// checkBlobs is validate.Image for uncompressed layers, which validate.Image takes for gzip.
func checkBlobs(t *testing.T, img v1.Image) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil || len(config.RootFS.DiffIDs) != len(layers) {
		t.Errorf("configuration %v of %d layers: %v", config, len(layers), err)
	}
	for i, l := range layers {
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		got, n, err := v1.SHA256(r)
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if size, err := l.Size(); err != nil || n != size || got != d || got != config.RootFS.DiffIDs[i] {
			t.Errorf("layer %d: %s of %d bytes; said to be %s, %s, %d bytes", i, got, n, d, config.RootFS.DiffIDs[i], size)
		}
	}
}
