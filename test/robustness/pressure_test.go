package robustness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

// engineLog keeps the log of an engine.
type engineLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *engineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

var changeOfState = regexp.MustCompile(`msg=admission from=\w+ to=(\w+)`)

// states returns the engine's states since its start.
func (l *engineLog) states() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	states := []string{"normal"}
	for _, m := range changeOfState.FindAllStringSubmatch(l.text.String(), -1) {
		states = append(states, m[1])
	}
	return states
}

// When clients that read no answers use up the memory for bodies, the engine refuses at once only
// events that need more memory. Other events, health checks and control calls continue. After the
// clients disconnect, the engine returns to normal by itself, through all its states.
func TestPressure(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	// Half of the 8 MiB is for the beginnings of answers, the other half for four longer answers.
	if err := os.WriteFile(config, []byte("buffers: {memory: 8MiB}\noverload: {min_free: 50, probe: 50ms}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	native := image.Config{Protocol: image.ProtocolStdio}
	native.Instances.Max, native.Resources.Timeout = 16, within
	log := &engineLog{}
	d := daemontest.ServeWith(t, testdaemon.Config{Args: []string{"--config", config}, Log: io.MultiWriter(t.Output(), log)},
		testdaemon.Function{Name: "victim", Config: image.Config{Instances: template.Instances{Idle: time.Hour}}},
		testdaemon.Function{Name: "native", Config: native},
	)
	w := newWorld(t, d)
	w.measure(t)
	had := w.holdings(t)

	var refusal *http.Response
	var holders []io.Closer
	defer func() {
		for _, c := range holders {
			_ = c.Close()
		}
	}()
	for range 16 {
		resp, err := w.get("/function/native/print?8388608", true) //nolint:bodyclose // holders are closed below
		if err != nil {
			t.Fatal(err)
		}
		holders = append(holders, resp.Body)
		if resp.StatusCode != http.StatusOK {
			refusal = resp
			break
		}
	}
	if refusal == nil {
		t.Fatal("16 answers that nobody takes, and no event was refused")
	}
	var body struct{ Error struct{ Code string } }
	err := json.NewDecoder(refusal.Body).Decode(&body)
	if err != nil || refusal.StatusCode != http.StatusServiceUnavailable || body.Error.Code != "degraded" || refusal.Header.Get("Retry-After") == "" {
		t.Errorf("refused with %s, %v, %+v, %v; want 503, Retry-After, degraded", refusal.Status, refusal.Header, body, err)
	}
	event := func(name, path string, size int) int {
		t.Helper()
		a, err := testdaemon.Event{Method: http.MethodPost, Path: path, Body: strings.Repeat("x", size)}.Call(t.Context(), w.client, d.Addr(), name)
		if err != nil {
			t.Fatal(err)
		}
		return a.Status
	}
	for _, c := range []struct {
		name, path string
		size, want int
	}{
		{"victim", "/", 100, http.StatusOK},
		{"victim", "/", 100_000, http.StatusServiceUnavailable},
		{"native", "/print?1", 0, http.StatusServiceUnavailable},
	} {
		if got := event(c.name, c.path, c.size); got != c.want {
			t.Errorf("short of memory, %s%s with %d bytes: status %d, want %d", c.name, c.path, c.size, got, c.want)
		}
	}
	w.measure(t)
	if err := status("/healthz", http.StatusOK)(t.Context(), w); err != nil {
		t.Error(err)
	}
	w.until(t, func() error { // the engine counts a refusal after the answer
		if n := w.metric(t, `fre_admission_refused_total{reason="memory"}`); n < 3 {
			return fmt.Errorf("%v refusals were counted, want 3", n)
		}
		return nil
	})
	w.until(t, func() error {
		if states := log.states(); !slices.Contains(states, "probing") {
			return fmt.Errorf("states %v, want probing", states)
		}
		return nil
	})
	if states := log.states(); slices.Contains(states, "recovering") {
		t.Errorf("states %v, though the memory is still held", states)
	}

	for _, c := range holders {
		_ = c.Close()
	}
	holders = nil
	w.untilQuiet(t, had)
	want := []string{"normal", "degraded", "probing", "recovering", "normal"}
	w.until(t, func() error { // a state changes before its log line
		if states := log.states(); len(states) < len(want) {
			return fmt.Errorf("states %v, want %v", states, want)
		}
		return nil
	})
	if diff := cmp.Diff(want, log.states()); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if got := event("native", "/print?1", 0); got != http.StatusOK {
		t.Errorf("back to normal: status %d", got)
	}
}
