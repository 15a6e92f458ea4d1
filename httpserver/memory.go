package httpserver

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/failure"
)

// Memory provides the buffers for reading and copying. Its methods must be safe for concurrent
// use.
type Memory interface {
	// Acquire returns a buffer of at least size bytes with arbitrary content. If no buffer is
	// free, it waits for at most wait. An error means that no buffer became free.
	Acquire(size int, wait time.Duration) (Buffer, error)
}

// Buffer is memory that the caller may use until Release, which must be called once.
type Buffer = interface {
	Bytes() []byte
	Release()
}

const (
	// inputSize is the first buffer of a connection's input, in bytes; a larger head makes it
	// grow.
	inputSize = 8 << 10

	// copySize is the buffer for copying bodies, in bytes.
	copySize = 64 << 10

	// memoryWait is how long a connection waits for memory. After a wait in vain, acquisitions
	// fail at once until one succeeds.
	memoryWait = 200 * time.Millisecond

	defaultMemory = 64 << 20
)

// ErrNoMemory means that [Config.Memory] has no buffer for the exchange.
var ErrNoMemory = failure.New(failure.Busy, "no memory for the connection", "")

// pool is a server's Memory.
type pool struct {
	from     Memory
	dry      atomic.Bool   // a wait for memory was in vain, and no memory was acquired since
	failures atomic.Uint64 // to acquire memory
}

// acquire returns a buffer, or ErrNoMemory after memoryWait.
func (p *pool) acquire(size int) (Buffer, error) { return p.acquireWithin(size, memoryWait) }

// tryAcquire is acquire without waiting.
func (p *pool) tryAcquire(size int) (Buffer, error) { return p.acquireWithin(size, 0) }

func (p *pool) acquireWithin(size int, wait time.Duration) (Buffer, error) {
	dry := p.dry.Load()
	if dry {
		wait = 0
	}
	b, err := p.from.Acquire(size, wait)
	if err == nil {
		if dry {
			p.dry.Store(false)
		}
		return b, nil
	}
	if wait > 0 {
		p.dry.Store(true)
	}
	p.failures.Add(1)
	return nil, ErrNoMemory
}

// heap is the default Memory: Go's heap, with a limit on the bytes in use.
type heap struct {
	classes [heapClasses]sync.Pool // of *heapBuffer

	mu    sync.Mutex
	left  int
	freed chan struct{} // closed by the next Release; nil if no goroutine waits
}

// Buffer sizes are powers of two from 4 KiB on.
const (
	heapSmallest = 12 // 1 << 12
	heapClasses  = 11
)

// NewMemory returns a Memory on Go's heap with at most bytes in use at once.
func NewMemory(bytes int) Memory { return &heap{left: bytes} }

type heapBuffer struct {
	of    *heap
	class int
	data  []byte
}

// Acquire implements Memory.
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

// take waits until bytes are free and marks them as used.
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

// Bytes returns the buffer.
func (b *heapBuffer) Bytes() []byte { return b.data }

// Release returns the buffer to the heap.
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
