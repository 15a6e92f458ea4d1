package trigger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/template"
)

// within only ends a hanging test.
const within = 10 * time.Minute

// noEngine has no functions: the world gets the events.
type noEngine struct{}

func (noEngine) Invoke(context.Context, string, *engine.Request) (*engine.Response, error) {
	return nil, errors.New("not in this test")
}

func (noEngine) Function(name string) (*engine.Function, error) {
	return nil, &engine.UnknownError{Function: name}
}
func (noEngine) Room(string) int { return 0 }

// openBus returns a NATS server with a public address, and a connection of a client.
func openBus(t *testing.T, dir string) (*events.Service, *nats.Conn) {
	t.Helper()
	bus, err := events.Open(events.Config{
		Engine: noEngine{}, Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), MinFreeBytes: 1, Patience: 2 * time.Minute,
		Listen: "127.0.0.1:0", User: "operator", Password: "password",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bus.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	nc, err := nats.Connect("nats://operator:password@"+bus.Addr(), nats.Timeout(within))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return bus, nc
}

// until waits for a condition.
func until(t *testing.T, what func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := testdaemon.Until(ctx, what); err != nil {
		t.Fatal(err)
	}
}

func (w *world) bodies() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, p := range w.published {
		all = append(all, p.Body)
	}
	slices.Sort(all)
	return all
}

func (w *world) has(bodies ...string) func() error {
	return func() error {
		if got := w.bodies(); !slices.Equal(got, bodies) {
			return fmt.Errorf("events: %q, want %q", got, bodies)
		}
		return nil
	}
}

// fail makes the world refuse events with err; nil ends this.
func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails, w.refused = err, 0
}

// hasRefused returns nil once the world has refused n times since fail.
func (w *world) hasRefused(n int) func() error {
	return func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused < n {
			return fmt.Errorf("%d were refused, want %d", w.refused, n)
		}
		return nil
	}
}

// runNATS lets a set take messages until stop is called.
func runNATS(t *testing.T, set *Set, bus Bus, allow events.Subjects) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		set.NATS(ctx, bus, allow.Allow)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// Each message of a stream becomes an event at least once, even if the queue is full or the engine
// is away. Equal messages make one event.
func TestNATSStream(t *testing.T) {
	bus, nc := openBus(t, t.TempDir())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(within))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	orders, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Duplicates: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{}
	allow := events.Subjects{"default": {"orders.>"}}
	set := newSet(t, w, time.Now(), template.Trigger{Name: "n", NATS: &template.NATS{Subject: "orders.*", Stream: "ORDERS"}})
	stop := runNATS(t, set, bus, allow)
	consumers := func(n int) func() error {
		return func() error {
			info, err := orders.Info(ctx)
			if err == nil && info.State.Consumers != n {
				err = fmt.Errorf("%d consumers, want %d", info.State.Consumers, n)
			}
			return err
		}
	}
	until(t, consumers(1))
	publish := func(subject, body string, header nats.Header) {
		t.Helper()
		if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: []byte(body), Header: header}); err != nil {
			t.Fatal(err)
		}
	}
	publish("orders.new", "1", nats.Header{"Nats-Msg-Id": {"one"}, "X-Kind": {"k"}, "X-Fre-Nats-Subject": {"forged"}})
	publish("orders.new.deep", "not this", nil)
	until(t, w.has("1"))
	header := w.published[0].Header
	if !slices.Contains(header, [2]string{"X-Kind", "k"}) || !slices.Contains(header, [2]string{"X-Fre-Nats-Subject", "orders.new"}) {
		t.Errorf("header of the event: %q", header)
	}
	for _, f := range header {
		if f[1] == "forged" {
			t.Errorf("a reserved field: %q", f)
		}
	}
	w.fail(&events.RefusedError{Err: events.ErrFull, After: 10 * time.Millisecond})
	publish("orders.new", "2", nil)
	until(t, w.hasRefused(1))
	stop()
	publish("orders.new", "3", nil) // while no engine runs
	w.fail(nil)
	stop = runNATS(t, set, bus, allow)
	until(t, w.has("1", "2", "3"))
	// After the stream's own window for duplicates, the id of the event tells them apart.
	until(t, func() error {
		ack, err := js.PublishMsg(ctx, &nats.Msg{Subject: "orders.new", Data: []byte("again"), Header: nats.Header{"Nats-Msg-Id": {"one"}}})
		if err == nil && ack.Duplicate {
			err = errors.New("the stream still knows it")
		}
		return err
	})
	publish("orders.new", "4", nil)
	until(t, w.has("1", "2", "3", "4"))
	// A finally refused message does not block the next.
	w.fail(&events.RefusedError{Err: events.ErrTooLarge})
	publish("orders.new", "poison", nil)
	until(t, w.hasRefused(1))
	until(t, func() error {
		for name := range orders.ListConsumers(ctx).Info() {
			if name.NumAckPending+int(name.NumPending) > 0 {
				return fmt.Errorf("%d messages are not over", name.NumAckPending+int(name.NumPending))
			}
		}
		return nil
	})
	w.fail(nil)
	publish("orders.new", "5", nil)
	until(t, w.has("1", "2", "3", "4", "5"))
	stop()
	// A removed function takes its consumer along; a stopped engine does not.
	until(t, consumers(1))
	runNATS(t, set, bus, allow)
	publish("orders.new", "6", nil)
	until(t, w.has("1", "2", "3", "4", "5", "6"))
	w.mu.Lock()
	clear(w.functions)
	w.mu.Unlock()
	until(t, consumers(0))
}

// Without a stream, one member of the queue group takes each message as it passes.
func TestNATSCore(t *testing.T) {
	bus, nc := openBus(t, t.TempDir())
	w := &world{}
	set := newSet(t, w, time.Now(), template.Trigger{Name: "n", NATS: &template.NATS{Subject: "fre.in.default.>"}})
	runNATS(t, set, bus, nil)
	other := New(set.cfg) // another node
	runNATS(t, other, bus, nil)
	until(t, func() error { // no signal tells when the nodes listen
		if err := nc.Publish("fre.in.default.x", []byte("0")); err != nil {
			return err
		}
		if len(w.bodies()) == 0 {
			return errors.New("nobody listens")
		}
		return nil
	})
	w.fail(&events.RefusedError{Err: events.ErrFull, After: time.Second})
	for _, body := range []string{"1", "2"} {
		if err := nc.Publish("fre.in.default.x", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Publish("fre.in.other.x", []byte("another tenant's")); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	until(t, w.hasRefused(2))
	w.fail(nil) // the waiting messages are taken now
	until(t, func() error {
		all := slices.DeleteFunc(w.bodies(), func(s string) bool { return s == "0" })
		if !slices.Equal(all, []string{"1", "2"}) {
			return fmt.Errorf("events: %q", all)
		}
		return nil
	})
}

// refusals collects the lines of a log.
type refusals struct {
	io.Writer
	found chan string
}

func (r refusals) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "are not taken") {
		select {
		case r.found <- string(p):
		default:
		}
	}
	return len(p), nil
}

// A forbidden subject, a missing stream and the engine's own streams give no events. The log says
// so once.
func TestNATSRefused(t *testing.T) {
	bus, _ := openBus(t, t.TempDir())
	for name, c := range map[string]struct {
		nats template.NATS
		says string
	}{
		"another tenant's": {template.NATS{Subject: "fre.in.other.>"}, "may not subscribe"},
		"the engine's own": {template.NATS{Subject: "fre.results.>"}, "may not subscribe"},
		"no stream":        {template.NATS{Subject: "fre.in.default.x", Stream: "NONE"}, "stream NONE"},
		"FRE's stream":     {template.NATS{Subject: "fre.in.default.x", Stream: "FRE_RESULTS"}, "FRE_RESULTS"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{}
			set := newSet(t, w, time.Now(), template.Trigger{Name: "n", NATS: &c.nats})
			log := refusals{found: make(chan string, 8)}
			set.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
			runNATS(t, set, bus, nil)
			select {
			case said := <-log.found:
				if !strings.Contains(said, c.says) {
					t.Errorf("the log says %s, want %q", said, c.says)
				}
			case <-time.After(within):
				t.Error("nothing is said")
			}
		})
	}
}
