package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
)

// names returns the names of FRE's streams.
func names(t *testing.T, s *Service) (all []string) {
	t.Helper()
	list := s.js.StreamNames(t.Context())
	for name := range list.Name() {
		if _, _, ok := kindOf(name); ok {
			all = append(all, name)
		}
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// Each of many tenants has its own queue without a common limit. The events of a removed tenant go
// with it, and a new tenant of the name begins empty.
func TestTenants(t *testing.T) {
	e := &functions{room: 8}
	set := quick()
	set.Retries = 0
	for i := range 10 {
		tenant := fmt.Sprintf("t%d", i)
		e.deploy("f."+tenant, quick(), func(_ *engine.Request, body []byte) (int, []byte, error) { return 200, body, nil })
		e.deploy("bad."+tenant, set, func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil })
	}
	s := open(t, testConfig(t, e))
	var done, dead []string
	for i := range 10 {
		d := ends(t, s, fmt.Sprintf("f.t%d", i), "x", Options{Key: "k"})
		if d.State != StateDone || text(t, d) != "x" {
			t.Errorf("event of tenant %d: %+v", i, d.Entry)
		}
		done = append(done, d.ID)
		dead = append(dead, ends(t, s, fmt.Sprintf("bad.t%d", i), "x", Options{}).ID)
	}
	if list, err := s.List(t.Context(), Filter{States: []State{StateDone, StateDead}}); err != nil || len(list) != 20 {
		t.Errorf("%d events of all tenants, %v; want 20", len(list), err)
	}
	if list, err := s.List(t.Context(), Filter{Tenant: "t7", States: []State{StateDone, StateDead}}); err != nil || len(list) != 2 {
		t.Errorf("%d events of one, %v; want 2", len(list), err)
	}
	e.setRoom(0)
	waits, err := s.Publish(t.Context(), "f.t3", request("waits"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.remove("bad.t3")
	e.remove("f.t3")
	if err := s.RemoveTenant(t.Context(), "t3"); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveTenant(t.Context(), "t3"); err != nil {
		t.Errorf("once more: %v", err)
	}
	for _, id := range []string{done[3], dead[3], waits.ID} {
		if d, err := s.Find(t.Context(), id); !errors.Is(err, ErrNotFound) {
			t.Errorf("event of a tenant that was removed: %+v, %v", d, err)
		}
	}
	until(t, "its queue ends", func() bool {
		s.queues.mu.Lock()
		defer s.queues.mu.Unlock()
		return s.queues.running[queueKey{"t3", Normal, "f.t3"}] == nil
	})
	for _, name := range names(t, s) {
		if strings.HasSuffix(name, "_t3") {
			t.Errorf("the stream %s is there after its tenant", name)
		}
	}
	for _, id := range []string{done[4], dead[4]} {
		if _, err := s.Find(t.Context(), id); err != nil {
			t.Errorf("another tenant's event %s: %v", id, err)
		}
	}
	e.deploy("f.t3", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) { return 200, body, nil })
	e.setRoom(8)
	if d := ends(t, s, "f.t3", "y", Options{Key: "k"}); d.State != StateDone || text(t, d) != "y" {
		t.Errorf("event of a new tenant of that name: %+v", d.Entry)
	}
}

// TestRemoveTenantUnderWay: An event that runs during the removal of its tenant leaves nothing
// behind.
func TestRemoveTenantUnderWay(t *testing.T) {
	e := &functions{room: 8}
	set := quick()
	set.Retries = 0
	begun, goOn := make(chan struct{}), make(chan struct{})
	e.deploy("f.acme", set, func(*engine.Request, []byte) (int, []byte, error) {
		close(begun)
		<-goOn
		return 500, nil, nil
	})
	s := open(t, testConfig(t, e))
	r, err := s.Publish(t.Context(), "f.acme", request("x"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	e.remove("f.acme")
	removed := make(chan error, 1)
	go func() { removed <- s.RemoveTenant(t.Context(), "acme") }()
	until(t, "the removal has begun", func() bool {
		s.queues.mu.Lock()
		defer s.queues.mu.Unlock()
		return s.queues.removing["acme"] > 0
	})
	close(goOn)
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	if d, err := s.Find(t.Context(), r.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("the event: %+v, %v", d, err)
	}
	for _, name := range names(t, s) {
		if strings.HasSuffix(name, "_acme") {
			t.Errorf("the stream %s is there after its tenant", name)
		}
	}
}

// The service makes a stream again after another node or a person has removed it.
func TestStreamRemoved(t *testing.T) {
	node := cluster(t)
	e := &functions{room: 4}
	e.deploy("f.acme", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) { return 200, body, nil })
	a, b := open(t, node(e)), open(t, node(e))
	for range 2 {
		if d := ends(t, a, "f.acme", "x", Options{}); d.State != StateDone {
			t.Errorf("event: %+v", d.Entry)
		}
		if err := b.RemoveTenant(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
	}
}

// store_bytes bounds the streams of all tenants together and leaves room for the next tenant.
func TestStoreFull(t *testing.T) {
	e := &functions{}
	for _, f := range []string{"f.a", "f.b", "f.c"} {
		set := quick()
		set.Results = 0
		e.deploy(f, set, func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	}
	cfg := testConfig(t, e)
	cfg.StoreBytes = 8 << 20
	s := open(t, cfg)
	body := strings.Repeat("x", 256<<10)
	publish := func(f string) error {
		s.embedded.usage.Lock()
		s.embedded.usage.at = time.Time{} // simulates the passage of a second
		s.embedded.usage.Unlock()
		_, err := s.Publish(t.Context(), f, request(body), Options{})
		return err
	}
	fill := func(f string) (n int) {
		t.Helper()
		for ; n < 100; n++ {
			if err := publish(f); err != nil {
				var refused *RefusedError
				if !errors.Is(err, ErrStorage) || !errors.As(err, &refused) || refused.After == 0 || !strings.Contains(err.Error(), "store_bytes") {
					t.Fatalf("a full store: %v", err)
				}
				return n
			}
		}
		t.Fatal("25 MiB are taken where 8 are the limit")
		return 0
	}
	// Half of the space, then half of the rest, and so on.
	if a, b, c := fill("f.a"), fill("f.b"), fill("f.c"); a != 16 || b != 8 || c != 4 {
		t.Errorf("three tenants, one after the other, had %d, %d and %d events of 256 KiB taken in 8 MiB; want 16, 8 and 4", a, b, c)
	}
	ended := watchEnds(t, s)
	e.setRoom(8)
	for range 28 {
		<-ended
	}
	until(t, "what has ended makes room", func() bool { return publish("f.a") == nil })
}

// The results and dead letters of one tenant never displace those of another.
func TestEndsApart(t *testing.T) {
	e := &functions{room: 4}
	set := quick()
	set.Retries = 0
	for _, tenant := range []string{"quiet", "loud"} {
		e.deploy("ok."+tenant, quick(), func(_ *engine.Request, body []byte) (int, []byte, error) { return 200, body, nil })
		e.deploy("bad."+tenant, set, func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil })
	}
	cfg := testConfig(t, e)
	cfg.MaxResults = 3 // a dead letter has a result, too
	s := open(t, cfg)
	done, dead := ends(t, s, "ok.quiet", "kept", Options{Key: "k"}), ends(t, s, "bad.quiet", "kept", Options{})
	for _, f := range []string{"bad.loud", "ok.loud"} {
		for range 5 {
			ends(t, s, f, "x", Options{})
		}
	}
	for _, d := range []*Details{done, dead} {
		if d, err := s.Find(t.Context(), d.ID); err != nil || text(t, d) != "kept" {
			t.Errorf("of a quiet tenant beside a loud one: %+v, %v", d, err)
		}
	}
	if r, err := s.Publish(t.Context(), "ok.quiet", request("x"), Options{Key: "k"}); err != nil || !r.Duplicate {
		t.Errorf("the quiet tenant's key: %+v, %v", r, err)
	}
	for _, state := range []State{StateDone, StateDead} {
		if list, err := s.List(t.Context(), Filter{Tenant: "loud", States: []State{state}}); err != nil || len(list) != 3 {
			t.Errorf("%d of the loud one's are kept, %v; want 3", len(list), err)
		}
	}
}

// A node finds the events that older nodes wrote into streams of all tenants, next to older nodes
// that still write there.
func TestSharedStreams(t *testing.T) {
	e := &functions{room: 4}
	e.deploy("f.acme", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) { return 200, body, nil })
	own := testConfig(t, e)
	own.Listen, own.User, own.Password, own.StoreBytes = "127.0.0.1:0", "operator", "password", 1<<30
	server, err := startEmbedded(&own)
	if err != nil {
		t.Fatal(err)
	}
	running := true
	defer func() {
		if running {
			server.Close()
		}
	}()
	cfg := testConfig(t, e)
	cfg.URL = "nats://operator:password@" + server.Addr().String()
	s := open(t, cfg)
	letter := func(key, body string, state State) *message {
		return &message{
			Entry:   Entry{ID: eventID("f.acme", key), Function: "f.acme", Tenant: "acme", Priority: Normal, State: state, Status: 200, Attempts: 1, Accepted: time.Now().UTC()},
			request: engine.Request{Method: "POST", Path: "/"}, body: []byte(body),
		}
	}
	write := func(subject string, m *message) {
		t.Helper()
		msg, err := m.encode(subject)
		if err == nil {
			_, err = s.js.PublishMsg(t.Context(), msg)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, subject := range map[string]string{"FRE_RESULTS": "fre.results.*.*.*", "FRE_DEAD": "fre.dead.*.*.*"} {
		_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}, Storage: jetstream.FileStorage, MaxBytes: 1 << 30, MaxMsgsPerSubject: 1, AllowDirect: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	done, dead, gone := letter("done", "result", StateDone), letter("dead", "dead", StateDead), letter("gone", "gone", StateDead)
	write(endSubject("results", "acme", "f.acme", done.ID), done)
	write(endSubject("dead", "acme", "f.acme", dead.ID), dead)
	write(endSubject("dead", "acme", "f.acme", gone.ID), gone)
	scan := func(s *Service) {
		t.Helper()
		if err := s.scanStreams(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	scan(s)
	for id, want := range map[string]string{done.ID: "result", dead.ID: "dead"} {
		if d, err := s.Find(t.Context(), id); err != nil || text(t, d) != want {
			t.Errorf("of a node of before: %+v, %v; want %q", d, err, want)
		}
	}
	if list, err := s.List(t.Context(), Filter{Function: "f.acme", Tenant: "acme", States: []State{StateDone, StateDead}}); err != nil || len(list) != 3 {
		t.Errorf("list: %+v, %v; want 3", list, err)
	}
	if r, err := s.Publish(t.Context(), "f.acme", request("x"), Options{Key: "done"}); err != nil || !r.Duplicate {
		t.Errorf("the key of a result of before: %+v, %v", r, err)
	}
	ended := watchEnds(t, s)
	if err := s.Replay(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	<-ended
	if d, err := s.Find(t.Context(), dead.ID); err != nil || d.State != StateDone || text(t, d) != "dead" {
		t.Errorf("replayed: %+v, %v", d, err)
	}
	if err := s.RemoveTenant(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{done.ID, dead.ID, gone.ID} {
		if d, err := s.Find(t.Context(), id); !errors.Is(err, ErrNotFound) {
			t.Errorf("after its tenant: %+v, %v", d, err)
		}
	}
	scan(s)
	if diff := cmp.Diff([]string{"FRE_DEAD", "FRE_RESULTS"}, names(t, s)); diff != "" {
		t.Errorf("nodes of before need these, -want +got:\n%s", diff)
	}
	write(endSubject("dead", "acme", "f.acme", dead.ID), dead)

	// A lone engine knows that all nodes are new, and removes the empty shared streams.
	running = false
	server.Close()
	own.Listen = ""
	s = open(t, own)
	if d, err := s.Find(t.Context(), dead.ID); err != nil || text(t, d) != "dead" {
		t.Errorf("after the change of version: %+v, %v", d, err)
	}
	scan(s)
	if diff := cmp.Diff([]string{"FRE_DEAD"}, names(t, s)); diff != "" {
		t.Errorf("streams of before that hold something, -want +got:\n%s", diff)
	}
	if err := s.Replay(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	until(t, "no stream of before is left", func() bool { // a scan of the service itself may have begun earlier
		scan(s)
		return !slices.Contains(names(t, s), "FRE_DEAD") && !s.streams.shared.Load()
	})
}

// busyServer is a JetStream that leaves the first fetch of a consumer unanswered.
type busyServer struct{ jetstream.JetStream }

func (s busyServer) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	st, err := s.JetStream.Stream(ctx, name)
	return busyStream{st}, err
}

type busyStream struct{ jetstream.Stream }

func (s busyStream) OrderedConsumer(ctx context.Context, cfg jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	c, err := s.Stream.OrderedConsumer(ctx, cfg)
	return &busyConsumer{Consumer: c}, err
}

type busyConsumer struct {
	jetstream.Consumer
	asked int
}

func (c *busyConsumer) FetchNoWait(n int) (jetstream.MessageBatch, error) {
	if c.asked++; c.asked == 1 {
		return unanswered{}, nil
	}
	return c.Consumer.FetchNoWait(n)
}

// unanswered is the client's result for an unanswered request.
type unanswered struct{ jetstream.MessageBatch }

func (unanswered) Error() error { return nil }

func (unanswered) Messages() <-chan jetstream.Msg {
	none := make(chan jetstream.Msg)
	close(none)
	return none
}

// TestListBusyServer: A list is complete even if the server answers late.
func TestListBusyServer(t *testing.T) {
	e := &functions{room: 1}
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	s := open(t, testConfig(t, e))
	d := ends(t, s, "f", "x", Options{})
	var found []string
	err := each(t.Context(), busyServer{s.js}, kindResults.of(d.Tenant), kindResults.subject(d.Tenant, "f", "*"), func(m jetstream.Msg) {
		found = append(found, m.Headers().Get(headID))
	})
	if err != nil || !slices.Equal(found, []string{d.ID}) {
		t.Errorf("got %v, %v; want %s", found, err, d.ID)
	}
}

// The service removes the file of a body once no event of any tenant needs it.
func TestBodiesSwept(t *testing.T) {
	e := &functions{room: 4}
	set := quick()
	set.Retries = 0
	for _, tenant := range []string{"a", "b"} {
		e.deploy("bad."+tenant, set, func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil })
	}
	s := open(t, testConfig(t, e))
	large := strings.Repeat("l", inline+1)
	a, b := ends(t, s, "bad.a", large, Options{}), ends(t, s, "bad.b", large, Options{})
	if err := s.RemoveTenant(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	s.sweepBodies() // no body is old enough
	if used := s.bodies.used.Load(); used != int64(2*len(large)) {
		t.Errorf("bodies take %d bytes, want %d", used, 2*len(large))
	}
	age(t, s)
	s.sweepBodies()
	if used := s.bodies.used.Load(); used != int64(len(large)) {
		t.Errorf("bodies take %d bytes once a tenant has gone, want %d", used, len(large))
	}
	if d, err := s.Find(t.Context(), a.ID); err != nil || text(t, d) != large {
		t.Errorf("the body of a dead letter: %v", err)
	}
	if _, err := s.bodies.open(b.ID + ".event"); err == nil {
		t.Error("the body of a tenant that was removed is there")
	}
}

// age makes all bodies two hours old.
func age(t *testing.T, s *Service) {
	t.Helper()
	for _, name := range s.bodies.before(time.Now().Add(time.Hour)) {
		then := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(filepath.Join(s.bodies.dir, name), then, then); err != nil {
			t.Fatal(err)
		}
	}
}
