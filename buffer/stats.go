package buffer

// Stats is what a pool has lent.
type Stats struct {
	Bytes   int64 // of memory
	Held    int64 // bytes lent, in whole buffers
	Waiting int   // in Acquire
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

// Stats returns the state of the pool at one moment.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Bytes: int64(len(p.arena)), Held: p.held, Waiting: len(p.waiters), Classes: make([]ClassStats, classCount)}
	for i := range p.classes {
		c := &p.classes[i]
		s.Classes[i] = ClassStats{Size: MinSize << i, Lent: c.lent, Peak: c.peak, Acquired: c.acquired, Refused: c.refused}
	}
	return s
}
