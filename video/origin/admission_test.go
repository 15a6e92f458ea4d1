package origin_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/video/origin"
)

// TestDegraded: while memory is short, assets with playlists in memory are served, and the rest are
// refused with Retry-After. When memory is free again, all are served.
func TestDegraded(t *testing.T) {
	var free atomic.Int64
	free.Store(100)
	reg := prometheus.NewRegistry()
	fretest.CheckLeaks(t)
	a := origin.NewAdmission(admission.Config{Free: func() (int64, int64) { return free.Load(), 100 }, Every: time.Millisecond}, slog.New(slog.DiscardHandler), reg)
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, nil, func(c *origin.Config) { c.Admission = a })
	open, closed := w.add(t), w.add(t)
	good := func(id string) bool {
		t.Helper()
		for _, path := range []string{"hls/master.m3u8", "cmaf/v720p/1.m4s", "cmaf/a0/init.mp4"} {
			if got, _ := w.ask(t, "GET", "/assets/"+id+"/"+path); got.StatusCode != http.StatusOK {
				return false
			}
		}
		return true
	}
	if !good(open.ID) {
		t.Fatal("it is not served at all")
	}
	free.Store(1)
	got, body := w.ask(t, "GET", "/assets/"+closed.ID+"/cmaf/v720p/1.m4s")
	if got.StatusCode != 503 || got.Header.Get("Retry-After") != "1" || got.Header.Get("Cache-Control") != "no-store" || !bytes.HasPrefix(body, []byte(`{"error":{"code":"degraded","message":"`)) || !bytes.Contains(body, []byte("(memory)")) {
		t.Errorf("short of memory: %s %s %v", got.Status, body, got.Header)
	}
	if !good(open.ID) {
		t.Error("what is in memory is not served")
	}
	if state, reason, since := a.Status(); state == "normal" || reason != "memory" || since.IsZero() {
		t.Errorf("%s, %s, %v", state, reason, since)
	}
	var wire *api.Error
	if err := a.Admit(); !errors.As(err, &wire) || wire.Status != 503 || !strings.Contains(wire.Next, "ask again") {
		t.Errorf("%v", err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	states, refused := 0.0, 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			states += m.GetGauge().GetValue()
			refused += m.GetCounter().GetValue()
		}
	}
	if states != 1 || refused != 2 {
		t.Errorf("%v states at a time, %v refused", states, refused)
	}
	free.Store(100)
	for end := time.Now().Add(2 * time.Minute); ; {
		if state, _, _ := a.Status(); state == "normal" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not recover")
		}
		w.ask(t, "HEAD", "/none")
	}
	if !good(closed.ID) {
		t.Error("there is memory again, and it is not served")
	}
}
