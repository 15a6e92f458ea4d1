package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// gcHeap is how large the daemon's heap may become, with its garbage, before it is
// collected, as long as what is in use leaves room for some.
//
// In use are a few megabytes, and two kilobytes for each image: collecting at
// every doubling would take a quarter of the CPUs in the middle of each burst of
// starts, while four times as much garbage as there is in use would be 80 MB with
// 10,000 images.
const gcHeap = 36 << 20

// gcPercent is what debug.SetGCPercent is told of a heap with that many bytes in
// use: at least half as much garbage, and at most four times.
func gcPercent(live uint64) int {
	garbage := max(gcHeap, live) - live
	return int(min(max(garbage*100/max(live, 1), 50), 400))
}

// tuneGC has each collection decide when the next one comes, for as long as the
// process lives.
func tuneGC() {
	debug.SetGCPercent(400)
	last := 400
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	// Garbage from the start: its finalizer runs after each collection, all of them
	// in one goroutine. (Without a pointer it would share its memory with others.)
	type tick struct{ _ *byte }
	var collected func(*tick)
	collected = func(t *tick) {
		metrics.Read(live)
		if percent := gcPercent(live[0].Value.Uint64()); percent != last {
			last = percent
			debug.SetGCPercent(percent)
		}
		runtime.SetFinalizer(t, collected)
	}
	runtime.SetFinalizer(new(tick), collected)
}
