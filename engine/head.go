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
	// stdioBuffered is how much of an answer the engine holds back to learn the exit status
	// before it sends the first byte. It streams a longer answer.
	stdioBuffered = 1 << 20
	// stdioFirst suffices for most answers.
	stdioFirst = 16 << 10
)

// head is the beginning of an answer, in a buffer of the engine's pool. Close frees the buffer.
type head struct {
	whole bool // the answer ends here

	mu   sync.Mutex
	buf  buffer.Buffer
	rest []byte // unread part
}

// readHead reads up to stdioBuffered bytes.
//
// It waits for the first buffer until ctx ends, then returns the cause of ctx. It reports the
// time to waited. It never waits for the larger buffer, since other waiters might hold it: the
// head then ends with the first buffer. The caller closes the head, also after an error.
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

// fill reads until space is full. The first n bytes of space are filled already.
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

// Close releases the buffer and discards the unread part. Several calls are allowed.
func (h *head) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Release()
	h.buf, h.rest = buffer.Buffer{}, nil
	return nil
}
