package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/textproto"
	"slices"
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

// runner makes attempts at events.
type runner struct {
	cfg        *Config
	live       context.Context // until Close
	streams    *streams
	bodies     *bodies
	index      *index
	deliveries *deliveries
	turns      *turns
	metrics    *metrics
	senders    *senders
}

// handle makes one attempt at an event. turn says that the caller acquired a turn for the event;
// otherwise handle acquires one. handle releases the turn.
func (r *runner) handle(key queueKey, msg jetstream.Msg, every time.Duration, turn bool) {
	defer func() {
		if turn {
			r.turns.release(1)
		}
	}()
	meta, err := msg.Metadata()
	if err != nil {
		r.cfg.Log.Error("events: message without metadata", "subject", msg.Subject(), "error", err)
		return
	}
	attempt := keyOfMessage(meta)
	if !r.deliveries.take(attempt, msg) {
		return
	}
	stop := keepDelivered(msg, every)
	v := verdict{again: true}
	if turn {
		v = r.try(key, msg, meta, attempt)
	} else if _, err := r.turns.acquire(r.live, key.priority, 1); err == nil {
		turn = true
		v = r.try(key, msg, meta, attempt)
	}
	stop()
	r.deliveries.release(attempt, msg, v)
}

// try counts an attempt and makes it.
func (r *runner) try(queue queueKey, msg jetstream.Msg, meta *jetstream.MsgMetadata, key attemptKey) verdict {
	n, broken, err := r.deliveries.count(key, meta)
	m, merr := decode(msg.Subject(), msg.Headers(), msg.Data())
	if merr != nil {
		m = foreign(queue, msg, meta)
	}
	m.seq, m.Attempts, m.Priority, m.Function = meta.Sequence.Stream, n, queue.priority, queue.function
	if err != nil { // make no attempt without counting it
		r.cfg.Log.Error("events: attempt not begun", "id", m.ID, "function", m.Function, "error", err)
		m.Attempts--
		return r.later(m, key, retryStream)
	}
	if n > 1 || meta.NumDelivered > 1 {
		if result := r.resultOf(m); result != nil {
			return r.finish(m, msg, key, result)
		}
		if r.cfg.external() { // broken off, unless a node reported the end of the attempt
			e, ok := r.index.find(m.ID)
			broken = !ok || e.State != StateWaiting
		}
	}
	settings, _, err := r.cfg.settings(m.Function)
	var o outcome
	switch {
	case err != nil:
		o.err = err
	case broken:
		m.Attempts--
		o.err = fmt.Errorf("the engine ended during attempt %d", m.Attempts)
	default:
		m.State = StateRunning
		r.index.change(m.Entry)
		o = r.attempt(m)
	}
	m.Status, m.Error = o.status, ""
	if o.err != nil {
		m.Error = oneLine(o.err.Error())
	}
	return r.settle(m, msg, key, &settings, o)
}

// foreign makes an event of a message that another client put into the queue.
func foreign(queue queueKey, msg jetstream.Msg, meta *jetstream.MsgMetadata) *message {
	id := meta.Stream + "/" + strconv.FormatUint(meta.Sequence.Stream, 10) + "/" + meta.Timestamp.String()
	m := &message{
		Entry: Entry{
			ID: eventID(queue.function, id), Function: queue.function, Tenant: queue.tenant, Priority: queue.priority, Source: "nats",
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

// resultOf returns the event's result, nil if no result can be found.
func (r *runner) resultOf(m *message) *message {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.live), r.cfg.Patience)
	defer cancel()
	result, err := r.streams.lastEnd(ctx, kindResults, m.Tenant, m.Function, m.ID)
	if err != nil {
		return nil
	}
	return result
}

// finish completes an event that has its result already: the node that wrote the result died before
// completing the event, or could not order the callback.
func (r *runner) finish(m *message, msg jetstream.Msg, key attemptKey, result *message) verdict {
	if m.callback != "" {
		result.seq = m.seq
		if err := r.senders.order(result); err != nil {
			r.cfg.Log.Error("events: callback not ordered", "id", m.ID, "function", m.Function, "error", err)
			m.Attempts--
			return r.later(m, key, retryStream)
		}
	}
	m.State, m.Status, m.Attempts, m.Error = result.State, result.Status, result.Attempts, result.Error
	r.leave(m, msg, key)
	return verdict{}
}

// attempt has the function handle the event. It waits while the engine has no room; a refusal for
// lack of room does not count as an attempt.
func (r *runner) attempt(m *message) outcome {
	wait := 10 * time.Millisecond
	for {
		o := r.invoke(m)
		busy := errors.Is(o.err, engine.ErrOverloaded) || errors.Is(o.err, engine.ErrEngineOverloaded) || errors.Is(o.err, engine.ErrDegraded)
		if !busy || !sleep(r.live, wait/2+rand.N(wait)) {
			return o
		}
		wait = min(2*wait, time.Second)
	}
}

func (r *runner) invoke(m *message) (o outcome) {
	request := m.request
	request.Headers = append(slices.Clip(request.Headers),
		[2]string{"X-Call-Id", m.ID}, [2]string{"X-Fre-Event-Attempt", strconv.Itoa(m.Attempts)}, [2]string{"X-Fre-Event-Source", m.Source})
	if m.file != "" {
		f, err := r.bodies.open(m.file)
		if err != nil {
			return outcome{err: fmt.Errorf("body of the event: %w", err)}
		}
		defer f.Close()
		request.Body, request.Length = f, m.Size
	} else if len(m.body) > 0 {
		request.Body, request.Length = bytes.NewReader(m.body), int64(len(m.body))
	}
	r.metrics.waited.Observe(time.Since(m.Accepted).Seconds())
	// The function's time limit, or the engine's end, ends the call.
	resp, err := r.cfg.Engine.Invoke(context.WithoutCancel(r.live), m.Function, &request)
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
	if err := r.answer(m, resp, &o); err != nil {
		return outcome{status: resp.Status, err: err}
	}
	return o
}

// answer reads the body of the function's answer into o.body or, if larger than inline, into a
// file.
func (r *runner) answer(m *message, resp *engine.Response, o *outcome) error {
	if resp.Bytes != nil {
		o.body, o.size = bytes.Clone(resp.Bytes), int64(len(resp.Bytes))
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, inline+1))
	switch {
	case err != nil:
	case len(body) <= inline:
		o.body, o.size = body, int64(len(body))
	case r.cfg.external():
		return refuse(ErrTooLarge, "the answer has more than %d bytes", inline)
	default:
		o.file = m.ID + ".result"
		o.size, err = r.bodies.keep(o.file, io.MultiReader(bytes.NewReader(body), resp.Body), r.cfg.MaxEvent)
	}
	if err != nil {
		return fmt.Errorf("answer of the function: %w", err)
	}
	return nil
}

// settle ends the attempt: with a result, another attempt later, or a dead letter. Only the last
// step removes the event from its queue.
func (r *runner) settle(m *message, msg jetstream.Msg, key attemptKey, settings *template.Events, o outcome) verdict {
	var unknown *engine.UnknownError
	gone := errors.As(o.err, &unknown)
	switch {
	case errors.Is(o.err, engine.ErrClosed): // a stop is not the event's fault, so the attempt does not count
		m.Attempts--
		return r.later(m, key, 0) // the next engine, or another node, runs the event
	case o.err == nil:
		m.State = StateDone
	case !gone && m.Attempts <= settings.Retries:
		r.metrics.attempts.WithLabelValues("retried").Inc()
		return r.later(m, key, max(backoff(settings.Backoff, m.Attempts), o.after))
	default:
		m.State = StateDead
		if err := r.writeDeadLetter(m); err != nil {
			r.cfg.Log.Error("events: dead letter not written", "id", m.ID, "function", m.Function, "error", err)
			return r.later(m, key, longestBackoff/10)
		}
	}
	if err := r.conclude(m, settings, o); err != nil {
		r.cfg.Log.Error("events: result not written", "id", m.ID, "function", m.Function, "error", err)
		return r.later(m, key, retryStream)
	}
	r.leave(m, msg, key)
	return verdict{}
}

// leave removes an ended event from its queue.
func (r *runner) leave(m *message, msg jetstream.Msg, key attemptKey) {
	if err := msg.Ack(); err != nil { // the event comes again, and resultOf finds the result
		r.cfg.Log.Debug("events: acknowledge", "id", m.ID, "error", err)
	}
	r.deliveries.end(key)
	if m.State == StateDone {
		r.bodies.remove(m.file)
	}
	r.metrics.attempts.WithLabelValues(string(m.State)).Inc()
	r.index.change(m.Entry)
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
func (r *runner) later(m *message, key attemptKey, after time.Duration) verdict {
	m.State = StateWaiting
	r.index.change(m.Entry)
	r.deliveries.wait(key, m.Attempts)
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
func (r *runner) writeDeadLetter(m *message) error {
	out, err := r.letterOf(*m)
	if err != nil {
		return err
	}
	_, _, err = r.streams.put(r.live, kindDead, m.Tenant, out)
	return err
}

// overhead exceeds the bytes that a commit adds to a message's header.
const overhead = 1 << 10

// letterOf encodes a dead letter. A message from another client may be too large for NATS once
// state and error are added. letterOf then drops the headers, or the body from the message.
func (r *runner) letterOf(m message) (*nats.Msg, error) {
	subject := kindDead.subject(m.Tenant, m.Function, m.ID)
	out, err := m.encode(subject)
	if err != nil {
		return nil, err
	}
	if headerSize(out) > maxHeader {
		m.request.Headers = nil
		m.Error = "the event's headers are too long and were not kept; " + m.Error
	}
	if headerSize(out)+len(m.body)+overhead > int(r.streams.nc.MaxPayload()) && len(m.body) > inline {
		r.bodies.moveToFile(&m)
	}
	return m.encode(subject)
}

// conclude keeps the result for as long as the template says, and orders the callback.
func (r *runner) conclude(m *message, settings *template.Events, o outcome) error {
	kept := settings.Results
	if kept == 0 && m.callback == "" {
		r.bodies.remove(o.file)
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
	if _, _, err = r.streams.put(r.live, kindResults, m.Tenant, out); err != nil {
		return err
	}
	if m.callback != "" {
		return r.senders.order(&result)
	}
	return nil
}
