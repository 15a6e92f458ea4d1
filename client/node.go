package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/fre-engine/fre/api"
)

// Nodes lists the engines that work together, as this one sees them.
func (c *Client) Nodes(ctx context.Context) ([]api.Node, error) {
	return get[[]api.Node](ctx, c, "/v1/nodes", nil)
}

// DrainNode has a node take nothing on until UndrainNode.
func (c *Client) DrainNode(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/drain", nil, "", nil, nil)
}

// UndrainNode ends DrainNode.
func (c *Client) UndrainNode(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name)+"/undrain", nil, "", nil, nil)
}
