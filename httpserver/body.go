package httpserver

import (
	"errors"
	"io"
)

// ErrBodyClosed is the error of reading a closed body.
var ErrBodyClosed = errors.New("the request's body is closed")

// Body is a request's body. A nil Body is empty. One goroutine at a time may read it, and any
// goroutine may close it. The server closes it when the handler returns.
type Body struct {
	size int64
	from source
}

// source provides a body's bytes.
type source interface {
	read(p []byte) (int, error)
	here() bool
	close() error
	end() // closes the body and waits until no Read is under way
}

// Size returns the length in bytes, -1 if unknown.
func (b *Body) Size() int64 {
	if b == nil {
		return 0
	}
	return b.size
}

// Read reads the body up to io.EOF. It returns a *[RequestError] if the body is malformed,
// io.ErrUnexpectedEOF if the body breaks off, os.ErrDeadlineExceeded if the client stalls, and
// [ErrBodyClosed].
func (b *Body) Read(p []byte) (int, error) {
	if b == nil {
		return 0, io.EOF
	}
	return b.from.read(p)
}

// Here reports whether the whole rest of the body has arrived, so that no Read waits.
func (b *Body) Here() bool { return b == nil || b.from.here() }

// Close ends a pending Read and all later Reads.
func (b *Body) Close() error {
	if b == nil {
		return nil
	}
	return b.from.close()
}

func (b *Body) end() {
	if b != nil {
		b.from.end()
	}
}
