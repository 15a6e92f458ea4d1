package buffer

// Stats is what a pool has lent.
type Stats struct {
	Bytes   int64 // of memory
	Held    int64 // bytes lent, in whole buffers
	Peak    int64 // most bytes lent at once
	Waiting int   // in Acquire

	High, Low int64  // the watermarks of Config
	Pressed   bool   // between the watermarks of Config, or above
	Pressures uint64 // times that it became so

	Classes []ClassStats
}

// ClassStats is a size class's part.
type ClassStats struct {
	Size     int // bytes of one buffer
	Lent     int
	Peak     int    // most lent at once
	Acquired uint64 // times
	Refused  uint64 // times: by TryAcquire, or given up in Acquire
}

// Free returns how many bytes are not lent, and how many there are.
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
		s.Classes[i] = ClassStats{Size: MinSize << i, Lent: c.lent, Peak: c.peak, Acquired: c.acquired, Refused: c.refused}
	}
	return s
}
