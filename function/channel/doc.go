// Package channel implements a function's end of the framed protocol between the engine and a
// function's bootstrap. docs/protocol.md holds the byte layouts, package wire the frames. Functions
// use package function, which builds on this package.
//
// [Serve] answers the events that arrive on the channel of [Inherited]. An [Event] can log, and call
// other functions.
package channel

import "github.com/fre-engine/fre/function/channel/wire"

// Limits of the protocol.
const (
	MaxMeta    = wire.MaxMeta    // JSON in one frame, in bytes
	MaxHeaders = wire.MaxHeaders // header fields of one answer
	FirstCall  = wire.FirstCall  // id of the first call that a function can make
	KeptFiles  = wire.KeptFiles  // files of one function that the engine keeps open
)

// Errors of the channel.
var (
	ErrProtocol = wire.ErrProtocol
	ErrClosed   = wire.ErrClosed
	ErrUnserved = wire.ErrUnserved
)

// Types of the frames.
type (
	Failure    = wire.Failure //nolint:errname // the function's failure, not an error of this package
	Load       = wire.Load
	Ready      = wire.Ready
	Request    = wire.Request
	Invocation = wire.Invocation
	Called     = wire.Called
)
