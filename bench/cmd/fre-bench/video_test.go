package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/viewers"
)

// show serves a video of an hour with segments of a single byte. The channel closes at the tenth
// request.
func show(t *testing.T) (url string, busy <-chan struct{}) {
	t.Helper()
	told := make(chan struct{})
	var mu sync.Mutex
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if n++; n == 10 {
			close(told)
		}
		mu.Unlock()
		switch r.URL.Path {
		case "/master.m3u8":
			_, _ = io.WriteString(w, "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000\nlist.m3u8\n")
		case "/list.m3u8":
			_, _ = io.WriteString(w, "#EXTM3U\n#EXT-X-TARGETDURATION:1\n"+strings.Repeat("#EXTINF:1,\n1.m4s\n", 3600)+"#EXT-X-ENDLIST\n")
		case "/1.m4s":
			_, _ = io.WriteString(w, "x")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, told
}

// Ctrl-C ends a run of an hour; the report is printed and written to files.
func TestVideoInterrupted(t *testing.T) {
	at, busy := show(t)
	go func() {
		<-busy
		_ = unix.Kill(os.Getpid(), unix.SIGINT) // fre-bench handles the signal
	}()
	var out, errs bytes.Buffer
	raw, svg := filepath.Join(t.TempDir(), "a.json"), filepath.Join(t.TempDir(), "a.svg")
	code := run([]string{"video", at + "/master.m3u8", "-n", "2", "-t", "1h", "--ramp", "0", "--json", raw, "--svg", svg}, nil, &out, &errs)
	if code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), "2 viewers of http://") || !strings.Contains(out.String(), "Interrupted after") {
		t.Fatalf("%d, %s%s", code, out.String(), errs.String())
	}
	var r viewers.Report
	b, err := os.ReadFile(raw)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || !r.Interrupted || r.Viewers != 2 || r.Requests.Metrics.Requests < 4 {
		t.Errorf("%v, %s", err, b)
	}
	if b, err = os.ReadFile(svg); err == nil {
		err = xml.Unmarshal(b, new(struct{}))
	}
	if err != nil {
		t.Error(err)
	}
}

// With --json - the output is JSON only.
func TestVideoJSON(t *testing.T) {
	at, _ := show(t)
	var out, errs bytes.Buffer
	code := run([]string{"video", at + "/master.m3u8", "-t", "500ms", "--ramp", "0", "--json", "-"}, nil, &out, &errs)
	var r viewers.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || code != 0 || r.Interrupted || r.StartUp.Count != 10 {
		t.Errorf("%d, %v, %s%s", code, err, out.String(), errs.String())
	}
}

func TestVideoRefused(t *testing.T) {
	at, _ := show(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "requires at least 1 arg"},
		{[]string{"master.m3u8"}, exitUsage, "give a whole one"},
		{[]string{at, "--viewers", "0"}, exitUsage, "0 viewers"},
		{[]string{at, "--weak-rate", "20-1"}, exitUsage, "--weak-rate"},
		{[]string{at, "--weak-rate", "1-x"}, exitUsage, "--weak-rate"},
		{[]string{at, "--buffer", "0"}, exitUsage, "--buffer"},
		{[]string{at, "--ramp", "1h"}, exitUsage, "come within"},
		{[]string{at, "--weak-share", "2"}, exitUsage, "share"},
		{[]string{at + "/none.m3u8"}, exitError, "status 404"},
		{[]string{at + "/list.m3u8"}, exitError, "a media playlist, where a master playlist is asked for"},
		{[]string{at + "/1.m4s"}, exitError, "does the URL name a master playlist?"},
		{[]string{"http://127.0.0.1:1/master.m3u8"}, exitError, "is the server running"},
	} {
		var out, errs bytes.Buffer
		if code := run(append([]string{"video"}, c.args...), nil, &out, &errs); code != c.code || !strings.Contains(errs.String(), c.says) || out.Len() > 0 {
			t.Errorf("%q: %d, %s%s", c.args, code, out.String(), errs.String())
		}
	}
}
