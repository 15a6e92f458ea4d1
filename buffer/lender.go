package buffer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Lender lends a pool's buffers to those who know them by their methods alone, as
// httpserver.Memory does. It allocates nothing for it.
type Lender struct{ Pool *Pool }

// Lent is a buffer of a [Lender], until Release.
type Lent = interface {
	Bytes() []byte
	Release()
}

// loan is a Buffer that an interface holds.
type loan struct{ b Buffer }

var loans = sync.Pool{New: func() any { return new(loan) }}

// Acquire is [Pool.TryAcquire], and [Pool.Acquire] for up to wait where none is free.
func (l Lender) Acquire(size int, wait time.Duration) (Lent, error) {
	b, err := l.Pool.TryAcquire(size)
	if wait > 0 && errors.Is(err, ErrExhausted) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), wait, ErrExhausted)
		b, err = l.Pool.Acquire(ctx, size)
		cancel()
	}
	if err != nil {
		return nil, err
	}
	held := loans.Get().(*loan)
	held.b = b
	return held, nil
}

// Bytes is [Buffer.Bytes].
func (l *loan) Bytes() []byte { return l.b.Bytes() }

// Release is [Buffer.Release].
func (l *loan) Release() {
	l.b.Release()
	l.b = Buffer{}
	loans.Put(l)
}
