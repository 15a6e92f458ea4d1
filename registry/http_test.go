package registry

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// client speaks to a registry at an address.
type client struct {
	t    testing.TB
	base string
	user string
}

// reply is a complete answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// code returns the code of the answer's first error.
func (r reply) code() string {
	var body struct{ Errors []struct{ Code string } }
	if r.status < 400 || json.Unmarshal([]byte(r.body), &body) != nil || len(body.Errors) == 0 {
		return ""
	}
	return body.Errors[0].Code
}

// do sends a request with headers of the form NAME: VALUE.
func (c client) do(method, path string, body io.Reader, headers ...string) reply {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
		if name == "Host" {
			req.Host = value
		}
	}
	if c.user != "" {
		name, password, _ := strings.Cut(c.user, ":")
		req.SetBasicAuth(name, password)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(got)}
}

// want fails the test unless the answer has the status and, for an error, the code.
func (c client) want(r reply, status int, code string) reply {
	c.t.Helper()
	if r.status != status || r.code() != code {
		c.t.Errorf("got %d %q: %.300s; want %d %q", r.status, r.code(), r.body, status, code)
	}
	return r
}

func dig(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func dig512(content string) string {
	sum := sha512.Sum512([]byte(content))
	return "sha512:" + hex.EncodeToString(sum[:])
}

// push pushes a blob and returns its digest.
func (c client) push(name, content string) string {
	c.t.Helper()
	c.want(c.do("POST", "/v2/"+name+"/blobs/uploads/?digest="+dig(content), strings.NewReader(content)), 201, "")
	return dig(content)
}

// start begins an upload and returns its location.
func (c client) start(name string) string {
	c.t.Helper()
	return c.want(c.do("POST", "/v2/"+name+"/blobs/uploads/", nil), 202, "").header.Get("Location")
}

// image returns an image manifest of blobs with the given contents; the first is the configuration.
func image(contents ...string) string {
	var layers []string
	for _, content := range contents {
		layers = append(layers, fmt.Sprintf(`{"mediaType":"application/x","digest":%q,"size":%d}`, dig(content), len(content)))
	}
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]}`, typeOCIImage, layers[0], strings.Join(layers[1:], ","))
}

// pushImage pushes an image with its blobs and returns its digest.
func (c client) pushImage(name, tag string, contents ...string) string {
	c.t.Helper()
	for _, content := range contents {
		c.push(name, content)
	}
	m := image(contents...)
	c.want(c.do("PUT", "/v2/"+name+"/manifests/"+tag, strings.NewReader(m), "Content-Type: "+typeOCIImage), 201, "")
	return dig(m)
}

func newClient(t testing.TB, cfg Config) client {
	t.Helper()
	return client{t: t, base: "http://" + serve(t, open(t, t.TempDir(), cfg))}
}

// TestErrors: Each faulty request gets the status and the code of the distribution-spec.
func TestErrors(t *testing.T) {
	c := newClient(t, Config{})
	c.pushImage("a", "1", "{}", "layer")
	gone := c.start("a")
	c.want(c.do("DELETE", gone, nil), 204, "")
	other := strings.Replace(c.start("a"), "/v2/a/", "/v2/b/", 1)
	badSum := "sha256:" + strings.Repeat("0", 64)
	tests := []struct {
		name, method, path, body string
		status                   int
		code                     string
		headers                  []string
	}{
		{"no API", "GET", "/", "", 404, "UNSUPPORTED", nil},
		{"no such resource", "GET", "/v2/a/layers/1", "", 404, "UNSUPPORTED", nil},
		{"method", "PATCH", "/v2/a/manifests/1", "", 405, "UNSUPPORTED", nil},
		{"name in capitals", "GET", "/v2/A/tags/list", "", 400, "NAME_INVALID", nil},
		{"name that leads out", "GET", "/v2/../../etc/tags/list", "", 400, "NAME_INVALID", nil},
		{"name that leads out, encoded", "GET", "/v2/%2e%2e%2f%2e%2e/manifests/1", "", 400, "NAME_INVALID", nil},
		{"name of the registry's own", "GET", "/v2/a/_blobs/manifests/1", "", 400, "NAME_INVALID", nil},
		{"name with a NUL", "GET", "/v2/a%00/manifests/1", "", 400, "NAME_INVALID", nil},
		{"long name", "GET", "/v2/" + strings.Repeat("a", 256) + "/tags/list", "", 400, "NAME_INVALID", nil},
		{"no repository", "GET", "/v2/none/tags/list", "", 404, "NAME_UNKNOWN", nil},
		{"no tag", "GET", "/v2/a/manifests/2", "", 404, "MANIFEST_UNKNOWN", nil},
		{"tag that leads out", "GET", "/v2/a/manifests/..", "", 404, "MANIFEST_UNKNOWN", nil},
		{"deletion of a tag that leads out", "DELETE", "/v2/a/manifests/..%2f_blobs", "", 404, "UNSUPPORTED", nil},
		{"no manifest", "GET", "/v2/a/manifests/" + badSum, "", 404, "MANIFEST_UNKNOWN", nil},
		{"blob as a manifest", "GET", "/v2/a/manifests/" + dig("layer"), "", 404, "MANIFEST_UNKNOWN", nil},
		{"no blob", "GET", "/v2/a/blobs/" + badSum, "", 404, "BLOB_UNKNOWN", nil},
		{"another repository's blob", "GET", "/v2/b/blobs/" + dig("layer"), "", 404, "BLOB_UNKNOWN", nil},
		{"digest of no algorithm", "GET", "/v2/a/blobs/md5:d41d8cd98f00b204e9800998ecf8427e", "", 400, "DIGEST_INVALID", nil},
		{"digest in capitals", "GET", "/v2/a/blobs/sha256:" + strings.Repeat("A", 64), "", 400, "DIGEST_INVALID", nil},
		{"short digest", "DELETE", "/v2/a/blobs/sha256:12", "", 400, "DIGEST_INVALID", nil},
		{"referrers of no digest", "GET", "/v2/a/referrers/latest", "", 400, "DIGEST_INVALID", nil},
		{"n", "GET", "/v2/a/tags/list?n=many", "", 400, "UNSUPPORTED", nil},
		{"finished upload", "PATCH", gone, "x", 404, "BLOB_UPLOAD_UNKNOWN", nil},
		{"another repository's upload", "GET", other, "", 404, "BLOB_UPLOAD_UNKNOWN", nil},
		{"upload that leads out", "PATCH", "/v2/a/blobs/uploads/..", "x", 404, "BLOB_UPLOAD_UNKNOWN", nil},
		{"wrong content", "POST", "/v2/a/blobs/uploads/?digest=" + badSum, "x", 400, "DIGEST_INVALID", nil},
		{"algorithm", "POST", "/v2/a/blobs/uploads/?digest-algorithm=md5", "", 400, "DIGEST_INVALID", nil},
		{"mount of nothing", "POST", "/v2/a/blobs/uploads/?mount=x", "", 400, "DIGEST_INVALID", nil},
		{"web page", "POST", "/v2/a/blobs/uploads/", "", 403, "DENIED", []string{"Origin: https://evil.example"}},
		{"empty manifest", "PUT", "/v2/a/manifests/1", "", 400, "MANIFEST_INVALID", nil},
		{"manifest is a list", "PUT", "/v2/a/manifests/1", "[]", 400, "MANIFEST_INVALID", nil},
		{"manifest of schema 1", "PUT", "/v2/a/manifests/1", `{"schemaVersion":1}`, 400, "MANIFEST_INVALID", nil},
		{"image without a configuration", "PUT", "/v2/a/manifests/1", `{"schemaVersion":2,"layers":[]}`, 400, "MANIFEST_INVALID", nil},
		{"image and index", "PUT", "/v2/a/manifests/1", `{"schemaVersion":2,"manifests":[],"layers":[]}`, 400, "MANIFEST_INVALID", nil},
		{"two types", "PUT", "/v2/a/manifests/1", `{"schemaVersion":2,"mediaType":"` + typeOCIIndex + `","manifests":[]}`, 400, "MANIFEST_INVALID", []string{"Content-Type: " + typeOCIImage}},
		{"no type of a manifest", "PUT", "/v2/a/manifests/1", `{"schemaVersion":2}`, 400, "MANIFEST_INVALID", []string{"Content-Type: text/plain"}},
		{"blob that is not there", "PUT", "/v2/a/manifests/1", image("{}", "other"), 400, "MANIFEST_BLOB_UNKNOWN", nil},
		{"another repository's blobs", "PUT", "/v2/b/manifests/1", image("{}", "layer"), 400, "MANIFEST_BLOB_UNKNOWN", nil},
		{"wrong size", "PUT", "/v2/a/manifests/1", strings.Replace(image("{}", "layer"), `"size":5`, `"size":6`, 1), 400, "MANIFEST_INVALID", nil},
		{"no digest", "PUT", "/v2/a/manifests/1", strings.ReplaceAll(image("{}"), "sha256:", "../"), 400, "MANIFEST_INVALID", nil},
		{"subject of another algorithm", "PUT", "/v2/a/manifests/1", strings.Replace(image("{}"), `{`, `{"subject":{"digest":"md5:0"},`, 1), 400, "MANIFEST_INVALID", nil},
		{"manifest of another digest", "PUT", "/v2/a/manifests/" + badSum, image("{}"), 400, "DIGEST_INVALID", nil},
		{"bad tag", "PUT", "/v2/a/manifests/.hidden", image("{}"), 400, "MANIFEST_INVALID", nil},
		{"bad tag beside a digest", "PUT", "/v2/a/manifests/" + dig(image("{}")) + "?tag=-", image("{}"), 400, "MANIFEST_INVALID", nil},
		{"too many tags", "PUT", "/v2/a/manifests/" + dig(image("{}")) + "?" + strings.Repeat("tag=a&", maxTags+1), image("{}"), 414, "UNSUPPORTED", nil},
		{"large manifest", "PUT", "/v2/a/manifests/1", strings.Repeat(" ", MaxManifestBytes+1), 413, "SIZE_INVALID", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := client{t: t, base: c.base}
			c.want(c.do(tt.method, tt.path, strings.NewReader(tt.body), tt.headers...), tt.status, tt.code)
		})
	}
	if got := c.do("GET", "/v2/a/manifests/1", nil); got.body != image("{}", "layer") {
		t.Errorf("after all that the manifest is %q", got.body)
	}
}

// TestUpload: An upload accepts its parts in order and continues from its last byte.
func TestUpload(t *testing.T) {
	const content = "0123456789"
	dir := t.TempDir()
	c := client{t: t, base: "http://" + serve(t, open(t, dir, Config{}))}
	part := func(at, end int) (io.Reader, string) {
		return strings.NewReader(content[at:end]), fmt.Sprintf("Content-Range: %d-%d", at, end-1)
	}
	loc := c.start("a")
	body, header := part(0, 4)
	if got := c.want(c.do("PATCH", loc, body, header), 202, ""); got.header.Get("Range") != "0-3" {
		t.Errorf("Range %q, want 0-3", got.header.Get("Range"))
	}
	t.Run("out of order", func(t *testing.T) {
		for _, at := range []int{0, 3, 5} {
			body, header := part(at, 8)
			got := client{t: t}.want(c.do("PATCH", loc, body, header), 416, "BLOB_UPLOAD_INVALID")
			if got.header.Get("Range") != "0-3" || got.header.Get("Location") != loc {
				t.Errorf("Range %q, Location %q", got.header.Get("Range"), got.header.Get("Location"))
			}
		}
	})
	t.Run("wrong length", func(t *testing.T) {
		c := client{t: t, base: c.base}
		c.want(c.do("PATCH", loc, strings.NewReader("45"), "Content-Range: 4-8"), 400, "SIZE_INVALID")
		unsized := struct{ io.Reader }{strings.NewReader("45678")}
		c.want(c.do("PATCH", loc, unsized, "Content-Range: 4-5"), 400, "SIZE_INVALID")
		c.want(c.do("PATCH", loc, strings.NewReader("45"), "Content-Range: 5-4"), 400, "BLOB_UPLOAD_INVALID")
		c.want(c.do("PATCH", loc, strings.NewReader("45"), "Content-Range: bytes=4-5"), 400, "BLOB_UPLOAD_INVALID")
		if got := c.want(c.do("GET", loc, nil), 204, ""); got.header.Get("Range") != "0-3" {
			t.Errorf("Range %q, want 0-3", got.header.Get("Range"))
		}
	})
	t.Run("at the end", func(t *testing.T) {
		c := client{t: t, base: c.base}
		body, header := part(4, 10)
		c.want(c.do("PUT", loc, body, header), 400, "DIGEST_INVALID") // no digest
		body, header = part(4, 10)
		got := c.want(c.do("PUT", loc+"?digest="+dig512(content), body, header), 201, "")
		want := "/v2/a/blobs/" + dig512(content)
		if got.header.Get("Location") != want || got.header.Get("Docker-Content-Digest") != dig512(content) {
			t.Errorf("Location %q, Docker-Content-Digest %q", got.header.Get("Location"), got.header.Get("Docker-Content-Digest"))
		}
		if got := c.want(c.do("GET", want, nil), 200, ""); got.body != content {
			t.Errorf("got %q", got.body)
		}
		c.want(c.do("PUT", loc+"?digest="+dig(content), nil), 404, "BLOB_UPLOAD_UNKNOWN")
	})
}

// TestMount: A blob is mounted from a named repository or from any; a repository without the blob
// mounts nothing.
func TestMount(t *testing.T) {
	c := newClient(t, Config{})
	d := c.push("a", "blob")
	for _, tt := range []struct {
		query, name string
		status      int
	}{
		{"&from=none", "b", 202}, {"&from=../..", "b", 202}, {"&from=a", "b", 201}, {"", "c/d", 201},
	} {
		c.want(c.do("POST", "/v2/"+tt.name+"/blobs/uploads/?mount="+d+tt.query, nil), tt.status, "")
		has := map[int]int{201: 200, 202: 404}[tt.status]
		if got := c.do("HEAD", "/v2/"+tt.name+"/blobs/"+d, nil); got.status != has {
			t.Errorf("%s%s: HEAD says %d, want %d", tt.name, tt.query, got.status, has)
		}
	}
	for _, name := range []string{"a", "b", "c/d"} {
		c.want(c.do("DELETE", "/v2/"+name+"/blobs/"+d, nil), 202, "")
		c.want(c.do("DELETE", "/v2/"+name+"/blobs/"+d, nil), 404, "BLOB_UNKNOWN")
	}
	c.want(c.do("POST", "/v2/e/blobs/uploads/?mount="+d, nil), 202, "")
}

// TestManifests: A manifest keeps its bytes and its media type.
func TestManifests(t *testing.T) {
	c := newClient(t, Config{})
	d := c.pushImage("a", "1", "{}", "layer")
	m := image("{}", "layer")
	entry := fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, typeOCIImage, d, len(m))
	foreign := fmt.Sprintf(`{"mediaType":"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip","digest":%q,"size":1,"urls":["http://x"]}`, dig("elsewhere"))
	config := fmt.Sprintf(`{"mediaType":"application/x","digest":%q,"size":2}`, dig("{}"))
	for _, tt := range []struct{ name, contentType, manifest, want string }{
		{"index", "", `{"schemaVersion":2,"manifests":[` + entry + `]}`, typeOCIIndex},
		{"cache of a builder", typeOCIIndex, `{"schemaVersion":2,"manifests":[` + config + `]}`, typeOCIIndex},
		{"Docker's list", typeDockerList + "; charset=utf-8", `{"schemaVersion":2,"mediaType":"` + typeDockerList + `","manifests":[` + entry + `]}`, typeDockerList},
		{"Docker's image", typeDockerImage, `{"schemaVersion":2,"config":` + config + `,"layers":[` + foreign + `]}`, typeDockerImage},
		{"artifact", "application/vnd.oci.artifact.manifest.v1+json", `{"blobs":[` + config + `]}`, "application/vnd.oci.artifact.manifest.v1+json"},
		{"in its own words", "", " \n" + m, typeOCIImage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := client{t: t, base: c.base}
			got := c.want(c.do("PUT", "/v2/a/manifests/x", strings.NewReader(tt.manifest), "Content-Type: "+tt.contentType), 201, "")
			if got.header.Get("Docker-Content-Digest") != dig(tt.manifest) {
				t.Errorf("digest %s, want %s", got.header.Get("Docker-Content-Digest"), dig(tt.manifest))
			}
			for _, ref := range []string{"x", dig(tt.manifest)} {
				got := c.want(c.do("GET", "/v2/a/manifests/"+ref, nil), 200, "")
				if got.body != tt.manifest || got.header.Get("Content-Type") != tt.want {
					t.Errorf("%s: got %q of type %s, want %q of type %s", ref, got.body, got.header.Get("Content-Type"), tt.manifest, tt.want)
				}
			}
		})
	}
	got := c.want(c.do("GET", "/v2/a/manifests/1", nil, `If-None-Match: "`+d+`"`), 304, "")
	if got.body != "" {
		t.Errorf("304 with %q", got.body)
	}
	got = c.want(c.do("PUT", "/v2/a/manifests/"+d+"?tag=2&tag=3", strings.NewReader(m)), 201, "")
	if got.header.Get("OCI-Tag") != "2, 3" {
		t.Errorf("OCI-Tag %q", got.header.Get("OCI-Tag"))
	}
	c.want(c.do("DELETE", "/v2/a/manifests/2", nil), 202, "")
	tags := func() string { return c.do("GET", "/v2/a/tags/list", nil).body }
	if got, want := tags(), `{"name":"a","tags":["1","3","x"]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.want(c.do("DELETE", "/v2/a/manifests/"+d, nil), 202, "")
	if got, want := tags(), `{"name":"a","tags":["x"]}`; got != want {
		t.Errorf("after the manifest's removal: got %s, want %s", got, want)
	}
	c.want(c.do("GET", "/v2/a/manifests/3", nil), 404, "MANIFEST_UNKNOWN")
}

// pages follows Link to the last page and returns the entries of each page.
func (c client) pages(path string, list func(body string) []string) [][]string {
	c.t.Helper()
	var all [][]string
	for path != "" {
		got := c.want(c.do("GET", path, nil), 200, "")
		all = append(all, list(got.body))
		path = ""
		if link := got.header.Get("Link"); link != "" {
			path = strings.TrimSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
		}
	}
	return all
}

// TestLists: Long lists of tags and repositories come in pages.
func TestLists(t *testing.T) {
	c := newClient(t, Config{})
	for _, tag := range []string{"b", "a", "B", "c"} {
		c.pushImage("x", tag, "{}")
	}
	c.pushImage("x/y", "a", "{}")
	c.pushImage("w", "a", "{}")
	tags := func(body string) []string {
		var l struct{ Tags []string }
		if err := json.Unmarshal([]byte(body), &l); err != nil {
			t.Fatal(err)
		}
		return l.Tags
	}
	for path, want := range map[string][][]string{
		"/v2/x/tags/list":              {{"B", "a", "b", "c"}},
		"/v2/x/tags/list?n=3":          {{"B", "a", "b"}, {"c"}},
		"/v2/x/tags/list?n=2":          {{"B", "a"}, {"b", "c"}},
		"/v2/x/tags/list?n=0":          {{}},
		"/v2/x/tags/list?last=a":       {{"b", "c"}},
		"/v2/x/tags/list?last=C":       {{"a", "b", "c"}},
		"/v2/x/tags/list?last=c&n=100": {{}},
	} {
		if diff := cmp.Diff(want, c.pages(path, tags)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	repos := func(body string) []string {
		var l struct{ Repositories []string }
		if err := json.Unmarshal([]byte(body), &l); err != nil {
			t.Fatal(err)
		}
		return l.Repositories
	}
	if diff := cmp.Diff([][]string{{"w", "x"}, {"x/y"}}, c.pages("/v2/_catalog?n=2", repos)); diff != "" {
		t.Errorf("catalog (-want +got):\n%s", diff)
	}
}

// TestReferrers: The referrers of a manifest are listed, in pages if one answer is too small.
func TestReferrers(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	r.maxReferrers = 45_000
	c := client{t: t, base: "http://" + serve(t, r)}
	d := c.pushImage("a", "1", "{}")
	c.push("a", "{}")
	refer := func(artifactType, note string) string {
		m := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"artifactType":%q,"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":2},"layers":[],"subject":{"mediaType":%q,"digest":%q,"size":1},"annotations":{"note":%q}}`,
			typeOCIImage, artifactType, dig("{}"), typeOCIImage, d, note)
		got := c.want(c.do("PUT", "/v2/a/manifests/"+dig(m), strings.NewReader(m)), 201, "")
		if got.header.Get("OCI-Subject") != d {
			t.Errorf("OCI-Subject %q, want %s", got.header.Get("OCI-Subject"), d)
		}
		return dig(m)
	}
	list := func(body string) []string {
		var l struct{ Manifests []descriptor }
		if err := json.Unmarshal([]byte(body), &l); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, m := range l.Manifests {
			all = append(all, m.Digest)
		}
		return all
	}
	count := func(query string) (n, pages int) {
		all := c.pages("/v2/a/referrers/"+d+query, list)
		seen := map[string]bool{}
		for _, page := range all {
			for _, m := range page {
				seen[m] = true
			}
		}
		return len(seen), len(all)
	}
	signature := refer("application/x.signature", "")
	for i := range 5 {
		refer("application/x.sbom", strings.Repeat("n", 10_000)+string(rune('0'+i)))
	}
	if n, pages := count(""); n != 6 || pages != 2 {
		t.Errorf("%d referrers in %d pages, want 6 in 2", n, pages)
	}
	if n, pages := count("?artifactType=application/x.sbom"); n != 5 || pages != 2 {
		t.Errorf("%d SBOMs in %d pages, want 5 in 2", n, pages)
	}
	got := c.do("GET", "/v2/a/referrers/"+d+"?artifactType=application/x.signature", nil)
	if diff := cmp.Diff([]string{signature}, list(got.body)); diff != "" || got.header.Get("OCI-Filters-Applied") != "artifactType" {
		t.Errorf("filtered by %q (-want +got):\n%s", got.header.Get("OCI-Filters-Applied"), diff)
	}
	c.want(c.do("DELETE", "/v2/a/manifests/"+signature, nil), 202, "")
	c.want(c.do("DELETE", "/v2/a/manifests/"+d, nil), 202, "")
	if got := list(c.do("GET", "/v2/a/referrers/"+d+"?artifactType=application/x.signature", nil).body); len(got) > 0 {
		t.Errorf("after its deletion: %s", got)
	}
}

// recorder takes answers like a connection and records the sources of the copies.
type recorder struct {
	*httptest.ResponseRecorder
	from []string
}

func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	from := fmt.Sprintf("%T", src)
	if limited, ok := src.(*io.LimitedReader); ok {
		from += fmt.Sprintf(" of %T", limited.R)
	}
	r.from = append(r.from, from)
	return io.Copy(r.Body, src)
}

// The registry hands a blob's file to the connection unwrapped, so that the kernel sends it with
// sendfile.
func TestBlobsAreSentByTheKernel(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	client{t: t, base: "http://" + serve(t, r)}.push("a", "0123456789")
	for header, want := range map[string]string{"": "0123456789", "bytes=2-4": "234"} {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/v2/a/blobs/"+dig("0123456789"), nil)
		if header != "" {
			req.Header.Set("Range", header)
		}
		w := &recorder{ResponseRecorder: httptest.NewRecorder()}
		r.ServeHTTP(w, req)
		if diff := cmp.Diff([]string{"*io.LimitedReader of *os.File"}, w.from); diff != "" || w.Body.String() != want {
			t.Errorf("%q: %q, copied from (-want +got):\n%s", header, w.Body, diff)
		}
	}
}

// TestReadOnly: A read-only registry changes nothing on disk, and two of them may serve one
// directory.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(Config{Dir: dir, Log: open(t, t.TempDir(), Config{}).cfg.Log})
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, r)
	client{t: t, base: "http://" + addr}.pushImage("a", "1", "{}")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	// Two dry runs, which change nothing.
	before := tree(t, dir)
	one := client{t: t, base: "http://" + serve(t, open(t, dir, Config{ReadOnly: true, Grace: -1}))}
	two := client{t: t, base: "http://" + serve(t, open(t, dir, Config{ReadOnly: true, Grace: -1}))}
	for _, c := range []client{one, two} {
		if got := c.want(c.do("GET", "/v2/a/manifests/1", nil), 200, ""); got.body != image("{}") {
			t.Errorf("got %q", got.body)
		}
		c.want(c.do("GET", "/v2/a/blobs/"+dig("{}"), nil), 200, "")
		c.want(c.do("POST", "/v2/a/blobs/uploads/", nil), 405, "UNSUPPORTED")
		c.want(c.do("PUT", "/v2/a/manifests/2", strings.NewReader(image("{}"))), 405, "UNSUPPORTED")
		c.want(c.do("DELETE", "/v2/a/manifests/1", nil), 405, "UNSUPPORTED")
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestUsers: A request without a valid login is refused, a reader may not push, and a writer may.
func TestUsers(t *testing.T) {
	users := testUsers(t)
	c := newClient(t, Config{Users: users})
	as := func(user string) client { return client{t: t, base: c.base, user: user} }
	for _, user := range []string{"", "reader:wrong", "nobody:secret", "writer:", ":secret"} {
		got := c.want(as(user).do("GET", "/v2/", nil), 401, "UNAUTHORIZED")
		if !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Basic realm=") {
			t.Errorf("%q: WWW-Authenticate %q", user, got.header.Get("WWW-Authenticate"))
		}
		c.want(as(user).do("GET", "/no/such/path", nil), 401, "UNAUTHORIZED")
	}
	as("writer:secret").pushImage("a", "1", "{}")
	reader := as("reader:secret")
	c.want(reader.do("GET", "/v2/a/manifests/1", nil), 200, "")
	c.want(reader.do("HEAD", "/v2/a/blobs/"+dig("{}"), nil), 200, "")
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		c.want(reader.do(method, "/v2/a/manifests/1", nil), 403, "DENIED")
	}
	t.Run("read again", func(t *testing.T) { rereadUsers(t, users, c) })
}
