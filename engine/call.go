package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
)

const (
	// mostDepth is how many functions may wait for each other's answers, one inside the other.
	mostDepth = 16
	// mostCallsBeneath is how many calls may follow from one event, whoever makes them.
	mostCallsBeneath = 4096
)

// LoopError refuses a call that would go on without end, or wait for itself.
type LoopError struct {
	Chain string // the functions that wait, "a → b → a"
	Why   string
}

func (e *LoopError) Error() string { return e.Chain + ": " + e.Why }

// CallError is why a function's call has no answer. Code is its [ErrorCode], else "loop",
// "forbidden", "bad_call", "cancelled" or "internal".
type CallError struct {
	Code  string
	Chain string // the functions that wait, "a → b"
	Err   error
}

func (e *CallError) Error() string {
	var loop *LoopError
	if errors.As(e.Err, &loop) { // has it in there
		return loop.Error()
	}
	if inner := (*CallError)(nil); errors.As(e.Err, &inner) { // of a pipeline, which begins so
		return inner.Error()
	}
	if step := (*StepError)(nil); errors.As(e.Err, &step) { // likewise
		return step.Error()
	}
	return e.Chain + ": " + e.Err.Error()
}

func (e *CallError) Unwrap() error { return e.Err }

// CallRecord is a call that is over, as [Config].Called is told of it.
type CallRecord struct {
	At           time.Time
	Took         time.Duration // until the caller had the answer's head, or the error
	RequestID    string        // of the HTTP request that all began with, if there was one
	From         string        // the function that called
	Function     string        // as the caller names it
	Method, Path string
	Status       int // 0 where there is an error
	Invocation   string
	Cold         bool
	Bytes        int64  // of the answer's body, -1 if that was still coming
	Error        string // a CallError's code

	qualified string // Function's, "" where there is none
}

// lineage is how an event came about: the event whose function called, the one before, and
// so on.
type lineage struct {
	from   *lineage // nil: it came from outside
	before *event   // whose answer, which may still be coming, it is called with; nil for none
	f      *function

	once  sync.Once     // begin
	root  *lineage      // of the event from outside
	place chan struct{} // has room for the one called event that runs in the caller's place
	depth int           // of called events

	mu   sync.Mutex
	made int // calls beneath; of the event from outside
}

// caller is what a called event's context says of who calls; the key is callerKey.
type caller struct {
	*lineage
	before *event // as of lineage
}

type callerKey struct{}

// begin makes ready for a first call.
func (l *lineage) begin() {
	l.once.Do(func() {
		l.place, l.root = make(chan struct{}, 1), l
		if l.from != nil {
			l.root, l.depth = l.from.root, l.from.depth+1
		}
	})
}

// chain names the functions, the first caller first, and to, whom they wait for.
func (l *lineage) chain(to string) string {
	names := []string{to}
	for ; l != nil; l = l.from {
		names = append(names, l.f.plain)
	}
	slices.Reverse(names)
	return strings.Join(names, " → ")
}

// count counts a call beneath the event from outside, whose lineage it is.
func (l *lineage) count() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	return l.made <= mostCallsBeneath
}

// reachable says whether a call may wait for an instance of the function's: where all that
// there can be are taken by events that wait for its answer, or give one that it is to take, none
// will become free. Where some are so, it may wait for a new one alone: who has the others may
// wait for it.
func (f *function) reachable(from caller) (patience, error) {
	coming := f.upstream(from)
	taken := coming
	for l := from.lineage; l != nil; l = l.from {
		if l.f == f {
			taken++
		}
	}
	room := f.config.Instances.Max
	if !f.fresh() {
		room *= f.config.Instances.Concurrency
	}
	switch {
	case taken > 0 && taken >= room:
		return anyInstance, &LoopError{from.chain(f.plain), fmt.Sprintf("%s takes %d events at once, and all of them wait for this one (instances.max, instances.concurrency)", f.plain, room)}
	case coming > 0:
		return newInstance, nil
	}
	return anyInstance, nil
}

// upstream counts the function's events that have an instance until whoever is called takes
// their answers. What a pipeline is called with, each of its steps waits for.
func (f *function) upstream(from caller) int {
	if f.isPipeline() { // it has no instances
		return 0
	}
	n := from.before.coming(f)
	for l := from.lineage; l != nil && l.f.isPipeline(); l = l.from {
		n += l.before.coming(f)
	}
	return n
}

// coming counts the events of f that have an instance still, of this one, those whose answers
// it was called with, and, of pipelines, their steps.
func (ev *event) coming(f *function) (n int) {
	for ; ev != nil; ev = ev.calls.before {
		if ev.f == f && (ev.placed.Load() || ev.borrowed.Load()) { // they go together
			n++
		}
		n += ev.last.coming(f)
	}
	return n
}

// errBorrowed ends waiting for a place of one's own.
var errBorrowed = errors.New("runs in its caller's place")

// enterCalled is enter for an event that was called. One at a time runs in the place of the
// event that called it, which does little but wait: else events that have all places and call
// others would wait for each other. Those beside it take places of their own, unless the
// caller's becomes free before. One that is called with another's answer does not wait: what
// it would wait for may wait for it, to take that answer.
func (ev *event) enterCalled() error {
	from := ev.calls.from
	select {
	case from.place <- struct{}{}:
		ev.borrowed.Store(true)
		return nil
	default:
	}
	if ev.calls.before != nil {
		return ev.entered(ev.f.e.places.beside(ev.f))
	}
	ctx, cancel := context.WithCancelCause(&ev.ctx)
	borrowed := make(chan bool, 1)
	go func() {
		select {
		case from.place <- struct{}{}:
			cancel(errBorrowed)
			borrowed <- true
		case <-ctx.Done():
			borrowed <- false
		}
	}()
	err := ev.enterPlace(ctx)
	cancel(nil)
	if <-borrowed {
		ev.leave(0)
		ev.borrowed.Store(true)
		return nil
	}
	return err
}

// Call is part of channel.Caller: the function that handles this event calls another one of
// its tenant, or itself.
func (ev *event) Call(ctx context.Context, c *channel.Called) (*channel.Answer, error) {
	resp, _, err := ev.recorded(ctx, c)
	if err != nil {
		code, message := callCode(err), err.Error()
		if code == "internal" { // the engine's own trouble is for its operator
			ev.f.e.log.ErrorContext(ctx, "call", "function", c.Function, "from", ev.f.name, "error", err)
			message = "the function could not be run; the engine's log says why"
		}
		return nil, &channel.Failure{Type: code, Message: message}
	}
	return &channel.Answer{Status: resp.Status, Headers: resp.Header, Body: resp.Body, Length: resp.Size}, nil
}

// recorded is call, of which metrics and logs are told. Its errors are *CallError.
func (ev *event) recorded(ctx context.Context, c *channel.Called) (resp *Response, step int, err error) {
	e, from := ev.f.e, ev.f
	named := c.Function[:min(len(c.Function), 255)]
	rec := &CallRecord{At: time.Now(), From: from.name, Function: named, Method: c.Method, Path: c.Path[:min(len(c.Path), 4<<10)], RequestID: field(ev.header, "X-Request-Id")}
	resp, step, err = ev.call(ctx, c, rec)
	rec.Took = time.Since(rec.At)
	how := "ok"
	if err != nil {
		code := callCode(err)
		rec.Error, how, rec.Invocation = code, code, Failed(err).ID
		err = &CallError{Code: code, Chain: ev.calls.chain(named), Err: err}
	} else {
		rec.Status, rec.Invocation, rec.Cold, rec.Bytes = resp.Status, resp.ID, resp.Cold, resp.Size
	}
	e.metrics.calls.WithLabelValues(rec.qualified, from.name, how).Inc()
	if e.cfg.Called != nil {
		e.cfg.Called(rec)
	}
	return resp, step, err
}

// errForbidden: a function names one of another tenant's.
var errForbidden = errors.New("a function calls those of its own tenant alone")

// errBadName: a function names what can be none.
var errBadName = errors.New("not the name of a function, NAME or NAME@REVISION")

// mostSteps is how many functions a call may name, one behind the other.
const mostSteps = image.MaxSteps

// call has one function handle the event or, where NAME|NAME names several, each the answer of
// the one before, as it comes: the first that does not succeed has the last word. step is the
// one that failed: those before have run.
func (ev *event) call(ctx context.Context, c *channel.Called, rec *CallRecord) (resp *Response, step int, err error) {
	steps := strings.SplitN(c.Function, "|", mostSteps+1)
	if len(steps) > mostSteps {
		return nil, 0, errBadName
	}
	targets := make([]string, len(steps))
	for i, step := range steps { // all of them, before any is run
		if targets[i], err = ev.target(step, rec); err != nil {
			return nil, 0, err
		}
	}
	r := &Request{Method: c.Method, Path: c.Path, Query: c.Query, Header: ev.calledHeader(steps[0], c.Headers), Body: c.Body, Size: c.Length}
	ev.calls.begin()
	var last *event // the step before
	for i, target := range targets {
		at := ctx
		var body *stepBody
		if i < len(targets)-1 {
			body = &stepBody{}
			at, body.cancel = context.WithCancelCause(ctx)
		}
		before := r.Body
		resp, err = ev.step(at, target, r, last)
		if err != nil {
			if b, ok := before.(io.Closer); ok {
				_ = b.Close() // where nobody has taken it
			}
			if body != nil {
				body.cancel(err)
			}
			if len(steps) > 1 {
				err = fmt.Errorf("step %d, %s: %w", i+1, steps[i], err)
			}
			return nil, i, err
		}
		if body == nil {
			break
		}
		if resp.Status < 200 || resp.Status > 299 {
			break // body.cancel is for ctx, which ends with the call
		}
		body.from, last = resp.Body, eventOf(resp)
		r = &Request{Method: c.Method, Path: c.Path, Query: c.Query, Header: ev.calledHeader(steps[i+1], ofBody(resp.Header)), Body: body, Size: resp.Size}
	}
	return resp, 0, nil
}

// stepBody is an answer that is another function's request. Close ends a Read under way, and
// the event whose answer it is.
type stepBody struct {
	cancel context.CancelCauseFunc // of that event

	mu   sync.Mutex
	from io.ReadCloser
	err  error // of all Reads to come
}

func (b *stepBody) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	n, err = b.from.Read(p)
	if err != nil {
		b.endLocked(err)
	}
	return n, err
}

// Close may come while a Read is under way, which cancel ends.
func (b *stepBody) Close() error {
	if !b.mu.TryLock() {
		b.cancel(errAbandoned)
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	if b.err == nil {
		b.endLocked(errAbandoned)
	}
	return nil
}

func (b *stepBody) endLocked(err error) {
	b.err = err
	_ = b.from.Close() // its news is in err
	b.cancel(errAbandoned)
}

// target is the qualified name, with its revision, of what a caller names.
func (ev *event) target(named string, rec *CallRecord) (string, error) {
	tenant := ev.f.config.Tenant
	name, revision, asked := strings.Cut(named, "@")
	plain, other, err := image.SplitName(name)
	if err != nil || asked && revision == "" {
		return "", errBadName
	}
	if plain != name && other != tenant {
		return "", errForbidden
	}
	name = image.QualifiedName(plain, tenant)
	if _, err := ev.f.e.find(name); err != nil {
		return "", err
	}
	if rec.qualified == "" {
		rec.qualified = name
	}
	if asked {
		name += "@" + revision
	}
	return name, nil
}

// eventOf is whose answer it is.
func eventOf(resp *Response) *event { return resp.Body.(*replyBody).ev }

// step is one event of a call. before, unless nil, is the one whose answer it takes.
func (ev *event) step(ctx context.Context, target string, r *Request, before *event) (*Response, error) {
	l := &ev.calls
	plain, _, _ := strings.Cut(target, ".")
	switch {
	case l.depth+1 >= mostDepth:
		return nil, &LoopError{l.chain(plain), fmt.Sprintf("%d functions wait for each other, no more may", mostDepth)}
	case !l.root.count():
		return nil, &LoopError{l.chain(plain), fmt.Sprintf("%d calls have followed from one event, no more may", mostCallsBeneath)}
	}
	if guard := ev.f.e.cfg.Calls; guard != nil {
		if err := guard(ev.f.config.Tenant); err != nil {
			return nil, &guardError{err}
		}
	}
	return ev.f.e.Invoke(context.WithValue(ctx, callerKey{}, caller{l, before}), target, r)
}

// guardError is Config.Calls' refusal.
type guardError struct{ error }

func (e *guardError) Unwrap() error { return e.error }

// notPassed are fields of requests that are one connection's, or that the engine says itself.
var notPassed = map[string]bool{
	"Connection": true, "Content-Length": true, "Expect": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// traces are fields that the called event has from its caller's, unless the call says others.
var traces = []string{"X-Request-Id", "Traceparent", "Tracestate"}

// calledHeader is what the called function is told.
func (ev *event) calledHeader(function string, fields [][2]string) [][2]string {
	header := make([][2]string, 0, len(fields)+4)
	for _, h := range fields {
		if name := textproto.CanonicalMIMEHeaderKey(h[0]); !notPassed[name] {
			header = append(header, [2]string{name, h[1]})
		}
	}
	if field(header, "Host") == "" {
		name, _, _ := strings.Cut(function, "@")
		header = slices.Insert(header, 0, [2]string{"Host", name})
	}
	for _, name := range traces {
		if value := field(ev.header, name); value != "" && field(header, name) == "" {
			header = append(header, [2]string{name, value})
		}
	}
	return header
}

// ofBody are the fields of an answer that say what its body is.
func ofBody(fields [][2]string) [][2]string {
	return slices.DeleteFunc(slices.Clone(fields), func(h [2]string) bool {
		return !strings.HasPrefix(textproto.CanonicalMIMEHeaderKey(h[0]), "Content-")
	})
}

// field is the value of the first field of that canonical name, "" without one.
func field(header [][2]string, name string) string {
	for _, h := range header {
		if h[0] == name {
			return h[1]
		}
	}
	return ""
}

// callCode says in a word why a call has no answer.
func callCode(err error) string {
	var guard *guardError
	switch {
	case errors.Is(err, errForbidden):
		return "forbidden"
	case errors.Is(err, errBadName):
		return "bad_call"
	case errors.As(err, &guard):
		return "quota"
	}
	if code := ErrorCode(err); code != "" {
		return code
	}
	var failure *channel.Failure // of the call itself: its caller gave it up
	if errors.As(err, &failure) {
		return failure.Type
	}
	if errors.Is(err, context.Canceled) {
		return "cancelled"
	}
	return "internal"
}

// ErrorCode says in a word, to whoever sent it, why an event has no answer; "" where that is
// the engine's own trouble, or the sender's.
func ErrorCode(err error) string {
	var (
		quota    *QuotaError
		function *FunctionError
		crash    *CrashError
		unknown  *UnknownError
		step     *StepError
		loop     *LoopError
	)
	switch {
	case errors.As(err, &step):
		return step.Code
	case errors.As(err, &loop):
		return "loop"
	case errors.As(err, &quota):
		return "quota"
	case errors.As(err, &function):
		return "function_error"
	case errors.As(err, &crash):
		return "function_crashed"
	case errors.Is(err, ErrTimeout):
		return "timeout"
	case errors.Is(err, ErrSlowBody):
		return "slow_body"
	case errors.Is(err, ErrEventTooLarge):
		return "header_too_large"
	case errors.Is(err, ErrOverloaded):
		return "overloaded"
	case errors.Is(err, ErrEngineOverloaded):
		return "engine_overloaded"
	case errors.Is(err, ErrDegraded):
		return "degraded"
	case errors.Is(err, ErrClosed):
		return "stopping"
	case errors.As(err, &unknown):
		return "not_found"
	case errors.Is(err, ErrImageGone):
		return "image_gone"
	}
	return ""
}
