package store

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Callers that arrive during a sync share the next sync and its error.
func TestSharedSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g sharedSync
		var ran atomic.Int32
		full := errors.New("full")
		first := make(chan struct{})
		results := make(chan error, 10)
		go func() { results <- g.share(func() error { ran.Add(1); <-first; return nil }) }()
		synctest.Wait()
		for range 9 {
			go func() { results <- g.share(func() error { ran.Add(1); return full }) }()
		}
		synctest.Wait()
		if n := ran.Load(); n != 1 {
			t.Fatalf("%d run at once", n)
		}
		close(first)
		failed := 0
		for range 10 {
			if err := <-results; errors.Is(err, full) {
				failed++
			}
		}
		if n := ran.Load(); n != 2 || failed != 9 {
			t.Errorf("%d syncs for 10 callers, %d of them have the second's error", n, failed)
		}
		if err := g.share(func() error { return nil }); err != nil {
			t.Error(err)
		}
	})
}
