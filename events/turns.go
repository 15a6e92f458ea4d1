package events

import (
	"context"
	"sync"

	"github.com/fre-engine/fre/internal/waiting"
)

// weights are the shares of turns while all priorities have events waiting.
var weights = map[Priority]int{High: 16, Normal: 4, Low: 1}

// priorities, the most urgent first.
var priorities = []Priority{High, Normal, Low}

// turns bounds the events under way and divides the turns by weight. The next turn goes to the
// waiting priority with the fewest turns for its weight, and there to the oldest waiter. No
// priority starves, and a priority without events leaves its share to the rest.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting map[Priority]*turnQueue
	passed  map[Priority]float64 // turns granted, divided by weight; cleared while no caller waits
}

// turnQueue holds callers that wait. The request is the most turns that the caller takes, the
// grant is how many it gets.
type turnQueue = waiting.Queue[int, int]

func newTurns(n int) *turns {
	return &turns{free: n, waiting: map[Priority]*turnQueue{High: {}, Normal: {}, Low: {}}, passed: map[Priority]float64{}}
}

// acquire waits for a turn, and takes up to most turns if more are free. acquire returns the number
// of turns, at least 1, or ctx's cause.
func (t *turns) acquire(ctx context.Context, p Priority, most int) (int, error) {
	t.mu.Lock()
	if t.waiting[p].Len() == 0 {
		t.joinLocked(p)
	}
	w := t.waiting[p].Push(most)
	t.grantLocked()
	t.mu.Unlock()
	return w.Wait(ctx, &t.mu, t.release)
}

// joinLocked lets p start level with the waiting priorities: time without events earns no credit.
func (t *turns) joinLocked(p Priority) {
	first := true
	least := 0.0
	for other, waiters := range t.waiting {
		if waiters.Len() > 0 && (first || t.passed[other] < least) {
			first, least = false, t.passed[other]
		}
	}
	t.passed[p] = max(t.passed[p], least)
}

// release gives n turns back.
func (t *turns) release(n int) {
	if n == 0 {
		return
	}
	t.mu.Lock()
	t.free += n
	t.grantLocked()
	t.mu.Unlock()
}

func (t *turns) grantLocked() {
	for t.free > 0 {
		var next Priority
		waiters := 0
		for _, p := range priorities {
			if t.waiting[p].Len() == 0 {
				continue
			}
			waiters += t.waiting[p].Len()
			if next == "" || t.passed[p] < t.passed[next] {
				next = p
			}
		}
		if next == "" {
			clear(t.passed)
			return
		}
		n := min(t.free, t.waiting[next].First(), max(1, t.free/waiters)) // all free turns for a single waiter
		t.free -= n
		t.passed[next] += float64(n) / float64(weights[next])
		t.waiting[next].Grant(n)
	}
}
