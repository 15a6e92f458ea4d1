// Package buffer keeps the memory of bodies outside of Go's heap: a fixed number of bytes,
// mapped once, that the garbage collector neither scans nor counts. A [Pool] hands out buffers
// of fixed size classes. The caller must release each buffer exactly once. A second release
// panics. Missing releases show in two places: [Pool.Stats] counts the buffers in use, and the
// profile "fre_buffers" of runtime/pprof shows a sample of them with the stacks of their
// acquisitions (heap profiles do not see this memory).
//
// After a release the pool hands the memory to the next caller. So before a release the kernel
// must have finished all reads from the buffer (sendfile, splice, MSG_ZEROCOPY).
package buffer

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime/pprof"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// The size classes are the powers of two from MinSize to MaxSize, in bytes.
const (
	MinSize = 4 << 10
	MaxSize = 4 << 20

	classCount = 11
	slabSize   = MaxSize
	slabSlots  = slabSize / MinSize // of the smallest class
)

// Errors of Acquire.
var (
	ErrExhausted = errors.New("no buffer is free")
	ErrTooLarge  = fmt.Errorf("more than the %d bytes of the largest buffer", MaxSize)
)

// Config of a Pool.
type Config struct {
	Bytes int64 // size of the memory, rounded down to a multiple of MaxSize; at least MaxSize
	Lock  bool  // keep the memory off the swap device: mlock(2); New fails beyond RLIMIT_MEMLOCK
	Huge  bool  // use huge pages if the kernel has some: madvise(2)

	// The watermarks, in bytes in use: the pool is pressed from the moment the use exceeds High
	// until the use is at most Low. Default: 15/16 and 3/4 of the memory.
	High, Low int64

	// Stacks is the sampling interval of the profile: one stack is recorded per so many
	// acquisitions. 1 records each, 0 means 64. A recorded stack costs a microsecond or more.
	Stacks int
}

// Pool hands out buffers. Several goroutines may use it.
//
// The memory is divided into slabs of MaxSize. A slab has no class until a class needs the slab.
// A wholly free slab loses its class if the class has other free buffers, or passes to a class
// without free buffers.
type Pool struct {
	arena  []byte
	stacks uint64

	mu      sync.Mutex
	slabs   []slab
	unused  []*slab // slabs without a class
	classes [classCount]class
	waiters []*waiter // longest waiting first
	held    int64     // bytes in use
	count   uint64    // acquisitions
	closed  bool

	peak      int64 // highest value of held
	high, low int64
	pressed   bool
	pressures uint64 // number of times that pressed became true
}

// class holds the slabs with free buffers of its size; the last slab is used first.
type class struct {
	partial  []*slab
	used     int
	peak     int
	acquired uint64
	refused  uint64
}

type slab struct {
	number int
	class  int // -1 for no class
	used   int
	free   []uint16 // free slots; the last is taken first: most likely its memory is cached
	slots  []slot
}

// slot is the state of one buffer. Its generation changes at each release.
type slot struct {
	generation uint32
	used       bool
	sampled    bool // in the profile, under the address of the slot
}

// Buffer is memory in use: a small value. The holder passes it on to the code that releases it.
// The zero Buffer has no memory and needs no release.
type Buffer struct {
	pool       *Pool
	slab       *slab
	data       []byte
	slot       uint16
	generation uint32
}

// waiter waits for a buffer of its class; a release that makes room serves it.
type waiter struct {
	class  int
	size   int
	served chan Buffer // of capacity 1
}

// profile shows the buffers in use of all pools.
var profile = pprof.NewProfile("fre_buffers")

// New maps the address space of a pool; pages take memory at their first use, or at once with Lock.
func New(cfg Config) (*Pool, error) {
	n := max(1, int(cfg.Bytes/slabSize))
	arena, err := unix.Mmap(-1, 0, n*slabSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d MiB for buffers: %w", n*slabSize>>20, err)
	}
	if cfg.Huge {
		_ = unix.Madvise(arena, unix.MADV_HUGEPAGE) // best effort
	}
	if cfg.Lock {
		if err := unix.Mlock(arena); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %d MiB for buffers (RLIMIT_MEMLOCK): %w", n*slabSize>>20, err), unix.Munmap(arena))
		}
	}
	p := &Pool{arena: arena, slabs: make([]slab, n), unused: make([]*slab, n), stacks: uint64(max(0, cfg.Stacks))}
	if p.stacks == 0 {
		p.stacks = 64
	}
	size := int64(n) * slabSize
	if p.high = cfg.High; p.high <= 0 {
		p.high = size - size/16
	}
	if p.low = cfg.Low; p.low <= 0 {
		p.low = size - size/4
	}
	p.low = min(p.low, p.high)
	for i := range p.slabs {
		p.slabs[i] = slab{number: i, class: -1}
		p.unused[n-1-i] = &p.slabs[i] // the first slab is used first
	}
	return p, nil
}

// Close unmaps the memory. If buffers are still in use it returns an error and keeps the memory.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.held > 0 {
		return fmt.Errorf("%d bytes of buffers are still in use", p.held)
	}
	p.closed = true
	return unix.Munmap(p.arena)
}

// classOf returns the smallest class for size bytes, and the size of its buffers.
func classOf(size int) (n, bytes int) {
	n = max(0, bits.Len(uint(max(size, 1)-1))-bits.Len(uint(MinSize-1)))
	return n, MinSize << n
}

// TryAcquire returns a buffer of at least size bytes, or fails at once. Errors: [ErrExhausted],
// [ErrTooLarge].
func (p *Pool) TryAcquire(size int) (Buffer, error) {
	if size > MaxSize {
		return Buffer{}, ErrTooLarge
	}
	n, bytes := classOf(size)
	p.mu.Lock()
	// Waiters come first, unless they wait for larger buffers.
	b, ok := Buffer{}, false
	if !slices.ContainsFunc(p.waiters, func(w *waiter) bool { return w.class <= n }) {
		b, ok = p.takeLocked(n, bytes)
	}
	if !ok {
		p.classes[n].refused++
		p.mu.Unlock()
		return Buffer{}, ErrExhausted
	}
	p.mu.Unlock()
	b.sample()
	return b, nil
}

// Acquire is TryAcquire, but waits for a free buffer until ctx ends. Then it returns the cause
// of ctx.
func (p *Pool) Acquire(ctx context.Context, size int) (Buffer, error) {
	if size > MaxSize {
		return Buffer{}, ErrTooLarge
	}
	n, bytes := classOf(size)
	p.mu.Lock()
	if len(p.waiters) == 0 {
		if b, ok := p.takeLocked(n, bytes); ok {
			p.mu.Unlock()
			b.sample()
			return b, nil
		}
	}
	w := &waiter{class: n, size: bytes, served: make(chan Buffer, 1)}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	select {
	case b := <-w.served:
		b.sample()
		return b, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
		p.classes[n].refused++
		p.serveLocked() // a large request may have kept smaller ones waiting
	}
	p.mu.Unlock()
	select {
	case b := <-w.served: // served in between
		b.Release()
	default:
	}
	return Buffer{}, context.Cause(ctx)
}

// takeLocked takes a free buffer of class n; false if the pool has none.
func (p *Pool) takeLocked(n, bytes int) (Buffer, bool) {
	c := &p.classes[n]
	if len(c.partial) == 0 && !p.growLocked(n, bytes) {
		return Buffer{}, false
	}
	s := c.partial[len(c.partial)-1]
	i := s.free[len(s.free)-1]
	if s.free = s.free[:len(s.free)-1]; len(s.free) == 0 {
		c.partial = c.partial[:len(c.partial)-1]
	}
	s.slots[i].used = true
	s.used++
	c.used++
	c.peak = max(c.peak, c.used)
	c.acquired++
	p.held += int64(bytes)
	p.peak = max(p.peak, p.held)
	if p.held > p.high && !p.pressed {
		p.pressed = true
		p.pressures++
	}
	p.count++
	start := s.number*slabSize + int(i)*bytes
	b := Buffer{pool: p, slab: s, slot: i, generation: s.slots[i].generation, data: p.arena[start : start+bytes : start+bytes]}
	s.slots[i].sampled = p.count%p.stacks == 0
	return b, true
}

// growLocked gives class n a slab: one without a class, else a wholly free slab of another
// class.
func (p *Pool) growLocked(n, bytes int) bool {
	var s *slab
	if last := len(p.unused) - 1; last >= 0 {
		s = p.unused[last]
		p.unused = p.unused[:last]
	} else {
		for i := range p.classes {
			other := &p.classes[i]
			if at := slices.IndexFunc(other.partial, func(s *slab) bool { return s.used == 0 }); at >= 0 {
				s = other.partial[at]
				other.partial = slices.Delete(other.partial, at, at+1)
				break
			}
		}
	}
	if s == nil {
		return false
	}
	if s.class != n {
		s.class = n
		slots := slabSize / bytes
		// Generations continue when the class of a slot changes.
		if len(s.slots) < slots {
			s.slots = append(s.slots, make([]slot, slots-len(s.slots))...)
		}
		s.free = s.free[:0]
		for i := range slots {
			s.free = append(s.free, uint16(slots-1-i))
		}
	}
	p.classes[n].partial = append(p.classes[n].partial, s)
	return true
}

// Bytes returns the memory, as large as the class. The initial content is arbitrary. Do not use
// the memory after Release.
func (b Buffer) Bytes() []byte { return b.data }

// Release gives the memory back. A second release panics, because the memory may have a new
// user.
func (b Buffer) Release() {
	if b.pool == nil {
		return
	}
	p := b.pool
	p.mu.Lock()
	at := &b.slab.slots[b.slot]
	if !at.used || at.generation != b.generation {
		p.mu.Unlock()
		panic("buffer: released twice")
	}
	if at.sampled {
		profile.Remove(at)
		at.sampled = false
	}
	at.generation++
	at.used = false
	s := b.slab
	c := &p.classes[s.class]
	if s.free = append(s.free, b.slot); len(s.free) == 1 {
		c.partial = append(c.partial, s)
	}
	s.used--
	c.used--
	p.held -= int64(len(b.data))
	p.pressed = p.pressed && p.held > p.low
	if s.used == 0 && len(c.partial) > 1 {
		c.partial = slices.Delete(c.partial, slices.Index(c.partial, s), slices.Index(c.partial, s)+1)
		s.class = -1
		p.unused = append(p.unused, s)
	}
	p.serveLocked()
	p.mu.Unlock()
}

// serveLocked serves the waiters in order, until the pool has no buffer for the first.
func (p *Pool) serveLocked() {
	for len(p.waiters) > 0 {
		w := p.waiters[0]
		b, ok := p.takeLocked(w.class, w.size)
		if !ok {
			return
		}
		p.waiters = slices.Delete(p.waiters, 0, 1)
		w.served <- b
	}
}

// sample adds a buffer chosen for sampling to the profile, with the stack of the caller of
// Acquire.
func (b Buffer) sample() {
	if at := &b.slab.slots[b.slot]; at.sampled { // a slot in use belongs to the holder
		profile.Add(at, 2)
	}
}
