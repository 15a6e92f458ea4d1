// Package pool keeps what is costly to make (cgroups, network namespaces, parked
// shells) ready to be leased. Making, cleaning and dropping is done in the
// background and gives way to leases, and to what was leased: on a machine that is
// starting sandboxes as fast as it can, the pool's own work would only make every
// start slower.
//
// A pool sizes itself: it keeps as many ready as were leased within half a
// second lately, between Ready and Max.
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

// Verdict says what has become of a used item.
type Verdict int

// The verdicts of Config.Clean.
const (
	Ready  Verdict = iota // clean: it can be leased again
	InUse                 // something still uses it: ask again later
	Spoilt                // it cannot be cleaned: drop it
)

// Config says what a pool holds. Make and Drop are required, and Clean where items
// are given back; they are called from several goroutines, but for one item from
// one at a time.
type Config[T any] struct {
	Name  string        // for errors and logs: "cgroup"
	Ready int           // kept ready without any demand
	Max   int           // kept ready after great demand; default 4 × Ready
	Idle  time.Duration // after which a demand counts half; default 1 minute

	Make  func() (T, error) // ErrFull: there is no room for more
	Clean func(T) Verdict
	Drop  func(T) error
	Alive func(T) bool // nil: always; an item that died while it waited is dropped, never leased
	Busy  func() bool  // whether to put work off; nil: something was leased within the last 20 ms
	Log   *slog.Logger
}

// ErrFull is what Make returns when the item would exceed a bound it shares with
// other pools: it is tried again when there is demand, and no warning.
var ErrFull = errors.New("no room for more")

// Pool hands out items. Its methods may be called from any goroutine.
type Pool[T any] struct {
	cfg Config[T]

	mu     sync.Mutex
	free   []T
	dirty  []T    // given back, not yet cleaned
	takes  uint64 // leases so far: says whether the machine is starting things
	closed bool

	since  time.Time // when the current window began
	count  int       // leases within it
	peak   int       // the most leases within a window lately
	peakAt time.Time

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
	// window is the time within which leases count as one burst.
	window = 500 * time.Millisecond
	// inline is how many used items a lease that finds none ready tries to clean
	// before it makes one.
	inline = 2
)

// New starts to fill a pool.
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

// TryTake is Take for those who have another way when nothing is ready. What
// they miss counts as demand all the same.
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

// Borrow is TryTake for those whose demand another pool will meet next time.
func (p *Pool[T]) Borrow() (item T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return item, false
	}
	return p.popLocked(nil)
}

// popLocked returns a ready item if there is one.
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
			// Few are made one by one, many only when it pays.
			if want := p.wantLocked(); len(p.free) <= want/2 {
				p.poke()
			}
			return item, true
		}
		p.dirty = append(p.dirty, item) // the worker drops it
		p.poke()
	}
	var none T
	return none, false
}

// demandLocked counts n leases and forgets old peaks.
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

// wantLocked is how many the recent demand asks to keep ready.
func (p *Pool[T]) wantLocked() int { return max(p.cfg.Ready, min(p.peak, p.cfg.Max)) }

// Len says how many items wait, and how many recent demand asks for.
func (p *Pool[T]) Len() (ready, want int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.demandLocked(0)
	return len(p.free), p.wantLocked()
}

// Check has the worker drop those that have died and make others.
func (p *Pool[T]) Check() { p.poke() }

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
	var notBefore time.Time // nothing is made before: no demand helps what cannot be made
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

// settle waits until the machine has nothing better to do, at most for patience;
// false when the pool closes.
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
	if p.cfg.Busy != nil {
		return true
	}
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

func (p *Pool[T]) busy() bool { return p.cfg.Busy != nil && p.cfg.Busy() }

// crowded says whether more is running or ready to run than there are CPUs: what
// was started has not come to its end yet. Replaced by tests.
var crowded = func() bool {
	n, err := runnable()
	return err == nil && n > runtime.NumCPU()
}

// runnable is how many of the machine's threads run or could, but for the one that
// asks (proc_loadavg(5)).
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

// clean sorts what was given back; it reports whether some is still in use.
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
		p.mu.Lock()
		if verdict == Ready && (p.closed || len(p.free) >= p.cfg.Max) {
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

// trim drops items that have died, and those that nobody has asked for in a
// while.
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

// refill makes items until enough are ready. It gives way to leases: then it
// reports that there is more to do.
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
