package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"

	"github.com/fre-engine/fre/store"
)

// fuzzStore is one store for all inputs, since opening one takes longer than the
// rest, and in memory, since waiting for a disk would be all it does.
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

// FuzzUnpack: whatever a layer holds, it is refused or comes out again as it
// was.
func FuzzUnpack(f *testing.F) {
	s := fuzzStore(f)
	one, two := twoLayers(f)
	sparse := pack(f, entry{tar.Header{Typeflag: tar.TypeReg, Name: "s", PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}, "body"})
	for _, b := range [][]byte{nil, one, two, oddLayer(f, 10), gzipped(f, one), zstandard(f, two), sparse, one[:len(one)-700]} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		j := newJob(s, Options{Limits: Limits{Bytes: 8 << 20, Entries: 1000}})
		defer s.Hold()()
		p, err := j.unpack(t.Context(), bytes.NewReader(b))
		if err != nil {
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
		if img, err := s.PutImage(t.Context(), store.Manifest{Parts: []store.Part{p}}); err == nil {
			if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzArchive: whatever an archive of images says, it is read or refused.
func FuzzArchive(f *testing.F) {
	s := fuzzStore(f)
	one, two := twoLayers(f)
	config := configFor(f, one, two)
	f.Add(dockerArchive(f, config, []string{"app:1"}, one, two))
	f.Add(layoutArchive(f, config, "app:1", one, two))
	f.Add(pack(f, file("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"`+sum(nil)+`"}]}`), file("blobs/sha256/"+sum(nil)[7:], "")))
	f.Fuzz(func(t *testing.T, b []byte) {
		j := newJob(s, Options{Limits: Limits{Bytes: 8 << 20, Entries: 1000}})
		a, err := j.spool(t.Context(), bytes.NewReader(b))
		if err != nil {
			return
		}
		defer a.remove()
		images, err := a.images()
		if err != nil {
			return
		}
		for _, i := range images {
			if err := checkNames(i.names); err != nil {
				t.Error(err)
			}
			for _, l := range i.layers {
				r, err := l.open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_ = r.Close()
			}
		}
	})
}

// FuzzConfig: a configuration is refused, or can be kept and said again.
func FuzzConfig(f *testing.F) {
	one, two := twoLayers(f)
	f.Add(configFor(f, one, two))
	f.Add([]byte(`{"rootfs":{"diff_ids":["sha512:00"]},"config":{"Env":["A\u0000"]}}`))
	f.Add([]byte(`{"config":{"Healthcheck":7}}`))
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

// FuzzRecipe: a recipe is read to its end or refused; no piece is larger than
// one may be.
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

// FuzzChange: an instruction changes a configuration or is refused.
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
