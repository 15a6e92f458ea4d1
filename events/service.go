package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
)

// longestResult is how long results are kept whose template says more.
const longestResult = 7 * 24 * time.Hour

// Service takes events on and runs them. It is safe for concurrent use.
type Service struct {
	cfg      Config
	embedded *embedded // nil: the server is elsewhere
	nc       *nats.Conn
	js       jetstream.JetStream
	bodies   *bodies
	attempts *attempts // nil: the server, which is elsewhere, counts
	hands    *hands
	opened   time.Time
	turns    *turns
	index    *index
	metrics  *metrics
	origin   string      // tells this process's changes from other nodes'
	teller   *teller     // of this process's changes; nil: there are no other nodes
	again    atomic.Bool // the connection was lost: streams may hold what nobody has told of
	shared   atomic.Bool // there may be streams of nodes of before (kind.shared)

	callbacks chan struct{} // a place for each that is being sent

	tasks sync.WaitGroup  // everything that runs on
	live  context.Context // until Close
	end   context.CancelFunc
	brief context.Context // until Close has waited for as long as it may
	cut   context.CancelFunc

	// making is held while a stream or a consumer is made: many publishers find that there
	// is none, and the server's own parts race where a stream is updated beside that.
	making sync.Mutex

	mu      sync.Mutex // may be taken with making held
	closed  bool
	streams map[string]*committer // by name: those that are known to be there
	sending map[string]bool       // by stream: callbacks are being sent; whether one was ordered meanwhile
	queues  map[queueKey]*queue
}

// Open starts the server, or connects to the one that is named, and goes on with what an
// engine before this one has left.
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
	if cfg.KeepDead == 0 {
		cfg.KeepDead = 7 * 24 * time.Hour
	}
	if err := cfg.Callbacks.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", cfg.Dir, err)
	}
	s := &Service{cfg: cfg, opened: time.Now(), hands: newHands(), turns: newTurns(cfg.Concurrency), index: newIndex(), streams: map[string]*committer{}, sending: map[string]bool{}, queues: map[queueKey]*queue{}, callbacks: make(chan struct{}, callbacksAtOnce)}
	s.shared.Store(true) // until scan has found that there are none
	s.live, s.end = context.WithCancel(context.Background())
	s.brief, s.cut = context.WithCancel(context.Background())
	if s.bodies, err = openBodies(filepath.Join(cfg.Dir, "bodies"), cfg.BodyBytes); err != nil {
		return nil, err
	}
	if cfg.URL == "" {
		if s.attempts, err = openAttempts(filepath.Join(cfg.Dir, "attempts"), s.opened); err != nil {
			return nil, err
		}
		if s.embedded, err = startEmbedded(&cfg); err != nil {
			return nil, errors.Join(err, s.attempts.close())
		}
	}
	defer func() {
		if err != nil && s.embedded != nil {
			s.embedded.close()
			err = errors.Join(err, s.attempts.close())
		}
	}()
	if s.nc, err = connect(&cfg, s.embedded); err != nil {
		return nil, err
	}
	if s.js, err = jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(4096), jetstream.WithPublishAsyncTimeout(commitTimeout)); err != nil {
		s.nc.Close()
		return nil, err
	}
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

// Addr is where the server in the process listens, "" for nowhere.
func (s *Service) Addr() string {
	if s.embedded == nil {
		return ""
	}
	if a := s.embedded.addr(); a != nil {
		return a.String()
	}
	return ""
}

// Close lets what is under way end until ctx does, and stops the server. What has not ended
// is run again by whoever opens next.
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
	_ = s.nc.FlushWithContext(ctx) // the last acknowledgements; what they were of is else run again
	s.nc.Close()
	<-done
	if s.embedded != nil {
		s.embedded.close()
		err = errors.Join(err, s.attempts.close())
	}
	return err
}

// Publish takes an event for a function on: its caller may forget it once Publish returns.
// Errors are *[engine.UnknownError], *[RefusedError] and what the body's Read returned.
func (s *Service) Publish(ctx context.Context, function string, r *engine.Request, o Options) (Receipt, error) {
	began := time.Now()
	receipt, err := s.publish(ctx, function, r, o)
	s.metrics.accepted(time.Since(began), receipt, err)
	return receipt, err
}

// publishTries is how often the engine may end while it takes on an event that it publishes again
// itself.
const publishTries = 3

// countPublish counts an attempt to take on an event that the engine itself publishes again, and
// refuses one that has ended the engine each time.
func (s *Service) countPublish(id string) (over func(), err error) {
	if s.attempts == nil {
		return func() {}, nil
	}
	key := keyOfText(attemptPublish, id)
	n, _, err := s.attempts.begin(key, false)
	switch {
	case err != nil:
		s.waits(key, n-1)
		return nil, refuse(ErrStorage, "%v", err)
	case n > publishTries:
		s.waits(key, publishTries)
		return nil, refuse(ErrBadEvent, "the engine ended %d times while it took this event on", publishTries)
	}
	return func() { s.tried(key) }, nil
}

func (s *Service) publish(ctx context.Context, function string, r *engine.Request, o Options) (Receipt, error) {
	f, err := s.cfg.Engine.Function(function)
	switch {
	case err != nil && s.elsewhere(function):
		return Receipt{}, refuse(ErrUnavailable, "%s is on its way to this node", function)
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
		method: r.Method, path: r.Path, query: r.Query, fields: r.Header, callback: o.Callback,
	}
	if o.Repeated {
		over, err := s.countPublish(m.ID)
		if err != nil {
			return Receipt{}, err
		}
		defer over()
	}
	var letter *message // of the same key, that this is again
	if o.Key != "" {
		if was, err := s.known(ctx, m); was || err != nil {
			return Receipt{m.ID, was}, err
		}
		if letter, err = s.letter(ctx, m); err != nil {
			return Receipt{}, err
		}
	}
	if !s.index.add(m.Entry, settings.MaxQueue) {
		if _, ok := s.index.find(m.ID); ok { // another call has brought it meanwhile
			return Receipt{m.ID, true}, nil
		}
		return Receipt{}, refuse(ErrFull, "%d events of %s wait: the template's events.max_queue", settings.MaxQueue, f.Name)
	}
	duplicate, err := s.write(ctx, m, r)
	if err != nil {
		s.index.drop(m.ID)
		s.dropBody(m, letter)
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

// letter is the dead letter of an event's id, nil for none.
func (s *Service) letter(ctx context.Context, m *message) (*message, error) {
	if s.knownStream(kindDead.of(m.Tenant)) == nil && !s.shared.Load() { // the tenant has none at all
		return nil, nil
	}
	letter, err := s.end1(ctx, kindDead, m.Tenant, m.Function, m.ID)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return letter, err
}

// replace removes a dead letter in whose place there is an event again.
func (s *Service) replace(ctx context.Context, letter, m *message) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := s.discard(ctx, letter); err != nil {
		s.cfg.Log.WarnContext(ctx, "events: the dead letter of an event that came again stays", "id", m.ID, "function", m.Function, "error", err)
		return
	}
	if letter.file != m.file {
		s.bodies.remove(letter.file)
	}
}

// dropBody removes the file of an event that was not taken on, unless it is a dead letter's.
func (s *Service) dropBody(m, letter *message) {
	if letter == nil || letter.file != m.file {
		s.bodies.remove(m.file)
	}
}

// over forgets an event that JetStream knows still, and that has ended: nothing would take it
// out of the index again.
func (s *Service) over(ctx context.Context, m, letter *message) bool {
	if e, ok := s.index.find(m.ID); ok {
		stream, err := s.js.Stream(ctx, kindQueue.of(m.Tenant))
		if err == nil {
			_, err = stream.GetMsg(ctx, e.seq)
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) { // it waits, or will be gone when its acknowledgement has come there
			s.index.doubt(m.ID)
			return false
		}
	}
	s.index.drop(m.ID)
	s.dropBody(m, letter)
	return true
}

// write puts an event into its queue.
func (s *Service) write(ctx context.Context, m *message, r *engine.Request) (duplicate bool, err error) {
	if err := s.readBody(m, r); err != nil {
		return false, err
	}
	msg, err := m.encode(queueSubject(m.Tenant, m.Priority, m.Function))
	if err != nil {
		return false, err
	}
	if size := headerSize(msg); size > maxHeader {
		return false, refuse(ErrTooLarge, "its headers take %d bytes, the limit is %d", size, maxHeader)
	}
	msg.Header[nats.MsgIdHdr] = []string{m.ID}
	seq, duplicate, err := s.put(ctx, kindQueue, m.Tenant, msg)
	if err != nil {
		return false, err
	}
	s.index.written(m.ID, seq, m.Size)
	return duplicate, nil
}

// maxHeader bounds what an event has beside its body, in bytes: JetStream refuses headers of
// 64 KiB, what the wire and a commit add among them.
const maxHeader = 60 << 10

func headerSize(m *nats.Msg) (n int) {
	for name, values := range m.Header {
		n += len(name) + len(values[0])
	}
	return n
}

// readBody reads the body into m, or into a file.
func (s *Service) readBody(m *message, r *engine.Request) (err error) {
	if r.Body == nil {
		return nil
	}
	if r.Size > s.cfg.MaxEvent {
		return refuse(ErrTooLarge, "the limit is %d bytes", s.cfg.MaxEvent)
	}
	if c, ok := r.Body.(io.Closer); ok { // whoever sends slowly does not hold up the stop
		goOn := context.AfterFunc(s.brief, func() { _ = c.Close() }) // the reading fails by that
		defer func() {
			if !goOn() && err != nil {
				err = errStopping()
			}
		}()
	}
	most := min(int64(inline), s.cfg.MaxEvent)
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return err
	}
	m.body, m.Size = body, int64(len(body))
	switch {
	case m.Size <= most:
		return nil
	case most == s.cfg.MaxEvent:
		return refuse(ErrTooLarge, "the limit is %d bytes", s.cfg.MaxEvent)
	case s.embedded == nil: // other nodes have no part of this one's files
		return refuse(ErrTooLarge, "the limit is %d bytes where NATS is a cluster of its own", inline)
	}
	m.body, m.file = nil, m.ID+".event"
	m.Size, err = s.bodies.keep(m.file, io.MultiReader(bytesReader(body), r.Body), s.cfg.MaxEvent)
	if err != nil {
		return diskFault(err)
	}
	return nil
}

// known says whether the event is under way, or done and still remembered.
func (s *Service) known(ctx context.Context, m *message) (bool, error) {
	if _, ok := s.index.find(m.ID); ok {
		return true, nil
	}
	_, err := s.end1(ctx, kindResults, m.Tenant, m.Function, m.ID)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrNotFound):
		return false, nil
	}
	return false, err
}

// begin counts an event of a tenant's among the tasks, or says why none can be taken on now.
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

func errStopping() error { return refuse(ErrUnavailable, "the engine is stopping") }

func (s *Service) ready(tenant string) error {
	if s.nc.Status() != nats.CONNECTED {
		return refuse(ErrUnavailable, "NATS is not reached")
	}
	if s.embedded != nil && s.embedded.broken.Load() {
		return refuse(ErrStorage, "JetStream found the disk full, and starts again when there is room")
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

// settings are the function's as it is deployed now.
func (s *Service) settings(function string) (image.Events, time.Duration, error) {
	f, err := s.cfg.Engine.Function(function)
	if err != nil {
		return image.Events{}, 0, err
	}
	return f.Config.EventSettings(), f.Config.Resources.Timeout, nil
}
