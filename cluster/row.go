package cluster

import (
	"maps"
	"slices"
	"sync"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/store"
)

// row is a function in the table.
type row struct {
	Protocol int
	Node     string // the writer
	Record   engine.Record
	Remotes  map[store.Digest]store.Digest // local digest → digest at the registry
}

// entry is a row as read here.
type entry struct {
	record   engine.Record
	remotes  map[store.Digest]store.Digest
	revision uint64 // in the table
	applied  bool   // in force here
	working  bool   // a goroutine runs work
	kick     chan struct{}
	err      error // the reason why the row is not in force yet
}

// wake makes work try the entry again at once.
func (e *entry) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// catalogue is the table as read here. catalogue is safe for concurrent use.
type catalogue struct {
	mu      sync.Mutex                    // also guards the entries' fields
	entries map[string]*entry             // by function
	pushed  map[store.Digest]store.Digest // local digest → digest at the registry
}

func newCatalogue() *catalogue {
	return &catalogue{entries: map[string]*entry{}, pushed: map[store.Digest]store.Digest{}}
}

// find returns the entry of a function, or nil if the table lacks the function or has it as
// removed.
func (c *catalogue) find(name string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[name]; e != nil && !e.record.Removed {
		return e
	}
	return nil
}

// has reports whether the table has a function, even as removed.
func (c *catalogue) has(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[name] != nil
}

// lacking returns the functions whose present row is not in force here, at most warmMost.
func (c *catalogue) lacking() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		if !c.entries[name].applied && len(out) < warmMost {
			out = append(out, name)
		}
	}
	return out
}

// remote returns an image's digest at the registry, if seen before.
func (c *catalogue) remote(digest store.Digest) (store.Digest, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if remote, ok := c.pushed[digest]; ok {
		return remote, true
	}
	for _, e := range c.entries {
		if remote, ok := e.remotes[digest]; ok {
			return remote, true
		}
	}
	return "", false
}

// entryLocked returns the entry of a function, and makes the entry if missing.
func (c *catalogue) entryLocked(name string) *entry {
	e := c.entries[name]
	if e == nil {
		e = &entry{kick: make(chan struct{}, 1)}
		c.entries[name] = e
	}
	return e
}

// wakeLacking makes the node try failed functions again: the new row may be the secret that a
// function lacked.
func (c *catalogue) wakeLacking() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.err != nil {
			e.wake()
		}
	}
}
