package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// longestResult caps the time for which a template may have results kept.
const longestResult = 7 * 24 * time.Hour

// Service accepts events and runs them. A Service is safe for concurrent use.
type Service struct {
	cfg        Config
	embedded   *embedded // nil: the server is external
	nc         *nats.Conn
	js         jetstream.JetStream
	streams    *streams
	bodies     *bodies
	deliveries *deliveries
	turns      *turns
	index      *index
	metrics    *metrics
	origin     string      // random name of this process in messages between nodes
	teller     *teller     // sends this process's changes to the other nodes; nil: the only node
	again      atomic.Bool // the connection was lost, so streams may hold events unknown here

	callbacks chan struct{} // a slot for each callback being sent

	tasks sync.WaitGroup  // all goroutines and calls that Close waits for
	live  context.Context // until Close
	end   context.CancelFunc
	brief context.Context // until Close has waited for as long as allowed
	cut   context.CancelFunc

	mu       sync.Mutex
	closed   bool
	sending  map[string]bool // by stream, while a sender runs: whether a callback was ordered meanwhile
	queues   map[queueKey]*queue
	removing map[string]int // by tenant: calls of RemoveTenant under way; no queue starts
}

// Open starts the server in the process, or connects to the server at cfg.URL, and continues the
// events that an earlier engine left.
func Open(cfg Config) (_ *Service, err error) {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.StoreBytes, DefaultStoreBytes)
	def(&cfg.MinFreeBytes, 64<<20)
	def(&cfg.MaxEvent, 64<<20)
	def(&cfg.MaxQueue, 100_000)
	def(&cfg.QueueBytes, DefaultQueueBytes)
	def(&cfg.BodyBytes, 4<<30)
	def(&cfg.MaxResults, 100_000)
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 32 * runtime.GOMAXPROCS(0)
	}
	if cfg.Replicas == 0 {
		cfg.Replicas = 1
	}
	cfg.KeepDead = cmp.Or(cfg.KeepDead, 7*24*time.Hour)
	cfg.Patience = cmp.Or(cfg.Patience, 10*time.Second)
	if err := cfg.Callbacks.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", cfg.Dir, err)
	}
	s := &Service{cfg: cfg, deliveries: &deliveries{log: cfg.Log, opened: time.Now(), hands: newHands()}, turns: newTurns(cfg.Concurrency), index: newIndex(), sending: map[string]bool{}, queues: map[queueKey]*queue{}, removing: map[string]int{}, callbacks: make(chan struct{}, callbacksAtOnce)}
	s.live, s.end = context.WithCancel(context.Background())
	s.brief, s.cut = context.WithCancel(context.Background())
	if s.bodies, err = openBodies(&cfg); err != nil {
		return nil, err
	}
	if cfg.URL == "" {
		if s.deliveries.attempts, err = openAttempts(filepath.Join(cfg.Dir, "attempts"), s.deliveries.opened); err != nil {
			return nil, err
		}
		if s.embedded, err = startEmbedded(&cfg); err != nil {
			return nil, errors.Join(err, s.deliveries.attempts.close())
		}
	}
	defer func() {
		if err != nil && s.embedded != nil {
			s.embedded.close()
			err = errors.Join(err, s.deliveries.attempts.close())
		}
	}()
	if s.nc, err = connect(&cfg, s.embedded); err != nil {
		return nil, err
	}
	if s.js, err = jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(4096), jetstream.WithPublishAsyncTimeout(cfg.Patience), jetstream.WithDefaultTimeout(cfg.Patience)); err != nil {
		s.nc.Close()
		return nil, err
	}
	s.streams = newStreams(&s.cfg, s.nc, s.js, &s.tasks)
	s.metrics = newMetrics(s, cfg.Metrics)
	if s.embedded == nil {
		s.nc.SetReconnectHandler(func(*nats.Conn) { s.again.Store(true) })
		if err := s.share(); err != nil {
			s.nc.Close()
			return nil, err
		}
	}
	s.tasks.Go(s.scan)
	return s, nil
}

// Addr returns the address of the server in the process, "" without a socket.
func (s *Service) Addr() string {
	if s.embedded == nil {
		return ""
	}
	if a := s.embedded.addr(); a != nil {
		return a.String()
	}
	return ""
}

// Close stops new work and waits until the running attempts have ended. When ctx ends, Close also
// interrupts bodies that are being read, and returns ctx's cause after the remaining attempts have
// ended. Events that have not ended run again after the next Open.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.end()
	done := make(chan struct{})
	go func() {
		s.tasks.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.cut()
	if s.teller != nil {
		s.teller.flush()
	}
	_ = s.nc.FlushWithContext(ctx) // the last acknowledgements; an event whose acknowledgement is lost runs again
	s.nc.Close()
	<-done
	if s.embedded != nil {
		s.embedded.close()
		err = errors.Join(err, s.deliveries.attempts.close())
	}
	return err
}

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
	case err != nil && s.elsewhere(function):
		return Receipt{}, refuse(ErrUnavailable, "the node is still pulling %s", function)
	case err != nil:
		return Receipt{}, err
	}
	settings := f.Config.EventSettings()
	if o.Priority == "" {
		o.Priority = Priority(settings.Priority)
	}
	if weights[o.Priority] == 0 {
		return Receipt{}, refuse(ErrBadEvent, "priority %q is none of high, normal, low", o.Priority)
	}
	if o.Source == "" {
		o.Source = "http"
	}
	if o.Callback != "" {
		to, err := parseCallback(o.Callback)
		if err != nil {
			return Receipt{}, err
		}
		if err := s.cfg.Callbacks.allow(to); err != nil {
			return Receipt{}, refuse(ErrCallback, "%v", err)
		}
		o.Callback = to.String()
	}
	if err := s.begin(f.Config.Tenant); err != nil {
		return Receipt{}, err
	}
	defer s.tasks.Done()
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
		if was, err := s.known(ctx, m); was || err != nil {
			return Receipt{m.ID, was}, err
		}
		if letter, err = s.letter(ctx, m); err != nil {
			return Receipt{}, err
		}
	}
	if !s.index.add(m.Entry, settings.MaxQueue) {
		if _, ok := s.index.find(m.ID); ok { // published by another call meanwhile
			return Receipt{m.ID, true}, nil
		}
		return Receipt{}, refuse(ErrFull, "%d events of %s wait: the template's events.max_queue", settings.MaxQueue, f.Name)
	}
	duplicate, err := s.write(ctx, m, r)
	if err != nil {
		s.index.drop(m.ID)
		s.bodies.drop(m, letter)
		return Receipt{}, err
	}
	if duplicate && s.over(ctx, m, letter) {
		return Receipt{m.ID, true}, nil
	}
	s.queue(m.Entry)
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

// over reports whether an event that JetStream calls a duplicate has ended already. over then drops
// the event from the index, because no message for the event would do so later.
func (s *Service) over(ctx context.Context, m, letter *message) bool {
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

// known reports whether the event is under way, or its result is kept.
func (s *Service) known(ctx context.Context, m *message) (bool, error) {
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

// begin adds work for a tenant to s.tasks; the caller calls Done. The error says why no work can
// start now.
func (s *Service) begin(tenant string) error {
	if err := s.ready(tenant); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStopping()
	}
	s.tasks.Add(1)
	return nil
}

func (s *Service) ready(tenant string) error {
	if s.nc.Status() != nats.CONNECTED {
		return refuse(ErrUnavailable, "the engine cannot reach NATS")
	}
	if s.embedded != nil && s.embedded.broken.Load() {
		return refuse(ErrStorage, "JetStream found the disk full, and restarts when the disk has space")
	}
	if freeBytes(s.cfg.Dir) < s.cfg.MinFreeBytes {
		return refuse(ErrStorage, "less than %d bytes are free", s.cfg.MinFreeBytes)
	}
	if s.embedded == nil {
		return nil
	}
	if own, all := s.embedded.stored(tenant); own > s.cfg.StoreBytes-all {
		return refuse(ErrStorage, "the tenant's events, results and dead letters take %d bytes, all tenants' %d of store_bytes, %d: a tenant may have as much as is left", own, all, s.cfg.StoreBytes)
	}
	return nil
}

// settings returns the settings for events, and the time limit, of the function's current
// deployment.
func (s *Service) settings(function string) (template.Events, time.Duration, error) {
	f, err := s.cfg.Engine.Function(function)
	if err != nil {
		return template.Events{}, 0, err
	}
	return f.Config.EventSettings(), f.Config.Resources.Timeout, nil
}
