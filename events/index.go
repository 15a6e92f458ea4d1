package events

import (
	"slices"
	"sync"
	"time"
)

// index knows the events that have not ended: events accepted by this process, found in streams at
// the start, or announced by other nodes.
type index struct {
	mu       sync.Mutex
	entries  map[string]*Entry
	count    map[string]int // by function
	watchers map[chan Entry]struct{}
	ended    map[string]struct{} // events that ended while scan read the streams (found)

	share  func(Entry)          // sends to other nodes without blocking; nil: the only node
	last   []string             // ring of the ids that ended most recently, on any node
	next   int                  // next index in last
	recent map[string]uint64    // the ids in last, with their sequence in the queue
	asked  map[string]time.Time // when the stream was last asked for an event (doubtful)
	doubts map[string]struct{}  // single node: events that may have ended; otherwise any may
}

// rememberEnds is how many ended events are remembered. Messages of other nodes arrive in any
// order: a node may announce an event as waiting after its end.
const rememberEnds = 16384

func newIndex() *index {
	return &index{entries: map[string]*Entry{}, count: map[string]int{}, watchers: map[chan Entry]struct{}{}, ended: map[string]struct{}{}, recent: map[string]uint64{}, asked: map[string]time.Time{}, doubts: map[string]struct{}{}}
}

// found adds an event read from a stream, unless the event has ended meanwhile.
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

// foundAll says that scan has read all streams.
func (x *index) foundAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = nil
}

// findAgain says that scan reads the streams again: others may have published events meanwhile.
func (x *index) findAgain() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = map[string]struct{}{}
}

// add adds an event, unless it is known or its function has most events; most 0 is no limit.
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

// written notes an event's sequence in the queue.
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

// change sets an event's state, and removes the event if it has ended.
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

// endLocked removes an event, and remembers its end.
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
		delete(x.recent, x.last[x.next])
		x.last[x.next] = e.ID
		x.next = (x.next + 1) % len(x.last)
	}
	x.recent[e.ID] = max(x.recent[e.ID], e.seq)
}

// putLocked adds an event. It is separate from its callers so that only added events go to the
// heap, and not the argument of every change.
func (x *index) putLocked(e Entry) {
	x.entries[e.ID] = &e
	x.count[e.Function]++
}

// heard applies another node's change, and reports whether the event waits.
func (x *index) heard(e Entry) (waits bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.entries[e.ID]
	switch seq, ended := x.recent[e.ID]; {
	case e.State == StateDone || e.State == StateDead:
		x.endLocked(e)
	case ended && e.seq <= seq:
		return false // sent before the end; a replayed event has a later sequence
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

// doubt notes that an event may have ended unnoticed.
func (x *index) doubt(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.entries[id] != nil {
		x.doubts[id] = struct{}{}
	}
}

// doubtful returns up to most events unchanged and unasked since before, the longest unasked first.
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

// all returns the events for which wanted is true, in no order.
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

// size returns the number of events.
func (x *index) size() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.entries)
}

// watch sends every change from now on to c, unless c is full.
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
		default: // the watcher is too slow and misses the change
		}
	}
}
