package client

import (
	"context"

	"github.com/fre-engine/fre/api"
)

// Fsck checks the engine's whole store, and repairs the store if r asks for repair. Fsck calls
// report with every line but the last.
func (c *Client) Fsck(ctx context.Context, r api.FsckRequest, report func(api.FsckLine)) (api.FsckResult, error) {
	resp, err := c.sendJSON(ctx, "/v1/system/fsck", r)
	if err != nil {
		return api.FsckResult{}, err
	}
	defer resp.Body.Close()
	var result api.FsckResult
	err = readLines(ctx, resp.Body, "check", endsShort, func(line api.FsckLine) (bool, error) {
		switch {
		case line.Error != nil:
			return true, line.Error
		case line.Result != nil:
			result = *line.Result
			return true, nil
		}
		report(line)
		return false, nil
	})
	return result, err
}
