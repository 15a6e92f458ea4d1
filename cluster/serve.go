package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fre-engine/fre/engine"
)

// job is a request of a peer that runs here.
type job struct {
	n    *Node
	to   string // subject of the answer
	stop context.CancelCauseFunc
	more chan struct{}
}

// errStopped: the client of the asking node has left.
var errStopped = fmt.Errorf("the asking node stopped the request: %w", context.Canceled)

// control handles a later message of the asking node.
func (n *Node) control(msg *nats.Msg) {
	id := msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:]
	v, ok := n.jobs.Load(id)
	if !ok {
		return
	}
	j := v.(*job)
	switch string(msg.Data) {
	case controlMore:
		select {
		case j.more <- struct{}{}:
		default: // more than one per message sent
		}
	case controlStop:
		j.stop(errStopped)
	}
}

// take handles a request of a peer.
func (n *Node) take(msg *nats.Msg) {
	var a ask
	j := &job{n: n, to: msg.Reply}
	err := decodeHead(msg, &a)
	function, _, _ := strings.Cut(a.Function, "@")
	switch {
	case msg.Reply == "":
		return
	case err != nil || a.ID == "" || strings.ContainsAny(a.ID, ".*> ") || a.Protocol < n.cfg.protocol-1 || a.Protocol > n.cfg.protocol+1:
		j.answer(reply{Kind: kindFailed, Fault: &fault{Kind: "other", Message: fmt.Sprintf("the request is not understood (protocol %d)", a.Protocol)}}, nil)
		return
	case n.partitioned(), n.isDraining(), n.engine.Stopping(), n.engine.Room(function) <= 0, !n.borrow():
		j.answer(reply{Kind: kindFull}, nil)
		return
	}
	ctx, stop := context.WithCancelCause(n.live)
	j.stop, j.more = stop, make(chan struct{}, window)
	n.jobs.Store(a.ID, j)
	n.tasks.Go(func() {
		defer stop(nil)
		defer n.giveBack()
		defer n.jobs.Delete(a.ID)
		j.answer(reply{Kind: kindAccepted}, nil)
		j.run(ctx, &a, msg.Data)
	})
}

func (n *Node) borrow() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.foreign >= takeMost || n.closing {
		return false
	}
	n.foreign++
	n.metrics.taken.Inc()
	return true
}

func (n *Node) giveBack() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.foreign--
}

// answer sends a message of an answer. If the message cannot be encoded, answer sends a fault
// instead and returns false: the answer has ended.
func (j *job) answer(r reply, body []byte) bool {
	msg, encoded := encode(j.to, "", r, body)
	err := encoded
	if encoded != nil { // the event has run: no peer may run it again
		failed := reply{Kind: kindFailed, Fault: &fault{Kind: "function", Type: "AnswerTooLarge", Message: encoded.Error()}}
		msg, err = encode(j.to, "", failed, nil)
	}
	if err == nil {
		err = j.n.cfg.Conn.PublishMsg(msg)
	}
	if err != nil {
		j.n.cfg.Log.Debug("cluster: answer another node", "error", err)
	}
	return encoded == nil
}

// run runs the request and sends the answer.
func (j *job) run(ctx context.Context, a *ask, body []byte) {
	r := &engine.Request{Method: a.Method, Path: a.Path, Query: a.Query, Headers: a.Header}
	if a.Body {
		r.Body, r.Length = bytes.NewReader(body), int64(len(body))
	}
	resp, err := j.n.engine.Invoke(ctx, a.Function, r)
	if err != nil {
		j.answer(reply{Kind: kindFailed, Fault: faultOf(err)}, nil)
		return
	}
	defer resp.Body.Close() //nolint:errcheck // what there was to say is said
	head := reply{Kind: kindHead, ID: resp.ID, Instance: resp.Instance, Revision: resp.Revision, Status: resp.Status, Header: resp.Header, Size: resp.Size, Cold: resp.Cold}
	if resp.Bytes != nil && len(resp.Bytes) <= chunkSize {
		head.Whole = true
		j.answer(head, resp.Bytes)
		return
	}
	if !j.answer(head, nil) {
		return
	}
	buf := make([]byte, chunkSize)
	for sent := 1; ; { // the asking node answers the head by more, too
		k, err := resp.Body.Read(buf)
		if k > 0 {
			if !j.room(ctx, &sent) {
				return
			}
			j.answer(reply{Kind: kindChunk}, buf[:k])
		}
		switch {
		case errors.Is(err, io.EOF):
			j.answer(reply{Kind: kindEnd}, nil)
			return
		case err != nil:
			j.answer(reply{Kind: kindFailed, Fault: faultOf(err)}, nil)
			return
		}
	}
}

// room waits until window allows another message, and counts the message. It returns false if the
// asking node does not read for stalled, or ctx ends.
func (j *job) room(ctx context.Context, sent *int) bool {
	until := time.Now().Add(stalled)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for *sent >= window {
		select {
		case <-j.more:
			*sent--
		case now := <-look.C:
			if now.After(until) || j.n.cfg.Conn.IsClosed() {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
	*sent++
	return true
}
