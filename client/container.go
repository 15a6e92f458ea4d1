package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// CreateContainer makes a container, which does not run yet.
func (c *Client) CreateContainer(ctx context.Context, req api.ContainerRequest) (*api.Container, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	var out api.Container
	return &out, c.call(ctx, http.MethodPost, "/v1/containers", nil, "application/json", bytes.NewReader(body), &out)
}

// Container describes one, by id, name or the beginning of an id.
func (c *Client) Container(ctx context.Context, ref string) (*api.Container, error) {
	var out api.Container
	return &out, c.call(ctx, http.MethodGet, "/v1/containers/"+url.PathEscape(ref), nil, "", nil, &out)
}

// StartContainer starts a container that does not run.
func (c *Client) StartContainer(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodPost, "/v1/containers/"+url.PathEscape(ref)+"/start", nil, "", nil, nil)
}

// RemoveContainer deletes a container and what it wrote and printed; with Force
// also one that runs.
func (c *Client) RemoveContainer(ctx context.Context, ref string, o RemoveOptions) error {
	q := url.Values{"force": {strconv.FormatBool(o.Force)}}
	return c.call(ctx, http.MethodDelete, "/v1/containers/"+url.PathEscape(ref), q, "", nil, nil)
}

// RenameContainer gives a container another name.
func (c *Client) RenameContainer(ctx context.Context, ref, name string) error {
	body, err := json.Marshal(api.RenameRequest{Name: name})
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, "/v1/containers/"+url.PathEscape(ref)+"/rename", nil, "application/json", bytes.NewReader(body), nil)
}

// PruneContainers removes the containers that do not run.
func (c *Client) PruneContainers(ctx context.Context, r api.ContainerPruneRequest) (api.ContainerPruneReport, error) {
	return post[api.ContainerPruneReport](ctx, c, "/v1/containers/prune", r)
}
