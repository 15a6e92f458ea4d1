package cluster

import (
	"context"

	"github.com/fre-engine/fre/engine"
)

// Local runs events on the local engine only. While the node drains, Local has no room.
type Local struct{ n *Node }

// Local returns the invoker for the event queue.
func (n *Node) Local() Local { return Local{n} }

// Invoke runs an event on the local engine.
func (l Local) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	return l.n.engine.Invoke(ctx, name, r)
}

// Function returns a function of the local engine.
func (l Local) Function(name string) (*engine.Function, error) { return l.n.engine.Function(name) }

// Room returns the engine's room, or 0 while the node drains.
func (l Local) Room(name string) int {
	if l.n.isDraining() {
		return 0
	}
	return l.n.engine.Room(name)
}
