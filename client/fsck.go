package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fre-engine/fre/api"
)

// Fsck checks everything the engine has stored, and repairs it if r says so.
// report is told of every line but the last.
func (c *Client) Fsck(ctx context.Context, r api.FsckRequest, report func(api.FsckLine)) (api.FsckResult, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return api.FsckResult{}, err
	}
	resp, err := c.send(ctx, http.MethodPost, "/v1/system/fsck", nil, http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(b))
	if err != nil {
		return api.FsckResult{}, err
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		var line api.FsckLine
		if err := d.Decode(&line); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return api.FsckResult{}, fmt.Errorf("engine broke off: %w", orCause(ctx, err))
		}
		switch {
		case line.Error != nil:
			return api.FsckResult{}, line.Error
		case line.Result != nil:
			return *line.Result, nil
		default:
			report(line)
		}
	}
}
