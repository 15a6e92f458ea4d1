package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/fre-engine/fre/api"
)

// Nodes returns the cluster's nodes, as seen by the answering engine.
func (c *Client) Nodes(ctx context.Context) ([]api.Node, error) {
	return get[[]api.Node](ctx, c, "/v1/nodes", nil)
}

// DrainNode stops a node from accepting new work until UndrainNode.
func (c *Client) DrainNode(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/drain", nil, "", nil, nil)
}

// UndrainNode lets a drained node accept work again.
func (c *Client) UndrainNode(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/undrain", nil, "", nil, nil)
}
