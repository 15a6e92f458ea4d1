package engine

// Room returns how many more events the named function could take now: the free capacity of
// running instances and of instances that could start, limited by the engine's free slots, less
// the events that wait for either. Room is 0 for an unknown function and for an engine that is
// stopping. A holder of events that can also wait elsewhere asks Room first. The answer is no
// reservation: another event may come first.
func (e *Engine) Room(name string) int {
	f, err := e.lookup(name)
	if err != nil || e.Stopping() {
		return 0
	}
	f.mu.Lock()
	n := f.config.Instances.Max*f.config.Instances.Concurrency - f.busy - f.waiters.Len()
	f.mu.Unlock()
	return max(0, min(n, e.slots.room(&f.slots)))
}
