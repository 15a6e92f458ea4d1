package admission

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// line is a queue for places, with its own clock.
type line struct {
	q       Queue
	now     time.Time
	places  int
	busy    ends // when each taken place becomes free
	waiters []time.Time
	takes   func() time.Duration

	waits   []time.Duration // of served requests
	refused map[Reason]int
	stale   int
}

// ends is a heap of taken places, ordered by their end.
type ends []kept

type kept struct{ from, until time.Time }

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].until.Before(e[j].until) }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(kept)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newLine(places int, takes func() time.Duration) *line {
	now := time.Unix(1000, 0)
	l := &line{q: NewQueue(QueueConfig{}), now: now, places: places, takes: takes, refused: map[Reason]int{}}
	return l
}

// arrive adds a request at this time.
func (l *line) arrive(at time.Time) {
	l.until(at)
	if len(l.busy) < l.places {
		l.q.Clear()
		l.start(at)
		return
	}
	if len(l.waiters) == 0 {
		l.q.Clear()
	}
	if why := l.q.Full(len(l.waiters), len(l.busy)); why != "" {
		l.refused[why]++
		return
	}
	l.waiters = append(l.waiters, at)
}

func (l *line) start(since time.Time) {
	l.waits = append(l.waits, l.now.Sub(since))
	heap.Push(&l.busy, kept{l.now, l.now.Add(l.takes())})
}

// until lets time pass.
func (l *line) until(at time.Time) {
	for len(l.busy) > 0 && !l.busy[0].until.After(at) {
		k := heap.Pop(&l.busy).(kept)
		l.now = k.until
		l.q.Kept(k.until.Sub(k.from))
		for len(l.waiters) > 1 && l.q.Stale(l.now.Sub(l.waiters[0])) {
			l.waiters = l.waiters[1:]
			l.stale++
		}
		if len(l.waiters) > 0 {
			since := l.waiters[0]
			l.waiters = l.waiters[1:]
			l.q.Served(l.now, l.now.Sub(since))
			l.start(since)
		}
	}
	l.now = at
}

func (l *line) p99() time.Duration {
	slices.Sort(l.waits)
	return l.waits[len(l.waits)*99/100]
}

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// With three times the possible load at random moments, the places are always in use. Served
// requests have waited for a short time, and refused requests have not waited at all.
func TestQueueOverload(t *testing.T) {
	const load = 3
	for _, tt := range []struct {
		name   string
		places int
		mean   time.Duration
		random bool // exponential, else all equal
		most   time.Duration
	}{
		{"four of 5 ms", 4, 5 * time.Millisecond, false, 25 * time.Millisecond},
		{"four of about 5 ms", 4, 5 * time.Millisecond, true, 60 * time.Millisecond},
		{"one of 100 ms", 1, 100 * time.Millisecond, false, 600 * time.Millisecond},
		{"one of about 100 ms", 1, 100 * time.Millisecond, true, 3 * time.Second},
		{"two of 50 µs", 2, 50 * time.Microsecond, false, 30 * time.Millisecond},
		{"many of a second", 64, time.Second, false, 6 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			takes := constant(tt.mean)
			if tt.random {
				takes = func() time.Duration { return time.Duration(random.ExpFloat64() * float64(tt.mean)) }
			}
			l := newLine(tt.places, takes)
			gap := float64(tt.mean) / float64(tt.places) / load
			turns := max(2000, int(5*time.Second/tt.mean))
			n := tt.places * turns * load
			at := l.now
			begin := at
			for range n {
				at = at.Add(time.Duration(random.ExpFloat64() * gap))
				l.arrive(at)
			}
			could := float64(at.Sub(begin)) / float64(tt.mean) * float64(tt.places)
			if done := float64(len(l.waits)); done < 0.98*could {
				t.Errorf("%v of %v were served", done, could)
			}
			// The first interval is a burst: the test leaves out the first half.
			half := l.waits[len(l.waits)/2:]
			l.waits = half
			if got := l.p99(); got > tt.most {
				t.Errorf("p99 of the wait is %v, want at most %v", got, tt.most)
			}
			if l.stale > n/100 {
				t.Errorf("%d of %d waited in vain", l.stale, n)
			}
			t.Logf("p99 %v; refused %v, in vain %d, of %d", l.p99(), l.refused, l.stale, n)
		})
	}
}

// The queue takes a burst as long as its requests can be served in time. After the burst no
// standing queue remains.
func TestQueueBurst(t *testing.T) {
	l := newLine(4, constant(5*time.Millisecond))
	for range 100 { // makes the usual time known
		l.arrive(l.now.Add(5 * time.Millisecond))
	}
	l.refused = map[Reason]int{}
	burst := l.now.Add(time.Second)
	for range 200 {
		l.arrive(burst)
	}
	if want := 200 - 4 - 81; l.refused[QueueTime] != want || len(l.waiters) != 81 {
		t.Errorf("of 200 at once %d wait, refused %v; want 81, %d", len(l.waiters), l.refused, want)
	}
	l.until(burst.Add(time.Second))
	if l.stale != 0 || len(l.busy) != 0 {
		t.Errorf("%d waited in vain, %d are not done", l.stale, len(l.busy))
	}
	l.arrive(l.now)
	for range 20 { // a new burst
		l.arrive(l.now)
	}
	if l.refused[QueueTime] != 115 {
		t.Errorf("refused after the queue was empty: %v", l.refused)
	}
}

// If each client sends the next request after the last answer, the queue has as many requests as
// clients. A few turns of the clients are not an overload.
func TestQueueClosedLoop(t *testing.T) {
	l := newLine(4, constant(50*time.Millisecond))
	for i := range 20 {
		l.arrive(l.now.Add(time.Duration(i)))
	}
	for range 2000 { // a client that leaves comes again
		l.arrive(l.busy[0].until)
	}
	if len(l.refused) != 0 || l.stale != 0 {
		t.Errorf("20 clients for 4 places: refused %v, %d in vain", l.refused, l.stale)
	}
}

// A request that occasionally takes long delays the next requests once; most of them are served.
func TestQueueStall(t *testing.T) {
	n := 0
	l := newLine(1, func() time.Duration {
		if n++; n%100 == 0 {
			return time.Second
		}
		return 2 * time.Millisecond
	})
	for range 2000 { // a fifth of the capacity between the stalls
		l.arrive(l.now.Add(20 * time.Millisecond))
	}
	total := l.refused[QueueTime] + l.refused[QueueLength] + l.stale
	if total > 20*20 {
		t.Errorf("%d of 2000 were refused", total)
	}
	t.Logf("refused %v, in vain %d", l.refused, l.stale)
}

// Without a known time, and without places, only the length counts.
func TestQueueLength(t *testing.T) {
	q := NewQueue(QueueConfig{Length: 10})
	for waiting := range 20 {
		want := Reason("")
		if waiting >= 10 {
			want = QueueLength
		}
		if got := q.Full(waiting, 1); got != want {
			t.Errorf("%d wait, nothing known: %q, want %q", waiting, got, want)
		}
	}
	q.Kept(time.Hour)
	stand(&q)
	if got := q.Full(9, 0); got != "" {
		t.Errorf("no places: %q", got)
	}
	if got := q.Full(9, 1); got != QueueTime {
		t.Errorf("a queue that stands, nine of an hour: %q", got)
	}
	if got := q.Full(0, 1); got != "" {
		t.Errorf("nobody waits, yet nobody may: %q", got)
	}
}

// stand makes q a standing queue.
func stand(q *Queue) {
	now := time.Unix(1000, 0)
	q.Served(now, 1000*time.Hour)
	q.Served(now.Add(1000*time.Hour), 1000*time.Hour)
}

// The queue stands if an interval passes without a request served in time, until the queue is
// empty.
func TestQueueStands(t *testing.T) {
	q := NewQueue(QueueConfig{})
	q.Kept(time.Millisecond) // target 20 ms, interval 100 ms
	now := time.Unix(1000, 0)
	for _, step := range []struct {
		at, waited int // ms
		stands     bool
	}{{0, 21, false}, {100, 21, false}, {101, 20, false}, {110, 21, false}, {210, 21, false}, {211, 21, true}, {212, 1, true}} {
		q.Served(now.Add(time.Duration(step.at)*time.Millisecond), time.Duration(step.waited)*time.Millisecond)
		if got := q.Stale(101 * time.Millisecond); got != step.stands {
			t.Errorf("%+v: it stands: %v", step, got)
		}
	}
	if q.Stale(100 * time.Millisecond) {
		t.Error("an interval is too long")
	}
	if q.Full(20, 1) != "" || q.Full(21, 1) != QueueTime {
		t.Error("it is not 20 of 1 ms that may wait in a queue that stands")
	}
	q.Clear()
	if q.Stale(time.Hour) || q.Full(100, 1) != "" || q.Full(101, 1) != QueueTime {
		t.Error("it is not 100 of 1 ms that may wait in one that was empty")
	}
}

func TestQueueCheck(t *testing.T) {
	for _, bad := range []QueueConfig{{Length: -1}, {Target: -1}, {Interval: -1}, {Target: 2, Interval: 1}} {
		if bad.Check() == nil {
			t.Errorf("%+v passes", bad)
		}
	}
	if err := (QueueConfig{}).Check(); err != nil {
		t.Error(err)
	}
	// No overflow.
	q := NewQueue(QueueConfig{Length: math.MaxInt})
	q.Kept(30 * 24 * time.Hour)
	if got := q.Full(1<<30, 1); got != QueueTime {
		t.Errorf("a billion that take a month each: %q", got)
	}
}
