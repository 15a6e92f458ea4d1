package events

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// Publish accepts an event for a function. After success the event is on disk, so the caller may
// forget it. Errors: *[engine.UnknownError], *[RefusedError], and errors of r.Body.
func (s *Service) Publish(ctx context.Context, function string, r *engine.Request, o Options) (Receipt, error) {
	began := time.Now()
	receipt, err := s.publish(ctx, function, r, o)
	s.metrics.accepted(time.Since(began), receipt, err)
	return receipt, err
}

func (s *Service) publish(ctx context.Context, function string, r *engine.Request, o Options) (Receipt, error) {
	f, err := s.cfg.Engine.Function(function)
	switch {
	case err != nil && s.cfg.elsewhere(function):
		return Receipt{}, refuse(ErrUnavailable, "the node is still pulling %s", function)
	case err != nil:
		return Receipt{}, err
	}
	settings := f.Config.EventSettings()
	if err := s.complete(&o, &settings); err != nil {
		return Receipt{}, err
	}
	if err := s.begin(f.Config.Tenant); err != nil {
		return Receipt{}, err
	}
	defer s.tasks.done()
	m := &message{
		Entry: Entry{
			ID: eventID(f.Name, o.Key), Function: f.Name, Tenant: f.Config.Tenant, Priority: o.Priority, State: StateQueued, Source: o.Source,
			Accepted: time.Now().UTC().Truncate(time.Microsecond),
		},
		request: *r, callback: o.Callback,
	}
	m.request.Body, m.request.Length = nil, 0
	if o.Repeated {
		over, err := s.deliveries.countPublish(m.ID)
		if err != nil {
			return Receipt{}, err
		}
		defer over()
	}
	var letter *message // the dead letter with the same key, which the event replaces
	if o.Key != "" {
		if was, err := s.knownEvent(ctx, m); was || err != nil {
			return Receipt{m.ID, was}, err
		}
		if letter, err = s.letter(ctx, m); err != nil {
			return Receipt{}, err
		}
	}
	return s.accept(ctx, m, r, settings.MaxQueue, letter)
}

// complete checks options, and fills in the missing ones.
func (s *Service) complete(o *Options, settings *template.Events) error {
	o.Priority = cmp.Or(o.Priority, Priority(settings.Priority))
	if weights[o.Priority] == 0 {
		return refuse(ErrBadEvent, "priority %q is none of high, normal, low", o.Priority)
	}
	o.Source = cmp.Or(o.Source, "http")
	if o.Callback == "" {
		return nil
	}
	to, err := parseCallback(o.Callback)
	if err != nil {
		return err
	}
	if err := s.cfg.Callbacks.allow(to); err != nil {
		return refuse(ErrCallback, "%v", err)
	}
	o.Callback = to.String()
	return nil
}

// accept writes an event to disk, unless the function has most events already.
func (s *Service) accept(ctx context.Context, m *message, r *engine.Request, most int, letter *message) (Receipt, error) {
	if !s.index.add(m.Entry, most) {
		if _, ok := s.index.find(m.ID); ok { // published by another call meanwhile
			return Receipt{m.ID, true}, nil
		}
		return Receipt{}, refuse(ErrFull, "%d events of %s wait: the template's events.max_queue", most, m.Function)
	}
	duplicate, err := s.write(ctx, m, r)
	if err != nil {
		s.index.drop(m.ID)
		s.bodies.drop(m, letter)
		return Receipt{}, err
	}
	if duplicate && s.endedBefore(ctx, m, letter) {
		return Receipt{m.ID, true}, nil
	}
	s.queues.start(m.Entry)
	if letter != nil && !duplicate {
		s.replace(ctx, letter, m)
	}
	return Receipt{m.ID, duplicate}, nil
}

// letter returns the dead letter with the event's id, nil without one.
func (s *Service) letter(ctx context.Context, m *message) (*message, error) {
	if s.streams.find(kindDead.of(m.Tenant)) == nil && !s.streams.shared.Load() { // the tenant has no dead letters at all
		return nil, nil
	}
	letter, err := s.streams.lastEnd(ctx, kindDead, m.Tenant, m.Function, m.ID)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return letter, err
}

// replace removes a dead letter whose event has been accepted again.
func (s *Service) replace(ctx context.Context, letter, m *message) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Patience)
	defer cancel()
	if err := s.streams.discard(ctx, letter); err != nil {
		s.cfg.Log.WarnContext(ctx, "events: the dead letter of a repeated event stays", "id", m.ID, "function", m.Function, "error", err)
		return
	}
	if letter.file != m.file {
		s.bodies.remove(letter.file)
	}
}

// endedBefore reports whether an event that JetStream calls a duplicate has ended already. It then
// drops the event from the index, because no message for the event would do so later.
func (s *Service) endedBefore(ctx context.Context, m, letter *message) bool {
	if e, ok := s.index.find(m.ID); ok {
		stream, err := s.js.Stream(ctx, kindQueue.of(m.Tenant))
		if err == nil {
			_, err = stream.GetMsg(ctx, e.seq)
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) { // the event waits, or the server has not yet received its acknowledgement
			s.index.doubt(m.ID)
			return false
		}
	}
	s.index.drop(m.ID)
	s.bodies.drop(m, letter)
	return true
}

// write puts an event into its queue.
func (s *Service) write(ctx context.Context, m *message, r *engine.Request) (duplicate bool, err error) {
	if err := s.bodies.read(s.brief, m, r); err != nil {
		return false, err
	}
	msg, err := m.encode(queueSubject(m.Tenant, m.Priority, m.Function))
	if err != nil {
		return false, err
	}
	if size := headerSize(msg); size > maxHeader {
		return false, refuse(ErrTooLarge, "the headers take %d bytes, the limit is %d", size, maxHeader)
	}
	msg.Header[nats.MsgIdHdr] = []string{m.ID}
	seq, duplicate, err := s.streams.put(ctx, kindQueue, m.Tenant, msg)
	if err != nil {
		return false, err
	}
	s.index.written(m.ID, seq, m.Size)
	return duplicate, nil
}

// maxHeader bounds an event's headers in bytes. JetStream refuses headers of 64 KiB, including line
// framing and the headers that a commit adds.
const maxHeader = 60 << 10

func headerSize(m *nats.Msg) (n int) {
	for name, values := range m.Header {
		n += len(name) + len(values[0])
	}
	return n
}

// knownEvent reports whether the event is under way, or its result is kept.
func (s *Service) knownEvent(ctx context.Context, m *message) (bool, error) {
	if _, ok := s.index.find(m.ID); ok {
		return true, nil
	}
	_, err := s.streams.lastEnd(ctx, kindResults, m.Tenant, m.Function, m.ID)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrNotFound):
		return false, nil
	}
	return false, err
}
