package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// CreateContainer creates a container and does not start it.
func (c *Client) CreateContainer(ctx context.Context, req api.ContainerRequest) (*api.Container, error) {
	return post[*api.Container](ctx, c, "/v1/containers", req)
}

// Container returns the container with the given id, name or id prefix.
func (c *Client) Container(ctx context.Context, ref string) (*api.Container, error) {
	return get[*api.Container](ctx, c, "/v1/containers/"+url.PathEscape(ref), nil)
}

// StartContainer starts a stopped container.
func (c *Client) StartContainer(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodPost, "/v1/containers/"+url.PathEscape(ref)+"/start", nil, "", nil, nil)
}

// RemoveContainer removes a container with its files and logs. Force also removes a running
// container.
func (c *Client) RemoveContainer(ctx context.Context, ref string, o RemoveOptions) error {
	q := url.Values{"force": {strconv.FormatBool(o.Force)}}
	return c.call(ctx, http.MethodDelete, "/v1/containers/"+url.PathEscape(ref), q, "", nil, nil)
}

// RenameContainer changes the name of a container.
func (c *Client) RenameContainer(ctx context.Context, ref, name string) error {
	resp, err := c.sendJSON(ctx, "/v1/containers/"+url.PathEscape(ref)+"/rename", api.RenameRequest{Name: name})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// PruneContainers removes the stopped containers selected by r.
func (c *Client) PruneContainers(ctx context.Context, r api.ContainerPruneRequest) (api.ContainerPruneReport, error) {
	return post[api.ContainerPruneReport](ctx, c, "/v1/containers/prune", r)
}
