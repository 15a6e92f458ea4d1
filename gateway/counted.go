package gateway

import (
	"context"

	"github.com/fre-engine/fre/engine"
)

// eventInvoker counts events of the control API against their tenant's quota, as the gateway
// counts its own.
type eventInvoker struct {
	Invoker
	guard *Guard
}

// Counted returns an Invoker that counts events against the tenants' quotas. Beyond the quota it
// returns an *access.SlowDownError.
func Counted(to Invoker, g *Guard) Invoker { return eventInvoker{to, g} }

// Invoke implements Invoker.
func (i eventInvoker) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	front, known := i.guard.Front(name)
	if !known {
		return nil, &engine.UnknownError{Function: name}
	}
	if err := i.guard.Access.Event(front.Tenant); err != nil {
		return nil, err
	}
	return i.Invoker.Invoke(ctx, name, r)
}
