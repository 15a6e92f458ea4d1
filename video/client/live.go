package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/fre-engine/fre/video/asset"
)

// StartLive creates a live stream.
func (c *Client) StartLive(ctx context.Context, spec asset.LiveSpec) (asset.Live, error) {
	var s asset.Live
	b, err := json.Marshal(spec)
	if err != nil {
		return s, err
	}
	a, err := c.do(ctx, http.MethodPost, "/v1/live", http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return s, err
	}
	defer a.Body.Close()
	err = json.NewDecoder(a.Body).Decode(&s)
	return s, err
}

// Lives returns the live streams, sorted by name.
func (c *Client) Lives(ctx context.Context) ([]asset.Live, error) {
	l, err := ask[struct {
		Streams []asset.Live `json:"streams"`
	}](ctx, c, http.MethodGet, "/v1/live")
	return l.Streams, err
}

// Live returns the live stream of a name.
func (c *Client) Live(ctx context.Context, name string) (asset.Live, error) {
	return ask[asset.Live](ctx, c, http.MethodGet, "/v1/live/"+url.PathEscape(name))
}

// StopLive ends a live stream and deletes its data.
func (c *Client) StopLive(ctx context.Context, name string) error {
	a, err := c.do(ctx, http.MethodDelete, "/v1/live/"+url.PathEscape(name), nil, nil, 0)
	if err != nil {
		return err
	}
	return a.Body.Close()
}
