package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/fre-engine/fre/failure"
)

// eventBody is a request's body on its way into an event. It enforces a limit, ends with the
// event even if the client has not sent everything, and counts the bytes read.
type eventBody struct {
	from      io.Reader
	interrupt func() error // ends a pending Read of from
	size      int64        // -1 if unknown
	limit     int64

	mu      sync.Mutex
	n       int64 // bytes read
	started bool  // a Read has begun
	reading bool  // a Read is under way
	closed  bool  // the event is over
	eof     bool  // the whole body has been read
	torn    bool  // broken off, by the gateway or by the client
	left    bool  // from belongs to its server again
}

// Read returns a *[BodyError] if the client fails, and a *[http.MaxBytesError] if the body is too
// long.
func (b *eventBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	case b.eof:
		b.mu.Unlock()
		return 0, io.EOF
	}
	b.started, b.reading = true, true
	room := b.limit - b.n // n belongs to the reader while reading is set
	b.mu.Unlock()
	if int64(len(p)) > room+1 {
		p = p[:room+1]
	}
	n, err := b.from.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if int64(n) > room {
		b.n += room
		b.torn = true
		return int(room), &http.MaxBytesError{Limit: b.limit}
	}
	b.n += int64(n)
	switch {
	case errors.Is(err, io.EOF), err == nil && b.n == b.size:
		b.eof = true
	case err != nil:
		b.torn = true
		err = &BodyError{err}
	}
	return n, err
}

// Here reports whether the whole body has arrived.
func (b *eventBody) Here() bool {
	from, ok := b.from.(interface{ Here() bool })
	return ok && from.Here()
}

// Close ends reading. The server closes from after the request.
func (b *eventBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if !b.reading || b.left {
		return nil
	}
	b.torn = true
	return b.interrupt()
}

// ended reports whether the whole body has been read. A nil body has ended.
func (b *eventBody) ended() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.eof
}

// begun reports whether the body has been read in part.
func (b *eventBody) begun() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started && !b.eof
}

// BodyError means that the request's body could not be read: the client broke it off, or it is
// malformed.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return "read request body: " + e.Err.Error() }

func (e *BodyError) Unwrap() error { return e.Err }

// Code returns [failure.BodyTooLarge] or [failure.BadBody].
func (e *BodyError) Code() failure.Code {
	if large := (*http.MaxBytesError)(nil); errors.As(e.Err, &large) {
		return failure.BodyTooLarge
	}
	return failure.BadBody
}
