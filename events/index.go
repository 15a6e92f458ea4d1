package events

import (
	"slices"
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

	share  func(Entry)          // tells other nodes; nil: there are none. It does not wait
	last   []string             // the last that have ended here or elsewhere, a ring
	place  int                  // in last
	recent map[string]uint64    // what last holds: where in their queues they were
	asked  map[string]time.Time // when an event's stream was asked for it (doubtful)
	doubts map[string]struct{}  // which may have ended; those of a process alone, of others' each may
}

// rememberEnds is how many events are known to have ended. Other nodes' words come in any
// order: what has ended may be said to wait after that.
const rememberEnds = 16384

func newIndex() *index {
	return &index{entries: map[string]*Entry{}, count: map[string]int{}, watchers: map[chan Entry]struct{}{}, ended: map[string]struct{}{}, recent: map[string]uint64{}, asked: map[string]time.Time{}, doubts: map[string]struct{}{}}
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

// findAgain begins it anew: others may have brought some meanwhile.
func (x *index) findAgain() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = map[string]struct{}{}
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
		x.shareLocked(*e)
	}
}

func (x *index) shareLocked(e Entry) {
	if x.share != nil {
		x.share(e)
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
		x.endLocked(e)
	case old != nil:
		*old = e
	default:
		x.putLocked(e)
	}
	x.tellLocked(e)
	x.shareLocked(e)
}

// endLocked takes an event out, and remembers that it was there.
func (x *index) endLocked(e Entry) {
	x.dropLocked(e.ID)
	if x.ended != nil {
		x.ended[e.ID] = struct{}{}
	}
	if x.share == nil {
		return
	}
	if x.last == nil {
		x.last = make([]string, rememberEnds)
	}
	if _, ok := x.recent[e.ID]; !ok {
		delete(x.recent, x.last[x.place])
		x.last[x.place] = e.ID
		x.place = (x.place + 1) % len(x.last)
	}
	x.recent[e.ID] = max(x.recent[e.ID], e.seq)
}

// putLocked takes up an event. It has e apart from its callers, whose own need not be on the
// heap each time.
func (x *index) putLocked(e Entry) {
	x.entries[e.ID] = &e
	x.count[e.Function]++
}

// heard takes note of what another node says, and says whether the event waits.
func (x *index) heard(e Entry) (waits bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.entries[e.ID]
	switch seq, ended := x.recent[e.ID]; {
	case e.State == StateDone || e.State == StateDead:
		x.endLocked(e)
	case ended && e.seq <= seq:
		return false // said before it ended; one that is replayed is further on in its queue
	case old != nil:
		if e.State != StateQueued || e.seq > old.seq {
			*old = e
		}
	default:
		x.putLocked(e)
	}
	x.tellLocked(e)
	return e.State == StateQueued || e.State == StateWaiting
}

// doubt notes that an event may have ended without anybody saying so.
func (x *index) doubt(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.entries[id] != nil {
		x.doubts[id] = struct{}{}
	}
}

// doubtful are those that nothing was heard of since before, the longest unasked first.
func (x *index) doubtful(before time.Time, most int) []Entry {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.share == nil && len(x.doubts) == 0 {
		return nil
	}
	var out []Entry
	for id, e := range x.entries {
		if _, ok := x.doubts[id]; x.share == nil && !ok {
			continue
		}
		if e.seq > 0 && e.Changed.Before(before) && x.asked[id].Before(before) {
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return x.asked[a.ID].Compare(x.asked[b.ID]) })
	out = out[:min(most, len(out))]
	for i := range out {
		x.asked[out[i].ID] = time.Now()
	}
	return out
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
	delete(x.asked, id)
	delete(x.doubts, id)
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
