package load_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fre-engine/fre/bench/internal/load"
)

func TestCall(t *testing.T) {
	var requests, status atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	addr := strings.TrimPrefix(server.URL, "http://")

	status.Store(200)
	samples, err := load.Call(t.Context(), addr, "/", 3, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := int64(len(samples)), requests.Load(); got != want || got < 3 {
		t.Errorf("got %d samples of %d requests on 3 connections", got, want)
	}

	status.Store(500)
	if _, err := load.Call(t.Context(), addr, "/", 1, 20*time.Millisecond); err == nil {
		t.Error("answers with status 500: got no error")
	}
}
