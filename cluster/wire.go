package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
)

// A forwarded request is one message, so the body is still whole for the next node to ask. An
// answer is as many messages as needed:
//
//	asking                                     running
//	  ── fre.node.NAME.invoke: ask, body ──►
//	  ◄── full │ accepted ──
//	  ◄── head, bytes ── … chunk, bytes ── end │ failed, fault
//	  ── fre.node.NAME.control.ID: more ──►    for each message with bytes, once read
//	  ── stop ──►                              at any time
//
// At most window messages with bytes are in flight. The guard of the asking node has checked the
// request. The running node never forwards the request again.
const (
	headWhat = "Fre-What" // JSON: an ask or a reply

	window    = 16
	chunkSize = 128 << 10

	// headRoom bounds a message without its body, in bytes: the largest head to or from a
	// function (channel.MaxMeta), as JSON. NATS allows 1 MiB; the largest body takes half.
	headRoom = 384 << 10
)

// ask is the head of a request.
type ask struct {
	Protocol int
	ID       string
	Function string
	Method   string
	Path     string      `json:",omitempty"`
	Query    string      `json:",omitempty"`
	Header   [][2]string `json:",omitempty"`
	Body     bool        `json:",omitempty"` // a body follows
}

// kind is the type of a reply.
type kind string

const (
	kindFull     kind = "full" // no event was run
	kindAccepted kind = "accepted"
	kindHead     kind = "head"
	kindChunk    kind = "chunk"
	kindEnd      kind = "end"
	kindFailed   kind = "failed"
)

// reply is one message of an answer.
type reply struct {
	Kind kind

	// Of a head.
	ID, Instance, Revision string      `json:",omitempty"`
	Status                 int         `json:",omitempty"`
	Header                 [][2]string `json:",omitempty"`
	Size                   int64       `json:",omitempty"`
	Cold                   bool        `json:",omitempty"`
	Whole                  bool        `json:",omitempty"` // the message has the whole body and ends the answer

	Fault *fault `json:",omitempty"` // of a failed reply
}

// Messages of the asking node after the request.
const (
	controlMore = "more"
	controlStop = "stop"
)

func encode(to, replyTo string, head any, body []byte) (*nats.Msg, error) {
	var raw bytes.Buffer
	e := json.NewEncoder(&raw)
	e.SetEscapeHTML(false) // an escape takes six bytes for one
	if err := e.Encode(head); err != nil {
		return nil, err
	}
	raw.Truncate(raw.Len() - 1) // a NATS header has no end of line
	if raw.Len() > headRoom {
		return nil, fmt.Errorf("the head takes %d bytes, the limit between nodes is %d", raw.Len(), headRoom)
	}
	return &nats.Msg{Subject: to, Reply: replyTo, Header: nats.Header{headWhat: []string{raw.String()}}, Data: body}, nil
}

// decodeHead decodes a head of encode.
func decodeHead(m *nats.Msg, head any) error {
	raw := m.Header.Get(headWhat)
	if raw == "" {
		return errors.New("a message without " + headWhat)
	}
	return json.Unmarshal([]byte(raw), head)
}

// fault is an engine error on its way to a peer.
type fault struct {
	Kind    string
	Message string `json:",omitempty"`
	Type    string `json:",omitempty"`
	Tenant  string `json:",omitempty"`
	Limit   int64  `json:",omitempty"`

	ID       string `json:",omitempty"` // of the invocation
	Instance string `json:",omitempty"`
}

// faults are the errors identified by their kind alone.
var faults = map[string]error{
	"timeout": engine.ErrTimeout, "overloaded": engine.ErrOverloaded, "engine_overloaded": engine.ErrEngineOverloaded, "degraded": engine.ErrDegraded,
	"closed": engine.ErrClosed, "too_large": engine.ErrEventTooLarge, "image_gone": engine.ErrImageGone,
}

func faultOf(err error) *fault {
	f, failed := kindOf(err), engine.Failed(err)
	f.ID, f.Instance = failed.ID, failed.Instance
	return f
}

func kindOf(err error) *fault {
	var function *engine.FunctionError
	var crash *engine.CrashError
	var unknown *engine.UnknownError
	var quota *live.QuotaError
	var step *engine.StepError
	var loop *engine.LoopError
	switch {
	case errors.As(err, &step) && step.Unwrap() == nil:
		return &fault{Kind: "step", Type: string(step.Failure), Message: step.Error()}
	case errors.As(err, &loop):
		return &fault{Kind: "loop", Type: loop.Chain, Message: loop.Why}
	case errors.As(err, &quota):
		return &fault{Kind: "quota", Tenant: quota.Tenant, Message: quota.What, Limit: quota.Limit}
	case errors.As(err, &function):
		return &fault{Kind: "function", Type: function.Type, Message: function.Message}
	case errors.As(err, &crash):
		return &fault{Kind: "crash", Message: crash.Reason}
	case errors.As(err, &unknown):
		return &fault{Kind: "unknown", Message: unknown.Function, Type: unknown.Revision}
	}
	for name, known := range faults {
		if errors.Is(err, known) {
			return &fault{Kind: name}
		}
	}
	return &fault{Kind: "other", Message: err.Error()}
}

// err rebuilds the error, as far as callers distinguish errors.
func (f *fault) err(node string) error {
	err := f.cause(node)
	if f == nil || f.ID == "" {
		return err
	}
	return &engine.InvocationError{ID: f.ID, Instance: f.Instance, Err: err}
}

func (f *fault) cause(node string) error {
	switch {
	case f == nil:
		return fmt.Errorf("node %s has failed", node)
	case f.Kind == "quota":
		return &live.QuotaError{Tenant: f.Tenant, What: f.Message, Limit: f.Limit}
	case f.Kind == "step":
		return &engine.StepError{Failure: failure.Code(f.Type), Err: errors.New(f.Message)}
	case f.Kind == "loop":
		return &engine.LoopError{Chain: f.Type, Why: f.Message}
	case f.Kind == "function":
		return &engine.FunctionError{Type: f.Type, Message: f.Message}
	case f.Kind == "crash":
		return &engine.CrashError{Reason: f.Message}
	case f.Kind == "unknown":
		return &engine.UnknownError{Function: f.Message, Revision: f.Type}
	case faults[f.Kind] != nil:
		return faults[f.Kind]
	}
	return fmt.Errorf("node %s: %s", node, f.Message)
}

// busy reports whether the engine has refused to begin, so a peer may be asked.
func busy(err error) bool {
	var quota *live.QuotaError
	return errors.Is(err, engine.ErrOverloaded) || errors.Is(err, engine.ErrEngineOverloaded) || errors.Is(err, engine.ErrDegraded) || errors.As(err, &quota)
}
