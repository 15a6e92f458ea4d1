package sbom

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/store"
)

func tree(t testing.TB, s *store.Store, name, body string) store.Digest {
	t.Helper()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.File(name, 0o644, time.Unix(1, 0), strings.NewReader(body)); err != nil {
		t.Fatal(err)
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func put(t testing.TB, s *store.Store, name string, c image.Config, parts ...store.Part) *store.Image {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.PutImage(t.Context(), store.Manifest{Name: name, Version: "1.0", Parts: parts, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// hashContent is "hash-content" of bom-1.6.schema.json.
var hashContent = regexp.MustCompile(`^([a-fA-F0-9]{32}|[a-fA-F0-9]{40}|[a-fA-F0-9]{64}|[a-fA-F0-9]{96}|[a-fA-F0-9]{128})$`)

// TestCycloneDX: The bill of materials names the parts and the base's packages by package URL, with
// their verified hashes, in the same bytes each time.
func TestCycloneDX(t *testing.T) {
	s, err := store.Open(t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer s.Hold()()
	base := store.Part{Kind: "base", Name: "python", Version: "bookworm", Tree: tree(t, s, "bin/python", "x")}
	dpkg := store.Part{Kind: "base", Name: "x", Tree: tree(t, s, "var/lib/dpkg/status", "Package: bash\nStatus: install ok installed\nArchitecture: all\nVersion: 5.2+b1\n")}
	same := tree(t, s, "index.js", "x")
	sum256, sum512 := strings.Repeat("0a", 32), strings.Repeat("0b", 64)
	function := []store.Part{
		base,
		{Kind: "pip", Name: "Typing_Extensions", Version: "4.1+local", Tree: same, Prefix: "usr/lib/a", Hash: "sha256:" + sum256},
		{Kind: "npm", Name: "@scope/left-pad", Version: "1.3.0", Tree: same, Prefix: "function/node_modules/b", Hash: "sha512:" + sum512},
		{Kind: "npm", Name: "@scope/left-pad", Version: "1.3.0", Tree: same, Prefix: "function/node_modules/c", Hash: "sha512:" + sum512},
		{Kind: "npm", Name: "two", Version: "1.0.0", Tree: same, Prefix: "function/node_modules/d", Hash: "sha512:" + sum512},
		{Kind: "npm", Name: "two", Version: "1.0.0", Tree: same, Prefix: "function/node_modules/e", Hash: "sha256:" + sum256},
		{Kind: "maven", Name: "org.lucene:lucene-core", Version: "9.0", Tree: same, Prefix: "d", Hash: "sha256:" + sum512},
		{Kind: "composer", Name: "Monolog/monolog", Version: "3.0", Tree: same, Prefix: "e", Hash: "sha1:" + sum256[:40]},
		{Kind: "package", Name: "psr/log", Version: "3.0", Tree: same, Prefix: "g"},
		{Kind: "package", Name: "composer autoloader", Tree: same, Prefix: "h"},
		{Kind: "deb", Name: "curl", Version: "7.88.1-10+deb12u5", Tree: same, Prefix: "f", Hash: "sha256:" + sum256},
		{Kind: "code", Name: "hello", Tree: tree(t, s, "main.py", "y"), Prefix: "function", Hash: "git:" + sum256[:40]},
	}
	alone := put(t, s, "alone", image.Config{Base: "python"}, function...)
	baseImage := put(t, s, "base/python", image.Config{
		Base: "python", Packages: map[string]string{"python3": "3.11.2-1+b1", "libc6": "1:2.36-9"}, PackageHashes: map[string]string{"libc6": "sha256:" + sum256},
	}, base)
	layer := store.Part{Kind: "layer", Name: "l", Tree: same, Diff: store.Digest("sha256:" + sum256)}
	libc := "SHA-256 " + sum256 + " pkg:deb/debian/libc6@1:2.36-9"
	for _, c := range []struct {
		name  string
		img   *store.Image
		known string
		want  []string // package URLs

		hashes []string // with the objects that they cover
	}{
		{"a base", baseImage, "configuration", []string{"pkg:deb/debian/libc6@1:2.36-9", "pkg:deb/debian/python3@3.11.2-1%2Bb1"}, []string{libc}},
		{"a function", alone, "base environment", []string{
			"pkg:composer/monolog/monolog@3.0", "pkg:composer/psr/log@3.0", "pkg:deb/debian/curl@7.88.1-10%2Bdeb12u5", "pkg:deb/debian/libc6@1:2.36-9", "pkg:deb/debian/python3@3.11.2-1%2Bb1",
			"pkg:maven/org.lucene/lucene-core@9.0", "pkg:npm/%40scope/left-pad@1.3.0", "pkg:npm/two@1.0.0", "pkg:pypi/typing-extensions@4.1%2Blocal",
		}, []string{
			"commit " + sum256[:40] + " code hello", "SHA-1 " + sum256[:40] + " pkg:composer/monolog/monolog@3.0", "SHA-256 " + sum256 + " pkg:deb/debian/curl@7.88.1-10%2Bdeb12u5",
			libc, "SHA-512 " + sum512 + " pkg:npm/%40scope/left-pad@1.3.0", "SHA-256 " + sum256 + " pkg:pypi/typing-extensions@4.1%2Blocal",
		}},
		{"with dpkg's list", put(t, s, "dpkg", image.Config{}, dpkg), "dpkg", []string{"pkg:deb/debian/bash@5.2%2Bb1"}, nil},
		{"of what nobody knows", put(t, s, "unknown", image.Config{}, store.Part{Kind: "base", Name: "x", Tree: same}), "unknown", nil, nil},
		{"of a layer", put(t, s, "layer", image.Config{}, layer), "unknown", nil, []string{"SHA-256 " + sum256 + " layer l"}},
	} {
		b, err := CycloneDX(s, c.img, runtimes.Sites())
		if err != nil {
			t.Fatal(err)
		}
		if again, err := CycloneDX(s, c.img, runtimes.Sites()); err != nil || !bytes.Equal(b, again) {
			t.Errorf("%s: another time it is another document: %v", c.name, err)
		}
		var doc document
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		var got, hashes []string
		refs := map[string]bool{}
		for _, x := range doc.Components {
			if refs[x.Ref] || x.Ref == "" || x.Name == "" {
				t.Errorf("%s: component %+v", c.name, x)
			}
			refs[x.Ref] = true
			for _, h := range x.Hashes { // bom-1.6.schema.json, "hash": the algorithms, and "hash-content"
				if !slices.Contains([]string{"SHA-1", "SHA-256", "SHA-384", "SHA-512"}, h.Algorithm) || !hashContent.MatchString(h.Content) {
					t.Errorf("%s: %s has the hash %+v", c.name, x.Ref, h)
				}
				of := x.PURL
				if of == "" {
					of = x.Name
				}
				hashes = append(hashes, h.Algorithm+" "+h.Content+" "+of)
			}
			if x.Pedigree != nil {
				hashes = append(hashes, "commit "+x.Pedigree.Commits[0].ID+" "+x.Name)
			}
			if x.PURL != "" {
				got = append(got, x.PURL)
				if _, err := url.Parse(x.PURL); err != nil {
					t.Error(err)
				}
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: package URLs (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.hashes, hashes); diff != "" {
			t.Errorf("%s: hashes (-want +got):\n%s", c.name, diff)
		}
		if len(doc.Dependencies) != 1 || len(doc.Dependencies[0].DependsOn) != len(refs) {
			t.Errorf("%s: dependencies %+v", c.name, doc.Dependencies)
		}
		if root := doc.Metadata.Component; root.Ref != string(c.img.Digest) || !strings.Contains(string(b), `"`+c.known+`"`) {
			t.Errorf("%s: it is of %+v, its packages known from %q", c.name, root, c.known)
		}
		if !strings.HasPrefix(doc.SerialNumber, "urn:uuid:") || doc.SpecVersion != "1.6" || doc.Format != "CycloneDX" {
			t.Errorf("%s: %+v", c.name, doc)
		}
	}
}

// FuzzPURL: For each part the package URL is valid or absent, and each written hash is valid.
func FuzzPURL(f *testing.F) {
	f.Add("npm", "@a/b", "1.0+x?y#z", "sha512:"+strings.Repeat("0a", 64))
	f.Add("maven", "g:a", "1 %", "git:"+strings.Repeat("0a", 20))
	f.Fuzz(func(t *testing.T, kind, name, version, by string) {
		x := ofPart(store.Part{Kind: kind, Name: name, Version: version, Tree: "sha256:x", Hash: by}, packagingOf(runtimes.Sites()))
		for _, h := range x.Hashes {
			if h.Algorithm == "" || !hashContent.MatchString(h.Content) {
				t.Errorf("%+v of %q", h, by)
			}
		}
		if x.PURL == "" {
			return
		}
		if strings.ContainsAny(x.PURL, " ?#\n\"<>") {
			t.Errorf("%q", x.PURL)
		}
	})
}
