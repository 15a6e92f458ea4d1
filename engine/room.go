package engine

// Room is for how many more events of the function of that name there is room now:
// instances that are free or could be started, and places of the engine's, less those
// who wait for either. 0 as well where there is no such function, or the engine is
// stopping. Whoever holds events that can wait elsewhere asks before
// it takes any on; another event may come first all the same.
func (e *Engine) Room(name string) int {
	f, err := e.lookup(name)
	if err != nil || e.Stopping() {
		return 0
	}
	f.mu.Lock()
	n := f.config.Instances.Max*f.config.Instances.Concurrency - f.busy - len(f.waiters)
	f.mu.Unlock()
	return max(0, min(n, e.places.room(f)))
}

// room is how many events of f would get a place at once.
func (p *places) room(f *function) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(p.all-p.taken, p.most-f.placed.held) - len(f.placed.waiters)
}
