package events

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// scanEvery is the interval at which scan looks for events that others published.
	scanEvery = 5 * time.Second
	// sweepEvery is the number of scans between two searches for bodies that are not needed.
	sweepEvery = 720
)

// scan finds events in streams that this process did not publish: at first events left by an
// earlier engine, later events from other publishers.
func (s *Service) scan() {
	first, rounds := true, 0
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		if s.nc.Status() == nats.CONNECTED {
			if s.again.Swap(false) && !first {
				first = true
				s.index.findAgain()
			}
			rounds++
			err := s.scanOnce(first, rounds%sweepEvery == 0)
			first = first && err != nil
		}
		select {
		case <-tick.C:
		case <-s.live.Done():
			return
		}
	}
}

// scanOnce looks through all streams, and reads the queues if whole is set.
func (s *Service) scanOnce(whole, sweep bool) error {
	limit := s.cfg.Patience
	if whole {
		limit = 10 * time.Minute // enough to read a whole queue
	}
	ctx, cancel := context.WithTimeout(s.live, limit)
	defer cancel()
	err := s.scanStreams(ctx, whole)
	if err == nil {
		err = s.reconcile(ctx, time.Now())
	}
	if sweep {
		s.sweepBodies()
	}
	if err != nil && s.live.Err() == nil {
		s.cfg.Log.Debug("events: look through streams", "error", err)
	}
	return err
}

func (s *Service) scanStreams(ctx context.Context, whole bool) error {
	names := s.js.StreamNames(ctx)
	shared := false
	queued := map[attemptKey]bool{}
	for name := range names.Name() {
		k, tenant, ours := kindOf(name)
		if !ours {
			continue
		}
		shared = shared || tenant == ""
		if err := s.scanStream(ctx, k, tenant, name, whole, queued); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err // otherwise the stream was deleted meanwhile
		}
	}
	if err := names.Err(); err != nil {
		return err
	}
	s.streams.shared.Store(shared)
	if whole {
		s.index.foundAll()
		if s.deliveries.attempts != nil {
			s.deliveries.attempts.prune(queued)
		}
		s.sweepBodies()
	}
	return nil
}

func (s *Service) scanStream(ctx context.Context, k kind, tenant, name string, whole bool, queued map[attemptKey]bool) error {
	if tenant != "" {
		if _, err := s.streams.ensure(ctx, k, tenant, s.js.UpdateStream); err != nil {
			return err
		}
	}
	if tenant != "" && (k == kindResults || k == kindDead) {
		return nil
	}
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	switch left := stream.CachedInfo().State.Msgs; {
	case k == kindQueue:
		return s.scanQueue(ctx, tenant, stream, whole, queued)
	case k == kindOrders && left > 0:
		s.senders.wake(name) // left by an earlier engine, or ordered by other nodes
	case left == 0 && tenant == "" && s.embedded != nil: // no earlier version writes to the stream any more
		return s.js.DeleteStream(ctx, name)
	}
	return nil
}

func (s *Service) scanQueue(ctx context.Context, tenant string, stream jetstream.Stream, whole bool, queued map[attemptKey]bool) error {
	if whole {
		if err := s.takeUp(ctx, stream, queued); err != nil {
			return err
		}
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("fre.events."+tenant+".>"))
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		if e, ok := keyOf(subject); ok {
			s.queues.start(e)
		}
	}
	return nil
}

// takeUp reads the events of a stream into the index, and their keys into queued. It gets message
// after message, because a work queue allows no consumer beside the queue's own.
func (s *Service) takeUp(ctx context.Context, stream jetstream.Stream, queued map[attemptKey]bool) error {
	last := stream.CachedInfo().State.LastSeq
	for seq := stream.CachedInfo().State.FirstSeq; seq <= last; seq++ {
		raw, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject("fre.events.>"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		seq = raw.Sequence
		queued[keyOfQueued(stream.CachedInfo().Config.Name, seq, raw.Time)] = true
		if m, err := decode(raw.Subject, raw.Header, raw.Data); err == nil {
			m.seq = seq
			s.index.found(m.Entry)
		}
	}
	return nil
}

// sweepBodies removes large bodies whose events are gone.
func (s *Service) sweepBodies() {
	waits := func(name string) bool {
		_, ok := s.index.find(idOf(name))
		return ok
	}
	// An event that ends after the look into the index is found by endIDs, which runs later.
	old := slices.DeleteFunc(s.bodies.before(time.Now().Add(-time.Hour)), waits)
	if len(old) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.live, s.cfg.Patience)
	defer cancel()
	kept, err := s.streams.endIDs(ctx)
	if err != nil {
		s.cfg.Log.Debug("events: search for unused bodies", "error", err)
		return
	}
	for _, name := range old {
		if !kept[idOf(name)] && !waits(name) {
			s.bodies.remove(name)
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
