package events

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Nodes on one cluster pull from the same consumers, so a node may run an event that another node
// accepted. Each node tells the rest how events change, by
//
//	fre.state.NODE   one or more changes (tell.go)
//
// over core NATS, which may lose messages: no event depends on them. Lists, limits and tail across
// all nodes are made from the changes. Service.reconcile asks the streams about changes that were
// lost, or have an unknown version.
const stateSubject = "fre.state."

// share subscribes to other nodes' changes, and has this node's changes sent to them.
func (s *Service) share() error {
	s.origin = rand.Text()
	s.teller = &teller{send: func(b []byte) { _ = s.nc.Publish(stateSubject+s.origin, b) }} // fails with the connection; reconcile repairs
	s.index.share = s.teller.tell
	_, err := s.nc.Subscribe(stateSubject+"*", func(msg *nats.Msg) {
		if msg.Subject != stateSubject+s.origin {
			s.hear(msg.Data)
		}
	})
	return err
}

// hear applies another node's changes.
func (s *Service) hear(b []byte) {
	if len(b) == 0 || b[0] != wireVersion {
		s.cfg.Log.Debug("events: another node's changes have an unknown version")
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
			s.queues.start(e)
		}
	}
}

const (
	// settled is how long an event must be unchanged before reconcile asks the stream.
	settled = 20 * time.Second
	// reconcileMost bounds the events that one reconcile asks about.
	reconcileMost = 500
)

// reconcile drops events from the index that ended unnoticed, mostly on other nodes.
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
