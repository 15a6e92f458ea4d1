package buffer

import "context"

// Scope is the life of one request: what is acquired through it is released when it
// is closed, by whatever way the request ends (defer scope.Close()). A Scope is for
// one goroutine.
type Scope struct {
	pool *Pool
	held []Buffer
	few  [4]Buffer // the first of held
}

// Scope returns one that is to be closed.
func (p *Pool) Scope() *Scope {
	s := &Scope{}
	s.Open(p)
	return s
}

// Open begins a Scope anew that is closed, or that is the zero Scope.
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

// Close releases what the Scope holds. Closing it twice does nothing.
func (s *Scope) Close() {
	for i, b := range s.held {
		s.held[i] = Buffer{}
		b.Release()
	}
	s.held = s.few[:0]
}
