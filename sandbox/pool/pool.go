// Package pool keeps costly objects (cgroups, network namespaces, parked sandboxes) ready for
// lease. The worker of a pool makes, cleans and drops items in the background. The worker gives
// way to leases and to the work of the lessees: on a machine at full load, background work
// would only slow down every start.
//
// A pool sizes itself, between Ready and Max: as many items stay ready as the callers leased in
// the busiest recent half second.
package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Verdict is the result of cleaning a used item.
type Verdict int

// The verdicts of Config.Clean.
const (
	Ready  Verdict = iota // clean: the pool may lease the item again
	InUse                 // still in use: ask again later
	Spoilt                // impossible to clean: drop the item
)

// Config describes a pool. Make and Drop are required; Clean is required if callers give items
// back. The pool calls them from several goroutines, but never twice at a time for one item.
type Config[T any] struct {
	Name  string        // for errors and logs: "cgroup"
	Ready int           // ready items without any demand
	Max   int           // ready items after great demand; default 4 × Ready
	Idle  time.Duration // halves the remembered demand after so long; default 1 minute

	Make  func() (T, error) // may return ErrFull
	Clean func(T) Verdict
	Drop  func(T) error
	Alive func(T) bool // nil: always; the pool drops a dead item and never leases it
	Busy  func() bool  // whether to put work off; nil: while the last lease is younger than 20 ms
	Log   *slog.Logger
}

// ErrFull is the error of Make if the item would exceed a bound that several pools share. The
// pool logs no warning and tries again at the next demand.
var ErrFull = errors.New("no room for more")

// Pool leases items. Its methods are safe for concurrent use.
type Pool[T any] struct {
	cfg Config[T]

	mu     sync.Mutex
	free   []T
	dirty  []T    // given back, not yet cleaned
	takes  uint64 // leases so far; an increase means that the machine is starting sandboxes
	closed bool

	since  time.Time // start of the current window
	count  int       // leases in the current window
	peak   int       // most leases in one recent window
	peakAt time.Time

	wake chan struct{} // one token: the worker has work
	stop chan struct{}
	done chan struct{}
}

const (
	// quiet is the time without a lease after which the worker begins.
	quiet = 20 * time.Millisecond
	// patience bounds the wait for quiet: the worker then cleans all the same, so that used
	// items do not pile up.
	patience = 500 * time.Millisecond
	// window is the length of time whose leases count as one burst.
	window = 500 * time.Millisecond
	// inline is the number of used items that Take tries to clean before Take makes a new item.
	inline = 2
)

// New returns a pool and starts the worker, which fills the pool.
func New[T any](cfg Config[T]) *Pool[T] {
	if cfg.Max == 0 {
		cfg.Max = 4 * cfg.Ready
	}
	if cfg.Idle == 0 {
		cfg.Idle = time.Minute
	}
	p := &Pool[T]{cfg: cfg, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go p.work()
	return p
}

// Take leases an item: a ready item, preferably one for which prefer is true (nil: the last
// added); else a used item that Clean accepts at once; else a new item. After Close the error
// is fs.ErrClosed.
func (p *Pool[T]) Take(prefer func(T) bool) (T, error) {
	var none T
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return none, fmt.Errorf("%s pool: %w", p.cfg.Name, fs.ErrClosed)
	}
	p.demandLocked(1)
	if item, ok := p.popLocked(prefer); ok {
		p.mu.Unlock()
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

// TryTake leases a ready item, for callers with another way to get one. A miss counts as
// demand. ok is false if no item is ready or the pool is closed.
func (p *Pool[T]) TryTake() (item T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return item, false
	}
	p.demandLocked(1)
	if item, ok = p.popLocked(nil); !ok {
		p.poke()
	}
	return item, ok
}

// Borrow is TryTake without the demand: next time another pool meets the demand.
func (p *Pool[T]) Borrow() (item T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return item, false
	}
	return p.popLocked(nil)
}

// popLocked returns a ready item, if any.
func (p *Pool[T]) popLocked(prefer func(T) bool) (item T, ok bool) {
	p.takes++
	for len(p.free) > 0 {
		i := len(p.free) - 1
		if prefer != nil {
			i = max(slices.IndexFunc(p.free, prefer), 0)
		}
		item = p.free[i]
		p.free[i] = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		if p.cfg.Alive == nil || p.cfg.Alive(item) {
			// Refill single items at once, but many only when half of the pool is used up.
			if want := p.wantLocked(); len(p.free) <= want/2 {
				p.poke()
			}
			return item, true
		}
		p.dirty = append(p.dirty, item) // the worker drops the dead item
		p.poke()
	}
	var none T
	return none, false
}

// demandLocked counts n leases and halves old peaks.
func (p *Pool[T]) demandLocked(n int) {
	now := time.Now()
	if now.Sub(p.since) > window {
		p.since, p.count = now, 0
	}
	p.count += n
	for p.peak > p.count && now.Sub(p.peakAt) > p.cfg.Idle {
		p.peak /= 2
		p.peakAt = p.peakAt.Add(p.cfg.Idle)
	}
	if p.count >= p.peak {
		p.peak, p.peakAt = p.count, now
	}
}

// wantLocked returns the number of ready items that recent demand justifies.
func (p *Pool[T]) wantLocked() int { return max(p.cfg.Ready, min(p.peak, p.cfg.Max)) }

// Len returns the number of ready items, and the number that recent demand justifies.
func (p *Pool[T]) Len() (ready, want int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.demandLocked(0)
	return len(p.free), p.wantLocked()
}

// Check wakes the worker, which drops dead items and makes new ones.
func (p *Pool[T]) Check() { p.poke() }

// popDirtyLocked takes the n oldest used items, the most likely to be at rest.
func (p *Pool[T]) popDirtyLocked(n int) []T {
	n = min(n, len(p.dirty))
	used := slices.Clone(p.dirty[:n])
	p.dirty = slices.Delete(p.dirty, 0, n)
	return used
}

// Give ends the lease of an item. Give never blocks.
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

// Close drops every item that is not leased and waits for the worker. Later calls of Give drop
// the leased items.
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

// work fills the pool, then cleans and refills whenever the pool needs work and the machine is
// not busy with starts.
func (p *Pool[T]) work() {
	defer close(p.done)
	var notBefore time.Time // after a failure, no demand causes another attempt before this time
	pause := quiet
	for {
		again := p.clean()
		p.trim()
		wait := p.cfg.Idle
		if rest := time.Until(notBefore); rest > 0 {
			wait = rest
		} else if more, err := p.refill(); err != nil {
			p.cfg.Log.Warn("not made", "pool", p.cfg.Name, "error", err, "again_in", pause)
			wait, notBefore = pause, time.Now().Add(pause)
			pause = min(2*pause, p.cfg.Idle)
		} else {
			again = again || more
			pause = quiet
		}
		if again {
			wait = min(wait, quiet)
		}
		select {
		case <-p.stop:
			return
		case <-time.After(wait):
		case <-p.wake:
		}
		if !p.settle() {
			return
		}
	}
}

// settle waits until the machine is quiet, for at most patience. settle returns false if the
// pool closes.
func (p *Pool[T]) settle() bool {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for wait := time.Millisecond; p.busy() || crowded(); wait = min(2*wait, quiet) {
		select {
		case <-p.stop:
			return false
		case <-limit.C:
			return true
		case <-time.After(wait):
		}
	}
	return p.cfg.Busy != nil || p.settleTakes(limit.C)
}

// settleTakes waits until nothing takes from the pool for a while, or until limit. settleTakes
// returns false if the pool closes.
func (p *Pool[T]) settleTakes(limit <-chan time.Time) bool {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for seen := p.takesNow(); ; {
		select {
		case <-p.stop:
			return false
		case <-limit:
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

func (p *Pool[T]) busy() bool { return p.cfg.Busy != nil && p.cfg.Busy() }

// crowded reports whether more threads run or are ready to run than the machine has CPUs: then
// earlier starts are still under way. Tests replace crowded.
var crowded = func() bool {
	n, err := runnable()
	return err == nil && n > runtime.NumCPU()
}

// runnable returns the number of runnable threads of the machine, without the calling thread
// (proc_loadavg(5)).
func runnable() (int, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	var n, all int
	if _, err := fmt.Sscanf(string(b), "%f %f %f %d/%d", new(float64), new(float64), new(float64), &n, &all); err != nil {
		return 0, fmt.Errorf("/proc/loadavg: %w", err)
	}
	return n - 1, nil
}

func (p *Pool[T]) takesNow() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takes
}

// clean cleans the used items and reports whether any of them is still in use.
func (p *Pool[T]) clean() (again bool) {
	p.mu.Lock()
	used := p.dirty
	p.dirty = nil
	p.mu.Unlock()
	var busy []T
	for _, item := range used {
		verdict := Spoilt
		if p.cfg.Alive == nil || p.cfg.Alive(item) {
			verdict = p.cfg.Clean(item)
		}
		switch verdict {
		case Ready:
			p.offer(item)
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

// offer makes a clean item free, or drops the item if the pool is full or closed.
func (p *Pool[T]) offer(item T) {
	p.mu.Lock()
	room := !p.closed && len(p.free) < p.cfg.Max
	if room {
		p.free = append(p.free, item)
	}
	p.mu.Unlock()
	if !room {
		p.drop(item)
	}
}

// trim drops dead items, and items beyond the recent demand.
func (p *Pool[T]) trim() {
	var out []T
	p.mu.Lock()
	p.demandLocked(0)
	if p.cfg.Alive != nil {
		p.free = slices.DeleteFunc(p.free, func(item T) bool {
			dead := !p.cfg.Alive(item)
			if dead {
				out = append(out, item)
			}
			return dead
		})
	}
	if over := len(p.free) - p.wantLocked(); over > 0 {
		out = append(out, p.free[:over]...)
		p.free = slices.Delete(p.free, 0, over)
	}
	p.mu.Unlock()
	for _, item := range out {
		p.drop(item)
	}
}

// refill makes items until enough are ready. refill gives way to leases, or to Busy if set:
// more is then true.
func (p *Pool[T]) refill() (more bool, err error) {
	for seen := p.takesNow(); ; {
		p.mu.Lock()
		full := p.closed || len(p.free)+len(p.dirty) >= p.wantLocked()
		busy := p.takes != seen
		p.mu.Unlock()
		if p.cfg.Busy != nil {
			busy = p.cfg.Busy()
		}
		if full || busy {
			return busy && !full, nil
		}
		item, err := p.cfg.Make()
		if errors.Is(err, ErrFull) {
			return false, nil
		}
		if err != nil {
			return true, err
		}
		p.mu.Lock()
		p.free = append(p.free, item)
		p.mu.Unlock()
	}
}
