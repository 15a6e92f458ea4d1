package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// openStore opens a store whose tmp/ must be empty at the end of the test.
func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp"))
		if len(left) > 0 || err != nil {
			t.Errorf("tmp holds %v (%v), want nothing", left, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var testTime = time.Unix(1_600_000_000, 0)

// entry is a header with its content. pack fills in zero fields.
type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, body}
}

func dir(name string) entry {
	return entry{tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}, ""}
}

func link(kind byte, name, target string) entry {
	return entry{tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}, ""}
}

// pack makes an archive of the entries.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.Typeflag == tar.TypeReg && e.Size == 0 {
			e.Size = int64(len(e.body))
		}
		if e.ModTime.IsZero() && e.Typeflag != tar.TypeXGlobalHeader {
			e.ModTime = testTime
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(b, nil)
}

// configFor is an image's configuration with all fields.
func configFor(t testing.TB, layers ...[]byte) []byte {
	t.Helper()
	var diffs []string
	for _, l := range layers {
		diffs = append(diffs, sum(l))
	}
	return marshal(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": "2024-01-02T03:04:05.678Z", "author": "somebody",
		"config": map[string]any{
			"User": "web:www", "Env": []string{"PATH=/bin", "A=b"}, "Entrypoint": []string{"/entry"}, "Cmd": []string{"one", "two"},
			"WorkingDir": "/srv", "Labels": map[string]string{"k": "v"}, "StopSignal": "SIGQUIT",
			"ExposedPorts": map[string]any{"80/tcp": struct{}{}, "443/tcp": struct{}{}}, "Volumes": map[string]any{"/data": struct{}{}},
			"Healthcheck": map[string]any{"Test": []string{"CMD", "true"}},
		},
		"history":     []map[string]any{{"created_by": "made for a test"}},
		"rootfs":      map[string]any{"type": "layers", "diff_ids": diffs},
		"x.unheardof": 1,
	})
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dockerArchive is an archive as docker save wrote it up to version 24: a directory for each layer.
func dockerArchive(t testing.TB, config []byte, tags []string, layers ...[]byte) []byte {
	t.Helper()
	name := sum(config)[7:] + ".json"
	entries := []entry{file(name, string(config))}
	var paths []string
	for i, l := range layers {
		p := fmt.Sprintf("%064d/layer.tar", i)
		paths = append(paths, p)
		entries = append(entries, dir(filepath.Dir(p)), file(p, string(l)))
	}
	m := marshal(t, []map[string]any{{"Config": name, "RepoTags": tags, "Layers": paths}})
	return pack(t, append(entries, file("manifest.json", string(m)))...)
}

// layoutArchive is an OCI layout with an index for several platforms and an attestation, as buildx
// writes.
func layoutArchive(t testing.TB, config []byte, name string, layers ...[]byte) []byte {
	t.Helper()
	entries := []entry{file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`)}
	put := func(mediaType string, b []byte) map[string]any {
		entries = append(entries, file("blobs/sha256/"+sum(b)[7:], string(b)))
		return map[string]any{"mediaType": mediaType, "digest": sum(b), "size": len(b)}
	}
	const oci = "application/vnd.oci.image."
	var list []any
	for _, l := range layers {
		list = append(list, put(oci+"layer.v1.tar+gzip", l))
	}
	manifest := put(oci+"manifest.v1+json", marshal(t, map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": put(oci+"config.v1+json", config), "layers": list,
	}))
	manifest["platform"] = map[string]any{"os": "linux", "architecture": runtime.GOARCH}
	other := map[string]any{
		"mediaType": oci + "manifest.v1+json", "digest": sum(nil), "size": 0,
		"platform": map[string]any{"os": "linux", "architecture": "s390x"},
	}
	attestation := map[string]any{
		"mediaType": oci + "manifest.v1+json", "digest": sum(nil), "size": 0,
		"platform":    map[string]any{"os": "unknown", "architecture": "unknown"},
		"annotations": map[string]string{"vnd.docker.reference.type": "attestation-manifest"},
	}
	inner := put(oci+"index.v1+json", marshal(t, map[string]any{"schemaVersion": 2, "manifests": []any{other, manifest, attestation}}))
	inner["annotations"] = map[string]string{annotationName: name}
	entries = append(entries, file("index.json", string(marshal(t, map[string]any{"schemaVersion": 2, "manifests": []any{inner}}))))
	return pack(t, entries...)
}

// listing walks the image's root: "path" → the file's description.
func listing(t testing.TB, s *store.Store, img *store.Image) map[string]string {
	t.Helper()
	got := map[string]string{}
	root := s.Rootfs(img.Digest)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel := strings.TrimPrefix(p, root+"/")
		switch {
		case d.IsDir():
			if left, err := os.ReadDir(p); err != nil || len(left) == 0 && isMountPoint(rel) {
				return err
			}
			got[rel] = "dir"
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			got[rel] = "-> " + target
			return err
		default:
			b, err := os.ReadFile(p)
			got[rel] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func isMountPoint(name string) bool {
	return !strings.Contains(name, "/") && strings.Contains(" dev etc function opt proc run sys tmp work ", " "+name+" ")
}

func twoLayers(t testing.TB) (one, two []byte) {
	t.Helper()
	one = pack(t, dir("bin"), file("bin/sh", "shell"), link(tar.TypeSymlink, "bin/ash", "sh"), link(tar.TypeLink, "bin/ls", "bin/sh"), dir("gone"), file("gone/a", "1"), file("empty", ""))
	two = pack(t, file(".wh.gone", ""), dir("srv"), file("srv/data", "22"))
	return one, two
}

// TestLoad: The same image loads from each kind of archive, and each layer is stored once.
func TestLoad(t *testing.T) {
	one, two := twoLayers(t)
	config := configFor(t, one, two)
	tags := []string{"app:1", "localhost:5000/team/app:latest"}
	want := map[string]string{
		"bin": "dir", "bin/sh": "shell", "bin/ash": "-> sh", "bin/ls": "shell", "empty": "", "srv": "dir", "srv/data": "22",
	}
	for _, c := range []struct {
		name    string
		archive []byte
		names   []string
	}{
		{"docker", dockerArchive(t, config, tags, one, two), tags},
		{"docker, packed", gzipped(t, dockerArchive(t, config, tags, one, two)), tags},
		{"podman", dockerArchive(t, config, []string{"docker.io/library/app:1", "localhost/x:2"}, one, two), []string{"app:1", "localhost/x:2"}},
		{"docker, packed layers", dockerArchive(t, config, nil, gzipped(t, one), zstandard(t, two)), nil},
		{"layout", layoutArchive(t, config, "docker.io/library/app:1", gzipped(t, one), zstandard(t, two)), []string{"app:1"}},
		{"layout without a name", layoutArchive(t, config, "1", one, two), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			images, err := Load(t.Context(), s, bytes.NewReader(c.archive), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(images) != 1 {
				t.Fatalf("%d images, want one", len(images))
			}
			img := images[0]
			if diff := cmp.Diff(c.names, img.Names); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, listing(t, s, img)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			got, err := image.ConfigOf(img)
			if err != nil {
				t.Fatal(err)
			}
			wantConfig := image.Config{
				Args: []string{"/entry", "one", "two"}, Env: []string{"PATH=/bin", "A=b"}, Protocol: image.ProtocolNone,
				Container: &image.Container{
					ID:      store.Digest(sum(config)),
					Chain:   store.Digest(sum([]byte(sum(one) + " " + sum(two)))),
					Created: time.Date(2024, 1, 2, 3, 4, 5, 678e6, time.UTC), Author: "somebody", Platform: "linux/" + runtime.GOARCH,
					User: "web:www", Entrypoint: []string{"/entry"}, Cmd: []string{"one", "two"}, WorkingDir: "/srv",
					Labels: map[string]string{"k": "v"}, ExposedPorts: []string{"443/tcp", "80/tcp"}, Volumes: []string{"/data"},
					StopSignal: "SIGQUIT", Healthcheck: json.RawMessage(`{"Test":["CMD","true"]}`),
				},
			}
			if diff := cmp.Diff(wantConfig, got); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLoadAgain: The same image under another name, from another kind of archive, is one image. A
// known layer is not unpacked again.
func TestLoadAgain(t *testing.T) {
	s := openStore(t)
	one, two := twoLayers(t)
	config := configFor(t, one, two)
	load := func(archive []byte) (*store.Image, []string) {
		t.Helper()
		var steps []string
		images, err := Load(t.Context(), s, bytes.NewReader(archive), Options{Report: func(e image.Progress) {
			if e.Step == "layer" {
				steps = append(steps, e.Message)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		return images[0], steps
	}
	first, _ := load(dockerArchive(t, config, []string{"a:1"}, one, two))
	again, steps := load(layoutArchive(t, config, "b:2", one, two))
	if first.Digest != again.Digest {
		t.Errorf("%s, then %s", first.Digest, again.Digest)
	}
	if diff := cmp.Diff([]string{"b:2"}, again.Names); diff != "" {
		t.Errorf("names of the archive (-want +got):\n%s", diff)
	}
	if img, err := s.Image("b:2"); err != nil || len(img.Names) != 2 {
		t.Errorf("image with both names: %+v, %v", img, err)
	}
	if diff := cmp.Diff([]string{"already here", "already here"}, steps); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	// Another image on the first layer.
	three := pack(t, file("third", "3"))
	_, steps = load(dockerArchive(t, configFor(t, one, three), []string{"c:3"}, one, three))
	if len(steps) != 2 || steps[0] == steps[1] {
		t.Errorf("layers of the third image: %q", steps)
	}
}

// TestFailedLoadsTakeBack: A failed load removes only its own images. An image without a name that
// another load also brought stays.
func TestFailedLoadsTakeBack(t *testing.T) {
	s := openStore(t)
	one, two := twoLayers(t)
	archive := dockerArchive(t, configFor(t, one, two), nil, one, two)
	load := func() []*store.Image {
		t.Helper()
		images, err := Load(t.Context(), s, bytes.NewReader(archive), Options{})
		if err != nil {
			t.Fatal(err)
		}
		return images
	}
	fail := func(made ...*store.Image) {
		newJob(s, Options{}).forget(t.Context(), nil, made)
	}
	fail(load()...)
	nothingKept(t, s)
	fail(append(load(), load()...)...) // twice in one archive
	nothingKept(t, s)
	load()
	fail(load()...)
	if n := len(s.Images()); n != 1 {
		t.Errorf("%d images after a load, and one that failed, want 1", n)
	}
}

// TestLoadRefuses: Load refuses a layer with hostile paths, links or entries and keeps nothing.
func TestLoadRefuses(t *testing.T) {
	header := func(h tar.Header) []entry { return []entry{{Header: h}} }
	var many []entry
	for i := range 41 {
		many = append(many, dir(fmt.Sprint("d", i)))
	}
	for _, c := range []struct {
		name  string
		layer []entry
		want  error
		says  string // part of the message
	}{
		{"parent", []entry{file("a/../../etc/x", "1")}, ErrLayer, "path out of the root"},
		{"hard link out", []entry{link(tar.TypeLink, "a", "../../etc/passwd")}, ErrLayer, "hard link"},
		{"hard link to an absolute path", []entry{link(tar.TypeLink, "a", "/etc/passwd")}, ErrLayer, "hard link"},
		{"a circle of links", []entry{link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "a"), file("a/x", "1")}, ErrLayer, "symbolic links"},
		{"hard link to nothing", []entry{link(tar.TypeLink, "a", "b")}, ErrLayer, "no file of the layer"},
		{"hard link to a later entry", []entry{link(tar.TypeLink, "a", "b"), file("b", "1")}, ErrLayer, "no file of the layer"},
		{"below a file", []entry{file("a", "1"), file("a/b", "2")}, ErrLayer, "parent"},
		{"long name", []entry{file(strings.Repeat("a", 300), "1")}, ErrLayer, "longer"},
		{"path of many elements", []entry{dir(strings.Repeat("a/", 100_000))}, ErrLayer, "path of 200001 bytes is longer than 4095"},
		{"long path", []entry{file(strings.Repeat(strings.Repeat("a", 250)+"/", 17)+"b", "1")}, ErrLayer, "longer"},
		{"owner", header(tar.Header{Typeflag: tar.TypeReg, Name: "a", Uid: 70000}), ErrLayer, "70000:0"},
		{"the root is a file", []entry{{tar.Header{Typeflag: tar.TypeSymlink, Name: "./", Linkname: "x"}, ""}}, ErrLayer, "root"},
		{"opaque root", []entry{file(".wh..wh..opq", "")}, ErrLayer, "all lower layers"},
		{"whiteout of its directory", []entry{file("a/.wh.", "")}, ErrLayer, "clean"},
		{"whiteout of a directory above", []entry{file("a/b/.wh...", "")}, ErrLayer, "clean"},
		{"whiteout of a parent path", []entry{file("a/.wh...", "")}, ErrLayer, "clean"},
		{"no directory where one is mounted", []entry{link(tar.TypeSymlink, "proc", "/somewhere")}, ErrLayer, "every sandbox"},
		{"much beside the files", []entry{file(".wh..wh.aufs", strings.Repeat("x", 2<<20))}, ErrLimit, "1048576 bytes"},
		{"too many entries", many, ErrLimit, "40 files"},
		{"too many directories above one file", []entry{file(strings.Repeat("a/", 40)+"b", "1")}, ErrLimit, "40 files"},
		{"too long paths", []entry{link(tar.TypeSymlink, "a", strings.Repeat("b", 60_000))}, ErrLimit, "50000 bytes of paths"},
		{"too many bytes", []entry{file("a", strings.Repeat("x", 2<<20))}, ErrLimit, "1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			layer := pack(t, c.layer...)
			archive := dockerArchive(t, configFor(t, layer), []string{"bad:1"}, gzipped(t, layer))
			_, err := Load(t.Context(), s, bytes.NewReader(archive), Options{Limits: Limits{Bytes: 1 << 20, Entries: 40, Names: 50_000}})
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.want, c.says)
			}
			nothingKept(t, s)
		})
	}
}

// TestLies: Sizes that do not match the content are refused.
func TestLies(t *testing.T) {
	one, _ := twoLayers(t)
	damaged := func(b []byte) []byte {
		b[len(b)-6] ^= 1 // a checksum, or a checked byte
		return b
	}
	for _, c := range []struct {
		name  string
		layer []byte
		want  error
	}{
		{"holes of a terabyte", sparseLayer(1 << 40), ErrLimit},
		{"a terabyte that is not there", []byte(rawHeader("a", '0', 1<<40>>8)), ErrLimit},
		{"100 bytes that are not there", []byte(rawHeader("a", '0', 100) + "only this"), ErrArchive},
		{"a negative size", []byte(rawHeader("a", '0', -100)), ErrArchive},
		{"damaged gzip", damaged(gzipped(t, one)), ErrArchive},
		{"damaged zstd", damaged(zstandard(t, one)), ErrArchive},
		{"gzip that ends early", gzipped(t, one)[:200], ErrArchive},
		{"no end", []byte(rawHeader("a", '0', 0) + rawHeader("b", '5', 0)[:300]), ErrArchive},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			_, err := Import(t.Context(), s, bytes.NewReader(c.layer), ImportOptions{Options: Options{Limits: Limits{Bytes: 1 << 20}}})
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			nothingKept(t, s)
		})
	}
}

// TestSparse: A sparse file has zeros in the store, and the saved layer has the holes again.
func TestSparse(t *testing.T) {
	s := openStore(t)
	layer := sparseLayer(1 << 20)
	img, err := Import(t.Context(), s, bytes.NewReader(layer), ImportOptions{Name: "sparse:1"})
	if err != nil {
		t.Fatal(err)
	}
	if got := listing(t, s, img)["s"]; got != strings.Repeat("\x00", 1<<20) {
		t.Errorf("the file has %d bytes", len(got))
	}
	if got := unpackArchive(t, save(t, s, "sparse:1"))["blobs/sha256/"+sum(layer)[7:]]; got != string(layer) {
		t.Error("the layer left otherwise than it came")
	}
}

// sparseLayer has a file in GNU tar's format 1.0 with the given size and no data. archive/tar reads
// such files, but does not write them.
func sparseLayer(size int64) []byte {
	var records string
	for _, r := range []string{"major=1", "minor=0", "name=s", fmt.Sprintf("realsize=%d", size)} {
		r = " GNU.sparse." + r + "\n"
		n := len(r) + 2
		records += strconv.Itoa(n) + r
	}
	pad := func(s string) string { return s + strings.Repeat("\x00", -len(s)&511) }
	m := pad(fmt.Sprintf("1\n%d\n0\n", size))
	return []byte(rawHeader("PaxHeaders/s", 'x', len(records)) + pad(records) + rawHeader("GNUSparseFile.0/s", '0', len(m)) + m + strings.Repeat("\x00", 1024))
}

// rawHeader is a header block with the given fields.
func rawHeader(name string, kind byte, size int) string {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x0000000000000\x00        %c", size, kind))
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return string(h)
}

// TestBomb: A small layer that unpacks to a very large one is refused on the way.
func TestBomb(t *testing.T) {
	s := openStore(t)
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	const size = 32 << 20
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: ".wh..wh.x", Size: size}); err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range size >> 20 {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Import(t.Context(), s, &b, ImportOptions{Options: Options{Limits: Limits{Free: 1 << 20}}})
	if !errors.Is(err, ErrLimit) || !strings.Contains(fmt.Sprint(err), "compression ratio above") {
		t.Errorf("error %v, want %v", err, ErrLimit)
	}
	nothingKept(t, s)
}

// TestAtOnce: Loads of equal layers at once do not disturb each other.
func TestAtOnce(t *testing.T) {
	s := openStore(t)
	one, two := twoLayers(t)
	config := configFor(t, one, two)
	var g errgroup.Group
	for i := range 8 {
		archive := dockerArchive(t, config, []string{fmt.Sprintf("app:%d", i)}, one, two)
		g.Go(func() error {
			_, err := Load(t.Context(), s, bytes.NewReader(archive), Options{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	images := s.Images()
	if len(images) != 1 || len(images[0].Names) != 8 {
		t.Fatalf("images %v, want one with 8 names", images)
	}
	if got := listing(t, s, images[0])["bin/sh"]; got != "shell" {
		t.Errorf("bin/sh holds %q", got)
	}
}

// nothingKept checks that the store is empty after a sweep.
func nothingKept(t testing.TB, s *store.Store) {
	t.Helper()
	if n := len(s.Images()); n != 0 {
		t.Errorf("%d images", n)
	}
	if _, err := s.Sweep(t.Context(), store.SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"objects", "trees", "images", "tmp"} {
		_ = filepath.WalkDir(filepath.Join(s.Dir(), sub), func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				t.Errorf("%s is left", p)
			}
			return nil
		})
	}
}

// TestLoadRefusesArchives: Load refuses an inconsistent archive (digests, sizes, platform) and
// keeps nothing.
func TestLoadRefusesArchives(t *testing.T) {
	one, two := twoLayers(t)
	config := configFor(t, one, two)
	good := dockerArchive(t, config, []string{"app:1"}, one, two)
	other := configFor(t, two, one)
	manifest := func(m string) []byte { return pack(t, file("manifest.json", m)) }
	large := file("c", strings.Repeat(" ", 7<<20)+"{}")
	index := `{"manifests":[` + strings.Repeat(`{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"`+sum([]byte(large.body))+`"},`, 20) + `{}]}`
	badPlatform := bytes.ReplaceAll(config, []byte(`"os":"linux"`), []byte(`"os":"windows"`))
	for _, c := range []struct {
		name    string
		archive []byte
		want    error
		says    string
	}{
		{"empty", nil, ErrArchive, "empty"},
		{"no tar", []byte(strings.Repeat("hello ", 1000)), ErrArchive, "not a tar"},
		{"xz", []byte("\xfd7zXZ\x00rest"), ErrArchive, "unxz"},
		{"breaks off", good[:len(good)/2], ErrArchive, "truncated"},
		{"packed, breaks off", gzipped(t, good)[:400], ErrArchive, "truncated"},
		{"no manifest", pack(t, file("a", "1")), ErrArchive, "manifest.json"},
		{"manifest is no JSON", manifest("{"), ErrArchive, "manifest.json"},
		{"no images", manifest("[]"), ErrArchive, "no image"},
		{"no configuration", manifest(`[{"Config":"c","Layers":[]}]`), ErrArchive, `"c"`},
		{"a large configuration named often", pack(t, file("manifest.json", `[`+strings.Repeat(`{"Config":"c"},`, 20)+`{}]`), large), ErrLimit, "configurations in an archive"},
		{"a large index named often", pack(t, file("index.json", index), file("blobs/sha256/"+sum([]byte(large.body))[7:], large.body)), ErrLimit, "manifests"},
		{"long names", longNames(t), ErrLimit, "of names"},
		{"bad name", dockerArchive(t, config, []string{"Bad Name:1"}, one, two), ErrReference, "Bad Name"},
		{"layers in the wrong order", dockerArchive(t, other, nil, one, two), ErrArchive, "digest"},
		{"a layer is missing", dockerArchive(t, config, nil, one), ErrArchive, "1 layers"},
		{"another platform", dockerArchive(t, badPlatform, nil, one, two), ErrPlatform, "windows"},
		{"made after the year 9999", dockerArchive(t, bytes.Replace(config, []byte("2024-01-02T03:04:05.678Z"), []byte("9999-12-31T23:59:59-23:59"), 1), nil, one, two), ErrArchive, "10000"},
		{"a path leads out", pack(t, file("../manifest.json", "[]")), ErrArchive, ".."},
		{"a symlink round", pack(t, link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "a"), file("manifest.json", `[{"Config":"a"}]`)), ErrArchive, "named but missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			_, err := Load(t.Context(), s, bytes.NewReader(c.archive), Options{})
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.want, c.says)
			}
			nothingKept(t, s)
		})
	}
}

// longNames returns an archive with one file 130 times, whose name has almost a MiB, as tar allows.
// A tar.Writer would check each byte of each name, which takes seconds under the race detector.
func longNames(t testing.TB) []byte {
	t.Helper()
	entries := pack(t, file(strings.Repeat("n", 1<<20-1000), ""))
	const end = 2 * 512 // zeros after the last entry
	return bytes.Repeat(entries[:len(entries)-end], 130)
}
