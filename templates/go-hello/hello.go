// Package hello is the smallest function in Go.
package hello

import (
	"context"

	"github.com/fre-engine/fre/function"
)

// Handle returns a greeting for the name in the event's body, or for the world.
func Handle(ctx context.Context, e function.Event) (any, error) {
	name, err := e.Bytes()
	if err != nil {
		return nil, err
	}
	if len(name) == 0 {
		name = []byte("world")
	}
	function.Logger(ctx).InfoContext(ctx, "greeting", "name", string(name))
	return map[string]string{"hello": string(name), "function": e.Function}, nil
}
