package cluster

import (
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
