package events

import "sync"

// tasks are the goroutines and calls that Close waits for. tasks is safe for concurrent use.
type tasks struct {
	group sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// begin counts a call, unless no more may begin. The caller calls done.
func (t *tasks) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.group.Add(1)
	return true
}

func (t *tasks) done() { t.group.Done() }

// start runs f in a goroutine, unless no more may begin.
func (t *tasks) start(f func()) bool {
	if !t.begin() {
		return false
	}
	go func() {
		defer t.done()
		f()
	}()
	return true
}

// fork runs f in a goroutine. The caller is a task, so that Close still waits.
func (t *tasks) fork(f func()) { t.group.Go(f) }

// end lets no more tasks begin, and reports whether the call is the first.
func (t *tasks) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := !t.closed
	t.closed = true
	return first
}

// wait blocks until all tasks have ended.
func (t *tasks) wait() { t.group.Wait() }
