package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"

	"github.com/fre-engine/fre/store"
)

// fuzzStore is one store for all inputs, because opening takes longer than the rest, and in memory,
// because disk waits would dominate.
func fuzzStore(f *testing.F) *store.Store {
	f.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fre-fuzz-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, err := store.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	return s
}

// FuzzUnpack: A layer is refused, or comes out again as it came in. Half of the inputs get valid
// header checksums, because tar readers stop at a wrong one.
func FuzzUnpack(f *testing.F) {
	s := fuzzStore(f)
	one, two := twoLayers(f)
	some := someOfEverything(f)
	attributes := pack(f, entry{tar.Header{Typeflag: tar.TypeReg, Name: "s", PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}, "body"})
	for _, b := range [][]byte{
		nil, one, two, oddLayer(f, 10), gzipped(f, one), zstandard(f, two), attributes, one[:len(one)-700], some, gzipped(f, some),
		sparseLayer(4096), slices.Concat(some, some), slices.Concat(two, []byte("rest")),
	} {
		f.Add(b, false)
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		if mend {
			b = withChecksums(b)
		}
		j := newJob(s, Options{Limits: Limits{Bytes: 8 << 20, Entries: 1000}})
		defer s.Hold()()
		p, err := j.unpack(t.Context(), bytes.NewReader(b))
		if err != nil {
			documented(t, err)
			return
		}
		l, err := j.recorded(p)
		if err != nil {
			t.Fatal(err)
		}
		var again bytes.Buffer
		if err := l.write(t.Context(), &again); err != nil {
			t.Fatal(err)
		}
		if int64(again.Len()) != l.size {
			t.Errorf("%d bytes, said to be %d", again.Len(), l.size)
		}
		plain, err := decompress(bytes.NewReader(b), j.limits)
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(plain)
		if err != nil || !bytes.Equal(again.Bytes(), want) {
			t.Errorf("packed again it is other (%v)", err)
		}
		img, err := s.PutImage(t.Context(), store.Manifest{Parts: []store.Part{p}})
		if err == nil {
			err = s.RemoveImage(t.Context(), img.Digest)
		}
		if err != nil && !errors.Is(err, store.ErrConflict) {
			t.Error(err)
		}
	})
}

// documented checks that an error is a documented one.
func documented(t *testing.T, err error) {
	t.Helper()
	for _, known := range []error{ErrArchive, ErrLayer, ErrLimit, ErrPlatform, ErrReference, ErrRegistry} {
		if errors.Is(err, known) {
			return
		}
	}
	t.Errorf("error %v is not documented", err)
}

// someOfEverything is a layer with each kind of entry in each format.
func someOfEverything(t testing.TB) []byte {
	t.Helper()
	long := strings.Repeat("long/", 60)
	all := []entry{
		{tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}, ""},
		dir("."), dir("a"), file("a/f", strings.Repeat("content", 200)), dir("a"), file("a/empty", ""),
		link(tar.TypeLink, "a/hard", "a/f"), link(tar.TypeSymlink, "a/soft", "/etc/passwd"), link(tar.TypeLink, "a/harder", "a/soft"),
		file("gone/.wh.x", ""), file("opaque/.wh..wh..opq", ""), file("opaque/y", "y"), file(".wh.both", ""), file("both", "1"),
		file(".wh..wh.plnk/1", ""), file("./dot//double", ""),
		{tar.Header{Typeflag: tar.TypeReg, Name: long + "pax", Mode: 0o4755, Uid: 1 << 15, Gid: 33, Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}, "p"},
		{tar.Header{Typeflag: tar.TypeReg, Name: long + "gnu", Mode: 0o600, Format: tar.FormatGNU}, "g"},
		{tar.Header{Typeflag: tar.TypeSymlink, Name: "to", Linkname: long, Format: tar.FormatGNU}, ""},
		{tar.Header{Typeflag: tar.TypeReg, Name: "old", ModTime: time.Unix(-1, 5), Format: tar.FormatPAX}, "o"},
	}
	return pack(t, all...)
}

// withChecksums sets the checksum of each tar header.
func withChecksums(b []byte) []byte {
	b = bytes.Clone(b)
	for rest := b; len(rest) >= 512; {
		h := rest[:512]
		rest = rest[512:]
		if bytes.Equal(h, make([]byte, 512)) {
			continue
		}
		copy(h[148:156], "        ")
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		size, err := strconv.ParseUint(strings.Trim(string(h[124:136]), " \x00"), 8, 40)
		if err != nil {
			continue
		}
		rest = rest[min((size+511)&^511, uint64(len(rest))):]
	}
	return b
}

// FuzzLayers: Two layers make the files that the image-spec defines, or are refused. Four bytes of
// the script make an entry.
func FuzzLayers(f *testing.F) {
	s := fuzzStore(f)
	names := []string{
		"a", "a/b", "a/b/c", "d", "d/e", ".wh.a", "a/.wh.b", "a/b/.wh.c", "a/.wh..wh..opq", "d/.wh..wh..opq", ".wh..wh..opq",
		"a/.wh.", "a/.wh...", ".wh.x/y", ".wh..wh.x", recipePath, configPath, "proc", "dev/null", ".", "..", "a/../d", "/a", "./d/", "a//b", "",
	}
	kinds := []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeChar, tar.TypeFifo, tar.TypeCont, tar.TypeXGlobalHeader}
	for _, script := range []string{
		"\x00\x00\x00\x05", "\x01\x00\x00\x00\x00\x01\x00\x07", "\x01\x00\x00\x00\x00\x08\x00\x00\x00\x01\x00\x01", "\x02\x03\x00\x00\x03\x04\x03\x00",
		"\x00\x05\x00\x00", "\x00\x06\x00\x00\x00\x02\x00\x01", "\x04\x12\x00\x00", "\x00\x14\x00\x01", "\x03\x00\x16\x00", "\x00\x02\x00\x03\x00\x06\x00\x00",
	} {
		for _, other := range []string{"", "\x00\x01\x00\x02", "\x00\x05\x00\x00", "\x00\x02\x00\x09\x01\x03\x00\x00", "\x00\x06\x00\x00", "\x00\x08\x00\x00"} {
			f.Add([]byte(script), []byte(other))
			f.Add([]byte(other), []byte(script))
		}
	}
	entries := func(script []byte) []entry {
		var all []entry
		for ; len(script) >= 4 && len(all) < 12; script = script[4:] {
			e := entry{Header: tar.Header{
				Typeflag: kinds[int(script[0])%len(kinds)], Name: names[int(script[1])%len(names)], Linkname: names[int(script[2])%len(names)],
				Mode: 0o755, ModTime: testTime,
			}}
			switch e.Typeflag {
			case tar.TypeReg:
				e.body = strings.Repeat("x", int(script[3]))
				e.Size = int64(len(e.body))
			case tar.TypeXGlobalHeader:
				e.Header = tar.Header{Typeflag: e.Typeflag, PAXRecords: map[string]string{"path": e.Name}}
			}
			all = append(all, e)
		}
		return all
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		j := newJob(s, Options{})
		defer s.Hold()()
		var parts []store.Part
		want, modelled := map[string]string{}, true
		for _, script := range [][]byte{one, two} {
			all := entries(script)
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, e := range all {
				if err := w.WriteHeader(&e.Header); err != nil {
					return // tar cannot express this entry
				}
				if _, err := w.Write([]byte(e.body)); err != nil {
					return
				}
			}
			if err := w.Close(); err != nil {
				return
			}
			p, err := j.unpack(t.Context(), &b)
			if err != nil {
				documented(t, err)
				return
			}
			parts = append(parts, p)
			want = applied(want, all)
			modelled = modelled && !follows(all)
		}
		img, err := s.PutImage(t.Context(), store.Manifest{Parts: parts})
		if errors.Is(err, store.ErrConflict) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, listing(t, s, img)); diff != "" && modelled {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
			t.Error(err)
		}
	})
}

// follows reports whether a layer has entries below a non-directory, or a path twice. applied does
// not model these cases; TestImportTolerant tests them.
func follows(layer []entry) bool {
	kinds := map[string]byte{}
	for _, e := range layer {
		name := path.Clean(e.Name)
		if _, again := kinds[name]; again && e.Typeflag != tar.TypeXGlobalHeader {
			return true
		}
		if e.Typeflag != tar.TypeXGlobalHeader {
			kinds[name] = e.Typeflag
		}
	}
	for name := range kinds {
		for p := path.Dir(name); p != "."; p = path.Dir(p) {
			if kind, there := kinds[p]; there && kind != tar.TypeDir {
				return true
			}
		}
	}
	return false
}

// applied returns the files after a layer: OCI image-spec, layer.md, "Applying Changesets". All
// entries must be valid in a layer.
func applied(lower map[string]string, layer []entry) map[string]string {
	upper := map[string]string{}
	gone := map[string]bool{} // whether the path itself goes
	for _, e := range layer {
		name := path.Clean(e.Name)
		dir, base := path.Split(name)
		dir = path.Clean(dir)
		switch {
		case e.Typeflag == tar.TypeXGlobalHeader || name == ".":
			continue
		case e.Typeflag == tar.TypeChar || e.Typeflag == tar.TypeFifo: // left out with a warning
			continue
		case base == whiteoutOpaque:
			if !gone[dir] {
				gone[dir] = false // the directory stays, the files below it go
			}
			name = dir
		case strings.HasPrefix(name, whiteoutMeta) || strings.Contains(name, "/"+whiteoutMeta):
			continue
		case strings.HasPrefix(base, whiteoutPrefix):
			gone[path.Join(dir, base[len(whiteoutPrefix):])] = true
			name = dir
		}
		for p := name; p != "."; p = path.Dir(p) {
			if _, ok := upper[p]; !ok {
				upper[p] = "dir"
			}
		}
		if name != path.Clean(e.Name) {
			continue
		}
		switch e.Typeflag {
		case tar.TypeReg:
			upper[name] = e.body
		case tar.TypeSymlink:
			upper[name] = "-> " + e.Linkname
		case tar.TypeLink:
			upper[name] = upper[path.Clean(e.Linkname)]
		}
	}
	out := maps.Clone(upper)
	for p, what := range lower {
		hidden := false
		for q := p; q != "."; q = path.Dir(q) {
			self, removed := gone[q]
			over, there := upper[q]
			hidden = hidden || removed && (self || q != p) || there && (q == p || over != "dir")
		}
		if !hidden {
			out[p] = what
		}
	}
	for p := range out { // an empty mount point is not listed
		if isMountPoint(p) && out[p] == "dir" && !slices.ContainsFunc(slices.Collect(maps.Keys(out)), func(q string) bool { return strings.HasPrefix(q, p+"/") }) {
			delete(out, p)
		}
	}
	return out
}

// fuzzImage puts the digests of blobs into a manifest in place of their names.
func fuzzImage(manifest string, blobs map[string]string) string {
	for name, content := range blobs {
		manifest = strings.ReplaceAll(manifest, name, sum([]byte(content)))
	}
	return manifest
}

const fuzzManifest = `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"CONFIG","size":%d},` +
	`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"LAYER","size":%d}]}`

// FuzzArchive: An archive of images is loaded, or refused without leftovers. Its texts contain the
// digests of the other texts, so that mutated inputs stay consistent.
func FuzzArchive(f *testing.F) {
	s := fuzzStore(f)
	one, two := twoLayers(f)
	config := strings.ReplaceAll(string(configFor(f, one)), sum(one), "LAYER")
	manifest := fmt.Sprintf(fuzzManifest, len(config), len(one))
	const oci = `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"MANIFEST","annotations":{"io.containerd.image.name":"docker.io/library/app:1"}}]}`
	const nested = `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"INDEX","platform":{"os":"linux"}},{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"MANIFEST"}]}`
	const docker = `[{"Config":"CONFIG","RepoTags":["app:1","localhost:5000/a/b:2"],"Layers":["LAYER"]}]`
	for _, x := range []struct{ docker, index, manifest, layer string }{
		{docker, "", "", string(one)},
		{"", oci, manifest, string(one)},
		{"", nested, manifest, string(gzipped(f, one))},
		{`[{"Config":"link"}]`, "", "", string(two)},
		{docker[:len(docker)-1] + `,{"Config":"CONFIG","Layers":["LAYER","LAYER"]}]`, oci, manifest, string(one)},
	} {
		f.Add(x.docker, x.index, x.manifest, config, x.layer)
	}
	f.Fuzz(func(t *testing.T, docker, index, manifest, config, layer string) {
		config = fuzzImage(config, map[string]string{"LAYER": layer})
		blobs := map[string]string{"CONFIG": config, "LAYER": layer}
		manifest = fuzzImage(manifest, blobs)
		blobs["MANIFEST"] = manifest
		inner := fuzzImage(index, blobs)
		blobs["INDEX"] = inner
		index = fuzzImage(index, blobs)
		var all []entry
		for _, content := range []string{config, layer, manifest, inner} {
			e := file("blobs/sha256/"+sum([]byte(content))[7:], content)
			if !slices.ContainsFunc(all, func(o entry) bool { return o.Name == e.Name }) {
				all = append(all, e, link(tar.TypeSymlink, sum([]byte(content)), e.Name))
			}
		}
		all = append(all, link(tar.TypeSymlink, "link", "link"), file("index.json", index))
		if docker != "" {
			all = append(all, file("manifest.json", docker))
			all[len(all)-1].body = fuzzImage(docker, blobs)
		}
		images, err := Load(t.Context(), s, bytes.NewReader(pack(t, all...)), Options{Limits: Limits{Bytes: 8 << 20, Entries: 1000}})
		if err != nil {
			documented(t, err)
		}
		afterFuzz(t, s, images)
	})
}

// afterFuzz checks that the store has exactly these images, and removes them.
func afterFuzz(t *testing.T, s *store.Store, images []*store.Image) {
	t.Helper()
	for _, img := range s.Images() {
		if !slices.ContainsFunc(images, func(o *store.Image) bool { return o.Digest == img.Digest }) {
			t.Errorf("image %s is there", img.Digest)
		}
		for _, name := range img.Names {
			if r, err := store.ParseReference(name); err != nil || r.Check() != nil {
				t.Errorf("name %q: %v", name, err)
			}
		}
		if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
			t.Error(err)
		}
	}
}

// FuzzPull: A registry's image is pulled, or refused without leftovers.
func FuzzPull(f *testing.F) {
	s := fuzzStore(f)
	type answers struct {
		kind     string
		manifest string
		blobs    map[string]string // by digest
	}
	var now atomic.Pointer[answers]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, wanted := now.Load(), path.Base(r.URL.Path)
		blob, there := a.blobs[wanted]
		switch {
		case r.URL.Path == "/v2/":
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", a.kind)
			_, _ = io.WriteString(w, a.manifest)
		case there:
			_, _ = io.WriteString(w, blob)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	f.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	one, _ := twoLayers(f)
	config := strings.ReplaceAll(string(configFor(f, one)), sum(one), "LAYER")
	const kind = "application/vnd.oci.image.manifest.v1+json"
	good := fmt.Sprintf(fuzzManifest, len(fuzzImage(config, map[string]string{"LAYER": ""})), len(one))
	packed := gzipped(f, one)
	for _, x := range []struct {
		kind, manifest string
		layer          []byte
	}{
		{kind, good, one},
		{kind, strings.ReplaceAll(good, `"size":`, `"size":-`), one},
		{"application/vnd.docker.distribution.manifest.v2+json", fmt.Sprintf(fuzzManifest, len(fuzzImage(config, map[string]string{"LAYER": ""})), len(packed)), packed},
		{"application/vnd.docker.distribution.manifest.v1+prettyjws", `{"schemaVersion":1}`, one},
		{"application/vnd.oci.image.index.v1+json", `{"manifests":[{"mediaType":"` + kind + `","digest":"CONFIG","size":3,"platform":{"os":"linux","architecture":"` + runtime.GOARCH + `"}}]}`, one},
		{kind, strings.ReplaceAll(good, `"size":`, `"data":"e30=","urls":["http://127.0.0.1:1/x"],"size":`), one},
	} {
		f.Add(x.kind, x.manifest, config, x.layer)
	}
	f.Fuzz(func(t *testing.T, kind, manifest, config string, layer []byte) {
		if !json.Valid([]byte(manifest)) {
			return // the client takes bad JSON for a broken connection and waits; TestRegistryErrors tests this
		}
		config = fuzzImage(config, map[string]string{"LAYER": string(layer)})
		manifest = fuzzImage(manifest, map[string]string{"CONFIG": config, "LAYER": string(layer)})
		now.Store(&answers{kind, manifest, map[string]string{sum([]byte(config)): config, sum(layer): string(layer)}})
		o := RegistryOptions{Auth: &Auth{}, Options: Options{Limits: Limits{Bytes: 8 << 20, Entries: 1000}}}
		img, _, err := Pull(t.Context(), s, host+"/app:1", PullOptions{RegistryOptions: o})
		if err != nil {
			documented(t, err)
			afterFuzz(t, s, nil)
			return
		}
		afterFuzz(t, s, []*store.Image{img})
	})
}

// FuzzConfig: A configuration is refused, or can be kept and written again.
func FuzzConfig(f *testing.F) {
	one, two := twoLayers(f)
	f.Add(configFor(f, one, two))
	f.Add([]byte(`{"rootfs":{"diff_ids":["sha512:00"]},"config":{"Env":["A\u0000"]}}`))
	f.Add([]byte(`{"config":{"Healthcheck":7}}`))
	f.Add([]byte(`{"created":null,"os":"linux","variant":"v8","rootfs":{"diff_ids":["` + sum(one) + `","` + sum(one) + `"]},"history":[{"empty_layer":true},null],"config":null}`))
	f.Add([]byte(`{"created":"9999-12-31T23:59:59-23:59","config":{"Labels":{"fre.config":"{}"},"ExposedPorts":{"":{}},"Volumes":{"..":{}},"OnBuild":["x"],"Shell":[""],"StopSignal":"99999999999"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseConfig(b)
		if err != nil {
			return
		}
		if _, err := json.Marshal(configOf(c, b)); err != nil {
			t.Error(err)
		}
	})
}

// FuzzRecipe: A recipe is read to its end or refused. No piece exceeds the size limit.
func FuzzRecipe(f *testing.F) {
	var good bytes.Buffer
	rec, finish := newRecorder(bytes.NewReader([]byte("header content rest")), &good, func(int64) error { return nil })
	if _, err := io.CopyN(io.Discard, rec, 7); err != nil {
		f.Fatal(err)
	}
	rec.file("a/b")
	if _, err := io.CopyN(io.Discard, rec, 7); err != nil {
		f.Fatal(err)
	}
	rec.rest()
	if _, err := io.Copy(io.Discard, rec); err != nil {
		f.Fatal(err)
	}
	if err := finish(); err != nil {
		f.Fatal(err)
	}
	z, err := gzip.NewReader(&good)
	if err != nil {
		f.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		f.Fatal(err)
	}
	if want := recipeMagic + "r\x07header f\x03a/br\x05 rest"; string(plain) != want {
		f.Fatalf("recipe is %q, want %q", plain, want)
	}
	f.Add(plain)
	f.Add([]byte(recipeMagic + "r\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = readRecipe(bytes.NewReader(gzipped(t, b)), func(raw []byte) error {
			if len(raw) > maxRaw {
				t.Errorf("a piece of %d bytes", len(raw))
			}
			return nil
		}, func(string) error { return nil })
	})
}

// FuzzChange: An instruction changes a configuration or is refused.
func FuzzChange(f *testing.F) {
	for _, s := range []string{"CMD a", `ENTRYPOINT ["a"]`, "ENV A=b", "LABEL", "EXPOSE 1 2/udp", `VOLUME ["/a"]`, "run x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var c v1.Config
		if change(&c, s) == nil {
			if _, err := json.Marshal(c); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzArtifact: A manifest and a configuration make an artifact with the image's description, or
// are refused.
func FuzzArtifact(f *testing.F) {
	m := v1.Manifest{
		ArtifactType: mediaImage, Config: v1.Descriptor{MediaType: mediaManifest},
		Layers: []v1.Descriptor{{MediaType: mediaPart, Size: 1}}, Annotations: map[string]string{annotationPlatform: platform()},
	}
	config := marshal(f, store.Manifest{Name: "a", Version: "1", Parts: []store.Part{{Kind: "base", Name: "b", Tree: digestOf(nil)}}, Config: marshal(f, builtConfig())})
	f.Add(marshal(f, m), config)
	f.Add(marshal(f, m), []byte(`{"name":"a","version":"1","parts":null}`))
	f.Add([]byte(`{"layers":[{"size":-1}]}`), config)
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		m, err := v1.ParseManifest(bytes.NewReader(manifest))
		if err != nil {
			return
		}
		a, err := readArtifact(m, config, Limits{Bytes: 1 << 20})
		if err != nil {
			documented(t, err)
			return
		}
		if err := a.check(); err != nil {
			documented(t, err)
		}
		again, err := json.Marshal(a.manifest)
		if err != nil || digestOf(again) != digestOf(config) {
			t.Errorf("%s became %s (%v)", config, again, err)
		}
	})
}

// FuzzPart: An archive becomes the requested tree, or nothing.
func FuzzPart(f *testing.F) {
	s := openStore(f)
	release := s.Hold()
	defer release()
	p := basePart(f, s)
	list, err := s.TreeBytes(p.Tree)
	if err != nil {
		f.Fatal(err)
	}
	small := part(f, s, "code", "c", "", map[string]string{"a": "1", "b": "2"})
	short, err := s.TreeBytes(small.Tree)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(short, pack(f, file(partTree, string(short)), file("0", "1"), file("1", "2")))
	f.Add(short, pack(f, file(partTree, string(short)), file("0", "1")))
	f.Add(short, archiveOfPart(f, s, small))
	f.Add(list, pack(f, file(partTree, string(list))))
	f.Add([]byte(`{"entries":[{"path":"../a","kind":"symlink","link":"x"}]}`), pack(f, file(partTree, `{"entries":[{"path":"../a","kind":"symlink","link":"x"}]}`)))
	f.Add([]byte(`{"entries":null}`), pack(f, file(partTree, `{"entries":null}`)))
	other := openStore(f)
	f.Fuzz(func(t *testing.T, list, archive []byte) {
		defer other.Hold()()
		want := digestOf(list)
		j := newJob(other, Options{Limits: Limits{Bytes: 8 << 20, Entries: 1000}})
		if err := j.unpackPart(t.Context(), want, bytes.NewReader(archive)); err != nil {
			documented(t, err)
			return
		}
		got, err := other.TreeBytes(want)
		if err != nil || !bytes.Equal(got, list) {
			t.Errorf("%s became %s (%v)", list, got, err)
		}
		tree, err := other.Tree(want)
		if err != nil {
			t.Fatal(err)
		}
		for e := range tree.Objects() {
			in, err := other.OpenFile(e)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(in)
			if err != nil || digestOf(b) != e.Digest {
				t.Errorf("%s holds %q (%v)", e.Path, b, err)
			}
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
