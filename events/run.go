package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// longestBackoff caps the back-off.
const longestBackoff = 10 * time.Minute

// outcome is the result of one attempt.
type outcome struct {
	status int
	fields [][2]string
	body   []byte
	file   string // file with the body, instead of body
	size   int64
	err    error         // why the attempt failed
	after  time.Duration // wait that the function asks for by Retry-After, 0 for none
}

// handle makes one attempt at an event. turn says that the caller acquired a turn for the event;
// otherwise handle acquires one. handle releases the turn.
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
	if !s.deliveries.take(key, msg) {
		return
	}
	stop := keepDelivered(msg, q.keepEvery())
	v := verdict{again: true}
	if turn {
		v = s.try(q, msg, meta, key)
	} else if _, err := s.turns.acquire(s.live, q.key.priority, 1); err == nil {
		turn = true
		v = s.try(q, msg, meta, key)
	}
	stop()
	s.deliveries.release(key, msg, v)
}

// try counts an attempt and makes it.
func (s *Service) try(q *queue, msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey) verdict {
	n, broken, err := s.deliveries.count(key, meta)
	m, merr := decode(msg.Subject(), msg.Headers(), msg.Data())
	if merr != nil {
		m = s.foreign(q, msg, meta)
	}
	m.seq, m.Attempts, m.Priority, m.Function = meta.Sequence.Stream, n, q.key.priority, q.key.function
	if err != nil { // make no attempt without counting it
		s.cfg.Log.Error("events: attempt not begun", "id", m.ID, "function", m.Function, "error", err)
		m.Attempts--
		return s.later(m, key, retryStream)
	}
	if n > 1 || meta.NumDelivered > 1 {
		if result := s.ended(m); result != nil {
			return s.finish(m, msg, key, result)
		}
		if s.embedded == nil { // broken off, unless a node reported the end of the attempt
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

// keepEvery returns the interval for keep. In a cluster, another node with a later revision of the
// function may have set the consumer's AckWait to the minimum.
func (q *queue) keepEvery() time.Duration {
	if q.s.embedded == nil {
		return ackWait(0) / 3
	}
	return q.wait / 3
}

// foreign makes an event of a message that another client put into the queue.
func (s *Service) foreign(q *queue, msg jetstream.Msg, meta *jetstream.MsgMetadata) *message {
	key := meta.Stream + "/" + strconv.FormatUint(meta.Sequence.Stream, 10) + "/" + meta.Timestamp.String()
	m := &message{
		Entry: Entry{
			ID: eventID(q.key.function, key), Function: q.key.function, Tenant: q.key.tenant, Priority: q.key.priority, Source: "nats",
			Accepted: meta.Timestamp.UTC(), Size: int64(len(msg.Data())),
		},
		request: engine.Request{Method: "POST", Path: "/"}, body: msg.Data(),
	}
	for name, values := range msg.Headers() {
		for _, v := range values {
			m.request.Headers = append(m.request.Headers, [2]string{textproto.CanonicalMIMEHeaderKey(name), v})
		}
	}
	return m
}

// ended returns the event's result, nil if no result can be found.
func (s *Service) ended(m *message) *message {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.live), s.cfg.Patience)
	defer cancel()
	result, err := s.streams.lastEnd(ctx, kindResults, m.Tenant, m.Function, m.ID)
	if err != nil {
		return nil
	}
	return result
}

// finish completes an event that has its result already: the node that wrote the result died before
// completing the event, or could not order the callback.
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

// attempt has the function handle the event. It waits while the engine has no room; a refusal for
// lack of room does not count as an attempt.
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
	r := m.request
	r.Headers = append(r.Headers[:len(r.Headers):len(r.Headers)],
		[2]string{"X-Call-Id", m.ID}, [2]string{"X-Fre-Event-Attempt", strconv.Itoa(m.Attempts)}, [2]string{"X-Fre-Event-Source", m.Source})
	if m.file != "" {
		f, err := s.bodies.open(m.file)
		if err != nil {
			return outcome{err: fmt.Errorf("body of the event: %w", err)}
		}
		defer f.Close()
		r.Body, r.Length = f, m.Size
	} else if len(m.body) > 0 {
		r.Body, r.Length = bytes.NewReader(m.body), int64(len(m.body))
	}
	s.metrics.waited.Observe(time.Since(m.Accepted).Seconds())
	// The function's time limit, or the engine's end, ends the call.
	resp, err := s.cfg.Engine.Invoke(context.WithoutCancel(s.live), m.Function, &r)
	if err != nil {
		return outcome{err: err}
	}
	defer func() { o.err = errors.Join(o.err, resp.Body.Close()) }()
	o.status, o.fields = resp.Status, resp.Header
	if resp.Status >= 500 || resp.Status == 429 {
		o.err = fmt.Errorf("the function answered %d", resp.Status)
	}
	if resp.Status == 503 || resp.Status == 429 {
		o.after = retryAfter(resp.Header, time.Now())
	}
	if resp.Bytes != nil {
		o.body, o.size = bytes.Clone(resp.Bytes), int64(len(resp.Bytes))
		return o
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, inline+1))
	if err == nil && len(body) > inline {
		if s.embedded == nil {
			return outcome{status: resp.Status, err: refuse(ErrTooLarge, "the answer has more than %d bytes", inline)}
		}
		o.file = m.ID + ".result"
		o.size, err = s.bodies.keep(o.file, io.MultiReader(bytes.NewReader(body), resp.Body), s.cfg.MaxEvent)
	} else {
		o.body, o.size = body, int64(len(body))
	}
	if err != nil {
		return outcome{status: resp.Status, err: fmt.Errorf("answer of the function: %w", err)}
	}
	return o
}

// settle ends the attempt: with a result, another attempt later, or a dead letter. Only the last
// step removes the event from its queue.
func (s *Service) settle(m *message, msg jetstream.Msg, key attemptKey, settings *template.Events, o outcome) verdict {
	var unknown *engine.UnknownError
	gone := errors.As(o.err, &unknown)
	switch {
	case errors.Is(o.err, engine.ErrClosed): // a stop is not the event's fault, so the attempt does not count
		m.Attempts--
		return s.later(m, key, 0) // the next engine, or another node, runs the event
	case o.err == nil:
		m.State = StateDone
	case !gone && m.Attempts <= settings.Retries:
		s.metrics.attempts.WithLabelValues("retried").Inc()
		return s.later(m, key, max(backoff(settings.Backoff, m.Attempts), o.after))
	default:
		m.State = StateDead
		if err := s.writeDeadLetter(m); err != nil {
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

// leave removes an ended event from its queue.
func (s *Service) leave(m *message, msg jetstream.Msg, key attemptKey) {
	if err := msg.Ack(); err != nil { // the event comes again, and ended finds the result
		s.cfg.Log.Debug("events: acknowledge", "id", m.ID, "error", err)
	}
	s.deliveries.end(key)
	if m.State == StateDone {
		s.bodies.remove(m.file)
	}
	s.metrics.attempts.WithLabelValues(string(m.State)).Inc()
	s.index.change(m.Entry)
}

// longestRetryAfter caps the delay that a function may ask for.
const longestRetryAfter = time.Hour

// httpDates are the formats of a date in a header field (RFC 9110 section 5.6.7).
var httpDates = []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC850, time.ANSIC}

// retryAfter reads the field Retry-After (RFC 9110 section 10.2.3), seconds or a date. It returns 0
// for a missing or unreadable field, or a date in the past.
func retryAfter(header [][2]string, now time.Time) time.Duration {
	for _, f := range header {
		if !strings.EqualFold(f[0], "Retry-After") {
			continue
		}
		value := strings.TrimSpace(f[1])
		for _, layout := range httpDates {
			if at, err := time.Parse(layout, value); err == nil {
				return min(max(at.Sub(now), 0), longestRetryAfter)
			}
		}
		if value == "" || strings.Trim(value, "0123456789") != "" {
			return 0
		}
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(longestRetryAfter/time.Second) { // the cap, also for numbers beyond int64
			return longestRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// later has the event delivered again.
func (s *Service) later(m *message, key attemptKey, after time.Duration) verdict {
	m.State = StateWaiting
	s.index.change(m.Entry)
	s.deliveries.wait(key, m.Attempts)
	return verdict{again: true, after: after}
}

// backoff returns the wait after so many attempts, within 25 % of the doubled value.
func backoff(first time.Duration, attempts int) time.Duration {
	d := first << min(attempts-1, 30)
	if d <= 0 || d > longestBackoff {
		d = longestBackoff
	}
	return d - d/4 + rand.N(d/2+1)
}

// writeDeadLetter writes a dead letter: the unchanged event, and the last error.
func (s *Service) writeDeadLetter(m *message) error {
	out, err := s.letterOf(*m)
	if err != nil {
		return err
	}
	_, _, err = s.streams.put(s.live, kindDead, m.Tenant, out)
	return err
}

// overhead exceeds the bytes that a commit adds to a message's header.
const overhead = 1 << 10

// letterOf encodes a dead letter. A message from another client may be too large for NATS once
// state and error are added. letterOf then drops the headers, or the body from the message.
func (s *Service) letterOf(m message) (*nats.Msg, error) {
	subject := kindDead.subject(m.Tenant, m.Function, m.ID)
	out, err := m.encode(subject)
	if err != nil {
		return nil, err
	}
	if headerSize(out) > maxHeader {
		m.request.Headers = nil
		m.Error = "the event's headers are too long and were not kept; " + m.Error
	}
	if headerSize(out)+len(m.body)+overhead > int(s.nc.MaxPayload()) && len(m.body) > inline {
		s.bodies.moveToFile(&m)
	}
	return m.encode(subject)
}

// conclude keeps the result for as long as the template says, and orders the callback.
func (s *Service) conclude(m *message, settings *template.Events, o outcome) error {
	kept := settings.Results
	if kept == 0 && m.callback == "" {
		s.bodies.remove(o.file)
		return nil
	}
	kept = max(kept, time.Second)
	if m.callback != "" {
		kept = max(kept, time.Hour) // the callback reads the result from the stream
	}
	result := *m
	result.request.Headers, result.body, result.file, result.Size = o.fields, o.body, o.file, o.size
	out, err := result.encode(kindResults.subject(m.Tenant, m.Function, m.ID))
	if err != nil {
		return err
	}
	if headerSize(out) > maxHeader {
		delete(out.Header, headFields)
	}
	out.Header["Nats-TTL"] = []string{strconv.FormatInt(int64(kept/time.Second), 10) + "s"}
	if _, _, err = s.streams.put(s.live, kindResults, m.Tenant, out); err != nil {
		return err
	}
	if m.callback != "" {
		return s.order(&result)
	}
	return nil
}
