package waiting

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

// TestOrder: grants go to the waiters in order of arrival, without the waiters that gave up.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var q Queue[int, string]
		got := make([]string, 5)
		gone := errors.New("the client has left")
		ctx, leave := context.WithCancelCause(t.Context())
		for i := range got {
			ctx := ctx
			if i%2 == 0 { // never gives up
				ctx = t.Context()
			}
			mu.Lock()
			w := q.Push(i)
			mu.Unlock()
			go func() {
				g, err := w.Wait(ctx, &mu, func(g string) { t.Errorf("waiter %d gives %q back", i, g) })
				if err != nil {
					g = err.Error()
				}
				got[i] = g
			}()
		}
		leave(gone)
		synctest.Wait()
		mu.Lock()
		for _, want := range []int{0, 2, 4} {
			if first := q.First(); first != want {
				t.Errorf("request %d is the oldest, want %d", first, want)
			}
			q.Grant(string(rune('a' + want)))
		}
		if n := q.Len(); n != 0 {
			t.Errorf("%d waiters are left, want none", n)
		}
		mu.Unlock()
		synctest.Wait()
		for i, want := range []string{"a", gone.Error(), "c", gone.Error(), "e"} {
			if got[i] != want {
				t.Errorf("waiter %d got %q, want %q", i, got[i], want)
			}
		}
	})
}

// lateGrant is an owner's mutex. Grant runs at the moment when a waiter that gives up locks it.
type lateGrant struct {
	sync.Mutex
	grant func()
}

func (l *lateGrant) Lock() {
	l.Mutex.Lock()
	l.grant()
}

// TestGrantedMeanwhile: a waiter that gives up as its grant arrives returns the grant.
func TestGrantedMeanwhile(t *testing.T) {
	var q Queue[struct{}, int]
	w := q.Push(struct{}{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	back := 0
	_, err := w.Wait(ctx, &lateGrant{grant: func() { q.Grant(7) }}, func(g int) { back = g })
	if back != 7 || !errors.Is(err, context.Canceled) {
		t.Errorf("gave back %d with error %v, want 7 with %v", back, err, context.Canceled)
	}
}

// TestLeave: a waiter leaves the start, the middle and the end of a queue, once.
func TestLeave(t *testing.T) {
	for gone := range 3 {
		var q Queue[int, int]
		var all []*Waiter[int, int]
		for i := range 3 {
			all = append(all, q.Push(i))
		}
		if !all[gone].Leave() || all[gone].Leave() {
			t.Errorf("waiter %d did not leave exactly once", gone)
		}
		all = append(all, q.Push(3))
		for i, w := range all {
			if i == gone {
				continue
			}
			if first := q.First(); first != i {
				t.Errorf("without waiter %d: %d is the oldest, want %d", gone, first, i)
			}
			q.Grant(10 * i)
			if g, err := w.Wait(t.Context(), nil, nil); g != 10*i || err != nil {
				t.Errorf("waiter %d got %d, %v", i, g, err)
			}
		}
		if q.Len() != 0 {
			t.Errorf("%d waiters are left", q.Len())
		}
	}
}

// TestSlots: many goroutines share a few slots and give up at random moments; no slot is lost,
// and no slot has two holders.
func TestSlots(t *testing.T) {
	const slots, goroutines, rounds = 3, 16, 200
	var mu sync.Mutex
	var q Queue[struct{}, struct{}]
	free, held := slots, 0
	release := func(struct{}) {
		mu.Lock()
		defer mu.Unlock()
		held--
		if q.Len() > 0 {
			held++
			q.Grant(struct{}{})
		} else {
			free++
		}
	}
	acquire := func(ctx context.Context) error {
		mu.Lock()
		if free > 0 {
			free--
			held++
			mu.Unlock()
			return nil
		}
		w := q.Push(struct{}{})
		mu.Unlock()
		_, err := w.Wait(ctx, &mu, release)
		return err
	}
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for round := range rounds {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+round)%3 == 0 {
					go cancel()
				}
				if acquire(ctx) == nil {
					mu.Lock()
					if held > slots {
						t.Errorf("%d slots are held of %d", held, slots)
					}
					mu.Unlock()
					release(struct{}{})
				}
				cancel()
			}
		})
	}
	all.Wait()
	if free != slots || held != 0 || q.Len() != 0 {
		t.Errorf("in the end %d slots are free, %d held, %d goroutines wait; want %d, 0, 0", free, held, q.Len(), slots)
	}
}

func BenchmarkGrant(b *testing.B) {
	var mu sync.Mutex
	var q Queue[int, int]
	b.ReportAllocs()
	for b.Loop() {
		w := q.Push(1)
		q.Grant(2)
		if _, err := w.Wait(b.Context(), &mu, nil); err != nil {
			b.Fatal(err)
		}
	}
}
