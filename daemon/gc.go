package daemon

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// gcHeap is the size to which the daemon's heap, garbage included, may grow before a collection,
// unless the live heap needs more.
//
// The live heap has a few megabytes, and two kilobytes for each image. Collecting at every doubling
// would take a quarter of the CPUs during a burst of starts. Four times the live heap would be 80
// MB of garbage with 10,000 images.
const gcHeap = 36 << 20

// gcPercent is the argument of debug.SetGCPercent for live bytes of heap: garbage of at least half,
// and at most four times the live heap.
func gcPercent(live uint64) int {
	garbage := max(gcHeap, live) - live
	return int(min(max(garbage*100/max(live, 1), 50), 400))
}

// tuneGC sets the GC percentage anew after each collection, for the life of the process.
func tuneGC() {
	debug.SetGCPercent(400)
	last := 400
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	// Garbage from the start: the finalizer runs after each collection, always in the runtime's one
	// finalizer goroutine. (Without a pointer the object would share its memory block with other
	// objects.)
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
