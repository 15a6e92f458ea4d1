package events

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// killed returns a configuration with a copy of the directory, as a kill of the engine would leave
// it now.
func killed(t *testing.T, cfg Config) Config {
	t.Helper()
	var dir string
	for { // again, if a file was renamed during the copy
		dir = t.TempDir()
		err := os.CopyFS(dir, os.DirFS(cfg.Dir))
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	cfg.Dir = dir
	return cfg
}

// TestEventEndsEngine: The engine tries an event that ends the engine as often as its template
// says. Then the event is a dead letter with this reason.
func TestEventEndsEngine(t *testing.T) {
	for _, c := range []struct {
		name    string
		retries int
	}{{"no retries", 0}, {"one retry", 1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			set := quick()
			set.Retries, set.Results = c.retries, 0
			goOn := make(chan struct{})
			var stop sync.Once
			defer stop.Do(func() { close(goOn) })
			begun := make(chan string, 8)
			e := &functions{room: 8}
			e.deploy("f", set, func(r *engine.Request, _ []byte) (int, []byte, error) {
				begun <- r.Headers[2][1]
				<-goOn
				return 200, nil, nil
			})
			cfg := testConfig(t, e)
			s := open(t, cfg)
			t.Cleanup(func() { stop.Do(func() { close(goOn) }) }) // before the services close
			receipt, err := s.Publish(t.Context(), "f", request("x"), Options{})
			if err != nil {
				t.Fatal(err)
			}
			for attempt := range c.retries + 1 {
				if got := <-begun; got != string(rune('1'+attempt)) {
					t.Fatalf("attempt %s, want %d", got, attempt+1)
				}
				cfg = killed(t, cfg)
				s = open(t, cfg)
				t.Cleanup(func() { stop.Do(func() { close(goOn) }) })
			}
			var d *Details
			until(t, "a dead letter", func() bool {
				d, err = s.Find(t.Context(), receipt.ID)
				return err == nil && d.State == StateDead
			})
			if d.Attempts != c.retries+1 || !strings.Contains(d.Error, "the engine ended during attempt") {
				t.Errorf("the dead letter has %d attempts, %q; want %d", d.Attempts, d.Error, c.retries+1)
			}
			select {
			case n := <-begun:
				t.Errorf("attempt %s began", n)
			default:
			}
		})
	}
}

// TestEventStopped: A stop of the engine breaks off an attempt, and this attempt does not count.
func TestEventStopped(t *testing.T) {
	set := quick()
	set.Retries = 0
	var mu sync.Mutex
	var attempts []string
	begun := make(chan struct{}, 1)
	closing := true
	stop := make(chan struct{})
	e := &functions{room: 8}
	e.deploy("f", set, func(r *engine.Request, _ []byte) (int, []byte, error) {
		mu.Lock()
		attempts = append(attempts, r.Headers[2][1])
		stops := closing
		mu.Unlock()
		select { // attempts repeat until the service stops
		case begun <- struct{}{}:
		default:
		}
		if stops {
			<-stop
			return 0, nil, engine.ErrClosed
		}
		return 200, nil, nil
	})
	cfg := testConfig(t, e)
	s := open(t, cfg)
	r, err := s.Publish(t.Context(), "f", request("x"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	close(stop)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	closing = false
	mu.Unlock()
	s = open(t, cfg)
	until(t, "the event done", func() bool {
		d, err := s.Find(t.Context(), r.ID)
		return err == nil && d.State == StateDone && d.Attempts == 1
	})
	mu.Lock()
	defer mu.Unlock()
	for _, n := range attempts {
		if n != "1" {
			t.Errorf("attempts %v, want each to be the first", attempts)
		}
	}
}

// TestEventInHand: JetStream may deliver a message again while its event is in hand, as after a
// pause of the whole process. The engine does not run the event a second time, nor after its
// acknowledgement.
func TestEventInHand(t *testing.T) {
	e := &functions{room: 8}
	begun, goOn := make(chan struct{}, 8), make(chan struct{})
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) {
		begun <- struct{}{}
		<-goOn
		return 200, nil, nil
	})
	s := open(t, testConfig(t, e))
	m := &message{Entry: Entry{ID: eventID("f", ""), Function: "f", Tenant: template.DefaultTenant, Priority: Normal, Accepted: time.Now().UTC()}, request: engine.Request{Method: "POST", Path: "/"}}
	queued, err := m.encode(queueSubject(m.Tenant, m.Priority, m.Function))
	if err != nil {
		t.Fatal(err)
	}
	q := queueKey{m.Tenant, m.Priority, m.Function}
	var first sync.WaitGroup
	one := &delivery{msg: queued}
	first.Go(func() { s.runner.handle(q, one, time.Minute, false) })
	<-begun
	again := &delivery{msg: queued}
	s.runner.handle(q, again, time.Minute, false)
	if again.acked.Load() {
		t.Error("the message is acknowledged before its event has ended")
	}
	close(goOn)
	first.Wait()
	last := &delivery{msg: queued}
	s.runner.handle(q, last, time.Minute, false)
	if len(begun) > 0 || !one.acked.Load() || !last.acked.Load() {
		t.Errorf("%d more attempts, acknowledged %v and %v; want none, and both", len(begun), one.acked.Load(), last.acked.Load())
	}
	if n := s.turns.free; n != s.cfg.Concurrency {
		t.Errorf("%d turns are free, want %d", n, s.cfg.Concurrency)
	}
}

// TestCallbackEndsEngine: A callback that ends the engine each time is given up after its last try.
func TestCallbackEndsEngine(t *testing.T) {
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the callback is sent") }))
	defer receiver.Close()
	cfg := testConfig(t, &functions{room: 1})
	cfg.Callbacks = Callbacks{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secret: callbackSecret}
	s := open(t, cfg)
	order := &message{Entry: Entry{ID: eventID("f", ""), Function: "f", Tenant: template.DefaultTenant}, callback: receiver.URL}
	msg, err := order.encode(kindOrders.subject(order.Tenant, order.Function, order.ID))
	if err != nil {
		t.Fatal(err)
	}
	d := &delivery{msg: msg}
	meta, err := d.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	key := keyOfMessage(meta)
	for range callbackTries {
		if _, _, err := s.deliveries.attempts.begin(key, true); err != nil {
			t.Fatal(err)
		}
	}
	c := &sender{senders: s.senders, client: http.DefaultClient}
	if v := c.try(d, meta, key, order); v.again || !d.acked.Load() {
		t.Errorf("a callback that ended the engine %d times: %+v, acknowledged %v; want it given up", callbackTries, v, d.acked.Load())
	}
}

// TestPublishEndsEngine: The engine gives up events that it takes on again by itself (times, files,
// messages) if they ended the engine too often.
func TestPublishEndsEngine(t *testing.T) {
	e := &functions{room: 8}
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	s := open(t, testConfig(t, e))
	for range publishTries {
		if _, err := s.deliveries.countPublish(eventID("f", "k")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		var refused *RefusedError
		if _, err := s.Publish(t.Context(), "f", request("x"), Options{Key: "k", Repeated: true}); !errors.As(err, &refused) || refused.After != 0 {
			t.Errorf("taken on again: %v, want it refused for good", err)
		}
	}
	if _, err := s.Publish(t.Context(), "f", request("x"), Options{Key: "other", Repeated: true}); err != nil {
		t.Error(err)
	}
}

// TestPublishRepeated: A publication that a full queue refuses again and again, before and after a
// restart, does not count as one that ended the engine.
func TestPublishRepeated(t *testing.T) {
	e := &functions{room: 8}
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	cfg := testConfig(t, e)
	for range 2 {
		s := open(t, cfg)
		for n := range 2 * publishTries {
			over, err := s.deliveries.countPublish(eventID("f", "k"))
			if err != nil {
				t.Fatalf("attempt %d: %v", n, err)
			}
			over()
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAttempts: An attempt is counted on disk before it begins, and the count survives a restart.
func TestAttempts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attempts")
	now := time.Now()
	reopen := func() *attempts {
		t.Helper()
		a, err := openAttempts(path, now)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() }) // the file is read-only by then
		return a
	}
	begin := func(a *attempts, name string, want int, wantBroken bool) attemptKey {
		t.Helper()
		key := keyOfText(attemptEvent, name)
		n, broken, err := a.begin(key, name == "synced")
		if err != nil || n != want || broken != wantBroken {
			t.Errorf("%s: attempt %d, broken %v, %v; want %d, %v", name, n, broken, err, want, wantBroken)
		}
		return key
	}
	a := reopen()
	begin(a, "broken", 1, false)
	begin(a, "synced", 1, false)
	waits := begin(a, "waits", 1, false)
	over := begin(a, "over", 1, false)
	if err := errors.Join(a.wait(waits, 1), a.end(over)); err != nil {
		t.Fatal(err)
	}
	begin(a, "waits", 2, false)
	if err := a.wait(waits, 2); err != nil {
		t.Fatal(err)
	}
	a = reopen()
	begin(a, "broken", 2, true)
	begin(a, "waits", 3, false)
	a = reopen()
	begin(a, "broken", 3, true)
	a.prune(map[attemptKey]bool{waits: true})
	begin(a, "synced", 1, false) // its event was in no queue
	begin(a, "waits", 4, true)
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all = append(bytes.Replace(all, waits[:], over[:], 1), "torn"...)
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	a = reopen()
	begin(a, "broken", 4, true)
	begin(a, "waits", 1, false) // its slot was torn
	now = now.Add(keepAttempts + time.Hour)
	begin(reopen(), "broken", 1, false)
}

// FuzzAttempts: The service opens any file of attempts, even a damaged one, and counts on.
func FuzzAttempts(f *testing.F) {
	f.Add(appendSlot(nil, keyOfText(attemptEvent, "x"), &slot{count: 3, state: slotRuns}, time.Now()))
	f.Fuzz(func(t *testing.T, file []byte) {
		path := filepath.Join(t.TempDir(), "attempts")
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := openAttempts(path, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}()
		n, _, err := a.begin(keyOfText(attemptEvent, "x"), false)
		if err != nil || n < 1 {
			t.Errorf("attempt %d, %v", n, err)
		}
	})
}
