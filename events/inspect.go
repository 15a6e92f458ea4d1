package events

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/template"
)

// Filter selects events for List and Watch. For List the zero value selects events that have not
// ended and dead letters, for Watch all events.
type Filter struct {
	Function string
	Tenant   string
	States   []State
	Limit    int // of List: the newest; default 1000
}

func (f *Filter) wants(e *Entry) bool {
	return (f.Function == "" || f.Function == e.Function) && (f.Tenant == "" || f.Tenant == e.Tenant) && f.wantsState(e.State)
}

func (f *Filter) wantsState(s State) bool {
	if len(f.States) == 0 {
		return s != StateDone
	}
	return slices.Contains(f.States, s)
}

// List returns the events that match a filter, the newest first.
func (s *Service) List(ctx context.Context, f Filter) ([]Entry, error) {
	limit := cmp.Or(f.Limit, 1000)
	if f.Function != "" {
		_, tenant, err := template.SplitName(f.Function)
		if err != nil || f.Tenant != "" && f.Tenant != tenant {
			return nil, nil //nolint:nilerr // no function has the name
		}
		f.Tenant = tenant
	}
	out := s.index.all(f.wants)
	for _, end := range []struct {
		state State
		kind  kind
	}{{StateDead, kindDead}, {StateDone, kindResults}} {
		if !f.wantsState(end.state) {
			continue
		}
		err := s.streams.ends(ctx, end.kind, f.Tenant, f.Function, func(e Entry) {
			if e.State == end.state && f.wants(&e) {
				out = append(out, e)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(b.Accepted.Compare(a.Accepted), strings.Compare(a.ID, b.ID))
	})
	return out[:min(limit, len(out))], nil
}

// Find returns one event. ErrNotFound if the id is unknown or forgotten.
func (s *Service) Find(ctx context.Context, id string) (*Details, error) {
	if !validID(id) {
		return nil, ErrNotFound
	}
	if e, ok := s.index.find(id); ok && e.seq > 0 {
		stream, err := s.js.Stream(ctx, kindQueue.of(e.Tenant))
		if err != nil {
			return nil, fault(err)
		}
		raw, err := stream.GetMsg(ctx, e.seq)
		if err == nil {
			m, err := decode(raw.Subject, raw.Header, raw.Data)
			if err != nil {
				return nil, err
			}
			e.Size = m.Size
			return newDetails(e, m, s.bodies), nil
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) { // otherwise the event has ended meanwhile
			return nil, fault(err)
		}
	}
	m, err := s.streams.endOf(ctx, id)
	if err != nil {
		return nil, err
	}
	d := newDetails(m.Entry, m, s.bodies)
	if m.State == StateDone {
		d.Header, d.ResultHeader, d.Result = nil, m.request.Headers, true
	}
	return d, nil
}

// deadLetter finds a dead letter. ErrNotDead if the event is under way or done, ErrNotFound if the
// id is unknown.
func (s *Service) deadLetter(ctx context.Context, id string) (*message, error) {
	if !validID(id) {
		return nil, ErrNotFound
	}
	if _, ok := s.index.find(id); ok {
		return nil, ErrNotDead
	}
	m, err := s.streams.lastEnd(ctx, kindDead, "", "", id)
	if errors.Is(err, ErrNotFound) {
		if _, err := s.streams.lastEnd(ctx, kindResults, "", "", id); err == nil {
			return nil, ErrNotDead
		}
	}
	return m, err
}

// Discard removes a dead letter with its body. Errors: ErrNotFound, ErrNotDead.
func (s *Service) Discard(ctx context.Context, id string) error {
	m, err := s.deadLetter(ctx, id)
	if err != nil {
		return err
	}
	if err := s.begin(m.Tenant); err != nil {
		return err
	}
	defer s.tasks.done()
	if err := s.streams.forget(ctx, kindResults, m.Tenant, m.Function, id); err != nil { // the result, which says that the event is dead
		return err
	}
	if err := s.streams.discard(ctx, m); err != nil {
		return err
	}
	s.bodies.remove(m.file)
	return nil
}

// Replay puts a dead letter into its queue again, with all attempts left. Errors: ErrNotFound,
// ErrNotDead, *[engine.UnknownError], *[RefusedError].
func (s *Service) Replay(ctx context.Context, id string) error {
	m, err := s.deadLetter(ctx, id)
	if err != nil {
		return err
	}
	if m.lost {
		return fmt.Errorf("%w: the event's body was not kept", ErrNotDead)
	}
	if _, err := s.cfg.Engine.Function(m.Function); err != nil {
		return err
	}
	if err := s.begin(m.Tenant); err != nil {
		return err
	}
	defer s.tasks.done()
	letter := *m
	m.State, m.Status, m.Attempts, m.Error = StateQueued, 0, 0, ""
	out, err := m.encode(queueSubject(m.Tenant, m.Priority, m.Function))
	if err != nil {
		return err
	}
	// A new message id, because the server may still remember the event's former id.
	out.Header[nats.MsgIdHdr] = []string{id + "." + rand.Text()}
	if err := s.streams.forget(ctx, kindResults, m.Tenant, m.Function, id); err != nil {
		return err
	}
	if !s.index.add(m.Entry, 0) {
		return ErrNotDead
	}
	seq, _, err := s.streams.put(ctx, kindQueue, m.Tenant, out)
	if err != nil {
		s.index.drop(id)
		return err
	}
	s.index.written(id, seq, m.Size)
	s.queues.start(m.Entry)
	if err := s.streams.discard(ctx, &letter); err != nil {
		return fmt.Errorf("replayed, but the dead letter stays: %w", err)
	}
	return nil
}

// Watch calls emit for every change of an event's state, until ctx ends, emit fails or the service
// is closed. An emit that is slower than the changes misses some.
func (s *Service) Watch(ctx context.Context, f Filter, emit func(Entry) error) error {
	if len(f.States) == 0 {
		f.States = []State{StateQueued, StateRunning, StateWaiting, StateDone, StateDead}
	}
	c := make(chan Entry, 1024)
	defer s.index.watch(c)()
	for {
		select {
		case e := <-c:
			if f.wants(&e) {
				if err := emit(e); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return nil
		case <-s.live.Done():
			return nil
		}
	}
}
