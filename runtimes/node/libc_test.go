package node

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLibc: A package's variant for another C library is left out. If the lock does not name the
// library, the registry does.
func TestLibc(t *testing.T) {
	answers := map[string]string{
		"/@img%2flinux/1.0.0": `{"libc":["glibc"]}`, "/@img%2fmusl/1.0.0": `{"libc":["musl"]}`,
		"/old-musl/1.0.0": `{"libc":"musl"}`, "/silent/1.0.0": `{}`, "/odd/1.0.0": `{"libc":{"a":1}}`, "/broken/1.0.0": `{`,
	}
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.EscapedPath())
		answer, ok := answers[r.URL.EscapedPath()]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()

	const raw = `{"lockfileVersion":3,"packages":{"":{"name":"function"},
		"node_modules/@img/linux":{"version":"1.0.0","optional":true,"os":["linux"]},
		"node_modules/@img/musl":{"version":"1.0.0","optional":true,"os":["linux"]},
		"node_modules/old-musl":{"version":"1.0.0","optional":true,"os":["linux"]},
		"node_modules/silent":{"version":"1.0.0","optional":true,"os":["linux"]},
		"node_modules/odd":{"version":"1.0.0","optional":true,"os":["linux"]},
		"node_modules/broken":{"version":"1.0.0","optional":true,"os":["linux"]},
		"node_modules/unknown":{"version":"1.0.0","optional":true,"os":["linux"]},
		"node_modules/known":{"version":"1.0.0","optional":true,"os":["linux"],"libc":["musl"]},
		"node_modules/mac":{"version":"1.0.0","optional":true,"os":["darwin"]},
		"node_modules/plain":{"version":"1.0.0"}}}`
	var l packageLock
	if err := json.Unmarshal([]byte(raw), &l); err != nil {
		t.Fatal(err)
	}
	places := l.lacksLibc()
	out, err := registriesOf(t, "registry="+server.URL).withLibc(t.Context(), json.RawMessage(raw), &l, places)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(asked)
	for i, p := range asked {
		asked[i] = strings.TrimSuffix(p, "/1.0.0")
	}
	if diff := cmp.Diff([]string{"/@img%2flinux", "/@img%2fmusl", "/broken", "/odd", "/old-musl", "/silent", "/unknown"}, asked); diff != "" {
		t.Errorf("asked for: %s", diff)
	}
	var got packageLock
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	want := []string{"node_modules/@img/linux", "node_modules/broken", "node_modules/odd", "node_modules/plain", "node_modules/silent", "node_modules/unknown"}
	if diff := cmp.Diff(want, got.places()); diff != "" {
		t.Errorf("installed are: %s", diff)
	}
}
