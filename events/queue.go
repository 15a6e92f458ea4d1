package events

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/image"
)

// queueKey is one consumer: what waits for a function at a priority.
type queueKey struct {
	tenant   string
	priority Priority
	function string // as the engine knows it
}

func (k queueKey) subject() string { return queueSubject(k.tenant, k.priority, k.function) }

// queue pulls the events of one key as long as some come.
type queue struct {
	s    *Service
	key  queueKey
	cons jetstream.Consumer
	wait time.Duration // of cons: its AckWait

	flying int           // events pulled that have not ended; of run alone
	landed chan struct{} // one for each that has ended
}

const (
	// idleQueue is how long a queue waits for another event before it ends. Whoever
	// publishes starts it anew; what others publish is found by scan.
	idleQueue = 30 * time.Second
	// scanEvery is how often streams are looked at for what others have published.
	scanEvery = 5 * time.Second
	// sweepEvery so many scans bodies are looked for that nothing needs.
	sweepEvery = 720
	// noRoom is how long to wait where the engine has no room, unless an event ends before.
	noRoom = 20 * time.Millisecond
	// gather is how long events that have ended are counted before more are asked for.
	gather = 2 * time.Millisecond
	// retryStream is how long to wait after NATS has not answered.
	retryStream = time.Second
)

// queue sees to it that an event of that kind is pulled.
func (s *Service) queue(e Entry) {
	key := queueKey{e.Tenant, e.Priority, e.Function}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.queues[key] != nil {
		return
	}
	q := &queue{s: s, key: key, landed: make(chan struct{}, s.cfg.Concurrency+1)}
	s.queues[key] = q
	s.tasks.Go(q.run)
}

// run pulls until nothing has come for a while.
func (q *queue) run() {
	ctx := q.s.live
	var last time.Time
	for ctx.Err() == nil {
		q.count()
		if q.cons == nil {
			if q.s.elsewhere(q.key.function) { // its time limit, which the consumer goes by, is not known here
				if q.flying == 0 && q.leave() {
					return
				}
				sleep(ctx, retryStream)
				continue
			}
			if err := q.consumer(ctx); err != nil {
				if errors.Is(err, jetstream.ErrStreamNotFound) && q.flying == 0 && q.leave() { // it went with its tenant
					return
				}
				q.s.cfg.Log.Warn("events: consumer", "function", q.key.function, "error", err)
				if !sleep(ctx, retryStream) {
					break
				}
				continue
			}
			last = time.Now()
		}
		n, err := q.pull(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			q.s.cfg.Log.Debug("events: pull", "function", q.key.function, "error", err)
			q.cons = nil
			sleep(ctx, gather)
		case n > 0:
			last = time.Now()
		case q.flying == 0 && time.Since(last) > idleQueue && q.leave():
			return
		}
	}
	for q.flying > 0 {
		<-q.landed
		q.flying--
	}
	q.s.mu.Lock()
	delete(q.s.queues, q.key)
	q.s.mu.Unlock()
}

// leave ends the queue unless an event was published meanwhile.
func (q *queue) leave() bool {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if len(q.s.index.all(func(e *Entry) bool { return q.key == queueKey{e.Tenant, e.Priority, e.Function} })) > 0 {
		return false
	}
	delete(q.s.queues, q.key)
	return true
}

// consumer makes the durable consumer, or finds it.
func (q *queue) consumer(ctx context.Context) error {
	_, timeout, err := q.s.settings(q.key.function)
	if err != nil {
		timeout = 0 // run finds that out for each event
	}
	if _, err := q.s.ensure(ctx, kindQueue, q.key.tenant, q.s.js.UpdateStream); err != nil {
		return err
	}
	q.wait = ackWait(timeout)
	q.s.making.Lock()
	defer q.s.making.Unlock()
	q.cons, err = q.s.js.CreateOrUpdateConsumer(ctx, kindQueue.of(q.key.tenant), jetstream.ConsumerConfig{
		Durable: token(q.key.function, q.key.tenant) + "-" + string(q.key.priority), FilterSubject: q.key.subject(),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: q.wait, MaxDeliver: -1, MaxAckPending: -1, MaxWaiting: 512,
		InactiveThreshold: 24 * time.Hour,
	})
	return err
}

// ackWait is after how long without a word from whoever has an event it is another's: the
// longer ones say so on the way (Service.keep).
func ackWait(timeout time.Duration) time.Duration {
	return min(max(timeout+timeout/2, 2*time.Second), 15*time.Second)
}

// pull gets events as far as there is room, and says how many came. Where there are none it
// waits for one.
func (q *queue) pull(ctx context.Context) (int, error) {
	most, err := q.room(ctx)
	switch {
	case err != nil:
		return 0, nil //nolint:nilerr // the service is closed
	case most == 0: // it is another node's
		sleep(ctx, retryStream)
		return 0, nil
	}
	turns, err := q.s.turns.acquire(ctx, q.key.priority, most)
	if err != nil {
		return 0, nil //nolint:nilerr // likewise
	}
	n, err := q.fetch(ctx, turns, 0)
	q.s.turns.release(turns - n)
	if n > 0 || err != nil {
		return n, err
	}
	// Nothing waits. The next is asked for without a turn, which others may want: it gets
	// one when it is there.
	return q.fetch(ctx, 1, idleQueue/3)
}

// count takes note of events that have ended.
func (q *queue) count() {
	for {
		select {
		case <-q.landed:
			q.flying--
		default:
			return
		}
	}
}

// room waits until it is worth asking for events, and says for how many.
func (q *queue) room(ctx context.Context) (int, error) {
	var gathered bool
	for {
		free := min(q.s.cfg.Engine.Room(q.key.function), q.s.cfg.Concurrency-q.flying)
		if _, err := q.s.cfg.Engine.Function(q.key.function); err != nil {
			if free = 1; q.s.elsewhere(q.key.function) { // else to learn that it is gone
				return 0, nil
			}
		}
		enough := gathered || free >= (free+q.flying+3)/4
		if free > 0 && enough {
			return free, nil
		}
		wait := noRoom
		if free > 0 {
			wait = gather
		}
		t := time.NewTimer(wait)
		select {
		case <-q.landed:
			q.flying--
		case <-t.C:
			gathered = true
		case <-ctx.Done():
			t.Stop()
			return 0, context.Cause(ctx)
		}
		t.Stop()
		q.count()
	}
}

// fetch asks for up to n events, waits for the first if there is time for it, and has them
// run: with the turns that the caller has, or one of its own each.
func (q *queue) fetch(ctx context.Context, n int, wait time.Duration) (int, error) {
	var batch jetstream.MessageBatch
	var err error
	if wait == 0 {
		batch, err = q.cons.FetchNoWait(n)
	} else {
		short, cancel := q.whileRoom(ctx, wait)
		defer cancel()
		batch, err = q.cons.Fetch(n, jetstream.FetchContext(short))
	}
	if err != nil {
		return 0, err
	}
	got := 0
	for msg := range batch.Messages() {
		got++
		q.flying++
		q.s.tasks.Go(func() {
			q.s.handle(q, msg, wait == 0)
			q.landed <- struct{}{}
		})
	}
	err = batch.Error()
	if errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoMessages) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = nil
	}
	return got, err
}

// sleep waits; false says that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// scan finds what is in streams and nobody here has published: at first what an engine
// before this one has left, later what others bring.
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
			limit := commitTimeout
			if first {
				limit = 10 * time.Minute // it may be a queue's whole length
			}
			ctx, cancel := context.WithTimeout(s.live, limit)
			err := s.scanStreams(ctx, first)
			if err == nil {
				err = s.reconcile(ctx, time.Now())
			}
			if rounds++; rounds%sweepEvery == 0 {
				s.sweepBodies()
			}
			cancel()
			if err != nil && s.live.Err() == nil {
				s.cfg.Log.Debug("events: look through streams", "error", err)
			}
			first = first && err != nil
		}
		select {
		case <-tick.C:
		case <-s.live.Done():
			return
		}
	}
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
			return err // else it was removed meanwhile
		}
	}
	if err := names.Err(); err != nil {
		return err
	}
	s.shared.Store(shared)
	if whole {
		s.index.foundAll()
		if s.attempts != nil {
			s.attempts.prune(queued)
		}
		s.sweepBodies()
	}
	return nil
}

func (s *Service) scanStream(ctx context.Context, k kind, tenant, name string, whole bool, queued map[attemptKey]bool) error {
	if tenant != "" {
		if _, err := s.ensure(ctx, k, tenant, s.js.UpdateStream); err != nil {
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
		s.sendFrom(name) // what an engine before this one has left, or other nodes
	case left == 0 && tenant == "" && s.embedded != nil: // no engine of before writes to it any more
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
			s.queue(e)
		}
	}
	return nil
}

// keyOf is what a subject of a queue says.
func keyOf(subject string) (Entry, bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 5 || weights[Priority(parts[3])] == 0 {
		return Entry{}, false
	}
	return Entry{Tenant: parts[2], Priority: Priority(parts[3]), Function: functionOf(parts[2], parts[4])}, true
}

// functionOf is the function that a token of a tenant's subjects stands for.
func functionOf(tenant, token string) string {
	return image.QualifiedName(strings.ReplaceAll(token, "_", "."), tenant)
}

// takeUp reads the events of a stream into the index, one by one, and their keys into queued: a
// work queue has no consumers beside those it is worked off by.
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

// sweepBodies removes large bodies whose events are not there any more.
func (s *Service) sweepBodies() {
	waits := func(name string) bool {
		_, ok := s.index.find(idOf(name))
		return ok
	}
	// Those that have ended meanwhile are among what is asked for after that.
	old := slices.DeleteFunc(s.bodies.before(time.Now().Add(-time.Hour)), waits)
	if len(old) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.live, commitTimeout)
	defer cancel()
	kept, err := s.endIDs(ctx)
	if err != nil {
		s.cfg.Log.Debug("events: look for bodies that nothing needs", "error", err)
		return
	}
	for _, name := range old {
		if !kept[idOf(name)] && !waits(name) {
			s.bodies.remove(name)
		}
	}
}
