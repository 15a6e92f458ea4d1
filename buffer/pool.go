// Package buffer keeps the memory of bodies outside of Go's heap: a fixed number of
// bytes, mapped once, that the garbage collector neither scans nor counts, lent out
// in size classes. What is lent is given back exactly once, or it is found: a second
// time panics, and what is out is counted ([Pool.Stats]) and, by sampling, told with
// the stack that asked for it (the profile "fre_buffers" of runtime/pprof, since
// heap profiles do not see this memory).
//
// The memory of a buffer that has been given back is lent to others: nothing that
// the kernel may still be reading from it (sendfile, splice, MSG_ZEROCOPY of its
// pages) may be left when it is.
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
	Bytes int64 // of memory, in whole units of MaxSize; at least one is there
	Lock  bool  // never on the swap device: mlock(2), as far as RLIMIT_MEMLOCK goes
	Huge  bool  // in huge pages, as far as the kernel has them: madvise(2)

	// The watermarks, in bytes held: the pool is pressed from when it has lent more
	// than High until it has lent no more than Low. Default: 15/16 and 3/4 of it.
	High, Low int64

	// Stacks is how many acquisitions go by for one whose stack is remembered: 1 is
	// each of them, 0 is 64. It costs a microsecond or more.
	Stacks int
}

// Pool lends buffers. It is safe for use by several goroutines.
//
// The memory is cut into slabs of MaxSize. A slab belongs to no class until one
// needs it, and again when all of it is free and its class has other free buffers,
// or another class has none.
type Pool struct {
	arena  []byte
	stacks uint64

	mu      sync.Mutex
	slabs   []slab
	unused  []*slab // of no class
	classes [classCount]class
	waiters []*waiter // the longest waiting first
	held    int64     // bytes lent
	count   uint64    // acquisitions
	closed  bool

	peak      int64 // most bytes lent at once
	high, low int64
	pressed   bool
	pressures uint64 // times that it became so
}

// class has the slabs with free buffers of its size; the last is taken from.
type class struct {
	partial  []*slab
	lent     int
	peak     int
	acquired uint64
	refused  uint64
}

type slab struct {
	number int
	class  int // -1 for none
	lent   int
	free   []uint16 // slots, the last taken first: its memory is the likeliest to be cached
	slots  []slot
}

// slot is one buffer's place. Its generation changes whenever it is given back.
type slot struct {
	generation uint32
	lent       bool
	sampled    bool // is in the profile, by its address
}

// Buffer is memory that is lent: a small value, to be passed on by whoever is to
// release it. The zero Buffer has no memory and need not be released.
type Buffer struct {
	pool       *Pool
	slab       *slab
	data       []byte
	slot       uint16
	generation uint32
}

// waiter is served by whoever releases a buffer that makes room for it.
type waiter struct {
	class  int
	size   int
	served chan Buffer // of capacity 1
}

// profile shows what is lent, of all pools.
var profile = pprof.NewProfile("fre_buffers")

// New maps the memory of a pool; it takes none until it is used.
func New(cfg Config) (*Pool, error) {
	n := max(1, int(cfg.Bytes/slabSize))
	arena, err := unix.Mmap(-1, 0, n*slabSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d MiB for buffers: %w", n*slabSize>>20, err)
	}
	if cfg.Huge {
		_ = unix.Madvise(arena, unix.MADV_HUGEPAGE) // a wish
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
		p.unused[n-1-i] = &p.slabs[i] // the first is the first to be used
	}
	return p, nil
}

// Close unmaps the memory. What is lent must have been released: else it returns an
// error, and the memory stays.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.held > 0 {
		return fmt.Errorf("%d bytes of buffers are still lent", p.held)
	}
	p.closed = true
	return unix.Munmap(p.arena)
}

// classOf returns the smallest class that holds size bytes, and its size.
func classOf(size int) (n, bytes int) {
	n = max(0, bits.Len(uint(max(size, 1)-1))-bits.Len(uint(MinSize-1)))
	return n, MinSize << n
}

// TryAcquire lends a buffer of at least size bytes, or fails at once. Errors:
// [ErrExhausted], [ErrTooLarge].
func (p *Pool) TryAcquire(size int) (Buffer, error) {
	if size > MaxSize {
		return Buffer{}, ErrTooLarge
	}
	n, bytes := classOf(size)
	p.mu.Lock()
	// Those who wait come first, unless they wait for larger ones.
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

// Acquire is TryAcquire, but waits until there is one or ctx ends; then it returns
// the cause of ctx.
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
		p.serveLocked() // it may have kept smaller ones waiting
	}
	p.mu.Unlock()
	select {
	case b := <-w.served: // in between
		b.Release()
	default:
	}
	return Buffer{}, context.Cause(ctx)
}

// takeLocked lends a buffer of class n, if one is free.
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
	s.slots[i].lent = true
	s.lent++
	c.lent++
	c.peak = max(c.peak, c.lent)
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

// growLocked gives class n a slab: one of no class, else a wholly free one of
// another.
func (p *Pool) growLocked(n, bytes int) bool {
	var s *slab
	if last := len(p.unused) - 1; last >= 0 {
		s = p.unused[last]
		p.unused = p.unused[:last]
	} else {
		for i := range p.classes {
			other := &p.classes[i]
			if at := slices.IndexFunc(other.partial, func(s *slab) bool { return s.lent == 0 }); at >= 0 {
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
		// Generations go on, whatever class the slot was in.
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

// Bytes is the memory, all of its class's size; what it holds is whatever was there.
// It must not be used after Release.
func (b Buffer) Bytes() []byte { return b.data }

// Release gives the memory back. It panics when that was done before: the memory
// may be somebody else's by now.
func (b Buffer) Release() {
	if b.pool == nil {
		return
	}
	p := b.pool
	p.mu.Lock()
	at := &b.slab.slots[b.slot]
	if !at.lent || at.generation != b.generation {
		p.mu.Unlock()
		panic("buffer: released twice")
	}
	if at.sampled {
		profile.Remove(at)
		at.sampled = false
	}
	at.generation++
	at.lent = false
	s := b.slab
	c := &p.classes[s.class]
	if s.free = append(s.free, b.slot); len(s.free) == 1 {
		c.partial = append(c.partial, s)
	}
	s.lent--
	c.lent--
	p.held -= int64(len(b.data))
	p.pressed = p.pressed && p.held > p.low
	if s.lent == 0 && len(c.partial) > 1 {
		c.partial = slices.Delete(c.partial, slices.Index(c.partial, s), slices.Index(c.partial, s)+1)
		s.class = -1
		p.unused = append(p.unused, s)
	}
	p.serveLocked()
	p.mu.Unlock()
}

// serveLocked lends to those who wait, in their order, as long as there is enough
// for the first.
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

// sample puts the buffer into the profile, with the stack of whoever called
// Acquire, if it is its turn.
func (b Buffer) sample() {
	if at := &b.slab.slots[b.slot]; at.sampled { // its borrower's alone while it is lent
		profile.Add(at, 2)
	}
}
