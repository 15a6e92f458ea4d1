package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

// An unchanged list is not sent again.
func TestListETags(t *testing.T) {
	socket := start(t, nil)
	c := client.New(socket)
	t.Cleanup(c.Close)
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer hc.CloseIdleConnections()
	list := func(path, etag string) (status int, next string, size int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://fre"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if etag != "" {
			req.Header.Set("If-None-Match", etag)
		}
		resp, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get("ETag"), len(body)
	}
	for _, path := range []string{"/v1/images", "/v1/functions"} {
		_, before, _ := list(path, "")
		if status, etag, size := list(path, before); status != http.StatusNotModified || etag != before || size > 0 {
			t.Errorf("%s unchanged: %d, %s after %s, %d bytes", path, status, etag, before, size)
		}
		files := map[string]string{"fret.yaml": template, "new.txt": path}
		if _, err := c.Functions().DeployDir(t.Context(), templateDir(t, files), api.DeployRequest{}, nil, func(api.Progress) {}); err != nil {
			t.Fatal(err)
		}
		status, after, size := list(path, before)
		if status != http.StatusOK || after == before || after == "" || size == 0 {
			t.Errorf("%s after a change: %d, %s after %s, %d bytes", path, status, after, before, size)
		}
	}
}

// A client that asks for changes since a generation gets the changes of the list and ends up with
// the current list.
func TestImageChanges(t *testing.T) {
	ctx := t.Context()
	c := connect(t, nil)
	build := func(content string) string {
		t.Helper()
		b, err := c.Images().Build(ctx, templateDir(t, map[string]string{"fret.yaml": template, "content": content}), client.BuildOptions{}, func(api.Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		return b.Image.Digest
	}
	changes := func(since uint64) api.ImageChanges {
		t.Helper()
		got, err := c.Images().Changes(ctx, since)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	digests := func(images []api.Image) (out []string) {
		for _, img := range images {
			out = append(out, img.Digest)
		}
		return out
	}
	first := build("one")
	all := changes(0)
	if !all.Complete || !slices.Equal(digests(all.Changed), []string{first}) {
		t.Fatalf("since 0: %+v, want the list", all)
	}
	none := changes(all.Generation)
	if diff := cmp.Diff(api.ImageChanges{Generation: all.Generation, Changed: []api.Image{}, Removed: []string{}}, none); diff != "" {
		t.Errorf("nothing has changed (-want +got):\n%s", diff)
	}
	if _, err := c.Images().Base(ctx, "native", func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Images().Remove(ctx, first, client.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	got := changes(all.Generation)
	list, err := c.Images().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got.Complete || !cmp.Equal(got.Changed, list) || !slices.Equal(got.Removed, []string{first}) || got.Generation <= all.Generation {
		t.Errorf("after changes: %+v, want %s removed and %v", got, first, digests(list))
	}
	if ahead := changes(got.Generation + 1<<40); !ahead.Complete || len(ahead.Changed) != len(list) {
		t.Errorf("a generation of another engine: %+v, want the list", ahead)
	}
}

func TestEvents(t *testing.T) {
	ctx := t.Context()
	c := connect(t, nil)
	since, err := c.Images().Changes(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	// A follower sees the changes from then on.
	enough := errors.New("enough")
	told := make(chan api.Change, 10)
	ended := make(chan error, 1)
	go func() {
		o := client.EventOptions{Follow: true, Kinds: []string{"function"}, Since: "1000"}
		ended <- c.Events(ctx, o, func(ch api.Change) error {
			told <- ch
			if ch.Action == "remove" {
				return enough
			}
			return nil
		})
	}()
	if _, err := c.Functions().DeployDir(ctx, templateDir(t, map[string]string{"fret.yaml": template}), api.DeployRequest{}, nil, func(api.Progress) {}); err != nil {
		t.Fatal(err)
	}
	if ch := <-told; ch.Kind != "function" || ch.Action != "deploy" || ch.ID != "hello" || ch.Generation <= since.Generation {
		t.Errorf("told of %+v, want the deployment", ch)
	}
	if err := c.Functions().Remove(ctx, "hello"); err != nil {
		t.Fatal(err)
	}
	if ch := <-told; ch.Action != "remove" {
		t.Errorf("told of %+v, want the removal", ch)
	}
	if err := <-ended; !errors.Is(err, enough) {
		t.Errorf("Events = %v, want what emit returned", err)
	}
	for _, tt := range []struct {
		name string
		o    client.EventOptions
		want []string
	}{
		{"all", client.EventOptions{Since: "1000"}, []string{"image create", "image tag", "function deploy", "function remove"}},
		{"since a time", client.EventOptions{Since: "2026-01-01T00:00:00Z"}, []string{"image create", "image tag", "function deploy", "function remove"}},
		{"since a generation", client.EventOptions{Since: "1002"}, []string{"function deploy", "function remove"}},
		{"of a kind", client.EventOptions{Since: "1000", Kinds: []string{"image", "sandbox"}}, []string{"image create", "image tag"}},
		{"of an action", client.EventOptions{Since: "1000", Actions: []string{"remove", "tag"}}, []string{"image tag", "function remove"}},
		{"none", client.EventOptions{}, nil},
	} {
		var got []string
		if err := c.Events(ctx, tt.o, func(ch api.Change) error { got = append(got, ch.Kind+" "+ch.Action); return nil }); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
