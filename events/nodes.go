package events

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Several nodes on one cluster pull from the same consumers, so that what one has taken on
// another may run. Each tells the others what becomes of events by
//
//	fre.state.NODE   changes, one or more (tell.go)
//
// which is core NATS: it may be lost, and no event depends on it. It is what lists, limits
// and tail over all nodes are made of; what was lost, or is of a version that this one does
// not understand, is found by asking the streams (Service.reconcile).
const stateSubject = "fre.state."

// share has the other nodes told of this one's changes, and this one hear theirs.
func (s *Service) share() error {
	s.origin = rand.Text()
	s.teller = &teller{send: func(b []byte) { _ = s.nc.Publish(stateSubject+s.origin, b) }} // fails with the connection: reconcile is for that
	s.index.share = s.teller.tell
	_, err := s.nc.Subscribe(stateSubject+"*", func(msg *nats.Msg) {
		if msg.Subject != stateSubject+s.origin {
			s.hear(msg.Data)
		}
	})
	return err
}

// hear takes note of another node's changes.
func (s *Service) hear(b []byte) {
	if len(b) == 0 || b[0] != wireVersion {
		s.cfg.Log.Debug("events: another node's changes are of a version that is not understood")
		return
	}
	var e Entry
	var err error
	for b = b[1:]; len(b) > 0; {
		e, b, err = readChange(b, &e)
		if err != nil {
			s.cfg.Log.Debug("events: another node's change is not understood", "error", err)
			return
		}
		if s.index.heard(e) && s.live.Err() == nil {
			s.queue(e)
		}
	}
}

const (
	// settled is how long an event has had no change for when its stream is asked.
	settled = 20 * time.Second
	// reconcileMost bounds how many are asked for at a time.
	reconcileMost = 500
)

// reconcile forgets events that have ended without the index hearing of it, at other nodes
// before all.
func (s *Service) reconcile(ctx context.Context, now time.Time) error {
	first := map[string]uint64{}
	for _, e := range s.index.doubtful(now.Add(-settled), reconcileMost) {
		stream, err := s.js.Stream(ctx, kindQueue.of(e.Tenant))
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			s.index.drop(e.ID)
			continue
		}
		if err != nil {
			return err
		}
		if _, ok := first[e.Tenant]; !ok {
			first[e.Tenant] = stream.CachedInfo().State.FirstSeq
		}
		if e.seq >= first[e.Tenant] {
			if _, err = stream.GetMsg(ctx, e.seq); err == nil {
				continue
			}
			if !errors.Is(err, jetstream.ErrMsgNotFound) {
				return err
			}
		}
		s.index.drop(e.ID)
	}
	return nil
}

// elsewhere says whether a function that this engine does not have is another node's.
func (s *Service) elsewhere(function string) bool {
	if s.cfg.Elsewhere == nil {
		return false
	}
	_, err := s.cfg.Engine.Function(function)
	return err != nil && s.cfg.Elsewhere(function)
}

// whileRoom returns a context that ends when the engine has no room for a function any more:
// a request for an event that may come ends by it.
func (q *queue) whileRoom(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	if q.s.embedded != nil { // nobody else would have it
		return ctx, cancel
	}
	q.s.tasks.Go(func() {
		tick := time.NewTicker(lookForRoom)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if q.s.cfg.Engine.Room(q.key.function) <= 0 {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, cancel
}

// lookForRoom is how often a node that waits for an event looks whether it could run one.
const lookForRoom = 50 * time.Millisecond
