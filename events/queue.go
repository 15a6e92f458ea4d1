package events

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/template"
)

// queueKey identifies a consumer: the waiting events of one function at one priority.
type queueKey struct {
	tenant   string
	priority Priority
	function string // qualified name
}

func (k queueKey) subject() string { return queueSubject(k.tenant, k.priority, k.function) }

// queue pulls the events of one key, as long as events arrive.
type queue struct {
	s    *Service
	key  queueKey
	cons jetstream.Consumer
	wait time.Duration // AckWait of cons

	live  context.Context // until the service is closed or the tenant removed
	end   context.CancelFunc
	ended chan struct{} // closed when run has returned and no event is under way

	flying int           // events pulled but not ended; only run's goroutine uses the field
	landed chan struct{} // one value for each event that has ended
}

const (
	// idleQueue is how long a queue waits for another event before the queue ends. A publication on
	// this node starts the queue again at once; scan finds events that other nodes published.
	idleQueue = 30 * time.Second
	// scanEvery is the interval at which scan looks for events that others published.
	scanEvery = 5 * time.Second
	// sweepEvery is the number of scans between two searches for bodies that are not needed.
	sweepEvery = 720
	// noRoom is how long to wait while the engine has no room, unless an event ends earlier.
	noRoom = 20 * time.Millisecond
	// gather is how long to collect events that end before asking for more.
	gather = 2 * time.Millisecond
	// retryStream is how long to wait after an error of NATS.
	retryStream = time.Second
)

// queue makes sure that the queue of e's function and priority runs.
func (s *Service) queue(e Entry) {
	key := queueKey{e.Tenant, e.Priority, e.Function}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.queues[key] != nil || s.removing[key.tenant] > 0 {
		return
	}
	q := &queue{s: s, key: key, landed: make(chan struct{}, s.cfg.Concurrency+1), ended: make(chan struct{})}
	q.live, q.end = context.WithCancel(s.live)
	s.queues[key] = q
	s.tasks.Go(q.run)
}

// run pulls events until none has arrived for idleQueue.
func (q *queue) run() {
	defer close(q.ended)
	defer q.end()
	ctx := q.live
	var last time.Time
	for ctx.Err() == nil {
		q.count()
		if q.cons == nil {
			if q.s.elsewhere(q.key.function) { // this node does not know the time limit, which the consumer needs
				if q.flying == 0 && q.leave() {
					return
				}
				sleep(ctx, retryStream)
				continue
			}
			if err := q.consumer(ctx); err != nil {
				if errors.Is(err, jetstream.ErrStreamNotFound) && q.flying == 0 && q.leave() { // the stream was deleted with its tenant
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

// leave ends the queue and returns true, unless an event was published meanwhile.
func (q *queue) leave() bool {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if len(q.s.index.all(func(e *Entry) bool { return q.key == queueKey{e.Tenant, e.Priority, e.Function} })) > 0 {
		return false
	}
	delete(q.s.queues, q.key)
	return true
}

// consumer finds or makes the durable consumer.
func (q *queue) consumer(ctx context.Context) error {
	_, timeout, err := q.s.settings(q.key.function)
	if err != nil {
		timeout = 0 // try meets the same error for each event
	}
	if _, err := q.s.streams.ensure(ctx, kindQueue, q.key.tenant, q.s.js.UpdateStream); err != nil {
		return err
	}
	q.wait = ackWait(timeout)
	q.cons, err = q.s.streams.consumer(ctx, kindQueue.of(q.key.tenant), jetstream.ConsumerConfig{
		Durable: token(q.key.function, q.key.tenant) + "-" + string(q.key.priority), FilterSubject: q.key.subject(),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: q.wait, MaxDeliver: -1, MaxAckPending: -1, MaxWaiting: 512,
		InactiveThreshold: 24 * time.Hour,
	})
	return err
}

// ackWait is the silence after which NATS delivers an event to another node. During a longer
// attempt, keepDelivered tells NATS that work goes on.
func ackWait(timeout time.Duration) time.Duration {
	return min(max(timeout+timeout/2, 2*time.Second), 15*time.Second)
}

// pull fetches as many events as there is room for, and returns how many came. If none waits, pull
// waits for the next.
func (q *queue) pull(ctx context.Context) (int, error) {
	most, err := q.room(ctx)
	switch {
	case err != nil:
		return 0, nil //nolint:nilerr // the service is closed
	case most == 0: // another node has the function
		sleep(ctx, retryStream)
		return 0, nil
	}
	turns, err := q.s.turns.acquire(ctx, q.key.priority, most)
	if err != nil {
		return 0, nil //nolint:nilerr // the service is closed
	}
	n, err := q.fetch(ctx, turns, 0)
	q.s.turns.release(turns - n)
	if n > 0 || err != nil {
		return n, err
	}
	// The queue is empty. Wait for the next event without a turn, so that other queues can use the
	// turn; the event acquires a turn when it arrives.
	return q.fetch(ctx, 1, idleQueue/3)
}

// count subtracts the events that have ended from flying.
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

// room waits until asking for events is worthwhile, and returns for how many. 0: another node has
// the function.
func (q *queue) room(ctx context.Context) (int, error) {
	var gathered bool
	for {
		free := min(q.s.cfg.Engine.Room(q.key.function), q.s.cfg.Concurrency-q.flying)
		if _, err := q.s.cfg.Engine.Function(q.key.function); err != nil {
			if free = 1; q.s.elsewhere(q.key.function) { // if the function is gone: one event, which becomes a dead letter
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

// fetch asks for up to n events and handles each in a goroutine. With wait 0, fetch takes only
// events that wait already and uses the caller's turns. Otherwise fetch waits for the first, and
// each event acquires its own turn.
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

// sleep waits for d; false means that ctx ended first.
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
			limit := s.cfg.Patience
			if first {
				limit = 10 * time.Minute // enough to read a whole queue
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
		s.sendFrom(name) // left by an earlier engine, or ordered by other nodes
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
			s.queue(e)
		}
	}
	return nil
}

// keyOf returns tenant, priority and function from the subject of a queue.
func keyOf(subject string) (Entry, bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 5 || weights[Priority(parts[3])] == 0 {
		return Entry{}, false
	}
	return Entry{Tenant: parts[2], Priority: Priority(parts[3]), Function: functionOf(parts[2], parts[4])}, true
}

// functionOf returns the qualified name of the function that a token in a tenant's subjects means.
func functionOf(tenant, token string) string {
	return template.QualifiedName(strings.ReplaceAll(token, "_", "."), tenant)
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
