package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
)

// longestBackoff is where doubling ends.
const longestBackoff = 10 * time.Minute

// outcome is what became of one attempt.
type outcome struct {
	status int
	fields [][2]string
	body   []byte
	file   string // has the body instead
	size   int64
	err    error         // why it counts as failed
	after  time.Duration // how long the function asks to be left alone, 0: it does not
}

// handle runs one event to the end of an attempt, with the caller's turn or one of its own.
func (s *Service) handle(q *queue, msg jetstream.Msg, turn bool) {
	defer func() {
		if turn {
			s.turns.release(1)
		}
	}()
	meta, err := msg.Metadata()
	if err != nil {
		s.cfg.Log.Error("events: message without metadata", "subject", msg.Subject(), "error", err)
		return
	}
	key := keyOfMessage(meta)
	if !s.take(key, msg) {
		return
	}
	stop := s.keep(msg, q.keepEvery())
	v := verdict{again: true}
	if turn {
		v = s.try(q, msg, meta, key)
	} else if _, err := s.turns.acquire(s.live, q.key.priority, 1); err == nil {
		turn = true
		v = s.try(q, msg, meta, key)
	}
	stop()
	s.release(key, msg, v)
}

// verdict is what becomes of a message after an attempt.
type verdict struct {
	again bool // else it was acknowledged
	after time.Duration
}

// release gives a message out of hand before it can come again. What fails here fails with the
// connection: then it comes again by itself.
func (s *Service) release(key attemptKey, msg jetstream.Msg, v verdict) {
	s.hands.drop(key, !v.again)
	switch {
	case !v.again:
	case v.after > 0:
		_ = msg.NakWithDelay(v.after)
	default:
		_ = msg.Nak()
	}
}

// take says whether a message is to be worked on: not if this process has it in hand already.
func (s *Service) take(key attemptKey, msg jetstream.Msg) bool {
	taken, ended := s.hands.take(key)
	if ended {
		_ = msg.Ack() // the one before may not have come there
	}
	return taken
}

// try counts an attempt and makes it.
func (s *Service) try(q *queue, msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey) verdict {
	n, broken, err := s.count(key, meta)
	m, merr := decode(msg.Subject(), msg.Headers(), msg.Data())
	if merr != nil {
		m = s.foreign(q, msg, meta)
	}
	m.seq, m.Attempts, m.Priority, m.Function = meta.Sequence.Stream, n, q.key.priority, q.key.function
	if err != nil { // an attempt that does not count is not made
		s.cfg.Log.Error("events: attempt not begun", "id", m.ID, "function", m.Function, "error", err)
		m.Attempts--
		return s.later(m, key, retryStream)
	}
	if n > 1 || meta.NumDelivered > 1 {
		if result := s.ended(m); result != nil {
			return s.finish(m, msg, key, result)
		}
		if s.embedded == nil { // unless a node says that it has ended, it was broken off
			e, ok := s.index.find(m.ID)
			broken = !ok || e.State != StateWaiting
		}
	}
	settings, _, err := s.settings(m.Function)
	var o outcome
	switch {
	case err != nil:
		o.err = err
	case broken:
		m.Attempts--
		o.err = fmt.Errorf("the engine ended during attempt %d", m.Attempts)
	default:
		m.State = StateRunning
		s.index.change(m.Entry)
		o = s.attempt(m)
	}
	m.Status, m.Error = o.status, ""
	if o.err != nil {
		m.Error = oneLine(o.err.Error())
	}
	return s.settle(m, msg, key, &settings, o)
}

// count counts an attempt before it begins, durably. It says which one of its message this is, and
// whether an engine's end has broken off the one before. NATS servers of their own outlive the
// engine: their count of deliveries serves.
func (s *Service) count(key attemptKey, meta *jetstream.MsgMetadata) (n int, broken bool, err error) {
	if s.embedded == nil {
		return int(meta.NumDelivered), false, nil //nolint:gosec // no message is delivered that often
	}
	return s.attempts.begin(key, meta.Timestamp.Before(s.opened))
}

// waits notes that n attempts of a message count, and that there may be another one.
func (s *Service) waits(key attemptKey, n int) {
	if s.embedded == nil {
		return
	}
	if err := s.attempts.wait(key, n); err != nil {
		s.cfg.Log.Error("events: end of an attempt not noted; it counts as broken off if the engine ends", "error", err)
	}
}

// tried forgets the attempts of a message that is tried no more.
func (s *Service) tried(key attemptKey) {
	if s.embedded == nil {
		return
	}
	if err := s.attempts.end(key); err != nil {
		s.cfg.Log.Error("events: end of an event not noted in the count of attempts", "error", err)
	}
}

// keep tells the server that the event is being worked on, for as long as stop was not called.
func (s *Service) keep(msg jetstream.Msg, every time.Duration) (stop func()) {
	var mu sync.Mutex
	var t *time.Timer
	over := false
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(every, func() {
		_ = msg.InProgress() // fails with the connection
		mu.Lock()
		defer mu.Unlock()
		if !over { // else it would go on for good
			t.Reset(every)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		t.Stop()
	}
}

// keepEvery is how often. Another node may have made the consumer's AckWait as short as any,
// by a later revision of the function.
func (q *queue) keepEvery() time.Duration {
	if q.s.embedded == nil {
		return ackWait(0) / 3
	}
	return q.wait / 3
}

// foreign makes an event of a message that somebody else has put into the queue.
func (s *Service) foreign(q *queue, msg jetstream.Msg, meta *jetstream.MsgMetadata) *message {
	key := meta.Stream + "/" + strconv.FormatUint(meta.Sequence.Stream, 10) + "/" + meta.Timestamp.String()
	m := &message{
		Entry: Entry{
			ID: eventID(q.key.function, key), Function: q.key.function, Tenant: q.key.tenant, Priority: q.key.priority, Source: "nats",
			Accepted: meta.Timestamp.UTC(), Size: int64(len(msg.Data())),
		},
		method: http.MethodPost, path: "/", body: msg.Data(),
	}
	for name, values := range msg.Headers() {
		for _, v := range values {
			m.fields = append(m.fields, [2]string{http.CanonicalHeaderKey(name), v})
		}
	}
	return m
}

// ended is the event's result, nil if it has none yet.
func (s *Service) ended(m *message) *message {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.live), commitTimeout)
	defer cancel()
	result, err := s.end1(ctx, kindResults, m.Tenant, m.Function, m.ID)
	if err != nil {
		return nil
	}
	return result
}

// finish does what is left of an event that has its result: whoever wrote that died before it
// could go on, or was refused the order of the callback.
func (s *Service) finish(m *message, msg jetstream.Msg, key attemptKey, result *message) verdict {
	if m.callback != "" {
		result.seq = m.seq
		if err := s.order(result); err != nil {
			s.cfg.Log.Error("events: callback not ordered", "id", m.ID, "function", m.Function, "error", err)
			m.Attempts--
			return s.later(m, key, retryStream)
		}
	}
	m.State, m.Status, m.Attempts, m.Error = result.State, result.Status, result.Attempts, result.Error
	s.leave(m, msg, key)
	return verdict{}
}

// attempt has the function handle the event. An engine without room is waited for: that is
// no attempt of the event's.
func (s *Service) attempt(m *message) outcome {
	wait := 10 * time.Millisecond
	for {
		o := s.invoke(m)
		busy := errors.Is(o.err, engine.ErrOverloaded) || errors.Is(o.err, engine.ErrEngineOverloaded) || errors.Is(o.err, engine.ErrDegraded)
		if !busy || !sleep(s.live, wait/2+rand.N(wait)) {
			return o
		}
		wait = min(2*wait, time.Second)
	}
}

func (s *Service) invoke(m *message) (o outcome) {
	r := m.request()
	r.Header = append(r.Header[:len(r.Header):len(r.Header)],
		[2]string{"X-Call-Id", m.ID}, [2]string{"X-Fre-Event-Attempt", strconv.Itoa(m.Attempts)}, [2]string{"X-Fre-Event-Source", m.Source})
	if m.file != "" {
		f, err := s.bodies.open(m.file)
		if err != nil {
			return outcome{err: fmt.Errorf("its body: %w", err)}
		}
		defer f.Close()
		r.Body, r.Size = f, m.Size
	} else if len(m.body) > 0 {
		r.Body, r.Size = bytes.NewReader(m.body), int64(len(m.body))
	}
	s.metrics.waited.Observe(time.Since(m.Accepted).Seconds())
	// Its own time limit ends it, and the engine's end.
	resp, err := s.cfg.Engine.Invoke(context.WithoutCancel(s.live), m.Function, r)
	if err != nil {
		return outcome{err: err}
	}
	defer func() { o.err = errors.Join(o.err, resp.Body.Close()) }()
	o.status, o.fields = resp.Status, resp.Header
	if resp.Status >= 500 || resp.Status == http.StatusTooManyRequests {
		o.err = fmt.Errorf("the function answered %d", resp.Status)
	}
	if resp.Status == http.StatusServiceUnavailable || resp.Status == http.StatusTooManyRequests {
		o.after = retryAfter(resp.Header, time.Now())
	}
	if resp.Bytes != nil {
		o.body, o.size = bytes.Clone(resp.Bytes), int64(len(resp.Bytes))
		return o
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, inline+1))
	if err == nil && len(body) > inline {
		if s.embedded == nil {
			return outcome{status: resp.Status, err: refuse(ErrTooLarge, "its answer has more than %d bytes", inline)}
		}
		o.file = m.ID + ".result"
		o.size, err = s.bodies.keep(o.file, io.MultiReader(bytes.NewReader(body), resp.Body), s.cfg.MaxEvent)
	} else {
		o.body, o.size = body, int64(len(body))
	}
	if err != nil {
		return outcome{status: resp.Status, err: fmt.Errorf("its answer: %w", err)}
	}
	return o
}

// settle ends the attempt: with a result, another attempt later, or a dead letter. The event
// leaves its queue last.
func (s *Service) settle(m *message, msg jetstream.Msg, key attemptKey, settings *image.Events, o outcome) verdict {
	var unknown *engine.UnknownError
	gone := errors.As(o.err, &unknown)
	switch {
	case errors.Is(o.err, engine.ErrClosed): // a stop is not the event's fault: it does not count
		m.Attempts--
		return s.later(m, key, 0) // whoever comes next has it
	case o.err == nil:
		m.State = StateDone
	case !gone && m.Attempts <= settings.Retries:
		s.metrics.attempts.WithLabelValues("retried").Inc()
		return s.later(m, key, max(backoff(settings.Backoff, m.Attempts), o.after))
	default:
		m.State = StateDead
		if err := s.bury(m); err != nil {
			s.cfg.Log.Error("events: dead letter not written", "id", m.ID, "function", m.Function, "error", err)
			return s.later(m, key, longestBackoff/10)
		}
	}
	if err := s.conclude(m, settings, o); err != nil {
		s.cfg.Log.Error("events: result not written", "id", m.ID, "function", m.Function, "error", err)
		return s.later(m, key, retryStream)
	}
	s.leave(m, msg, key)
	return verdict{}
}

// leave takes an event that has ended out of its queue.
func (s *Service) leave(m *message, msg jetstream.Msg, key attemptKey) {
	if err := msg.Ack(); err != nil { // it comes again, and its result is found
		s.cfg.Log.Debug("events: acknowledge", "id", m.ID, "error", err)
	}
	s.tried(key)
	if m.State == StateDone {
		s.bodies.remove(m.file)
	}
	s.metrics.attempts.WithLabelValues(string(m.State)).Inc()
	s.index.change(m.Entry)
}

// longestRetryAfter bounds for how long a function may put an event off.
const longestRetryAfter = time.Hour

// retryAfter reads the field of that name (RFC 9110 section 10.2.3): seconds, or a date. 0 where
// there is none that can be read, or its time has passed.
func retryAfter(header [][2]string, now time.Time) time.Duration {
	for _, f := range header {
		if !strings.EqualFold(f[0], "Retry-After") {
			continue
		}
		value := strings.TrimSpace(f[1])
		if at, err := http.ParseTime(value); err == nil {
			return min(max(at.Sub(now), 0), longestRetryAfter)
		}
		if value == "" || strings.Trim(value, "0123456789") != "" {
			return 0
		}
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(longestRetryAfter/time.Second) { // more digits than fit
			return longestRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// later has the event come again.
func (s *Service) later(m *message, key attemptKey, after time.Duration) verdict {
	m.State = StateWaiting
	s.index.change(m.Entry)
	s.waits(key, m.Attempts)
	return verdict{again: true, after: after}
}

// backoff is the wait after so many attempts, spread by a quarter either way.
func backoff(first time.Duration, attempts int) time.Duration {
	d := first << min(attempts-1, 30)
	if d <= 0 || d > longestBackoff {
		d = longestBackoff
	}
	return d - d/4 + rand.N(d/2+1)
}

// bury writes a dead letter: the event as it was, and why it is dead.
func (s *Service) bury(m *message) error {
	out, err := s.letterOf(*m)
	if err != nil {
		return err
	}
	_, _, err = s.put(s.live, kindDead, m.Tenant, out)
	return err
}

// overhead is more than a commit adds to a message's header, in bytes.
const overhead = 1 << 10

// letterOf is a dead letter as NATS takes it. What others have put into a queue may be so large
// that it has no room for what there is to say of it.
func (s *Service) letterOf(m message) (*nats.Msg, error) {
	subject := kindDead.subject(m.Tenant, m.Function, m.ID)
	out, err := m.encode(subject)
	if err != nil {
		return nil, err
	}
	if headerSize(out) > maxHeader {
		m.fields = nil
		m.Error = "its headers are too long and not kept; " + m.Error
	}
	if headerSize(out)+len(m.body)+overhead > int(s.nc.MaxPayload()) && len(m.body) > inline {
		s.putAside(&m)
	}
	return m.encode(subject)
}

// putAside has a body in a file, as those are that the engine takes on itself, or forgets it where
// there is no room for that, or other nodes would not find it.
func (s *Service) putAside(m *message) {
	body := m.body
	m.body = nil
	if file := m.ID + ".event"; s.embedded != nil {
		size, err := s.bodies.keep(file, bytesReader(body), maxPayload)
		if err == nil {
			m.file, m.Size = file, size
			return
		}
	}
	m.Error = fmt.Sprintf("its body of %d bytes is too large and not kept; %s", len(body), m.Error)
	m.lost = true
}

// conclude keeps the result for as long as the template says, and sees to the callback.
func (s *Service) conclude(m *message, settings *image.Events, o outcome) error {
	kept := settings.Results
	if kept == 0 && m.callback == "" {
		s.bodies.remove(o.file)
		return nil
	}
	kept = max(kept, time.Second)
	if m.callback != "" {
		kept = max(kept, time.Hour) // it is sent from there
	}
	result := *m
	result.fields, result.body, result.file, result.Size = o.fields, o.body, o.file, o.size
	out, err := result.encode(kindResults.subject(m.Tenant, m.Function, m.ID))
	if err != nil {
		return err
	}
	if headerSize(out) > maxHeader {
		delete(out.Header, headFields)
	}
	out.Header["Nats-TTL"] = []string{strconv.FormatInt(int64(kept/time.Second), 10) + "s"}
	if _, _, err = s.put(s.live, kindResults, m.Tenant, out); err != nil {
		return err
	}
	if m.callback != "" {
		return s.order(&result)
	}
	return nil
}
