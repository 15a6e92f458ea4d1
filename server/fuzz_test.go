package server_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
)

// Every request gets an answer, and every refusal has the shape of FRE's errors.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][3]string{
		{"GET", "/v1/version", ""},
		{"POST", "/v1/template/check", "id: a\nbase: python\n"},
		{"POST", "/v1/functions", `{"image": "hello:1", "name": "hello"}`},
		{"POST", "/v1/functions", `{"image": {}}`},
		{"POST", "/v1/build", "not a tar"},
		{"POST", "/v1/functions/hello/invoke?path=/a", "body"},
		{"GET", "/v1/functions/hello/logs?tail=-1&since=x&follow=1", ""},
		{"POST", "/v1/sandboxes/x/stop?grace=1h", ""},
		{"POST", "/v1/run", `{"image": "hello:1"}`},
		{"DELETE", "/v1/images/sha256:00", ""},
		{"PATCH", "/v1//images/%2e%2e/%00", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, method, target, body string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || u.Host != "" || target == "*" || !validMethod(method) {
			return // answered by net/http itself, or impossible
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := (&http.Request{
			Method: method, URL: u, RequestURI: target, Host: "fre", Header: http.Header{"Content-Type": {"application/json"}},
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
		}).WithContext(ctx)
		w := httptest.NewRecorder()
		server.New(server.Config{
			Engine: servertest.New(), Log: slog.New(slog.DiscardHandler),
			Scratch: func() (string, error) { return t.TempDir(), nil },
		}).ServeHTTP(w, r)
		if w.Code < 400 {
			return
		}
		var answer api.ErrorBody
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Error == nil || answer.Error.Code == "" || answer.Error.Message == "" {
			t.Errorf("%s %q: status %d: %q (%v), want an error in the API's shape", method, target, w.Code, w.Body, err)
		}
	})
}

// validMethod reports whether net/http accepts a method: a token.
func validMethod(method string) bool {
	return method != "" && strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-") == ""
}
