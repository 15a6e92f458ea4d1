package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
)

// Sandboxes works on running sandboxes, and runs commands in new sandboxes.
type Sandboxes struct{ c *Client }

// Sandboxes returns the calls for sandboxes.
func (c *Client) Sandboxes() Sandboxes { return Sandboxes{c} }

// SandboxOptions adjust [Sandboxes.List].
type SandboxOptions struct {
	All   bool // also the last sandboxes that ended
	Size  bool // with the usage of writable file systems
	Stats bool // with memory and CPU time; several times the cost
}

// List returns the running sandboxes.
func (g Sandboxes) List(ctx context.Context, o SandboxOptions) ([]api.Sandbox, error) {
	q := url.Values{"all": {strconv.FormatBool(o.All)}, "size": {strconv.FormatBool(o.Size)}, "stats": {strconv.FormatBool(o.Stats)}}
	return get[[]api.Sandbox](ctx, g.c, "/v1/sandboxes", q)
}

// Stop asks a sandbox, named by an id or an id prefix, to end. Stop kills the sandbox after
// grace.
func (g Sandboxes) Stop(ctx context.Context, id string, grace time.Duration) error {
	q := url.Values{"grace": {grace.String()}}
	return g.c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/stop", q, "", nil, nil)
}

// Kill ends a sandbox at once.
func (g Sandboxes) Kill(ctx context.Context, id string) error { return g.Signal(ctx, id, "KILL") }

// Signal sends a signal, by name or number, to the first process of a sandbox. The kernel
// delivers the signal only if the process has a handler, unless the signal is KILL. After KILL,
// Signal returns once the sandbox has ended.
func (g Sandboxes) Signal(ctx context.Context, id, signal string) error {
	return g.c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/kill", url.Values{"signal": {signal}}, "", nil, nil)
}

// Wait waits until a sandbox or container has ended and returns the exit. Wait returns at once
// if the container does not run. A container that has never run has exit code 0.
func (g Sandboxes) Wait(ctx context.Context, id string) (api.Exit, error) {
	var out api.Exit
	err := g.c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/wait", nil, "", nil, &out)
	return out, err
}

// Processes returns the processes of a running sandbox, oldest first.
func (g Sandboxes) Processes(ctx context.Context, id string) ([]api.Process, error) {
	return get[[]api.Process](ctx, g.c, "/v1/sandboxes/"+url.PathEscape(id)+"/processes", nil)
}
