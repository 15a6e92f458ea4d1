package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// gcGarbage is how much garbage the daemon may have when it is collected.
//
// Its heap is a few megabytes, and four kilobytes for each image: collecting it at
// every doubling would take a quarter of the CPUs in the middle of each burst of
// starts, while four times as much garbage as there is in use would be 160 MB with
// 10,000 images.
const gcGarbage = 24 << 20

// gcPercent is what debug.SetGCPercent is told of a heap with that many bytes in
// use.
func gcPercent(live uint64) int {
	return int(min(max(gcGarbage*100/max(live, 1), 50), 400))
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
