package trigger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/template"
)

// Bus receives messages that other clients publish. *events.Service is a Bus.
type Bus interface {
	Subscribe(ctx context.Context, sub events.Subscription, handle func(context.Context, *events.Message) error, lost func(int)) error
	Unsubscribe(ctx context.Context, sub events.Subscription) error
}

const (
	// followEvery is how often a set checks whether functions have changed.
	followEvery = time.Second
	// unsubscribeWithin bounds the time to delete a subscription.
	unsubscribeWithin = 10 * time.Second
)

// wire is a deployed trigger for messages or files, as configured now.
type wire struct {
	function, trigger, tenant string
	nats                      *template.NATS
	files                     *template.Files
}

// id identifies a wire with its configuration: a changed trigger has another id.
func (w *wire) id() string {
	id := w.function + "\x00" + w.trigger + "\x00" + w.tenant
	if w.nats != nil {
		return id + "\x00" + w.nats.Subject + "\x00" + w.nats.Stream + "\x00" + w.nats.Queue
	}
	return id + "\x00" + w.files.Path
}

// running is a wire whose goroutine runs.
type running struct {
	wire *wire
	stop context.CancelFunc
	done chan struct{}
}

// follow runs the triggers that pick returns a wire for, until ctx ends. It calls run while a
// trigger is deployed, and gone after its removal.
func (s *Set) follow(ctx context.Context, pick func(*engine.Function, *template.Trigger) *wire, run, gone func(context.Context, *wire)) {
	all := map[string]*running{}
	defer func() {
		for _, r := range all {
			r.stop()
			<-r.done
		}
	}()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var seen uint64
	for first := true; ; first = false {
		var changed uint64
		if s.cfg.Changed != nil {
			changed = s.cfg.Changed()
		}
		if first || s.cfg.Changed == nil || changed != seen {
			seen = changed
			s.adapt(ctx, all, pick, run, gone)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// adapt stops the wires that are no longer deployed, and starts new ones.
func (s *Set) adapt(ctx context.Context, all map[string]*running, pick func(*engine.Function, *template.Trigger) *wire, run, gone func(context.Context, *wire)) {
	wanted := map[string]*wire{}
	names := map[string]bool{} // of deployed triggers, whether changed or not
	for _, f := range s.cfg.Engine.Functions() {
		for i := range f.Config.Triggers {
			if w := pick(f, &f.Config.Triggers[i]); w != nil {
				wanted[w.id()] = w
				names[w.function+"\x00"+w.trigger] = true
			}
		}
	}
	for id, r := range all {
		if wanted[id] != nil {
			continue
		}
		r.stop()
		<-r.done
		delete(all, id)
		if !names[r.wire.function+"\x00"+r.wire.trigger] || r.wire.nats != nil && r.wire.nats.Stream != "" {
			gone(ctx, r.wire)
		}
	}
	for id, w := range wanted {
		if all[id] != nil {
			continue
		}
		live, stop := context.WithCancel(ctx)
		r := &running{wire: w, stop: stop, done: make(chan struct{})}
		all[id] = r
		go func() {
			defer close(r.done)
			run(live, w)
		}()
	}
}

// NATS makes events of messages until ctx ends. allow checks that a tenant may subscribe to a
// subject, because a function may have been deployed under another configuration.
func (s *Set) NATS(ctx context.Context, bus Bus, allow func(tenant, subject string) error) {
	pick := func(f *engine.Function, t *template.Trigger) *wire {
		if t.NATS == nil {
			return nil
		}
		return &wire{function: f.Name, trigger: t.Name, tenant: f.Config.Tenant, nats: t.NATS}
	}
	var said sync.Map // by wire, the error logged last: log each once, and not every second
	run := func(ctx context.Context, w *wire) {
		for ctx.Err() == nil {
			err := allow(w.tenant, w.nats.Subject)
			if err == nil {
				err = bus.Subscribe(ctx, w.subscription(), func(ctx context.Context, m *events.Message) error { return s.message(ctx, w, m) },
					func(n int) {
						s.cfg.Log.WarnContext(ctx, "messages of NATS lost: more than fit into memory", "function", w.function, "trigger", w.trigger, "messages", n)
					})
			}
			if err != nil && ctx.Err() == nil {
				if last, _ := said.Swap(w.id(), err.Error()); last != err.Error() {
					s.cfg.Log.WarnContext(ctx, "messages of NATS are not taken", "function", w.function, "trigger", w.trigger, "error", err)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(followEvery):
			}
		}
	}
	gone := func(ctx context.Context, w *wire) {
		ctx, cancel := context.WithTimeout(ctx, unsubscribeWithin)
		defer cancel()
		if err := bus.Unsubscribe(ctx, w.subscription()); err != nil {
			s.cfg.Log.WarnContext(ctx, "consumer of a removed trigger still exists", "function", w.function, "trigger", w.trigger, "error", err)
		}
	}
	s.follow(ctx, pick, run, gone)
}

// subscription returns the wire's subscription. The name is equal on all nodes, so that they share
// the messages, and differs by subject.
func (w *wire) subscription() events.Subscription {
	sum := sha256.Sum256([]byte(w.id()))
	sub := events.Subscription{Subject: w.nats.Subject, Stream: w.nats.Stream, Name: w.nats.Queue}
	if sub.Name == "" {
		sub.Name = "fre-" + w.trigger + "-" + hex.EncodeToString(sum[:8])
	}
	return sub
}

// message makes an event of a message.
func (s *Set) message(ctx context.Context, w *wire, m *events.Message) error {
	f, err := s.cfg.Engine.Function(w.function)
	if err != nil {
		return err
	}
	key := ""
	if m.Key != "" {
		key = "nats\x00" + w.trigger + "\x00" + m.Key
	}
	r := &engine.Request{
		Method: "POST", Path: "/", Headers: append(slices.Clone(m.Header), [2]string{"X-Fre-Nats-Subject", m.Subject}),
		Body: bytes.NewReader(m.Body), Length: int64(len(m.Body)),
	}
	_, err = s.takeOn(ctx, f, r, events.Options{Key: key, Source: "nats/" + w.trigger, Repeated: key != ""})
	return err
}
