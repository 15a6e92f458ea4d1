package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// eventBody is a request's body on its way into an event: it is no longer than it may
// be, ends when the event is over, though the client has not sent everything, and
// knows how far it was read.
type eventBody struct {
	from      io.Reader
	interrupt func() error // ends a Read of from that is under way
	size      int64        // -1 if unknown
	limit     int64

	mu      sync.Mutex
	n       int64 // bytes read
	started bool  // somebody has begun to read it
	reading bool  // a Read is under way
	closed  bool  // the event is over
	eof     bool  // all of it has been read
	torn    bool  // broken off, by us or by the client
	left    bool  // from is its server's again
}

// Read returns *[BodyError] for what the client did wrong and *[http.MaxBytesError]
// for one that is too long.
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
	room := b.limit - b.n // n is the reader's alone while reading is set
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

// Here says whether all of it has come.
func (b *eventBody) Here() bool {
	from, ok := b.from.(interface{ Here() bool })
	return ok && from.Here()
}

// Close leaves from itself to its server, which closes it after the request.
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

// ended says that nothing of the body is left; nil is no body.
func (b *eventBody) ended() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.eof
}

// begun says that some of the body was read, and not all.
func (b *eventBody) begun() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started && !b.eof
}
