package registry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// put pushes a manifest and returns its digest.
func (c client) put(name, ref, manifest string) string {
	c.t.Helper()
	c.want(c.do("PUT", "/v2/"+name+"/manifests/"+ref, strings.NewReader(manifest)), 201, "")
	return dig(manifest)
}

// TestCollect: A collection removes only blobs and manifests that are unreferenced and older than
// the grace period.
func TestCollect(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Config{Grace: -1})
	c := client{t: t, base: "http://" + serve(t, r)}
	has := func(name, content string, want bool) {
		t.Helper()
		status := map[bool]int{true: 200, false: 404}[want]
		if got := c.do("HEAD", "/v2/"+name+"/blobs/"+dig(content), nil); got.status != status {
			t.Errorf("%s has %q: %d, want %d", name, content, got.status, status)
		}
	}
	collect := func(o CollectOptions, want Collected) {
		t.Helper()
		age(t, dir)
		before := tree(t, dir)
		for _, dry := range []bool{true, false} {
			o.DryRun = dry
			got, err := r.Collect(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			expected := want
			if dry {
				expected.Repositories = 0 // a dry run counts only empty repositories
				if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
					t.Errorf("a dry run changed:\n%s", diff)
				}
			}
			if diff := cmp.Diff(expected, got); diff != "" {
				t.Errorf("dry run %v (-want +got):\n%s", dry, diff)
			}
		}
	}

	kept := c.pushImage("a", "1", "{}", "kept")
	c.push("a", "alone")
	c.push("b", "kept")
	c.want(c.do("PATCH", c.start("a"), strings.NewReader("unfinished")), 202, "")
	collect(CollectOptions{}, Collected{Repositories: 1, Blobs: 2, Uploads: 1, Files: 1, Bytes: 15})
	has("a", "kept", true)
	has("a", "alone", false)
	has("b", "kept", false)
	c.want(c.do("GET", "/v2/b/tags/list", nil), 404, "NAME_UNKNOWN")

	// An index keeps its manifests, and a subject keeps its referrers.
	child := c.pushImage("a", "child", "{}", "of an index")
	index := c.put("a", "index", fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"digest":%q,"size":%d}]}`, child, len(image("{}", "of an index"))))
	refer := func(subject, note string) string {
		m := strings.Replace(image("{}"), "{", fmt.Sprintf(`{"annotations":{"note":%q},"subject":{"digest":%q},`, note, subject), 1)
		return c.put("a", dig(m), m)
	}
	signature := refer(index, "signature")
	ofSignature := refer(signature, "signature of the signature")
	lost := c.pushImage("a", "lost", "{}", "lost")
	ofLost := refer(lost, "of what is lost")
	for _, tag := range []string{"child", "lost"} {
		c.want(c.do("DELETE", "/v2/a/manifests/"+tag, nil), 202, "")
	}
	collect(CollectOptions{}, Collected{})
	size := int64(len(image("{}", "lost"))+len("lost")) + int64(len(c.do("GET", "/v2/a/manifests/"+ofLost, nil).body))
	collect(CollectOptions{Untagged: true}, Collected{Manifests: 2, Blobs: 1, Files: 1, Bytes: size})
	for _, d := range []string{kept, child, index, signature, ofSignature} {
		c.want(c.do("GET", "/v2/a/manifests/"+d, nil), 200, "")
	}
	for _, d := range []string{lost, ofLost} {
		c.want(c.do("GET", "/v2/a/manifests/"+d, nil), 404, "MANIFEST_UNKNOWN")
	}
	if n := count(t, filepath.Join(dir, "repos/a/_referrers")); n != 2 {
		t.Errorf("%d entries of referrers left, want 2", n)
	}

	for _, d := range []string{kept, child, index, signature, ofSignature} {
		c.want(c.do("DELETE", "/v2/a/manifests/"+d, nil), 202, "")
	}
	collect(CollectOptions{}, Collected{Repositories: 1, Blobs: 3, Files: 3, Bytes: int64(len("{}kept" + "of an index"))})
	for _, below := range []string{"repos", "blobs", "uploads"} {
		if n := count(t, filepath.Join(dir, below)); n != 0 {
			t.Errorf("%d files in %s", n, below)
		}
	}
}

// age makes all files below a directory two hours older than now.
func age(t testing.TB, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			old := time.Now().Add(-2 * time.Hour)
			err = os.Chtimes(path, old, old)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCollectSparesWhatIsReliedOn: A collection spares an old unreferenced blob that a client has
// used within the grace period, with or without a later manifest.
func TestCollectSparesWhatIsReliedOn(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Config{Grace: time.Hour})
	c := client{t: t, base: "http://" + serve(t, r)}
	contents := []string{"{}", "head", "get", "mounted", "pushed", "manifest", "forgotten"}
	for _, content := range contents {
		c.push("a", content)
	}
	c.put("a", "untagged", image("{}"))
	c.want(c.do("DELETE", "/v2/a/manifests/untagged", nil), 202, "")
	age(t, dir)
	c.want(c.do("HEAD", "/v2/a/blobs/"+dig("head"), nil), 200, "")
	c.want(c.do("GET", "/v2/a/blobs/"+dig("get"), nil, "Range: bytes=0-0"), 206, "")
	c.want(c.do("POST", "/v2/b/blobs/uploads/?from=a&mount="+dig("mounted"), nil), 201, "")
	c.push("a", "pushed")
	c.want(c.do("HEAD", "/v2/a/manifests/"+dig(image("{}")), nil), 200, "")
	c.put("a", "1", image("{}", "manifest"))
	got, err := r.Collect(t.Context(), CollectOptions{Untagged: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Collected{Blobs: 1, Files: 1, Bytes: int64(len("forgotten"))}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, content := range contents[:6] {
		if got := c.do("GET", "/v2/a/blobs/"+dig(content), nil); got.body != content {
			t.Errorf("%q: %d %q", content, got.status, got.body)
		}
	}
	age(t, dir)
	if got, err = r.Collect(t.Context(), CollectOptions{Untagged: true}); err != nil {
		t.Fatal(err)
	}
	if want := (Collected{Repositories: 1, Manifests: 1, Blobs: 5, Files: 4, Bytes: int64(len("headgetmountedpushed" + image("{}")))}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestCollectDamaged: A damaged manifest is not served, its blobs stay, and a new push heals it.
func TestCollectDamaged(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	r := open(t, dir, Config{Grace: -1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	c := client{t: t, base: "http://" + serve(t, r)}
	d := c.pushImage("a", "1", "{}", "layer")
	file := filepath.Join(dir, "repos/a/_manifests", strings.Replace(d, ":", "/", 1))
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, damaged := range [][]byte{nil, src[:100], src[:len(src)-1]} {
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		c.want(c.do("GET", "/v2/a/manifests/1", nil), 500, "UNKNOWN")
		if got, err := r.Collect(t.Context(), CollectOptions{Untagged: true}); err != nil || got != (Collected{}) {
			t.Errorf("%d bytes: collected %+v, %v", len(damaged), got, err)
		}
		c.put("a", "1", image("{}", "layer"))
		if got := c.do("GET", "/v2/a/manifests/1", nil); got.body != image("{}", "layer") {
			t.Errorf("pushed again: %q", got.body)
		}
	}
	if !strings.Contains(log.String(), "repository=a") {
		t.Errorf("the log does not name the repository:\n%s", log.String())
	}
}

// TestCollectCanceled: A cancelled collection removes nothing.
func TestCollectCanceled(t *testing.T) {
	r := open(t, t.TempDir(), Config{Grace: -1})
	c := client{t: t, base: "http://" + serve(t, r)}
	c.push("a", "{}")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := r.Collect(ctx, CollectOptions{}); err == nil || got != (Collected{}) {
		t.Errorf("collected %+v, %v", got, err)
	}
}
