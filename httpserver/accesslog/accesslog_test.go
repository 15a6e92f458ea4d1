package accesslog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// line is a request.
type line struct {
	ID string `json:"id"`
}

// stuck is a file whose Write blocks until release.
type stuck struct {
	entered chan struct{} // closed by the first Write
	release chan struct{}
	once    sync.Once
	bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.entered) })
	<-s.release
	return s.Buffer.Write(p)
}

// A blocked log blocks no request. The log counts the lost lines, and reports the number at the
// gap.
func TestLost(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := &stuck{entered: make(chan struct{}), release: make(chan struct{})}
	l := newLog[line](w, slog.New(slog.DiscardHandler), reg, 4)
	l.Add(line{"first"})
	<-w.entered // the writer waits with an empty queue
	for i := range 10 {
		l.Add(line{fmt.Sprint(i)})
	}
	if all, err := reg.Gather(); err != nil || len(all) != 1 || all[0].GetName() != "fre_access_log_lost_total" || all[0].GetMetric()[0].GetCounter().GetValue() != 6 {
		t.Errorf("%v, %v, want 6 lost", all, err)
	}
	close(w.release)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l.Add(line{"late"}) // lost without an error
	text := w.String()
	if strings.Count(text, `"id"`) != 5 || !strings.Contains(text, `"lost":6}`) || strings.Contains(text, "late") {
		t.Errorf("log:\n%s", text)
	}
}
