package httpserver

import (
	"errors"
	"math/bits"
	"sync"
	"time"
)

// Memory lends the buffers that connections are read into and copied through. Its methods
// may be called from several goroutines.
type Memory interface {
	// Acquire lends a buffer of at least size bytes, which hold whatever they held. Where
	// none is free it waits for one, no longer than wait. Its errors mean that there is
	// none.
	Acquire(size int, wait time.Duration) (Buffer, error)
}

// Buffer is memory that is lent until Release, which is called once.
type Buffer = interface {
	Bytes() []byte
	Release()
}

const (
	// inputSize is what a connection begins to read into; a larger head makes it grow.
	inputSize = 8 << 10

	// copySize is what bodies are copied by, where they are.
	copySize = 64 << 10

	// memoryWait is how long a connection waits for memory. Once that was in vain nobody
	// waits until somebody has got some.
	memoryWait = 200 * time.Millisecond

	defaultMemory = 64 << 20
)

// ErrNoMemory is why an exchange ends for which [Config.Memory] has none.
var ErrNoMemory = errors.New("there is no memory for the connection")

// acquire lends memory; else the error is ErrNoMemory.
func (s *Server) acquire(size int) (Buffer, error) { return s.acquireWithin(size, memoryWait) }

// tryAcquire is acquire for those who cannot wait.
func (s *Server) tryAcquire(size int) (Buffer, error) { return s.acquireWithin(size, 0) }

func (s *Server) acquireWithin(size int, wait time.Duration) (Buffer, error) {
	dry := s.dry.Load()
	if dry {
		wait = 0
	}
	b, err := s.cfg.Memory.Acquire(size, wait)
	if err == nil {
		if dry {
			s.dry.Store(false)
		}
		return b, nil
	}
	if wait > 0 {
		s.dry.Store(true)
	}
	s.noMemory.Add(1)
	return nil, ErrNoMemory
}

// heap is the Memory of a server that is given none: of Go's heap, no more than so many
// bytes at once.
type heap struct {
	classes [heapClasses]sync.Pool // of *heapBuffer

	mu    sync.Mutex
	left  int
	freed chan struct{} // closed when some is given back; nil unless somebody waits
}

// The sizes of heap's buffers are powers of two from 4 KiB on.
const (
	heapSmallest = 12 // 1 << 12
	heapClasses  = 11
)

// NewMemory returns one that lends no more than so many bytes of Go's heap at once.
func NewMemory(bytes int) Memory { return &heap{left: bytes} }

type heapBuffer struct {
	of    *heap
	class int
	data  []byte
}

// Acquire lends a buffer.
func (h *heap) Acquire(size int, wait time.Duration) (Buffer, error) {
	class := max(0, bits.Len(uint(max(size, 1)-1))-heapSmallest)
	if class >= heapClasses || !h.take(1<<(class+heapSmallest), wait) {
		return nil, ErrNoMemory
	}
	if b, ok := h.classes[class].Get().(*heapBuffer); ok {
		return b, nil
	}
	return &heapBuffer{of: h, class: class, data: make([]byte, 1<<(class+heapSmallest))}, nil
}

// take counts bytes as lent, once there are so many.
func (h *heap) take(bytes int, wait time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var patience <-chan time.Time
	for h.left < bytes {
		if wait <= 0 {
			return false
		}
		if patience == nil {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			patience = timer.C
		}
		if h.freed == nil {
			h.freed = make(chan struct{})
		}
		freed := h.freed
		h.mu.Unlock()
		select {
		case <-freed:
		case <-patience:
			wait = 0
		}
		h.mu.Lock()
	}
	h.left -= bytes
	return true
}

// Bytes is the buffer.
func (b *heapBuffer) Bytes() []byte { return b.data }

// Release gives it back.
func (b *heapBuffer) Release() {
	h := b.of
	h.classes[b.class].Put(b)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left += len(b.data)
	if h.freed != nil {
		close(h.freed)
		h.freed = nil
	}
}
