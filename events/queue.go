package events

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// queue pulls the events of one key, as long as events arrive.
type queue struct {
	*queues // the parts that all queues share

	key  queueKey
	cons jetstream.Consumer
	wait time.Duration // AckWait of cons

	live  context.Context // until the service is closed or the tenant removed
	end   context.CancelFunc
	ended chan struct{} // closed when run has returned and no event is under way

	flying int           // events pulled but not ended; only run's goroutine uses the field
	landed chan struct{} // one value for each event that has ended
}

// queues has a queue for each key with events.
type queues struct {
	cfg     *Config
	live    context.Context // until Close
	tasks   *tasks
	streams *streams
	index   *index
	turns   *turns
	runner  *runner

	mu       sync.Mutex
	running  map[queueKey]*queue
	removing map[string]int // by tenant: calls of RemoveTenant under way; no queue starts
}

// start makes sure that the queue of e's function and priority runs.
func (a *queues) start(e Entry) {
	key := queueKey{e.Tenant, e.Priority, e.Function}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[key] != nil || a.removing[key.tenant] > 0 {
		return
	}
	q := &queue{queues: a, key: key, landed: make(chan struct{}, a.cfg.Concurrency+1), ended: make(chan struct{})}
	q.live, q.end = context.WithCancel(a.live)
	if !a.tasks.start(q.run) {
		q.end()
		return
	}
	a.running[key] = q
}

// beginRemoval keeps a tenant's queues from starting until endRemoval, and returns the queues that
// run.
func (a *queues) beginRemoval(tenant string) (run []*queue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.removing[tenant]++
	for key, q := range a.running {
		if key.tenant == tenant {
			run = append(run, q)
		}
	}
	return run
}

func (a *queues) endRemoval(tenant string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.removing[tenant]--; a.removing[tenant] == 0 {
		delete(a.removing, tenant)
	}
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
			if err := q.consumer(ctx); err != nil {
				if q.giveUp(err) {
					return
				}
				sleep(ctx, retryStream)
				continue
			}
			last = time.Now()
		}
		n, err := q.pull(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			q.cfg.Log.Debug("events: pull", "function", q.key.function, "error", err)
			q.cons = nil
			sleep(ctx, gather)
		case n > 0:
			last = time.Now()
		case time.Since(last) > idleQueue && q.leave():
			return
		}
	}
	q.land()
	q.mu.Lock()
	delete(q.running, q.key)
	q.mu.Unlock()
}

// land waits until all events under way have ended.
func (q *queue) land() {
	for q.flying > 0 {
		<-q.landed
		q.flying--
	}
}

// leave ends the queue and returns true, unless an event is under way, or was published meanwhile.
func (q *queue) leave() bool {
	if q.flying > 0 {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.index.all(func(e *Entry) bool { return q.key == queueKey{e.Tenant, e.Priority, e.Function} })) > 0 {
		return false
	}
	delete(q.running, q.key)
	return true
}

// errElsewhere says that this node does not know the time limit, which the consumer needs.
var errElsewhere = errors.New("another node has the function")

// giveUp reports whether the queue has ended, after an error of consumer.
func (q *queue) giveUp(err error) bool {
	elsewhere := errors.Is(err, errElsewhere)
	deleted := errors.Is(err, jetstream.ErrStreamNotFound) // with its tenant
	if (elsewhere || deleted) && q.leave() {
		return true
	}
	if !elsewhere {
		q.cfg.Log.Warn("events: consumer", "function", q.key.function, "error", err)
	}
	return false
}

// consumer finds or makes the durable consumer.
func (q *queue) consumer(ctx context.Context) error {
	if q.cfg.elsewhere(q.key.function) {
		return errElsewhere
	}
	_, timeout, err := q.cfg.settings(q.key.function)
	if err != nil {
		timeout = 0 // try meets the same error for each event
	}
	if _, err := q.streams.ensure(ctx, kindQueue, q.key.tenant, q.streams.js.UpdateStream); err != nil {
		return err
	}
	q.wait = ackWait(timeout)
	q.cons, err = q.streams.consumer(ctx, kindQueue.of(q.key.tenant), jetstream.ConsumerConfig{
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
	turns, err := q.turns.acquire(ctx, q.key.priority, most)
	if err != nil {
		return 0, nil //nolint:nilerr // the service is closed
	}
	n, err := q.fetch(ctx, turns, 0)
	q.turns.release(turns - n)
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
		free := min(q.cfg.Engine.Room(q.key.function), q.cfg.Concurrency-q.flying)
		if _, err := q.cfg.Engine.Function(q.key.function); err != nil {
			if free = 1; q.cfg.elsewhere(q.key.function) { // if the function is gone: one event, which becomes a dead letter
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
	got, every := 0, q.keepEvery()
	for msg := range batch.Messages() {
		got++
		q.flying++
		q.tasks.fork(func() {
			q.runner.handle(q.key, msg, every, wait == 0)
			q.landed <- struct{}{}
		})
	}
	err = batch.Error()
	if errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoMessages) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = nil
	}
	return got, err
}

// keepEvery returns the interval for keepDelivered. In a cluster, another node with a later
// revision of the function may have set the consumer's AckWait to the minimum.
func (q *queue) keepEvery() time.Duration {
	if q.cfg.external() {
		return ackWait(0) / 3
	}
	return q.wait / 3
}

// whileRoom returns a context that ends when the engine has no more room for the function, at the
// latest after most. A waiting request for an event is cancelled with the context.
func (q *queue) whileRoom(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	if !q.cfg.external() { // no other node could take the event
		return ctx, cancel
	}
	q.tasks.fork(func() {
		tick := time.NewTicker(lookForRoom)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if q.cfg.Engine.Room(q.key.function) <= 0 {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, cancel
}
