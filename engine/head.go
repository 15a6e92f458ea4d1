package engine

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fre-engine/fre/buffer"
)

const (
	// stdioBuffered is how much of an answer is held back to learn the exit status
	// before the first byte goes out; a longer answer is streamed.
	stdioBuffered = 1 << 20
	// stdioFirst is what most answers fit into.
	stdioFirst = 16 << 10
)

// head is the beginning of an answer, in a buffer of the engine's pool until Close.
type head struct {
	whole bool // there is no more

	mu   sync.Mutex
	buf  buffer.Buffer
	rest []byte // not yet read
}

// readHead reads up to stdioBuffered bytes.
//
// It waits for the first buffer until ctx ends, and says for how long; then it
// returns its cause. It never waits for a larger one, which others who
// wait likewise might hold: then the head is what it has. The head is to be closed
// after an error, too.
func readHead(ctx context.Context, pool *buffer.Pool, waited func(time.Duration), r io.Reader) (*head, error) {
	h := &head{}
	began := time.Now()
	var err error
	h.buf, err = pool.Acquire(ctx, stdioFirst)
	waited(time.Since(began))
	if err != nil {
		return h, err
	}
	if err := h.fill(r, h.buf.Bytes()[:stdioFirst], 0); err != nil || h.whole {
		return h, err
	}
	larger, err := pool.TryAcquire(stdioBuffered)
	if err != nil {
		return h, nil //nolint:nilerr // none is free
	}
	space := larger.Bytes()[:stdioBuffered]
	n := copy(space, h.rest)
	h.buf.Release()
	h.buf = larger
	return h, h.fill(r, space, n)
}

// fill reads until space is full, whose first n bytes are there.
func (h *head) fill(r io.Reader, space []byte, n int) error {
	m, err := io.ReadFull(r, space[n:])
	h.rest = space[:n+m]
	if h.whole = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); h.whole {
		return nil
	}
	return err
}

func (h *head) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, h.rest)
	h.rest = h.rest[n:]
	return n, nil
}

// Close releases the buffer: what was not read is gone. It may come more than once.
func (h *head) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Release()
	h.buf, h.rest = buffer.Buffer{}, nil
	return nil
}
