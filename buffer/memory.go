package buffer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Memory hands out a pool's buffers behind an interface, for packages such as httpserver
// (httpserver.Memory) that do not import this package. It allocates no memory on Go's heap per
// buffer.
type Memory struct{ Pool *Pool }

// Handle is a buffer of a [Memory], valid until Release.
type Handle = interface {
	Bytes() []byte
	Release()
}

// handle is a Buffer behind a Handle.
type handle struct{ b Buffer }

var handles = sync.Pool{New: func() any { return new(handle) }}

// Acquire is [Pool.TryAcquire]. If no buffer is free it waits for at most wait, like
// [Pool.Acquire].
func (l Memory) Acquire(size int, wait time.Duration) (Handle, error) {
	b, err := l.Pool.TryAcquire(size)
	if wait > 0 && errors.Is(err, ErrExhausted) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), wait, ErrExhausted)
		b, err = l.Pool.Acquire(ctx, size)
		cancel()
	}
	if err != nil {
		return nil, err
	}
	held := handles.Get().(*handle)
	held.b = b
	return held, nil
}

// Bytes is [Buffer.Bytes].
func (l *handle) Bytes() []byte { return l.b.Bytes() }

// Release is [Buffer.Release].
func (l *handle) Release() {
	l.b.Release()
	l.b = Buffer{}
	handles.Put(l)
}
