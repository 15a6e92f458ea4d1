package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/internal/linux"
)

func subject(node, what string) string { return "fre.node." + node + "." + what }

const (
	// inline is the largest body of a forwarded request, in bytes. A request with a larger body,
	// or of unknown size, is not forwarded.
	inline = 512 << 10
	// askMost is how many peers are asked for one request.
	askMost = 3
	// acceptPatience is how long a live peer may take to accept or refuse a request. After
	// acceptPatience the event may run or not, and no further peer is asked.
	acceptPatience = 10 * time.Second
	// stalled is how long a node keeps an answer that the asking node does not read.
	stalled = time.Minute
	// takeMost bounds the requests of peers that run here at a time.
	takeMost = 4096
)

// Invoke runs an event here if there is room, else at a peer with room. If no peer has room, the
// event waits here, as without a cluster. Errors: those of engine.Invoke.
func (n *Node) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	function, _, _ := strings.Cut(name, "@")
	_, err := n.engine.Function(function)
	here := err == nil
	if here && n.engine.Room(function) > 0 && !n.isDraining() {
		resp, err := n.engine.Invoke(ctx, name, r)
		if err == nil || !busy(err) {
			return resp, err
		}
		if other, ok, forwardErr := n.forward(ctx, name, r); ok {
			return other, forwardErr
		}
		return nil, err
	}
	if !here {
		e := n.catalogue.find(function)
		if e == nil {
			return n.engine.Invoke(ctx, name, r) // returns the error for an unknown function
		}
		e.wake() // pull the image again after a failure
	}
	if resp, ok, err := n.forward(ctx, name, r); ok {
		return resp, err
	}
	if !here {
		return nil, fmt.Errorf("%w: the node is still pulling %s, and no other node has room", engine.ErrOverloaded, name)
	}
	return n.engine.Invoke(ctx, name, r)
}

// forward asks peers. ok is false if no peer runs the event; then r can be used again.
func (n *Node) forward(ctx context.Context, name string, r *engine.Request) (resp *engine.Response, ok bool, err error) {
	if r.Upgrade != "" || r.Body != nil && (r.Length < 0 || r.Length > inline) || n.partitioned() {
		return nil, false, nil
	}
	function, _, _ := strings.Cut(name, "@")
	nodes := n.candidates(function)
	if len(nodes) == 0 {
		return nil, false, nil
	}
	var body []byte
	if r.Body != nil {
		if body, err = io.ReadAll(io.LimitReader(r.Body, inline+1)); err != nil {
			return nil, true, err
		}
		r.Body, r.Length = again{bytes.NewReader(body), r.Body}, int64(len(body))
	}
	a := ask{Protocol: n.cfg.protocol, Function: name, Method: r.Method, Path: r.Path, Query: r.Query, Header: r.Headers, Body: r.Body != nil}
	for _, m := range nodes {
		resp, err := n.ask(ctx, m, a, body)
		switch {
		case errors.Is(err, errFull), err != nil && busy(err):
			continue
		case err != nil:
			n.metrics.forwarded.WithLabelValues("failed").Inc()
		default:
			n.metrics.forwarded.WithLabelValues("answered").Inc()
		}
		return resp, true, err
	}
	n.metrics.forwarded.WithLabelValues("refused").Inc()
	return nil, false, nil
}

// again is a body read into memory, for the next reader.
type again struct {
	io.Reader
	from io.Reader
}

// Close closes the original body if the body is an io.Closer.
func (a again) Close() error {
	if c, ok := a.from.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// candidates returns the peers to ask for a function, best first: peers with a free instance,
// then peers with the fewest events under way.
func (n *Node) candidates(function string) []*member {
	n.mu.Lock()
	var out []*member
	for name, m := range n.view {
		if name != n.cfg.Name && !m.gone && m.State == StateReady && linux.Boottime()-m.seen < n.cfg.TTL {
			c := *m
			out = append(out, &c)
		}
	}
	n.mu.Unlock()
	cold := func(m *member) int {
		if slices.Contains(m.Warm, function) {
			return 0
		}
		return 1
	}
	slices.SortFunc(out, func(a, b *member) int {
		return cmp.Or(cmp.Compare(cold(a), cold(b)), cmp.Compare(a.Busy, b.Busy), cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(askMost, len(out))]
}

// errFull: the peer has not run the event.
var errFull = errors.New("the node has no room")

// ask has one peer run an event, and returns errFull if the peer has not begun.
func (n *Node) ask(ctx context.Context, m *member, a ask, body []byte) (*engine.Response, error) {
	a.ID = rand.Text()
	f := &foreignBody{n: n, ctx: ctx, member: m, commands: subject(m.Name, "control."+a.ID), inbox: make(chan *nats.Msg, 4*window)}
	msg, err := encode(subject(m.Name, "invoke"), n.cfg.Conn.NewInbox(), a, body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFull, err) // too large for a message: the event may run here
	}
	if f.sub, err = n.cfg.Conn.ChanSubscribe(msg.Reply, f.inbox); err != nil {
		return nil, errFull
	}
	n.give(1)
	var resp *engine.Response
	if err = n.cfg.Conn.PublishMsg(msg); err != nil {
		err = errFull // the request was not sent
	} else {
		resp, err = f.head()
	}
	if err != nil {
		_ = f.Close() // never fails
	}
	return resp, err
}

// head waits for the answer's head, and returns errFull if the peer has not begun.
func (f *foreignBody) head() (*engine.Response, error) {
	patience := time.NewTimer(acceptPatience)
	defer patience.Stop()
	accepted := patience.C
	for {
		msg, err := f.next(accepted)
		if err != nil {
			return nil, err
		}
		if noSubscriber(msg) {
			return nil, errFull
		}
		var h reply
		if err := decodeHead(msg, &h); err != nil {
			return nil, fmt.Errorf("node %s: %w", f.member.Name, err)
		}
		switch h.Kind {
		case kindAccepted:
			accepted = nil
		case kindFull:
			f.over = true
			return nil, errFull
		case kindFailed:
			f.over = true
			return nil, h.Fault.err(f.member.Name)
		case kindHead:
			return f.response(&h, msg.Data), nil
		case kindChunk, kindEnd:
			return nil, fmt.Errorf("node %s answers without a head", f.member.Name)
		}
	}
}

// noSubscriber reports whether NATS itself answers, because no peer could.
func noSubscriber(msg *nats.Msg) bool { return len(msg.Data) == 0 && msg.Header.Get("Status") == "503" }

// foreignBody is the body of an answer from a peer.
type foreignBody struct {
	n        *Node
	ctx      context.Context
	member   *member
	commands string // subject
	sub      *nats.Subscription
	inbox    chan *nats.Msg
	rest     []byte // received but unread
	over     bool   // the peer has sent its last message
	err      error  // of the answer, once rest is read

	once sync.Once
}

// next waits for a message.
func (f *foreignBody) next(patience <-chan time.Time) (*nats.Msg, error) {
	select {
	case msg := <-f.inbox:
		return msg, nil
	default:
	}
	select {
	case msg := <-f.inbox:
		return msg, nil
	case <-f.ctx.Done():
		return nil, context.Cause(f.ctx)
	case <-patience:
		return nil, &engine.CrashError{Reason: "may have started on node " + f.member.Name + ", which does not answer"}
	case <-f.member.lost:
		return nil, &engine.CrashError{Reason: "was lost with node " + f.member.Name}
	case <-f.n.live.Done():
		return nil, engine.ErrClosed
	}
}

func (f *foreignBody) response(h *reply, body []byte) *engine.Response {
	resp := &engine.Response{
		ID: h.ID, Instance: h.Instance, Revision: h.Revision, Node: f.member.Name, Status: h.Status, Header: h.Header, Size: h.Size, Body: f, Cold: h.Cold,
	}
	f.rest = body
	if h.Whole {
		f.over, f.err = true, io.EOF
		resp.Size = int64(len(body))
		if body == nil {
			body = []byte{}
		}
		resp.Bytes = body
	} else {
		f.more()
	}
	return resp
}

func (f *foreignBody) more() { f.say(controlMore) }

func (f *foreignBody) say(what string) {
	_ = f.n.cfg.Conn.Publish(f.commands, []byte(what)) // fails with the connection
}

// Read reads the answer's body.
func (f *foreignBody) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		msg, err := f.next(nil)
		var h reply
		if err == nil {
			err = decodeHead(msg, &h)
		}
		switch {
		case err != nil:
			f.err = err
		case h.Kind == kindChunk:
			f.rest = msg.Data
			f.more()
		case h.Kind == kindEnd:
			f.over, f.err = true, io.EOF
		case h.Kind == kindFailed:
			f.over, f.err = true, h.Fault.err(f.member.Name)
		default:
			f.err = fmt.Errorf("node %s: %q in an answer", f.member.Name, h.Kind)
		}
	}
	k := copy(p, f.rest)
	f.rest = f.rest[k:]
	return k, nil
}

// Close ends the event unless the event has ended.
func (f *foreignBody) Close() error {
	f.once.Do(func() {
		_ = f.sub.Unsubscribe() // fails with the connection
		if !f.over {
			f.say(controlStop)
		}
		f.n.give(-1)
	})
	return nil
}

// give adds more to the count of requests at peers.
func (n *Node) give(more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.given += more
}
