package buffer

import "context"

// Scope releases the buffers of one request: Close releases all buffers acquired through the
// Scope, on every path (defer scope.Close()). A Scope is for one goroutine.
type Scope struct {
	pool *Pool
	held []Buffer
	few  [4]Buffer // first storage of held
}

// Scope returns an open Scope; the caller closes it.
func (p *Pool) Scope() *Scope {
	s := &Scope{}
	s.Open(p)
	return s
}

// Open opens a closed Scope, or the zero Scope, for pool p.
func (s *Scope) Open(p *Pool) {
	s.pool = p
	s.held = s.few[:0]
}

// Acquire is [Pool.Acquire].
func (s *Scope) Acquire(ctx context.Context, size int) ([]byte, error) {
	b, err := s.pool.Acquire(ctx, size)
	return s.hold(b, err)
}

// TryAcquire is [Pool.TryAcquire].
func (s *Scope) TryAcquire(size int) ([]byte, error) {
	b, err := s.pool.TryAcquire(size)
	return s.hold(b, err)
}

func (s *Scope) hold(b Buffer, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	s.held = append(s.held, b)
	return b.Bytes(), nil
}

// Close releases the Scope's buffers. A second Close does nothing.
func (s *Scope) Close() {
	for i, b := range s.held {
		s.held[i] = Buffer{}
		b.Release()
	}
	s.held = s.few[:0]
}
