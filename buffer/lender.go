package buffer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Lender hands out a pool's buffers behind an interface, for packages such as httpserver
// (httpserver.Memory) that do not import this package. It allocates no memory on Go's heap per
// buffer.
type Lender struct{ Pool *Pool }

// Lent is a buffer of a [Lender], valid until Release.
type Lent = interface {
	Bytes() []byte
	Release()
}

// loan holds a Buffer for the interface.
type loan struct{ b Buffer }

var loans = sync.Pool{New: func() any { return new(loan) }}

// Acquire is [Pool.TryAcquire]. If no buffer is free it waits for at most wait, like
// [Pool.Acquire].
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
