// Package channel is the framed protocol between the engine and a function's
// bootstrap: one Unix stream socket per instance, file descriptor 3 inside the
// sandbox, frames with a 16-byte header both ways. docs/protocol.md holds the
// byte layouts; this package is the Go implementation of both ends.
package channel
