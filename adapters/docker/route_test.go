package docker

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestUnknownParameters: every route refuses an unknown parameter. A route without a body refuses a
// body with fields, except empty or false fields.
func TestUnknownParameters(t *testing.T) {
	s := &server{log: slog.New(slog.DiscardHandler)}
	for _, rt := range s.routes() {
		if rt.query == nil && rt.body { // the whole route is left out
			continue
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?surprise=1", nil)
		if err := rt.check(r, func() error { return nil }); errorStatus(err) != http.StatusBadRequest || !strings.Contains(err.Error(), `"surprise"`) {
			t.Errorf("%s %s?surprise=1: %v, want 400 and its name", rt.method, rt.path, err)
		}
		if rt.body {
			continue
		}
		for body, ok := range map[string]bool{``: true, ` {}`: true, `null`: true, `{"surprise":false}`: true, `{"surprise":1}`: false, `x`: false} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", io.NopCloser(strings.NewReader(body)))
			r.ContentLength = -1
			if err := rt.drain(httptest.NewRecorder(), r); (err == nil) != ok {
				t.Errorf("%s %s with the body %s: %v", rt.method, rt.path, body, err)
			}
		}
	}
}

// TestRoutesWithout: an unsupported parameter passes if its value changes nothing. A missing object
// is reported before an unsupported feature.
func TestRoutesWithout(t *testing.T) {
	rt := route{method: "DELETE", path: "/x/{id}", query: takes("force").without("link", "links", "leave it out")}
	for _, test := range []struct {
		query  string
		gone   bool
		status int // 0: passes
	}{
		{"", false, 0},
		{"force=1&link=0", false, 0},
		{"link=", false, 0},
		{"link=1", false, 501},
		{"link=1", true, 404},
		{"link=0", true, 0},
		{"force=%zz", false, 400},
		{"force=1;link=1", false, 400},
		{"lnk=1", true, 400},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/x/y", nil)
		r.URL.RawQuery = test.query
		err := rt.check(r, func() error {
			if test.gone {
				return notFound("No such thing")
			}
			return nil
		})
		if test.status == 0 && err != nil || test.status != 0 && errorStatus(err) != test.status {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// TestKnown: a field of a body that FRE does not know or support is refused by name, unless its
// value changes nothing.
func TestKnown(t *testing.T) {
	for body, field := range map[string]string{
		`{"username":"u","email":"e","serveraddress":"s"}`: "",
		`{"Username":"u","surprise":{"a":[],"b":0}}`:       "",
		`{"Username":"u","surprise":[0]}`:                  "surprise",
	} {
		if err := known([]byte(body), authConfig{}); field == "" && err != nil || field != "" && (err == nil || !strings.Contains(err.Error(), field)) {
			t.Errorf("known(%s): %v, want %q named", body, err, field)
		}
	}
	for host, field := range map[string]string{
		`{"RestartPolicy":{"Name":"no","MaximumRetryCount":0}}`:                           "",
		`{"RestartPolicy":{"Name":"no","MaximumRetryCount":3}}`:                           "RestartPolicy.MaximumRetryCount",
		`{"Mounts":[{"Type":"volume","Target":"/work","VolumeOptions":{"NoCopy":true}}]}`: "",
		`{"Mounts":[{"Type":"volume","Target":"/work","ImageOptions":{"Subpath":"x"}}]}`:  "Mounts[0].ImageOptions",
		`{"Ulimits":[{"Name":"nofile","Soft":1,"Hard":1,"Surprise":1}]}`:                  "Ulimits[0].Surprise",
		`{"ConsoleSize":[24,80],"MemorySwappiness":-1,"Surprise":[]}`:                     "",
		`{"Surprise":[1]}`: "Surprise",
	} {
		_, err := parseCreation([]byte(`{"Image":"a","HostConfig":`+host+`}`), anyImage)
		if field == "" && err != nil || field != "" && (errorStatus(err) != http.StatusNotImplemented || !strings.Contains(err.Error(), field)) {
			t.Errorf("creation with %s: %v, want %q named", host, err, field)
		}
	}
	if _, err := parseCreation([]byte(`{"Image":"a","Surprise":1}`), anyImage); err == nil {
		t.Error("a creation with an unknown field is taken")
	}
	missing := func(string) error { return notFound("No such image: a") }
	if _, err := parseCreation([]byte(`{"Image":"a","HostConfig":{"Privileged":true}}`), missing); errorStatus(err) != http.StatusNotFound {
		t.Errorf("a privileged container of no image: %v, want 404", err)
	}
}

// FuzzKnown: known checks any decoded JSON without a crash.
func FuzzKnown(f *testing.F) {
	f.Add([]byte(`{"Mounts":[{"TmpfsOptions":{"Options":[["a"]]}}],"x":{"y":1}}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		var h hostConfig
		if json.Unmarshal(body, &h) == nil {
			_ = known(body, h)
		}
	})
}
