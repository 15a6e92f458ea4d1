package registry

import (
	"bytes"
	"encoding/json"
	"math"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzPath: A path names a repository inside the registry, or none.
func FuzzPath(f *testing.F) {
	for _, p := range []string{
		"/v2/", "/v2", "/v2/_catalog", "/v2/a/b/blobs/sha256:0", "/v2/a/blobs/uploads/", "/v2/a/blobs/uploads", "/v2/a/blobs/uploads/x",
		"/v2/blobs/uploads/manifests/manifests/tags", "/v2/a/tags/list", "/v2/a/referrers/x", "/v2/../a/tags/list", "/v2//manifests/a", "/v2/a/../../manifests/..",
	} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := parsePath(p)
		if err != nil || got.resource == resourceBase || got.resource == resourceCatalog {
			return
		}
		dir := repoPath(got.name, "_tags")
		if !filepath.IsLocal(dir) || path.Clean(dir) != dir || strings.Contains(got.name, "_blobs") && strings.HasPrefix(path.Base(got.name), "_") {
			t.Errorf("%q is of repository %q", p, got.name)
		}
		if d, err := parseDigest(got.ref); err == nil {
			if file := markerPath(got.name, d); !filepath.IsLocal(file) || !strings.HasPrefix(file, reposDir+"/"+got.name+"/_blobs/sha") || d.String() != got.ref {
				t.Errorf("%q is at %q", got.ref, file)
			}
		}
		if tagSyntax.MatchString(got.ref) && path.Dir(tagPath(got.name, got.ref)) != dir {
			t.Errorf("tag %q is at %q", got.ref, tagPath(got.name, got.ref))
		}
	})
}

// FuzzContentRange: Any Content-Range header gives a valid range or is refused.
func FuzzContentRange(f *testing.F) {
	for _, h := range []string{"0-0", "0-9", "10-9", "-1", "9223372036854775807-9223372036854775807", "0-9223372036854775807", "bytes=0-1", "00-01"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, header string) {
		first, length, err := parseContentRange(header)
		if err != nil {
			return
		}
		if first < 0 || length <= 0 || first > math.MaxInt64-length {
			t.Errorf("%q is %d bytes at %d", header, length, first)
		}
	})
}

// FuzzManifest: An accepted manifest is of one kind, refers to digests only, and keeps its type.
func FuzzManifest(f *testing.F) {
	for _, m := range []string{
		image("{}", "layer"), `{"schemaVersion":2,"manifests":[]}`, `{"schemaVersion":2,"manifests":[{"digest":"sha256:../../x","size":1}]}`,
		`{"schemaVersion":1}`, `{"schemaVersion":2,"layers":[],"manifests":[]}`, `{"schemaVersion":2,"config":{"digest":"a:b","size":-1}}`,
		`{"mediaType":"a/b+json","subject":{"digest":"sha256:0"}}`, `[]`, `{`,
	} {
		f.Add("", []byte(m))
		f.Add(typeOCIIndex, []byte(m))
		f.Add("x/y+json\n; q=1", []byte(m))
	}
	f.Fuzz(func(t *testing.T, contentType string, data []byte) {
		m, err := parseManifest(contentType, data)
		if err != nil {
			return
		}
		if m.MediaType == "" || len(m.MediaType) >= manifestHead || strings.ContainsAny(m.MediaType, " \r\n\x00") {
			t.Errorf("type %q", m.MediaType)
		}
		if len(m.Manifests) > 0 && len(m.blobs()) > len(m.Blobs) {
			t.Error("an index and an image")
		}
		for _, d := range m.descriptors() {
			if strings.ContainsAny(d.Digest, "/\\\x00") || d.Size < 0 {
				t.Errorf("it refers to %+v", d)
			}
		}
		again, err := parseManifest(m.MediaType, data)
		if err != nil || again.MediaType != m.MediaType {
			t.Errorf("as %q: %v", m.MediaType, err)
		}
		if entry, err := json.Marshal(descriptor{ArtifactType: m.artifactType(), Annotations: m.Annotations}); err != nil || !json.Valid(entry) {
			t.Errorf("listed as %q, %v", entry, err)
		}
	})
}

// FuzzUsers: Any file of users gives valid names with hashes from the file, or is refused.
func FuzzUsers(f *testing.F) {
	f.Add([]byte("a:$2y$10$Hfk8HVEFr8BE4Nk4wFKhFODwDdOoEPxYFCDMCFNkDMUfOQZoKQsIm:write\n#\n"))
	f.Add([]byte("a:b:c:d\n::\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		users, err := parseUsers(src)
		if err != nil {
			return
		}
		for name, u := range users {
			if name == "" || strings.ContainsAny(name, ":\n") || !bytes.Contains(src, u.hash) {
				t.Errorf("user %q with hash %q", name, u.hash)
			}
		}
	})
}
