package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

// publish posts an asynchronous event and returns its id, or "" if the engine is gone.
func publish(ctx context.Context, c *http.Client, url, body string) (id string, status int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return "", 0
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", 0
	}
	defer resp.Body.Close()
	var accepted struct {
		ID string `json:"id"`
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusAccepted || json.Unmarshal(answer, &accepted) != nil {
		return "", resp.StatusCode
	}
	return accepted.ID, resp.StatusCode
}

// Acknowledged events run, even if the engine is killed again and again while events are published
// and run. An event that always fails becomes a dead letter and delays no other event.
func TestEventsOutliveKills(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	state := filepath.Join(daemontest.Dir(t), "state")
	program := filepath.Join(fretest.Rootfs(t), "bin/prog")
	// An event of a killed engine runs again after one and a half of its time limits.
	config := image.Config{Args: []string{"/function/program", "function"}, Resources: template.Resources{Timeout: 4 * time.Second}, Events: &template.Events{Retries: 100, Backoff: 10 * time.Millisecond, Priority: "normal", MaxQueue: 100_000, Results: time.Hour}}
	poison := config
	poison.Events = &template.Events{Retries: 2, Backoff: 10 * time.Millisecond, Priority: "high", MaxQueue: 1000, Results: time.Hour}
	err := testdaemon.PutImages(t.Context(), state,
		testdaemon.Function{Name: "fn", Program: program, Config: config}, testdaemon.Function{Name: "poison", Program: program, Config: poison})
	if err != nil {
		t.Fatal(err)
	}
	cfg := testdaemon.Config{State: state, Log: t.Output()}
	d := daemontest.Start(t, cfg)
	for _, name := range []string{"fn", "poison"} {
		if _, err := d.CLI(t.Context(), "deploy", "--image", name+":1", "--name", name); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	dead := map[string]bool{}
	const kills = 3
	for range kills {
		enough := make(chan struct{})
		load, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		n := 0
		for i := range 16 {
			all.Go(func() {
				c := &http.Client{Transport: &http.Transport{}}
				defer c.CloseIdleConnections()
				for load.Err() == nil {
					path := "/async-function/fn/"
					if i == 0 {
						path = "/async-function/poison/end/crash?10"
					}
					id, _ := publish(load, c, d.URL(path), fmt.Sprint(i))
					if id == "" {
						continue
					}
					mu.Lock()
					acknowledged[id] = true
					if i == 0 {
						dead[id] = true
					}
					if n++; n == 300 {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		<-enough
		d.Kill() // while further events are on the way
		stop()
		all.Wait()
		d = daemontest.Start(t, cfg)
	}
	t.Cleanup(func() { daemontest.Stop(t, d) })
	cl := client.New(d.Socket())
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	t.Logf("%d events were acknowledged, %d of them poison", len(acknowledged), len(dead))
	for id := range acknowledged {
		want := "done"
		if dead[id] {
			want = "dead"
		}
		err := testdaemon.Until(ctx, func() error {
			e, err := cl.Queue().Get(ctx, id)
			if err == nil && e.State != want {
				err = fmt.Errorf("%s of %s is %s after %d attempts, want %s", id, e.Function, e.State, e.Attempts, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for id := range dead {
		if err := cl.Queue().Replay(ctx, id); err != nil {
			t.Errorf("replay %s: %v", id, err)
		}
		break
	}
	var failure *api.Error
	if _, err := cl.Queue().Get(ctx, strings.Repeat("0", 32)); !errors.As(err, &failure) || failure.Code != api.CodeNotFound {
		t.Errorf("an event that never was: %v", err)
	}
}

// With events off, or a queue that does not open, the rest goes on.
func TestEventsDown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("events: {nats: 'nats://127.0.0.1:1'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := daemontest.ServeWith(t, testdaemon.Config{Log: t.Output(), Args: []string{"--config", file}}, testdaemon.Function{Name: "fn"})
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	if _, status := publish(t.Context(), c, d.URL("/async-function/fn"), "x"); status != http.StatusServiceUnavailable {
		t.Errorf("an asynchronous event without NATS: %d, want 503", status)
	}
	a, err := testdaemon.Event{Method: http.MethodPost, Body: "x"}.Call(t.Context(), c, d.Addr(), "fn")
	if err != nil || a.Status != http.StatusOK {
		t.Errorf("a synchronous one: %+v, %v", a, err)
	}
}
