// Package pool keeps costly kernel objects (cgroups, network namespaces) ready
// to be leased. Making, cleaning and dropping them is done in the background
// and gives way to leases: on a machine that is starting sandboxes as fast as
// it can, the pool's own work would only make every start slower.
package pool

import (
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Verdict says what has become of a used item.
type Verdict int

// The verdicts of Config.Clean.
const (
	Ready  Verdict = iota // clean: it can be leased again
	InUse                 // something still uses it: ask again later
	Spoilt                // it cannot be cleaned: drop it
)

// Config says what a pool holds. Make, Clean and Drop are required; they are
// called from several goroutines, but for one item from one at a time.
type Config[T any] struct {
	Name  string // for errors and logs: "cgroup"
	Ready int    // made ahead, and again once leases have lasted
	Keep  int    // of those given back; default 4 × Ready, so that a burst finds those of the last
	Make  func() (T, error)
	Clean func(T) Verdict
	Drop  func(T) error
	Log   *slog.Logger
}

// Pool hands out items. Its methods may be called from any goroutine.
type Pool[T any] struct {
	cfg Config[T]

	mu     sync.Mutex
	free   []T
	dirty  []T    // given back, not yet cleaned
	takes  uint64 // leases so far: says whether the machine is starting things
	closed bool

	wake chan struct{} // one token: the worker has something to do
	stop chan struct{}
	done chan struct{}
}

const (
	// quiet is how long nothing must have been leased before the pool works.
	quiet = 20 * time.Millisecond
	// patience is how long it waits for that before it cleans all the same, so
	// that what was given back does not pile up.
	patience = 500 * time.Millisecond
	// inline is how many used items a lease that finds none ready tries to clean
	// before it makes one.
	inline = 2
)

// New starts to fill a pool.
func New[T any](cfg Config[T]) *Pool[T] {
	if cfg.Keep == 0 {
		cfg.Keep = 4 * cfg.Ready
	}
	p := &Pool[T]{cfg: cfg, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go p.work()
	return p
}

// Take leases an item: a ready one, preferably one that prefer likes (nil: the
// last given back); else a used one that can be cleaned at once; else a new
// one. fs.ErrClosed after Close.
func (p *Pool[T]) Take(prefer func(T) bool) (T, error) {
	var none T
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return none, fmt.Errorf("%s pool: %w", p.cfg.Name, fs.ErrClosed)
	}
	p.takes++
	if i := len(p.free) - 1; i >= 0 {
		if prefer != nil {
			i = max(slices.IndexFunc(p.free, prefer), 0)
		}
		item := p.free[i]
		p.free[i] = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		low := len(p.free) < p.cfg.Ready/2
		p.mu.Unlock()
		if low {
			p.poke()
		}
		return item, nil
	}
	used := p.popDirtyLocked(inline)
	p.mu.Unlock()
	p.poke()
	for i, item := range used {
		if p.cfg.Clean(item) == Ready {
			p.giveBack(used[i+1:])
			return item, nil
		}
		p.giveBack(used[i : i+1])
	}
	return p.cfg.Make()
}

// popDirtyLocked takes the n oldest used items, which are the likeliest to be
// at rest.
func (p *Pool[T]) popDirtyLocked(n int) []T {
	n = min(n, len(p.dirty))
	used := slices.Clone(p.dirty[:n])
	p.dirty = slices.Delete(p.dirty, 0, n)
	return used
}

// Give returns a leased item. It does not wait.
func (p *Pool[T]) Give(item T) { p.giveBack([]T{item}) }

func (p *Pool[T]) giveBack(items []T) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.dirty = append(p.dirty, items...)
	}
	p.mu.Unlock()
	if !closed {
		p.poke()
		return
	}
	for _, item := range items {
		p.drop(item)
	}
}

// Close drops every item that is not leased; those are dropped by Give. It
// waits for the worker.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.done
		return
	}
	p.closed = true
	p.mu.Unlock()
	close(p.stop)
	<-p.done
	for _, item := range slices.Concat(p.free, p.dirty) {
		p.drop(item)
	}
	p.free, p.dirty = nil, nil
}

func (p *Pool[T]) drop(item T) {
	if err := p.cfg.Drop(item); err != nil {
		p.cfg.Log.Warn("not dropped", "pool", p.cfg.Name, "error", err)
	}
}

func (p *Pool[T]) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// work fills the pool, then cleans and refills whenever there is something to
// do and the machine is not busy starting sandboxes.
func (p *Pool[T]) work() {
	defer close(p.done)
	for {
		again := p.clean()
		again = p.refill() || again
		var retry <-chan time.Time
		if again {
			retry = time.After(quiet)
		}
		select {
		case <-p.stop:
			return
		case <-retry:
		case <-p.wake:
		}
		if !p.settle() {
			return
		}
	}
}

// settle waits for quiet, at most for patience; false when the pool closes.
func (p *Pool[T]) settle() bool {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for seen := p.takesNow(); ; {
		select {
		case <-p.stop:
			return false
		case <-limit.C:
			return true
		case <-tick.C:
			now := p.takesNow()
			if now == seen {
				return true
			}
			seen = now
		}
	}
}

func (p *Pool[T]) takesNow() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takes
}

// clean sorts what was given back; it reports whether some is still in use.
func (p *Pool[T]) clean() (again bool) {
	p.mu.Lock()
	used := p.dirty
	p.dirty = nil
	p.mu.Unlock()
	var busy []T
	for _, item := range used {
		verdict := p.cfg.Clean(item)
		p.mu.Lock()
		if verdict == Ready && (p.closed || len(p.free) >= p.cfg.Keep) {
			verdict = Spoilt
		}
		if verdict == Ready {
			p.free = append(p.free, item)
		}
		p.mu.Unlock()
		switch verdict {
		case Ready:
		case InUse:
			busy = append(busy, item)
		case Spoilt:
			p.drop(item)
		}
	}
	p.mu.Lock()
	p.dirty = append(p.dirty, busy...)
	p.mu.Unlock()
	return len(busy) > 0
}

// refill makes items until enough are ready. It gives way to leases: then it
// reports that there is more to do.
func (p *Pool[T]) refill() (again bool) {
	for seen := p.takesNow(); ; {
		p.mu.Lock()
		full := p.closed || len(p.free)+len(p.dirty) >= p.cfg.Ready
		busy := p.takes != seen
		p.mu.Unlock()
		if full || busy {
			return busy && !full
		}
		item, err := p.cfg.Make()
		if err != nil {
			p.cfg.Log.Warn("not made", "pool", p.cfg.Name, "error", err)
			return false
		}
		p.mu.Lock()
		p.free = append(p.free, item)
		p.mu.Unlock()
	}
}
