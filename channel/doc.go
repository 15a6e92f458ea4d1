// Package channel implements the engine's end of the framed protocol between the engine and a
// function's bootstrap. Each instance has one Unix stream socket, file descriptor 3 inside the
// sandbox. docs/protocol.md holds the byte layouts, package wire the frames. The function's end is
// package function/channel.
//
// A [Conn] is the engine's end: [Conn.Invoke] sends an [Invocation] and returns its [Reply], for many
// invocations at once.
//
// Input from a function is hostile. A malformed frame ends the channel with [ErrProtocol]. One
// invocation can make the engine hold at most [MaxPayload] + [Window] bytes, allocated by
// [Config].Memory, or one open file, reported to [Config].Hold. Files are inspected before they
// are read: file.go says which files count as immutable, and why.
package channel

import "github.com/fre-engine/fre/function/channel/wire"

// Limits of the protocol, in bytes unless noted.
const (
	MaxPayload = wire.MaxPayload
	MaxMeta    = wire.MaxMeta
	MaxHeaders = wire.MaxHeaders // a count
	Window     = wire.Window
	FirstCall  = wire.FirstCall // an id
	MostCalls  = wire.MostCalls // a count
	KeptFiles  = wire.KeptFiles // a count
)

// Errors of the channel.
var (
	ErrProtocol     = wire.ErrProtocol
	ErrClosed       = wire.ErrClosed
	ErrUnserved     = wire.ErrUnserved
	ErrSocketWanted = wire.ErrSocketWanted
	ErrClientGone   = wire.ErrClientGone
	ErrMetaTooLarge = wire.ErrMetaTooLarge
)

// Types of the frames.
type (
	Failure    = wire.Failure //nolint:errname // the function's failure, not an error of this package
	Load       = wire.Load
	Ready      = wire.Ready
	Request    = wire.Request
	Invocation = wire.Invocation
	Caller     = wire.Caller
	Called     = wire.Called
	Answer     = wire.Answer
	Buffer     = wire.Buffer
)
