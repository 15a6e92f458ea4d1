package events

import (
	"sync"
	"time"
)

// index knows the events that have not ended: those that this process has taken on, and
// those that were there when it began, or that others brought.
type index struct {
	mu       sync.Mutex
	entries  map[string]*Entry
	count    map[string]int // by function
	watchers map[chan Entry]struct{}
	ended    map[string]struct{} // while what was there is taken up: what has ended meanwhile
}

func newIndex() *index {
	return &index{entries: map[string]*Entry{}, count: map[string]int{}, watchers: map[chan Entry]struct{}{}, ended: map[string]struct{}{}}
}

// found takes up an event that was there before the process, unless it has ended meanwhile.
func (x *index) found(e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ended := x.ended[e.ID]; ended || x.entries[e.ID] != nil {
		return
	}
	e.Changed = e.Accepted
	x.entries[e.ID] = &e
	x.count[e.Function]++
}

// foundAll ends what found is for.
func (x *index) foundAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = nil
}

// add takes up an event unless it is there, or most of its function's are; 0 is no limit.
func (x *index) add(e Entry, most int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.entries[e.ID] != nil || most > 0 && x.count[e.Function] >= most {
		return false
	}
	e.Changed = e.Accepted
	x.entries[e.ID] = &e
	x.count[e.Function]++
	x.tellLocked(e)
	return true
}

// written notes where in its queue an event is.
func (x *index) written(id string, seq uint64, size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.entries[id]; e != nil {
		e.seq, e.Size = seq, size
	}
}

// change has an event be in another state; it may have ended by that.
func (x *index) change(e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e.Changed = time.Now().UTC()
	old := x.entries[e.ID]
	switch {
	case e.State == StateDone || e.State == StateDead:
		x.dropLocked(e.ID)
		if x.ended != nil {
			x.ended[e.ID] = struct{}{}
		}
	case old != nil:
		*old = e
	default:
		x.entries[e.ID] = &e
		x.count[e.Function]++
	}
	x.tellLocked(e)
}

func (x *index) drop(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropLocked(id)
}

func (x *index) dropLocked(id string) {
	e := x.entries[id]
	if e == nil {
		return
	}
	delete(x.entries, id)
	if x.count[e.Function]--; x.count[e.Function] == 0 {
		delete(x.count, e.Function)
	}
}

func (x *index) find(id string) (Entry, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.entries[id]; e != nil {
		return *e, true
	}
	return Entry{}, false
}

// all are the events that wanted says yes to, in no order.
func (x *index) all(wanted func(*Entry) bool) []Entry {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []Entry
	for _, e := range x.entries {
		if wanted(e) {
			out = append(out, *e)
		}
	}
	return out
}

// size is how many there are.
func (x *index) size() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.entries)
}

// watch has every change from now on sent to the channel, as far as there is room in it.
func (x *index) watch(c chan Entry) (stop func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watchers[c] = struct{}{}
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.watchers, c)
	}
}

func (x *index) tellLocked(e Entry) {
	for c := range x.watchers {
		select {
		case c <- e:
		default: // slower than what happens: it misses some
		}
	}
}
