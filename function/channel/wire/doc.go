// Package wire holds the parts of the function channel that both ends share: the frames, the types
// in them, the limits, the errors, and the flow control of bodies. The channel is the framed protocol
// between the engine and a function's bootstrap. docs/protocol.md holds the byte layouts.
//
// A [Reader] and a [Writer] move frames. Every frame begins with a 16-byte [Header]. An [Inbox] takes
// one body from the peer, a [Credit] limits how much of a body may go to the peer.
//
// The function's end is package function/channel of this module. The engine's end is package channel
// of FRE. Programs use one of these two packages.
package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of the protocol, in bytes unless noted.
const (
	MaxPayload = 1 << 20   // payload of one frame
	MaxMeta    = 256 << 10 // JSON in one frame
	MaxHeaders = 256       // header fields of one RESPONSE, a count
	Window     = 256 << 10 // DATA under way per invocation and direction before a grant
	Chunk      = 64 << 10  // DATA payload that either end sends, and grants at once

	FirstCall = 1 << 48 // id of the first call that a function can make; events have lower ids
	MostCalls = 32      // calls under way at once per event
)

var (
	// ErrProtocol means that the peer violated the protocol. The channel is over.
	ErrProtocol = errors.New("channel protocol violated")
	// ErrClosed means that the channel ended: the peer closed the socket, as a function does when
	// it exits, or its own end was closed.
	ErrClosed = errors.New("channel closed")
	// ErrUnserved means that the function is ending and has not taken the event. Another instance
	// may get the event.
	ErrUnserved = errors.New("the function ended before it took the event")
	// ErrSocketWanted means that a Reply's body stops here: the function asks for the client's
	// socket and waits for Reply.Lend.
	ErrSocketWanted = errors.New("the function asks for the client's socket")
	// ErrClientGone is the error of Reply.Lend when the client accepts no more bytes.
	ErrClientGone = fmt.Errorf("the client has gone: %w", context.Canceled)
	// ErrMetaTooLarge means that an event's metadata exceeds MaxMeta. No frame was sent.
	ErrMetaTooLarge = errors.New("headers, path and query are too large")
)

// Failure is an error of the function's own code, as its bootstrap reports it.
type Failure struct { //nolint:errname // named for what it is on the wire: the function's failure, not one of this package
	Type    string `json:"type"`    // class of the exception
	Message string `json:"message"` // text of the exception, up to MaxMeta
	Stack   string `json:"stack"`   // user's part of the stack trace, may be empty

	Unserved bool `json:"unserved,omitempty"` // the function has not taken the event: ErrUnserved

	Load bool `json:"-"` // the handler could not be loaded (FAILED); no event was sent
}

func (f *Failure) Error() string {
	return strings.TrimPrefix(f.Type+": "+f.Message, ": ")
}

// Payload returns the payload of ERROR and FAILED.
func (f *Failure) Payload() []byte {
	p, err := json.Marshal(f)
	if err != nil || len(p) > MaxMeta {
		p, _ = json.Marshal(Failure{Type: "error", Message: f.Type[:min(len(f.Type), 1000)] + ": too long to tell"})
	}
	return p
}

// ErrCallerOver is the failure of a call whose event is over.
var ErrCallerOver = &Failure{Type: "cancelled", Message: "the calling event is over"}

// Load is the payload of LOAD: it turns a parked bootstrap into a function.
type Load struct {
	Handler string            `json:"handler"`
	Dir     string            `json:"dir"` // working directory
	Env     map[string]string `json:"env"` // whole environment, FRE_CHANNEL and FRE_CONCURRENCY included
}

// Ready is the payload of READY, sent once the handler is loaded.
type Ready struct {
	Protocol    int    `json:"protocol"`    // 1
	Runtime     string `json:"runtime"`     // "python 3.11.2", for people
	Concurrency int    `json:"concurrency"` // invocations handled at once

	LoadMicros int64 `json:"load_us"`            // time to import the handler; 0 if unknown
	Upgrades   bool  `json:"upgrades,omitempty"` // the function can answer 101 to an event with Upgrade

	Unforkable string `json:"unforkable"` // why a fork server makes no children; "" if it does
}

// Request is an event as its sender describes it: gateway, engine, channel and function carry this
// one type.
type Request struct {
	Method  string      `json:"method"`
	Path    string      `json:"path"`  // begins with a slash
	Query   string      `json:"query"` // raw
	Headers [][2]string `json:"headers"`

	// Upgrade, unless "", lists the protocols that the event asks to change to (RFC 9110 section
	// 7.8). Body (still unread) and the answer's body are then the two directions of a tunnel that
	// follows the function's 101: The engine reads no byte of Body ahead and sends no deadline. A
	// function without Ready.Upgrades gets the event with neither Upgrade nor body. A function's
	// call has no Upgrade.
	Upgrade string `json:"upgrade,omitempty"`

	// Socket says that the function may write the rest of a long answer to the client's socket:
	// see Reply.Lend. Only trusted functions get it. A function's call has no Socket.
	Socket bool `json:"socket,omitempty"`

	Body   io.Reader `json:"-"` // nil for none
	Length int64     `json:"-"` // bytes of Body, -1 if unknown, or while Body is still arriving
}

// Invocation is one event on its way to a function: the metadata of INVOKE. The function sees
// U+FFFD in place of bytes that are not UTF-8.
type Invocation struct {
	Function   string `json:"function"`
	ID         string `json:"id"` // public name, as in the X-Fre-Id header
	Tenant     string `json:"tenant"`
	DeadlineMS int64  `json:"deadline_ms"` // Unix milliseconds
	Request

	// Caller, if set, takes the calls that the function makes while it handles the event.
	Caller Caller `json:"-"`

	// Finished, if set, is called once for the event, whatever its result. It is called when the
	// function has sent its last frame for the invocation, even after CANCEL, and the bytes in
	// its pipe are taken or given up; when the channel has ended; or when the event was never
	// sent. Only then is the function's slot free. Finished must not block.
	Finished func() `json:"-"`

	// Flows makes the engine send the event before it reads any of the body. Each piece of the body
	// then follows as it arrives.
	Flows bool `json:"-"`
}
