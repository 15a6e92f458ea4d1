// Package channel is the framed protocol between the engine and a function's
// bootstrap: one Unix stream socket per instance, file descriptor 3 inside the
// sandbox, frames with a 16-byte header both ways. docs/protocol.md holds the
// byte layouts; this package is the Go implementation of both ends.
//
// The engine's end is a [Conn]: [Conn.Invoke] sends an [Invocation] and gives
// its [Reply], many at once. The function's end is [Serve].
//
// What comes from a function is hostile: every malformed frame ends the
// channel with [ErrProtocol], and what one invocation can make the engine hold
// is bounded by [MaxPayload] + [Window], which [Config].Memory lends, or one
// open file, of which [Config].Hold is told. Files are looked at before they
// are read: file.go says which are taken for immutable, and why.
package channel

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// The limits of the protocol, in bytes unless said otherwise.
const (
	MaxPayload = 1 << 20   // of one frame
	MaxMeta    = 256 << 10 // of the JSON in one frame
	MaxHeaders = 256       // header fields of one RESPONSE, a count
	Window     = 256 << 10 // DATA that may be under way per invocation and direction before a grant
	inlineBody = 32 << 10  // a request body up to this goes along in INVOKE
	chunk      = 64 << 10  // DATA payload this end sends, and grants at once

	FirstCall = 1 << 48 // number of the first call that a function can make: all below are events'
	MostCalls = 32      // calls under way at once for one event
)

var (
	// ErrProtocol means that the other side sent something the protocol does
	// not allow. The channel is over.
	ErrProtocol = errors.New("channel protocol violated")
	// ErrClosed means that the channel ended: the other side closed it (a
	// function that exits does), or [Conn.Close] was called.
	ErrClosed = errors.New("channel closed")
	// ErrUnserved means that the function ends, and has not taken the event: it may be
	// handed to another instance.
	ErrUnserved = errors.New("the function ended before it took the event")
	// ErrSocketWanted is why a Reply's body does not go on: the function asks for the
	// client's socket, and waits for Reply.Lend.
	ErrSocketWanted = errors.New("the function asks for the client's socket")
	// ErrClientGone is why Reply.Lend ends where the client took no more.
	ErrClientGone = fmt.Errorf("the client has gone: %w", context.Canceled)
	// ErrMetaTooLarge means that an event's metadata is more than the function
	// can be told. Nothing was sent.
	ErrMetaTooLarge = errors.New("headers, path and query are too large")
)

// Failure is an error of the function's own code, as its bootstrap tells it.
type Failure struct { //nolint:errname // named for what it is on the wire: the function's failure, not one of this package
	Type    string `json:"type"`    // class of the exception
	Message string `json:"message"` // its text, of any length up to MaxMeta
	Stack   string `json:"stack"`   // the user's part of the stack trace, may be empty

	Unserved bool `json:"unserved,omitempty"` // the function has not taken the event: ErrUnserved

	Load bool `json:"-"` // the handler could not be loaded (FAILED): nothing was invoked
}

func (f *Failure) Error() string {
	return strings.TrimPrefix(f.Type+": "+f.Message, ": ")
}

// Load is what a parked bootstrap needs to become a function: the payload of
// LOAD.
type Load struct {
	Handler string            `json:"handler"`
	Dir     string            `json:"dir"` // working directory
	Env     map[string]string `json:"env"` // the whole environment, FRE_CHANNEL and FRE_CONCURRENCY included
}

// Ready is what a bootstrap says once its handler is loaded.
type Ready struct {
	Protocol    int    `json:"protocol"`    // 1
	Runtime     string `json:"runtime"`     // "python 3.11.2", for people
	Concurrency int    `json:"concurrency"` // invocations it takes at once

	LoadMicros int64 `json:"load_us"`            // time the handler's import took; 0 if unknown
	Upgrades   bool  `json:"upgrades,omitempty"` // it can answer 101 to an event that asks for another protocol

	Unforkable string `json:"unforkable"` // of a fork server: why it will make no children; "" if it will
}

// Invocation is one event on its way to a function: the metadata of INVOKE.
// Strings that are not UTF-8 reach the function with U+FFFD in place of what
// is not.
type Invocation struct {
	Function   string      `json:"function"`
	ID         string      `json:"id"` // public name, as in the X-Fre-Id header
	Tenant     string      `json:"tenant"`
	DeadlineMS int64       `json:"deadline_ms"` // unix milliseconds
	Method     string      `json:"method"`
	Path       string      `json:"path"`
	Query      string      `json:"query"` // raw
	Headers    [][2]string `json:"headers"`

	// Upgrade, unless "", is the protocols that the event asks to change to (RFC 9110
	// section 7.8). Its body is then no request's but what comes once the function has
	// answered 101: [Conn.Invoke] reads nothing of it ahead, and tells no deadline. A
	// function that never said it could gets the event without either.
	Upgrade string `json:"upgrade,omitempty"`

	// Socket says that the function may write the rest of a long answer to its client's
	// socket itself: see Reply.Lend. Only functions that are trusted are told so.
	Socket bool `json:"socket,omitempty"`

	// Caller, if set, takes the calls that the function makes while it handles this event.
	Caller Caller `json:"-"`

	// Finished, if set, is called once per Invoke, whatever that returns: when
	// the function has sent its last frame for this invocation, cancelled or
	// not, and what it had sent through a pipe was taken or is not wanted, when the
	// channel has ended, or when the event was never sent. Only then is the function's
	// slot free. It must not block.
	Finished func() `json:"-"`

	// Flows has the event sent before anything of its body is read, of which each piece
	// follows as it comes.
	Flows bool `json:"-"`
}
