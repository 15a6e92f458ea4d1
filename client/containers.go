package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// Containers works on containers, which keep their files between runs.
type Containers struct{ c *Client }

// Containers returns the calls for containers.
func (c *Client) Containers() Containers { return Containers{c} }

// Create creates a container and does not start it.
func (g Containers) Create(ctx context.Context, req api.ContainerRequest) (*api.Container, error) {
	return post[*api.Container](ctx, g.c, "/v1/containers", req)
}

// Get returns the container with the given id, name or id prefix.
func (g Containers) Get(ctx context.Context, ref string) (*api.Container, error) {
	return get[*api.Container](ctx, g.c, "/v1/containers/"+url.PathEscape(ref), nil)
}

// Start starts a stopped container.
func (g Containers) Start(ctx context.Context, ref string) error {
	return g.c.call(ctx, http.MethodPost, "/v1/containers/"+url.PathEscape(ref)+"/start", nil, "", nil, nil)
}

// Remove removes a container with its files and logs. Force also removes a running
// container.
func (g Containers) Remove(ctx context.Context, ref string, o RemoveOptions) error {
	q := url.Values{"force": {strconv.FormatBool(o.Force)}}
	return g.c.call(ctx, http.MethodDelete, "/v1/containers/"+url.PathEscape(ref), q, "", nil, nil)
}

// Rename changes the name of a container.
func (g Containers) Rename(ctx context.Context, ref, name string) error {
	resp, err := g.c.sendJSON(ctx, "/v1/containers/"+url.PathEscape(ref)+"/rename", api.RenameRequest{Name: name})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Prune removes the stopped containers selected by r.
func (g Containers) Prune(ctx context.Context, r api.ContainerPruneRequest) (api.ContainerPruneReport, error) {
	return post[api.ContainerPruneReport](ctx, g.c, "/v1/containers/prune", r)
}
