package trigger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
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

// unsubscribeWithin bounds the time to delete a subscription.
const unsubscribeWithin = 10 * time.Second

// NATS makes events of messages until ctx ends. allow checks that a tenant may subscribe to a
// subject, because a function may have been deployed under another configuration.
func (s *Set) NATS(ctx context.Context, bus Bus, allow func(tenant, subject string) error) {
	pick := func(f *engine.Function, t *template.Trigger) *wire {
		if t.NATS == nil {
			return nil
		}
		return &wire{function: f.Name, trigger: t.Name, tenant: f.Config.Tenant, subject: t.NATS.Subject, stream: t.NATS.Stream, queue: t.NATS.Queue}
	}
	run := func(ctx context.Context, w *wire) {
		lost := func(n int) {
			s.cfg.Log.WarnContext(ctx, "messages of NATS lost: more than fit into memory", "function", w.function, "trigger", w.trigger, "messages", n)
		}
		try := func() error {
			if err := allow(w.tenant, w.subject); err != nil {
				return err
			}
			return bus.Subscribe(ctx, w.subscription(), func(ctx context.Context, m *events.Message) error { return s.message(ctx, w, m) }, lost)
		}
		insist(ctx, try, func(err error) {
			s.cfg.Log.WarnContext(ctx, "messages of NATS are not taken", "function", w.function, "trigger", w.trigger, "error", err)
		})
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
	sub := events.Subscription{Subject: w.subject, Stream: w.stream, Name: w.queue}
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
