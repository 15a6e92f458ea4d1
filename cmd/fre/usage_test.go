package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
)

// stopper calls stop after the second table.
type stopper struct {
	bytes.Buffer
	stop func()
}

func (s *stopper) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p)
	if bytes.Count(s.Bytes(), []byte("SANDBOX ID")) == 2 {
		s.stop()
	}
	return n, err
}

func TestStatsStream(t *testing.T) {
	e := servertest.New()
	if _, err := e.Base(t.Context(), "native", func(image.Progress) {}); err != nil {
		t.Fatal(err)
	}
	c, err := e.CreateContainer(t.Context(), container.Config{Image: "native", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.StartContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "fre.sock")
	l, err := server.Listen(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: server.New(server.Config{Engine: e, Log: slog.New(slog.DiscardHandler)})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-done
	}()

	out := &stopper{stop: func() { _ = e.Stop(context.Background(), c.ID, 0) }} // called repeatedly
	root := newRoot()
	root.SetArgs([]string{"--socket", socket, "stats", "--stream", "--interval", "1ms", "web"})
	root.SetOut(out)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Errorf("the end of what was named: %v", err)
	}
	if n := bytes.Count(out.Bytes(), []byte(" web ")); n < 2 {
		t.Errorf("%d rows, want at least 2:\n%s", n, out)
	}
}

func TestUsages(t *testing.T) {
	now := time.Unix(1000, 0)
	box := func(id string, cpu time.Duration) api.Sandbox {
		return api.Sandbox{ID: id, Created: now.Add(-10 * time.Second), Stats: &api.Stats{CPUNanos: int64(cpu)}}
	}
	boxes := []api.Sandbox{box("a1", 5*time.Second), box("b2", time.Second), {ID: "c3", Created: now}}
	before := map[string]int64{"a1": int64(2 * time.Second)}
	rows, err := usages(boxes, nil, before, 2*time.Second, now)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, r := range rows {
		got[r.ID] = r.CPUPercent
	}
	if diff := cmp.Diff(map[string]float64{"a1": 150, "b2": 10}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if rows, err := usages(boxes, []string{"b", "d"}, nil, 0, now); len(rows) != 1 || exitCode(err) != exitNotFound {
		t.Errorf("%v, %v", rows, err)
	}
}
