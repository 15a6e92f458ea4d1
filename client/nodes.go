package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/fre-engine/fre/api"
)

// Nodes works on the cluster's nodes.
type Nodes struct{ c *Client }

// Nodes returns the calls for the cluster's nodes.
func (c *Client) Nodes() Nodes { return Nodes{c} }

// List returns the cluster's nodes, as seen by the answering engine.
func (g Nodes) List(ctx context.Context) ([]api.Node, error) {
	return get[[]api.Node](ctx, g.c, "/v1/nodes", nil)
}

// Drain stops a node from accepting new work until [Nodes.Undrain].
func (g Nodes) Drain(ctx context.Context, name string) error {
	return g.c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/drain", nil, "", nil, nil)
}

// Undrain lets a drained node accept work again.
func (g Nodes) Undrain(ctx context.Context, name string) error {
	return g.c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/undrain", nil, "", nil, nil)
}
