package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// functions is an engine with functions in Go.
type functions struct {
	mu   sync.Mutex
	room int
	full int // refusals for lack of room since setRoom
	all  map[string]*goFunction
}

type goFunction struct {
	config image.Config
	header [][2]string // of the answers, beside the content type
	handle func(r *engine.Request, body []byte) (int, []byte, error)
}

func (e *functions) Function(name string) (*engine.Function, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.all[name]
	if f == nil {
		return nil, &engine.UnknownError{Function: name}
	}
	return &engine.Function{Name: name, Config: f.config}, nil
}

func (e *functions) Room(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all[name] == nil {
		return 0
	}
	if e.room == 0 {
		e.full++
	}
	return e.room
}

// saidFull reports whether a queue knows of the lack of room and asks for no event. The first
// refusal may go to whileRoom, whose request is still on its way.
func (e *functions) saidFull() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.full > 1
}

func (e *functions) setRoom(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.room, e.full = n, 0
}

func (e *functions) Invoke(_ context.Context, name string, r *engine.Request) (*engine.Response, error) {
	e.mu.Lock()
	f := e.all[name]
	e.mu.Unlock()
	if f == nil {
		return nil, &engine.UnknownError{Function: name}
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	status, answer, err := f.handle(r, body)
	if err != nil {
		return nil, err
	}
	return &engine.Response{Status: status, Header: append([][2]string{{"Content-Type", "text/plain"}}, f.header...), Size: int64(len(answer)), Body: io.NopCloser(bytes.NewReader(answer))}, nil
}

// deploy adds a function of the tenant in its name, with the template's events.
func (e *functions) deploy(name string, set template.Events, handle func(r *engine.Request, body []byte) (int, []byte, error)) {
	_, tenant, err := template.SplitName(name)
	if err != nil {
		panic(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[string]*goFunction{}
	}
	e.all[name] = &goFunction{
		config: image.Config{Tenant: tenant, Events: &set, Resources: template.Resources{Timeout: 2 * time.Second}},
		handle: handle,
	}
}

func (e *functions) remove(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, name)
}

// within only ends a hanging test.
const within = 10 * time.Minute

// patience exceeds the delays of a busy machine or a slow disk.
const patience = 2 * time.Minute

// quick returns settings of events without long pauses.
func quick() template.Events {
	e := template.DefaultEvents()
	e.Backoff = 10 * time.Millisecond
	return e
}

func testConfig(t *testing.T, e Engine) Config {
	t.Helper()
	return Config{Engine: e, Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), MinFreeBytes: 1, Patience: patience}
}

// open opens a service and closes it with the test.
func open(t *testing.T, cfg Config) *Service {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	until(t, "it is connected", func() bool { return s.nc.IsConnected() })
	return s
}

func request(body string) *engine.Request {
	return &engine.Request{Method: http.MethodPost, Path: "/a", Query: "q=1", Headers: [][2]string{{"Content-Type", "text/plain"}}, Body: strings.NewReader(body), Length: int64(len(body))}
}

// ends publishes an event and waits for the event's end.
func ends(t *testing.T, s *Service, function, body string, o Options) *Details {
	t.Helper()
	ended := watchEnds(t, s)
	r, err := s.Publish(t.Context(), function, request(body), o)
	if err != nil {
		t.Fatal(err)
	}
	for e := range ended {
		if e.ID == r.ID {
			break
		}
	}
	d, err := s.Find(t.Context(), r.ID)
	if err != nil {
		t.Fatalf("event %s: %v", r.ID, err)
	}
	return d
}

// watchEnds returns the events that end from now on.
func watchEnds(t *testing.T, s *Service) <-chan Entry {
	t.Helper()
	all := make(chan Entry, 1<<16)
	t.Cleanup(s.index.watch(all))
	ended := make(chan Entry, 1<<16)
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for {
			select {
			case e := <-all:
				if e.State == StateDone || e.State == StateDead {
					ended <- e
				}
			case <-done:
				return
			}
		}
	}()
	return ended
}

func text(t *testing.T, d *Details) string {
	t.Helper()
	r, err := d.Body()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestEventRuns: An event runs its function with the published request, and keeps the answer.
func TestEventRuns(t *testing.T) {
	e := &functions{room: 8}
	var seen *engine.Request
	e.deploy("echo", quick(), func(r *engine.Request, body []byte) (int, []byte, error) {
		seen = r
		return 201, append([]byte("got "), body...), nil
	})
	s := open(t, testConfig(t, e))
	d := ends(t, s, "echo", "hello", Options{})
	if d.State != StateDone || d.Status != 201 || d.Attempts != 1 || text(t, d) != "got hello" || !d.Result {
		t.Errorf("event is %+v with %q, want it done with 201 and its answer", d.Entry, text(t, d))
	}
	want := [][2]string{{"Content-Type", "text/plain"}, {"X-Call-Id", d.ID}, {"X-Fre-Event-Attempt", "1"}, {"X-Fre-Event-Source", "http"}}
	if diff := cmp.Diff(want, seen.Headers); diff != "" || seen.Path != "/a" || seen.Query != "q=1" || seen.Method != http.MethodPost {
		t.Errorf("the function saw %+v; headers -want +got:\n%s", seen, diff)
	}
	if _, err := s.Publish(t.Context(), "nobody", request(""), Options{}); !errors.As(err, new(*engine.UnknownError)) {
		t.Errorf("event for no function: %v", err)
	}
}

// TestEventOnce: One key makes one event: for simultaneous publications, after the event's end, and
// over restarts.
func TestEventOnce(t *testing.T) {
	e := &functions{room: 8}
	var mu sync.Mutex
	ran := 0
	e.deploy("count", quick(), func(*engine.Request, []byte) (int, []byte, error) {
		mu.Lock()
		defer mu.Unlock()
		ran++
		return 200, nil, nil
	})
	cfg := testConfig(t, e)
	s := open(t, cfg)
	ended := watchEnds(t, s)
	// Twenty publications at once.
	var all sync.WaitGroup
	var fresh int
	var same string
	for range 20 {
		all.Go(func() {
			r, err := s.Publish(t.Context(), "count", request("x"), Options{Key: "k"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if !r.Duplicate {
				fresh++
			}
			if same == "" {
				same = r.ID
			}
			if r.ID != same {
				t.Errorf("one key is events %s and %s", same, r.ID)
			}
		})
	}
	all.Wait()
	<-ended
	ends(t, s, "count", "y", Options{})
	mu.Lock()
	if fresh != 1 || ran != 2 {
		t.Errorf("%d of 20 with one key were new, the function ran %d times; want 1, and 2 with another's", fresh, ran)
	}
	mu.Unlock()
	// After the event's end, and in another process.
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	if r, err := s.Publish(t.Context(), "count", request("x"), Options{Key: "k"}); err != nil || !r.Duplicate || r.ID != same {
		t.Errorf("the same key after a restart: %+v, %v", r, err)
	}
	if r, err := s.Publish(t.Context(), "count", request("x"), Options{Key: "other"}); err != nil || r.Duplicate {
		t.Errorf("another key: %+v, %v", r, err)
	}
}

// TestEventRetries: A failed event is tried again after a growing pause, becomes a dead letter
// after its last retry, and can be replayed.
func TestEventRetries(t *testing.T) {
	e := &functions{room: 8}
	set := quick()
	set.Retries = 2
	e.deploy("flaky", set, func(r *engine.Request, _ []byte) (int, []byte, error) {
		if slices.Contains(r.Headers, [2]string{"X-Fre-Event-Attempt", "3"}) {
			return 200, []byte("at last"), nil
		}
		return 503, nil, nil
	})
	e.deploy("poison", set, func(*engine.Request, []byte) (int, []byte, error) {
		return 0, nil, &engine.CrashError{Reason: "was killed"}
	})
	e.deploy("no", set, func(*engine.Request, []byte) (int, []byte, error) { return 404, []byte("none"), nil })
	s := open(t, testConfig(t, e))
	if d := ends(t, s, "flaky", "", Options{}); d.State != StateDone || d.Attempts != 3 || text(t, d) != "at last" {
		t.Errorf("an event that fails twice: %+v", d.Entry)
	}
	if d := ends(t, s, "no", "", Options{}); d.State != StateDone || d.Attempts != 1 || d.Status != 404 {
		t.Errorf("an answer of the client's fault is an answer: %+v", d.Entry)
	}
	dead := ends(t, s, "poison", "bad", Options{})
	if dead.State != StateDead || dead.Attempts != 3 || dead.Error != "function was killed" || text(t, dead) != "bad" {
		t.Errorf("an event that always fails: %+v", dead.Entry)
	}
	list, err := s.List(t.Context(), Filter{States: []State{StateDead}})
	if err != nil || len(list) != 1 || list[0].ID != dead.ID {
		t.Fatalf("dead letters: %+v, %v", list, err)
	}

	// The repaired function gets the event by a replay.
	e.deploy("poison", set, func(_ *engine.Request, body []byte) (int, []byte, error) { return 200, body, nil })
	ended := watchEnds(t, s)
	if err := s.Replay(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	if again := <-ended; again.ID != dead.ID || again.State != StateDone || again.Attempts != 1 {
		t.Errorf("replayed: %+v", again)
	}
	if d, err := s.Find(t.Context(), dead.ID); err != nil || text(t, d) != "bad" || !d.Result {
		t.Errorf("the replayed event's result: %+v, %v", d, err)
	}
	if err := s.Replay(t.Context(), dead.ID); !errors.Is(err, ErrNotDead) {
		t.Errorf("replay of a finished event: %v", err)
	}
	if err := s.Replay(t.Context(), strings.Repeat("0", 32)); !errors.Is(err, ErrNotFound) {
		t.Errorf("replay of nothing: %v", err)
	}
}

// TestDiscard: Discard removes a dead letter and its body, and refuses other events.
func TestDiscard(t *testing.T) {
	e := &functions{room: 4}
	set := quick()
	set.Retries = 0
	e.deploy("poison", set, func(*engine.Request, []byte) (int, []byte, error) {
		return 0, nil, &engine.CrashError{Reason: "was killed"}
	})
	e.deploy("fine", set, func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	s := open(t, testConfig(t, e))
	for name, body := range map[string]string{"small": "bad", "a file of its own": strings.Repeat("x", 2<<20)} {
		dead := ends(t, s, "poison", body, Options{})
		if err := s.Discard(t.Context(), dead.ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d, err := s.Find(t.Context(), dead.ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: discarded, and found: %+v, %v", name, d, err)
		}
		if err := s.Discard(t.Context(), dead.ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: discarded twice: %v", name, err)
		}
	}
	if left, err := os.ReadDir(s.bodies.dir); err != nil || len(left) > 0 {
		t.Errorf("bodies that are left: %v, %v", left, err)
	}
	if err := s.Discard(t.Context(), ends(t, s, "fine", "", Options{}).ID); !errors.Is(err, ErrNotDead) {
		t.Errorf("an event that is done: %v", err)
	}
}

// A function without room, or with constant failures, does not delay another function.
func TestQueuesApart(t *testing.T) {
	e := &functions{room: 4}
	block := make(chan struct{})
	set := quick()
	set.Retries = 100
	e.deploy("stuck", set, func(*engine.Request, []byte) (int, []byte, error) { <-block; return 200, nil, nil })
	e.deploy("poison", set, func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil })
	e.deploy("fine", set, func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	s := open(t, testConfig(t, e))
	defer close(block)
	for i := range 8 {
		for _, f := range []string{"stuck", "poison"} {
			if _, err := s.Publish(t.Context(), f, request(fmt.Sprint(i)), Options{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 5 {
		if d := ends(t, s, "fine", "", Options{}); d.State != StateDone {
			t.Errorf("event beside others that fail: %+v", d.Entry)
		}
	}
}

// TestEventRefused: A full queue and an oversize event are refused with a code of their own, and a
// full queue names the time for a retry.
func TestEventRefused(t *testing.T) {
	e := &functions{} // no room: all events wait
	set := quick()
	set.MaxQueue = 2
	e.deploy("f", set, func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	e.deploy("g", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	cfg := testConfig(t, e)
	cfg.MaxEvent, cfg.MaxQueue = 1<<20, 4
	s := open(t, cfg)
	publish := func(f string, size int, o Options) error {
		_, err := s.Publish(t.Context(), f, request(strings.Repeat("x", size)), o)
		return err
	}
	check := func(what string, err, want error, code failure.Code, retry bool) {
		t.Helper()
		var refused *RefusedError
		if !errors.Is(err, want) || !errors.As(err, &refused) || refused.Code() != code || (refused.After > 0) != retry {
			t.Errorf("%s: %v, want %v with %s", what, err, want, code)
		}
	}
	for range 2 {
		if err := publish("f", 1, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	check("a third of the template's two", publish("f", 1, Options{}), ErrFull, failure.QueueFull, true)
	for range 2 {
		if err := publish("g", 1, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	check("a fifth of the tenant's four", publish("g", 1, Options{}), ErrFull, failure.QueueFull, true)
	check("too large", publish("g", 1<<20+1, Options{}), ErrTooLarge, failure.BodyTooLarge, false)
	unsized := request(strings.Repeat("x", 1<<20+1))
	unsized.Length = -1
	_, err := s.Publish(t.Context(), "g", unsized, Options{})
	check("too large, of unknown size", err, ErrTooLarge, failure.BodyTooLarge, false)
	long := request("")
	long.Headers = [][2]string{{"X", strings.Repeat("x", maxHeader)}}
	_, err = s.Publish(t.Context(), "g", long, Options{})
	check("long headers", err, ErrTooLarge, failure.BodyTooLarge, false)
	check("unknown priority", publish("g", 1, Options{Priority: "urgent"}), ErrBadEvent, failure.BadEvent, false)
	check("a callback nobody allows", publish("g", 1, Options{Callback: "http://127.0.0.1/"}), ErrCallback, failure.CallbackNotAllowed, false)
	s.cfg.MinFreeBytes = 1 << 60
	check("no space", publish("g", 1, Options{}), ErrStorage, failure.EventsStorage, true)
	if used := s.bodies.used.Load(); used != 0 {
		t.Errorf("bodies of refused events take %d bytes", used)
	}
	if n := s.index.size(); n != 4 {
		t.Errorf("%d events are pending, want 4", n)
	}
}

// TestEventOutlivesService: An acknowledged event runs after a restart of the service.
func TestEventOutlivesService(t *testing.T) {
	e := &functions{}
	var mu sync.Mutex
	got := map[string]int{}
	e.deploy("f", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) {
		mu.Lock()
		defer mu.Unlock()
		got[string(body)]++
		return 200, nil, nil
	})
	cfg := testConfig(t, e)
	s := open(t, cfg)
	large := strings.Repeat("l", inline+1)
	for _, body := range []string{"a", "b", large} {
		if _, err := s.Publish(t.Context(), "f", request(body), Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if used := s.bodies.used.Load(); used != int64(len(large)) {
		t.Errorf("bodies take %d bytes, want those of the large one, %d", used, len(large))
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	ended := watchEnds(t, s)
	e.setRoom(8)
	for range 3 {
		<-ended
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(map[string]int{"a": 1, "b": 1, large: 1}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if used := s.bodies.used.Load(); used != 0 {
		t.Errorf("bodies take %d bytes when all has ended", used)
	}
}

// The service publishes many events at once in batches. Each event exists once, with a number of
// its own.
func TestPublishTogether(t *testing.T) {
	e := &functions{room: 16}
	var mu sync.Mutex
	got := map[string]int{}
	e.deploy("f", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) {
		mu.Lock()
		defer mu.Unlock()
		got[string(body)]++
		return 200, nil, nil
	})
	s := open(t, testConfig(t, e))
	ended := watchEnds(t, s)
	const n = 2000
	var all sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range 64 {
		all.Go(func() {
			for i := range next {
				if _, err := s.Publish(t.Context(), "f", request(fmt.Sprint(i)), Options{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for range n {
		<-ended
	}
	if len(got) != n || s.index.size() != 0 {
		t.Errorf("%d of %d events ran, %d are pending", len(got), n, s.index.size())
	}
	for body, times := range got {
		if times != 1 {
			t.Errorf("event %s ran %d times", body, times)
		}
	}
}

// TestTurns: Priorities share turns 16 : 4 : 1, and each priority gets its turns.
func TestTurns(t *testing.T) {
	turns := newTurns(1)
	if n, err := turns.acquire(t.Context(), Normal, 5); n != 1 || err != nil {
		t.Fatalf("the one turn: %d, %v", n, err)
	}
	clear(turns.passed)
	// All functions want more than the room.
	order := make(chan Priority, 1000)
	for _, p := range priorities {
		for range 100 {
			w := turns.waiting[p].Push(1)
			go func() {
				if _, err := w.Wait(t.Context(), &turns.mu, nil); err != nil {
					t.Error(err)
				}
				order <- p
			}()
		}
	}
	had := map[Priority]int{}
	for range 84 {
		turns.release(1)
		had[<-order]++
	}
	if diff := cmp.Diff(map[Priority]int{High: 64, Normal: 16, Low: 4}, had); diff != "" {
		t.Errorf("84 turns are shared -want +got:\n%s", diff)
	}
	for range 216 {
		turns.release(1)
		had[<-order]++
	}
	if diff := cmp.Diff(map[Priority]int{High: 100, Normal: 100, Low: 100}, had); diff != "" {
		t.Errorf("in the end -want +got:\n%s", diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.acquire(ctx, High, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing is free: %v", err)
	}
}

// TestSlowBodyAtStop: An event with an incomplete body does not delay a stop beyond its time, and
// the client gets an error.
func TestSlowBodyAtStop(t *testing.T) {
	var e functions
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	s, err := Open(testConfig(t, &e))
	if err != nil {
		t.Fatal(err)
	}
	body, client := io.Pipe()
	defer client.Close()
	published := make(chan error, 1)
	go func() {
		_, err := s.Publish(t.Context(), "f", &engine.Request{Method: http.MethodPost, Path: "/", Body: body, Length: -1}, Options{})
		published <- err
	}()
	if _, err := io.WriteString(client, "some of it"); err != nil { // the service reads the body
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	var refused *RefusedError
	if err := <-published; !errors.As(err, &refused) || refused.Code() != failure.EventsUnavailable {
		t.Error(err)
	}
}

// For two minutes after the end of an event without a kept result, the same key means the same
// event. A second publication gets this answer and leaves nothing behind.
func TestEventAgainAfterEnd(t *testing.T) {
	e := &functions{room: 4}
	set := quick()
	set.Results, set.MaxQueue, set.Retries = 0, 3, 0
	for _, f := range []string{"f", "other"} {
		e.deploy(f, set, func(*engine.Request, []byte) (int, []byte, error) { return 200, nil, nil })
	}
	e.deploy("bad", set, func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil })
	s := open(t, testConfig(t, e))
	ended := watchEnds(t, s)
	large := strings.Repeat("l", inline+1)
	publish := func(function, key string) Receipt {
		t.Helper()
		r, err := s.Publish(t.Context(), function, request(large), Options{Key: key})
		if err != nil {
			t.Fatalf("%s of %s: %v", key, function, err)
		}
		return r
	}
	acknowledged := func() {
		t.Helper()
		until(t, "the queue is empty", func() bool {
			stream, err := s.js.Stream(t.Context(), kindQueue.of(template.DefaultTenant))
			if err != nil {
				t.Fatal(err)
			}
			return stream.CachedInfo().State.Msgs == 0
		})
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		publish("f", key)
		<-ended
		acknowledged()
		if r := publish("f", key); !r.Duplicate {
			t.Errorf("%s is another event the second time", key)
		}
	}
	dead := publish("bad", "k")
	<-ended
	acknowledged()
	if r := publish("bad", "k"); !r.Duplicate || r.ID != dead.ID {
		t.Errorf("a dead letter's key: %+v", r)
	}
	if n := s.index.size(); n != 0 {
		t.Errorf("%d events are pending when all have ended", n)
	}
	if d, err := s.Find(t.Context(), dead.ID); err != nil || d.State != StateDead || text(t, d) != large {
		t.Errorf("the dead letter: %+v, %v", d, err)
	}
	if used := s.bodies.used.Load(); used != int64(len(large)) {
		t.Errorf("bodies take %d bytes, want the dead letter's, %d", used, len(large))
	}
	// A waiting event stays, even after the index lost its entry.
	e.setRoom(0)
	waits := publish("other", "waits")
	s.index.drop(waits.ID)
	if r := publish("other", "waits"); !r.Duplicate || r.ID != waits.ID {
		t.Errorf("the waiting event, again: %+v", r)
	}
	if err := s.reconcile(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if d, err := s.Find(t.Context(), waits.ID); err != nil || d.State != StateQueued || text(t, d) != large {
		t.Errorf("the waiting event: %+v, %v", d, err)
	}
}

// If the key of a dead letter comes again after its event is forgotten, the dead letter is
// replayed.
func TestEventDeadSentAgain(t *testing.T) {
	e := &functions{room: 4}
	set := quick()
	set.Results, set.Retries = 0, 0
	e.deploy("f.acme", set, func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil })
	s := open(t, testConfig(t, e))
	large := strings.Repeat("l", inline+1)
	dead := ends(t, s, "f.acme", large, Options{Key: "k"})
	if dead.State != StateDead {
		t.Fatalf("event: %+v", dead.Entry)
	}
	queue := s.streams.config(kindQueue, "acme")
	// JetStream forgets the id. The server expires ids when the window changes, possibly before the
	// new window is in force, so change the window twice.
	for _, after := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond} {
		queue.Duplicates = after
		if _, err := s.js.UpdateStream(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	e.deploy("f.acme", quick(), func(_ *engine.Request, body []byte) (int, []byte, error) {
		return 200, fmt.Append(nil, len(body)), nil
	})
	ended := watchEnds(t, s)
	until(t, "it is another event", func() bool {
		r, err := s.Publish(t.Context(), "f.acme", request("small"), Options{Key: "k"})
		if err != nil || r.ID != dead.ID {
			t.Fatalf("%+v, %v", r, err)
		}
		return !r.Duplicate
	})
	<-ended
	if d, err := s.Find(t.Context(), dead.ID); err != nil || d.State != StateDone || text(t, d) != "5" {
		t.Errorf("sent again: %+v, %v; want it done", d, err)
	}
	if list, err := s.List(t.Context(), Filter{States: []State{StateDead, StateDone}}); err != nil || len(list) != 1 {
		t.Errorf("list: %+v, %v; want it once", list, err)
	}
	if used := s.bodies.used.Load(); used != 0 {
		t.Errorf("bodies take %d bytes, want none", used)
	}
}

// A list of a function's events tells tenants apart by the full name.
func TestListOfFunction(t *testing.T) {
	e := &functions{room: 4}
	set := quick()
	set.Retries = 0
	for _, f := range []string{"f", "f.acme"} {
		e.deploy(f, set, func(*engine.Request, []byte) (int, []byte, error) { return 500, nil, nil })
	}
	s := open(t, testConfig(t, e))
	for _, f := range []string{"f", "f.acme"} {
		d := ends(t, s, f, "", Options{})
		if list, err := s.List(t.Context(), Filter{Function: f}); err != nil || len(list) != 1 || list[0].ID != d.ID {
			t.Errorf("events of %s: %+v, %v; want the one", f, list, err)
		}
	}
	if list, err := s.List(t.Context(), Filter{Function: "*.>"}); err != nil || len(list) != 0 {
		t.Errorf("events of no function: %+v, %v", list, err)
	}
}

// The server limits the length of headers. An event with longer headers is refused; the longer
// headers of an answer are left out.
func TestLongHeaders(t *testing.T) {
	e := &functions{room: 4}
	ran := 0
	e.deploy("f", quick(), func(*engine.Request, []byte) (int, []byte, error) {
		ran++
		return 200, []byte("answer"), nil
	})
	s := open(t, testConfig(t, e))
	publish := func(n int) error {
		r := request("")
		r.Headers = [][2]string{{"X", strings.Repeat("x", n)}}
		_, err := s.Publish(t.Context(), "f", r, Options{})
		return err
	}
	ended := watchEnds(t, s)
	if err := publish(maxHeader - 1<<10); err != nil {
		t.Fatalf("headers within the limit: %v", err)
	}
	if end := <-ended; end.State != StateDone {
		t.Errorf("an event with long headers: %+v", end)
	}
	if err := publish(maxHeader); !errors.Is(err, ErrTooLarge) {
		t.Errorf("headers beyond it: %v", err)
	}
	ran = 0
	for _, n := range []int{maxHeader - 1<<10, maxHeader, 1 << 20} {
		e.all["f"].header = [][2]string{{"X", strings.Repeat("x", n)}}
		if d := ends(t, s, "f", "", Options{}); d.State != StateDone || text(t, d) != "answer" || (len(d.ResultHeader) > 0) != (n < maxHeader) {
			t.Errorf("an answer with %d bytes of headers: %+v, %d headers", n, d.Entry, len(d.ResultHeader))
		}
	}
	if ran != 3 {
		t.Errorf("the function ran %d times, want 3", ran)
	}
}
