package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/klauspost/compress/zstd"
)

// testArchive is a complete little archive of one suite, "test", served over HTTP and signed with
// its own key.
type testArchive struct {
	*httptest.Server
	key     *openpgp.Entity
	signer  *openpgp.Entity // key, unless a test replaces the signer
	headers string          // further fields of the Release file

	contents string // of the list of all files; "" for no list

	mu    sync.Mutex
	files map[string][]byte // path → content
	hits  map[string]int    // path → answers with content
}

func newKey(t *testing.T) *openpgp.Entity {
	t.Helper()
	k, err := openpgp.NewEntity("test", "", "test@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newTestArchive(t *testing.T) *testArchive {
	t.Helper()
	a := &testArchive{key: newKey(t), files: map[string][]byte{}, hits: map[string]int{}}
	a.signer = a.key
	modified := time.Now().Add(-time.Hour)
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		b, ok := a.files[r.URL.Path]
		since := r.Header.Get("If-Modified-Since")
		if ok && since == "" {
			a.hits[r.URL.Path]++
		}
		a.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", modified, bytes.NewReader(b))
	}))
	t.Cleanup(a.Close)
	return a
}

// stanza describes one package of the index; deb is the content of its file.
type stanza struct {
	name, version, fields string
	deb                   []byte
}

func arch() string { return runtime.GOARCH }

// publish writes index and release file.
func (a *testArchive) publish(t *testing.T, packages ...stanza) {
	t.Helper()
	var index strings.Builder
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range packages {
		if p.deb == nil {
			p.deb = []byte("none")
		}
		sum := sha256.Sum256(p.deb)
		name := "pool/" + p.name + "_" + strings.ReplaceAll(p.version, ":", "%3a") + ".deb"
		a.files["/"+strings.ReplaceAll(name, "%3a", ":")] = p.deb
		fmt.Fprintf(&index, "Package: %s\nVersion: %s\nArchitecture: all\nFilename: %s\nSize: %d\nSHA256: %x\n", p.name, p.version, name, len(p.deb), sum)
		if p.fields != "" {
			index.WriteString(p.fields + "\n")
		}
		index.WriteString("\n")
	}
	z := bytes.NewBuffer(gzipped(t, index.String()))
	dir := "main/binary-" + arch() + "/Packages"
	var rel strings.Builder
	fmt.Fprintf(&rel, "Origin: Test\nSuite: test\nCodename: test\n%sSHA256:\n", a.headers)
	fmt.Fprintf(&rel, " %x %d %s\n", sha256.Sum256([]byte(index.String())), index.Len(), dir)
	fmt.Fprintf(&rel, " %x %d %s.gz\n", sha256.Sum256(z.Bytes()), z.Len(), dir)
	a.files["/dists/test/"+dir+".gz"] = z.Bytes()
	if a.contents != "" {
		list, name := gzipped(t, a.contents), "main/Contents-"+arch()+".gz"
		fmt.Fprintf(&rel, " %x %d %s\n", sha256.Sum256(list), len(list), name)
		a.files["/dists/test/"+name] = list
	}
	sum := sha256.Sum256(z.Bytes())
	if strings.Contains(a.headers, "Acquire-By-Hash: yes") {
		a.files["/dists/test/main/binary-"+arch()+"/by-hash/SHA256/"+hex.EncodeToString(sum[:])] = z.Bytes()
	}
	a.files["/dists/test/InRelease"] = sign(t, a.signer, rel.String())
}

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := io.WriteString(w, text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

func sign(t *testing.T, key *openpgp.Entity, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, key.PrivateKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n")
	return b.Bytes()
}

func armored(t *testing.T, key *openpgp.Entity) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Serialize(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// open opens the archive with its own key and a fresh cache.
func (a *testArchive) open(t *testing.T, cache string) *Archive {
	t.Helper()
	o, err := Open(Config{
		Sources: []Source{{URI: a.URL, Suite: "test", Components: []string{"main"}, Keys: armored(t, a.key)}},
		Cache:   cache, Client: a.Client(),
	})
	if err != nil {
		t.Fatal(err)
	}
	o.fetch.backoff = time.Millisecond
	return o
}

// deb packs members into a package; ext is "", ".gz" or ".zst".
func deb(t *testing.T, ext string, members ...tar.Header) []byte {
	t.Helper()
	var data bytes.Buffer
	var z io.WriteCloser
	switch ext {
	case ".gz":
		z = gzip.NewWriter(&data)
	case ".zst":
		var err error
		if z, err = zstd.NewWriter(&data); err != nil {
			t.Fatal(err)
		}
	default:
		z = nopCloser{&data}
	}
	tw := tar.NewWriter(z)
	for _, h := range members {
		content := h.PAXRecords["FRE.content"]
		h.PAXRecords = nil
		h.Size = int64(len(content))
		h.ModTime = time.Unix(1700000000, 0)
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return ar(ext, data.Bytes())
}

// ar wraps a data.tar beside an invalid control.tar.
func ar(ext string, data []byte) []byte { return arWith(ext, data, []byte("odd")) }

func arWith(ext string, data, control []byte) []byte {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		b    []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar", control}, {"data.tar" + ext, data}} {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.b))
		b.Write(m.b)
		if len(m.b)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func file(name, content string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, PAXRecords: map[string]string{"FRE.content": content}}
}

func symlink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

func hardlink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
}

func directory(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}

// memory is a Writer that keeps "mode content", "→ target" or "dir" by path.
type memory map[string]string

func (m memory) put(p, s string) error {
	if _, ok := m[p]; ok {
		return fmt.Errorf("%s: %w", p, fs.ErrExist)
	}
	if d := strings.LastIndexByte(p, '/'); d > 0 && m[p[:d]] != "dir" {
		return fmt.Errorf("%s comes before its parent", p)
	}
	m[p] = s
	return nil
}

func (m memory) File(p string, mode fs.FileMode, _ time.Time, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return m.put(p, fmt.Sprintf("%o %s", uint32(mode), b))
}
func (m memory) Directory(p string, _ fs.FileMode, _ time.Time) error { return m.put(p, "dir") }
func (m memory) Symlink(p, target string, _ time.Time) error          { return m.put(p, "→ "+target) }
