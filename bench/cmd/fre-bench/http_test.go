package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/load"
)

// Ctrl-C ends a run of an hour, and the report covers the time until then.
func TestHTTPInterrupted(t *testing.T) {
	var once sync.Once
	busy := make(chan struct{})
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if n++; n == 100 { // a single connection, so a single request at a time
			once.Do(func() { close(busy) })
		}
	}))
	defer s.Close()
	program, err := exec.LookPath("fre-bench") // TestMain is the program
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "http", s.URL, "--duration", "1h", "--format", "json")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-busy
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var r load.Report
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&r); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if !r.Interrupted || r.Metrics.Requests < 99 {
		t.Errorf("interrupted %v, %d requests, want true and 99 or more", r.Interrupted, r.Metrics.Requests)
	}
}

func TestParseRate(t *testing.T) {
	got := map[string]float64{}
	for _, text := range []string{"", "100", "100/s", "90/m", "36/h", "0.5"} {
		rate, err := parseRate(text)
		if err != nil {
			t.Error(err)
		}
		got[text] = rate
	}
	if diff := cmp.Diff(map[string]float64{"": 0, "100": 100, "100/s": 100, "90/m": 1.5, "36/h": 0.01, "0.5": 0.5}, got); diff != "" {
		t.Errorf("rates (-want +got):\n%s", diff)
	}
	for _, text := range []string{"x", "0", "-1", "1/d", "NaN", "Inf", "/s"} {
		if rate, err := parseRate(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, rate)
		}
	}
}
