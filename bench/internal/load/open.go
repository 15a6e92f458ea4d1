package load

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// open sends each request when the request is due, independently of the answers. vegeta's Attacker
// runs one worker per request in progress; the pacer sets the times.
func open(ctx context.Context, p *plan, rec *recorder, first *conn) {
	t := &transport{ctx: ctx, plan: p, idle: []*session{{plan: p, conn: first}}}
	defer t.close()
	pace := &pacer{ctx: ctx, began: rec.began, rate: p.Rate, hits: uint64(p.Rate * (p.WarmUp + p.Duration).Seconds())}
	attacker := vegeta.NewAttacker(
		vegeta.Client(&http.Client{Transport: t}),
		vegeta.MaxWorkers(uint64(p.Connections)),
	)
	defer attacker.Stop()
	defer context.AfterFunc(ctx, func() { attacker.Stop() })()
	target := vegeta.NewStaticTargeter(vegeta.Target{Method: p.Method, URL: p.URL})
	shard := rec.shard(0)
	for r := range attacker.Attack(target, pace, 0, "") {
		due := pace.due(r.Seq)
		switch {
		case r.Headers.Get(headerCanceled) != "":
			shard.unfinished(due, time.Now())
		case r.Code == 0:
			shard.add(outcome{due: due, sent: r.Timestamp, end: r.End(), err: errors.New(r.Error)})
		default:
			n, _ := strconv.ParseInt(r.Headers.Get(headerBytes), 10, 64)
			shard.add(outcome{due: due, sent: r.Timestamp, end: r.End(), answer: answer{status: int(r.Code), bytes: n}})
		}
	}
}

// pacer makes requests due at a constant rate, starting at began.
type pacer struct {
	ctx   context.Context // ends the run
	began time.Time
	rate  float64 // per second
	hits  uint64  // total
}

func (p *pacer) due(seq uint64) time.Time {
	return p.began.Add(time.Duration(float64(seq) / p.rate * float64(time.Second)))
}

// Pace waits for the next due time itself, because the Attacker's own wait cannot be interrupted.
func (p *pacer) Pace(_ time.Duration, hits uint64) (wait time.Duration, stop bool) {
	if hits >= p.hits {
		return 0, true
	}
	if d := time.Until(p.due(hits)); d > 0 {
		return 0, !pause(p.ctx, d)
	}
	return 0, p.ctx.Err() != nil
}

// Rate returns the configured rate.
func (p *pacer) Rate(time.Duration) float64 { return p.rate }

// transport runs the Attacker's requests on connections of this package. It always sends the plan's
// request.
type transport struct {
	ctx  context.Context // the run's context, because vegeta's requests carry no context
	plan *plan

	mu   sync.Mutex
	idle []*session // the most recently used last
}

// Headers that pass results from the transport to open, because vegeta.Result has no field for
// them.
const (
	headerBytes    = "Fre-Bytes"
	headerCanceled = "Fre-Canceled"
)

// RoundTrip drains the answer. A failure becomes an answer with status 0 and the error's text as
// the reason phrase. vegeta records the reason phrase unchanged, without the URL in front.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.take()
	a, err := c.call(t.ctx)
	t.put(c)
	resp := &http.Response{
		StatusCode: a.status, Status: strconv.Itoa(a.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}
	switch {
	case err == nil:
		resp.Header.Set(headerBytes, strconv.FormatInt(a.bytes, 10))
	case t.ctx.Err() != nil:
		resp.StatusCode = 0
		resp.Header.Set(headerCanceled, "true")
	default:
		resp.StatusCode, resp.Status = 0, err.Error()
	}
	return resp, nil
}

// take returns the most recently used session. At a low rate the surplus sessions then stay idle.
func (t *transport) take() *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.idle); n > 0 {
		c := t.idle[n-1]
		t.idle = t.idle[:n-1]
		return c
	}
	return &session{plan: t.plan}
}

func (t *transport) put(c *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = append(t.idle, c)
}

func (t *transport) close() {
	for _, c := range t.idle { // all sessions are idle, because no request is in progress
		c.close()
	}
}
