package engine

import (
	"context"
	"fmt"
	"io"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/template"
)

const (
	// mostDepth limits the length of a chain of waiting calls.
	mostDepth = 16
	// mostCallsBeneath limits the calls that follow from one event, at all depths together.
	mostCallsBeneath = 4096
)

// caller is the value of callerKey in the context of a called event.
type caller struct {
	*lineage
	before *event // as in lineage
}

type callerKey struct{}

// begin sets root, slot and depth before the first call.
func (l *lineage) begin() {
	l.once.Do(func() {
		l.slot, l.root = make(chan struct{}, 1), l
		if l.from != nil {
			l.root, l.depth = l.from.root, l.from.depth+1
		}
	})
}

// chain returns the names of the functions from the first caller to the function to.
func (l *lineage) chain(to string) string {
	names := []string{to}
	for ; l != nil; l = l.from {
		names = append(names, l.f.plain)
	}
	slices.Reverse(names)
	return strings.Join(names, " → ")
}

// count counts a call in root and reports whether the limit allows the call.
func (l *lineage) count() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	return l.made <= mostCallsBeneath
}

// reachable decides how a call may wait for an instance of f. Events that wait for this call's
// answer, and events whose answers this call still reads, keep their instances until the call
// ends. If such events take all possible instances, none will become free: a *LoopError. If an
// event whose answer the call reads has one, the call may wait only for a new instance: the
// holders of the other instances may wait for that event too.
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
		return anyInstance, &LoopError{from.chain(f.plain), fmt.Sprintf("deadlock: %s may run %d events at once, and all wait for this call: raise instances.max or instances.concurrency", f.plain, room)}
	case coming > 0:
		return newInstance, nil
	}
	return anyInstance, nil
}

// upstream counts f's events that keep an instance until the called event has read the answers.
// Each step of a pipeline also waits for the pipeline's own body.
func (f *function) upstream(from caller) int {
	if f.isPipeline() { // no instances
		return 0
	}
	n := from.before.coming(f)
	for l := from.lineage; l != nil && l.f.isPipeline(); l = l.from {
		n += l.before.coming(f)
	}
	return n
}

// coming counts the events of f that still hold an instance, among ev, the steps before ev, and
// the last step of each pipeline among them.
func (ev *event) coming(f *function) (n int) {
	for ; ev != nil; ev = ev.calls.before {
		if ev.f == f && (ev.hasSlot.Load() || ev.borrowed.Load()) { // an event gives back slot and instance together
			n++
		}
		n += ev.last.coming(f)
	}
	return n
}

// Call implements channel.Caller: the function of this event calls a function of its tenant,
// maybe itself.
func (ev *event) Call(ctx context.Context, c *channel.Called) (*channel.Answer, error) {
	resp, _, err := ev.recorded(ctx, c)
	if err != nil {
		code, message := callCode(err), err.Error()
		if code == failure.Internal { // details are for the operator only
			ev.f.host.log.ErrorContext(ctx, "call", "function", c.Function, "from", ev.f.name, "error", err)
			message = "the function could not be run; the engine's log says why"
		}
		return nil, &channel.Failure{Type: string(code), Message: message}
	}
	return &channel.Answer{Status: resp.Status, Headers: resp.Header, Body: resp.Body, Length: resp.Size}, nil
}

// recorded is call, reported to metrics and Config.Called. Its errors are *CallError.
func (ev *event) recorded(ctx context.Context, c *channel.Called) (resp *Response, step int, err error) {
	host, from := ev.f.host, ev.f
	named := c.Function[:min(len(c.Function), 255)]
	rec := &CallRecord{At: time.Now(), From: from.name, Function: named, Method: c.Method, Path: c.Path[:min(len(c.Path), 4<<10)], RequestID: field(ev.header, "X-Request-Id")}
	resp, step, err = ev.call(ctx, c, rec)
	rec.Took = time.Since(rec.At)
	how := "ok"
	if err != nil {
		how = string(callCode(err))
		rec.Error, rec.Invocation = how, Failed(err).ID
		err = &CallError{Chain: ev.calls.chain(named), Err: err}
	} else {
		rec.Status, rec.Invocation, rec.Cold, rec.Bytes = resp.Status, resp.ID, resp.Cold, resp.Size
	}
	host.metrics.calls.WithLabelValues(rec.qualified, from.name, how).Inc()
	if host.cfg.Called != nil {
		host.cfg.Called(rec)
	}
	return resp, step, err
}

// errForbidden refuses a call of another tenant's function.
var errForbidden = failure.New(failure.Forbidden, "a function may call functions of the same tenant only", "")

// errBadName refuses a malformed name of a function.
var errBadName = failure.New(failure.BadCall, "not a function's name: write NAME or NAME@REVISION", "")

// mostSteps limits the functions in one call, NAME|NAME|….
const mostSteps = template.MaxSteps

// call has one function handle the event or, for NAME|NAME, each function in turn. Each step
// reads the answer of the step before as the answer arrives. The first answer with a status
// other than 2xx is the result. After an error step is the index of the failed step: all steps
// before have run.
func (ev *event) call(ctx context.Context, c *channel.Called, rec *CallRecord) (resp *Response, step int, err error) {
	steps := strings.SplitN(c.Function, "|", mostSteps+1)
	if len(steps) > mostSteps {
		return nil, 0, errBadName
	}
	targets := make([]string, len(steps))
	for i, step := range steps { // check all names before any step runs
		if targets[i], err = ev.target(step, rec); err != nil {
			return nil, 0, err
		}
	}
	first := c.Request
	first.Headers, first.Socket = ev.calledHeader(steps[0], c.Headers), false
	r := &first
	ev.calls.begin()
	var last *event // the event of the step before
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
				_ = b.Close() // in case no function has read it
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
			break // ctx ends with the call and releases body.cancel
		}
		body.from, last = resp.Body, eventOf(resp)
		next := first
		next.Headers, next.Body, next.Length = ev.calledHeader(steps[i+1], ofBody(resp.Header)), body, resp.Size
		r = &next
	}
	return resp, 0, nil
}

// stepBody is an answer used as the next step's request. Close ends a Read under way and the
// event of the answer.
type stepBody struct {
	cancel context.CancelCauseFunc // of the event of the answer

	mu   sync.Mutex
	from io.ReadCloser
	err  error // result of all further Reads
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

// Close may be called during a Read. cancel then ends the Read.
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
	_ = b.from.Close() // err has the cause
	b.cancel(errAbandoned)
}

// target returns the qualified name, with the revision, of the function that a caller names.
func (ev *event) target(named string, rec *CallRecord) (string, error) {
	tenant := ev.f.config.Tenant
	name, revision, asked := strings.Cut(named, "@")
	plain, other, err := template.SplitName(name)
	if err != nil || asked && revision == "" {
		return "", errBadName
	}
	if plain != name && other != tenant {
		return "", errForbidden
	}
	name = template.QualifiedName(plain, tenant)
	if _, err := ev.engine.find(name); err != nil {
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

// eventOf returns the event of an answer.
func eventOf(resp *Response) *event { return resp.Body.(*replyBody).ev }

// step runs one event of a call. before is the event whose answer is r's body, or nil.
func (ev *event) step(ctx context.Context, target string, r *Request, before *event) (*Response, error) {
	l := &ev.calls
	plain, _, _ := strings.Cut(target, ".")
	switch {
	case l.depth+1 >= mostDepth:
		return nil, &LoopError{l.chain(plain), fmt.Sprintf("at most %d functions may wait for each other", mostDepth)}
	case !l.root.count():
		return nil, &LoopError{l.chain(plain), fmt.Sprintf("at most %d calls may follow from one event", mostCallsBeneath)}
	}
	if guard := ev.f.host.cfg.Calls; guard != nil {
		if err := guard(ev.f.config.Tenant); err != nil {
			return nil, &guardError{err}
		}
	}
	return ev.engine.Invoke(context.WithValue(ctx, callerKey{}, caller{l, before}), target, r)
}

// guardError is a refusal by Config.Calls.
type guardError struct{ error }

func (e *guardError) Unwrap() error { return e.error }

// Code returns [failure.Quota].
func (e *guardError) Code() failure.Code { return failure.Quota }

// notPassed are header fields that belong to one connection or that the engine sets itself.
var notPassed = map[string]bool{
	"Connection": true, "Content-Length": true, "Expect": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// traces are header fields copied from the caller's event unless the call sets them.
var traces = []string{"X-Request-Id", "Traceparent", "Tracestate"}

// calledHeader returns the header of the called event.
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

// ofBody returns the fields of an answer that describe its body.
func ofBody(fields [][2]string) [][2]string {
	return slices.DeleteFunc(slices.Clone(fields), func(h [2]string) bool {
		return !strings.HasPrefix(textproto.CanonicalMIMEHeaderKey(h[0]), "Content-")
	})
}

// field returns the value of the first field with this canonical name, or "".
func field(header [][2]string, name string) string {
	for _, h := range header {
		if h[0] == name {
			return h[1]
		}
	}
	return ""
}
