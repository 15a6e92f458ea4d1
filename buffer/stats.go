package buffer

// Stats is the state of a pool.
type Stats struct {
	Bytes   int64 // of memory
	Held    int64 // bytes in use, in whole buffers
	Peak    int64 // highest value of Held
	Waiting int   // callers in Acquire

	High, Low int64  // the watermarks of Config
	Pressed   bool   // above High, or not yet back at Low
	Pressures uint64 // number of times that Pressed became true

	Classes []ClassStats
}

// ClassStats is the state of a size class.
type ClassStats struct {
	Size     int // bytes of one buffer
	Used     int
	Peak     int    // highest value of Used
	Acquired uint64 // buffers acquired
	Refused  uint64 // requests refused by TryAcquire, or given up in Acquire
}

// Free returns the bytes not in use, and the size of the memory.
func (p *Pool) Free() (free, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.arena)) - p.held, int64(len(p.arena))
}

// Stats returns the state of the pool at one moment.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Bytes: int64(len(p.arena)), Held: p.held, Peak: p.peak, Waiting: len(p.waiters), High: p.high, Low: p.low, Pressed: p.pressed, Pressures: p.pressures, Classes: make([]ClassStats, classCount)}
	for i := range p.classes {
		c := &p.classes[i]
		s.Classes[i] = ClassStats{Size: MinSize << i, Used: c.used, Peak: c.peak, Acquired: c.acquired, Refused: c.refused}
	}
	return s
}
