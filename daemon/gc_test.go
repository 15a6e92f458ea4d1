package daemon

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 4 << 20: 400, 7 << 20: 400, 12 << 20: 200, 18 << 20: 100, 24 << 20: 50, 40 << 20: 50, 1 << 30: 50} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes: %d, want %d", live, got, want)
		}
	}
}

// The percentage of garbage follows the heap, repeatedly.
func TestTuneGC(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	tuneGC()
	until := func(want func(percent int) bool) {
		t.Helper()
		now := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-time.After(time.Millisecond) {
			runtime.GC() // then the finalizer's goroutine runs
			if metrics.Read(now); want(int(now[0].Value.Uint64())) {
				return
			}
		}
		t.Error("the percentage has not followed the heap")
	}
	until(func(percent int) bool { return percent > 100 })
	large := make([]byte, 100<<20)
	until(func(percent int) bool { return percent == 50 })
	runtime.KeepAlive(large)
	large = nil
	until(func(percent int) bool { return percent > 100 })
	_ = large
}
