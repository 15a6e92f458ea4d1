package events

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/template"
)

// cluster starts a server, and returns the configuration of nodes that share the server. The server
// has no Service: after five seconds the Service would find the nodes' events and, without
// functions, make dead letters of them.
func cluster(t *testing.T) func(e Engine) Config {
	t.Helper()
	cfg := testConfig(t, &functions{})
	cfg.Listen, cfg.User, cfg.Password = "127.0.0.1:0", "operator", "password"
	server, err := startEmbedded(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	url := "nats://operator:password@" + server.Addr().String()
	var making sync.Mutex
	return func(e Engine) Config {
		cfg := testConfig(t, e)
		cfg.URL, cfg.making = url, &making
		return cfg
	}
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	err := testdaemon.Until(ctx, func() error {
		if !is() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Nodes share the events. The nodes with room and the function run them, and all nodes know all
// events and ends.
func TestNodes(t *testing.T) {
	node := cluster(t)
	var mu sync.Mutex
	ran := map[string]int{}
	engines := map[string]*functions{}
	services := map[string]*Service{}
	for _, name := range []string{"a", "b", "c"} {
		e := &functions{room: 8}
		engines[name] = e
		if name != "c" {
			e.deploy("f", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) {
				mu.Lock()
				defer mu.Unlock()
				ran[name]++
				return 200, body, nil
			})
			e.all["f"].config.Resources.Timeout = time.Minute // a pause of the test must not look like a lost node
		}
		cfg := node(e)
		cfg.Elsewhere = func(function string) bool { return function == "f" }
		services[name] = open(t, cfg)
	}
	a, b, c := services["a"], services["b"], services["c"]
	all := func(n int, from *Service) map[string]int {
		t.Helper()
		ended := watchEnds(t, from) // includes events run by other nodes
		for range n {
			if _, err := a.Publish(t.Context(), "f", request("x"), Options{}); err != nil {
				t.Fatal(err)
			}
		}
		for range n {
			select {
			case e := <-ended:
				if e.State != StateDone {
					t.Fatalf("event %+v", e)
				}
			case <-time.After(within):
				t.Fatal("not all events have ended")
			}
		}
		for name, s := range services {
			until(t, name+" knows that all have ended", func() bool { return s.index.size() == 0 })
		}
		mu.Lock()
		defer mu.Unlock()
		was := ran
		ran = map[string]int{}
		return was
	}
	if got := all(50, c); got["a"]+got["b"] != 50 {
		t.Errorf("50 events ran %v times", got)
	}
	// Full: the node withdraws its request for events and receives none.
	fill := func(names ...string) {
		t.Helper()
		for _, name := range names {
			engines[name].setRoom(0)
			until(t, name+" has seen that it is full", func() bool {
				s := services[name]
				s.queues.mu.Lock()
				defer s.queues.mu.Unlock()
				return len(s.queues.running) == 0 || engines[name].saidFull()
			})
		}
		until(t, "no node waits for events", func() bool { return consumerOf(t, b).NumWaiting == 0 })
	}
	fill("a", "b")
	engines["b"].setRoom(8)
	if got := all(50, a); got["b"] != 50 {
		t.Errorf("50 events with node a full ran %v times", got)
	}
	// An event accepted by one node is accepted for all.
	fill("b")
	r, err := a.Publish(t.Context(), "f", request("x"), Options{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "b has heard of it", func() bool { _, ok := b.index.find(r.ID); return ok })
	if again, err := b.Publish(t.Context(), "f", request("x"), Options{Key: "k"}); err != nil || !again.Duplicate || again.ID != r.ID {
		t.Errorf("the same event at another node: %+v, %v", again, err)
	}
	var refused *RefusedError
	if _, err := c.Publish(t.Context(), "f", request("x"), Options{}); !errors.As(err, &refused) || refused.Code() != failure.EventsUnavailable {
		t.Errorf("a node that does not have the function yet: %v", err)
	}
	var unknown *engine.UnknownError
	if _, err := c.Publish(t.Context(), "g", request("x"), Options{}); !errors.As(err, &unknown) {
		t.Errorf("a function of no node: %v", err)
	}
	if _, err := a.Publish(t.Context(), "f", request(strings.Repeat("x", inline+1)), Options{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a body that other nodes would not have: %v", err)
	}
	engines["b"].setRoom(8)
	until(t, "it has run", func() bool { return a.index.size() == 0 })
}

// consumerOf returns the consumer of f's queue.
func consumerOf(t *testing.T, s *Service) *jetstream.ConsumerInfo {
	t.Helper()
	stream, err := s.js.Stream(t.Context(), kindQueue.of(template.DefaultTenant))
	if err != nil {
		t.Fatal(err)
	}
	list := stream.ListConsumers(t.Context())
	var found *jetstream.ConsumerInfo
	for info := range list.Info() {
		found = info
	}
	if err := list.Err(); err != nil || found == nil {
		t.Fatalf("consumers: %v, %v", found, err)
	}
	return found
}

// The messages between nodes may be reordered or lost: the index keeps no event for this reason.
func TestNodesForget(t *testing.T) {
	node := cluster(t)
	e := &functions{}
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	s := open(t, node(e))
	said := func(state State, seq uint64) Entry {
		return Entry{ID: eventID("f", "k"), Function: "f", Tenant: template.DefaultTenant, Priority: Normal, State: state, seq: seq, Accepted: time.Now(), Changed: time.Now()}
	}
	known := func() bool { _, ok := s.index.find(eventID("f", "k")); return ok }
	s.index.heard(said(StateDone, 5))
	if s.index.heard(said(StateQueued, 5)); known() {
		t.Error("an ended event waits")
	}
	if waits := s.index.heard(said(StateQueued, 6)); !waits || !known() {
		t.Error("a replayed event does not wait")
	}
	r, err := s.Publish(t.Context(), "f", request("stays"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.reconcile(t.Context(), time.Now()); err != nil || !known() {
		t.Errorf("a new event is forgotten (%v)", err)
	}
	if err := s.reconcile(t.Context(), time.Now().Add(time.Hour)); err != nil || known() {
		t.Errorf("an event in no queue is remembered (%v)", err)
	}
	if _, ok := s.index.find(r.ID); !ok {
		t.Error("a queued event is forgotten")
	}
	s.hear([]byte(`{"ID":"x"}`)) // from an arbitrary writer
	if s.index.size() != 1 {
		t.Errorf("%d events, want 1", s.index.size())
	}
}

// The subject of a queue gives the function's full name, with its tenant, even if the function is
// gone.
func TestTenantOfQueue(t *testing.T) {
	for subject, want := range map[string]string{"fre.events.default.high.f": "f", "fre.events.acme.low.f": "f.acme"} {
		if e, ok := keyOf(subject); !ok || e.Function != want {
			t.Errorf("%s: %+v, want %s", subject, e, want)
		}
	}
}
