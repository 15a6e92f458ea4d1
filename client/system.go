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

// Version returns the version of the engine's program.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return get[api.Version](ctx, c, "/v1/version", nil)
}

// DiskUsage returns the disk usage of the state directory.
func (c *Client) DiskUsage(ctx context.Context) (api.DiskUsage, error) {
	return get[api.DiskUsage](ctx, c, "/v1/system/df", nil)
}

// Status returns the engine's current load and health.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return get[api.Status](ctx, c, "/v1/status", nil)
}

// DoctorOptions adjust Doctor.
type DoctorOptions struct {
	Costs bool // measure the cost of each check, which takes some tenths of a second
}

// Doctor returns the engine's checks of its host.
func (c *Client) Doctor(ctx context.Context, o DoctorOptions) (api.Doctor, error) {
	return get[api.Doctor](ctx, c, "/v1/doctor", url.Values{"costs": {strconv.FormatBool(o.Costs)}})
}

// GC collects garbage by the rules of the engine's configuration.
func (c *Client) GC(ctx context.Context, r api.GCRequest) (api.GCReport, error) {
	return post[api.GCReport](ctx, c, "/v1/system/gc", r)
}

// TemplateSchema returns the engine's JSON Schema of fret.yaml.
func (c *Client) TemplateSchema(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/template/schema", nil)
}

// CheckTemplate parses and checks the content of a fret.yaml.
func (c *Client) CheckTemplate(ctx context.Context, src []byte) (api.TemplateInfo, error) {
	var out api.TemplateInfo
	err := c.call(ctx, http.MethodPost, "/v1/template/check", nil, "application/yaml", bytes.NewReader(src), &out)
	return out, err
}

// EventOptions selects changes.
type EventOptions struct {
	Since   string   // a generation, or an RFC 3339 time; "": from now on
	Follow  bool     // also new changes, until ctx ends
	Kinds   []string // only these kinds; nil: all
	Actions []string // only these actions; nil: all
}

// Events calls emit for each selected change, oldest first. Events returns emit's error, and an
// *api.Error with api.CodeGone if the engine no longer remembers some of the changes.
func (c *Client) Events(ctx context.Context, o EventOptions, emit func(api.Change) error) error {
	q := url.Values{"follow": {strconv.FormatBool(o.Follow)}, "kind": o.Kinds, "action": o.Actions}
	if o.Since != "" {
		q.Set("since", o.Since)
	}
	resp, err := c.send(ctx, http.MethodGet, "/v1/events", q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readLines(ctx, resp.Body, "events", endsWell, func(entry api.ChangeEntry) (bool, error) {
		switch {
		case entry.Error != nil:
			return true, entry.Error
		case entry.Change != nil:
			return false, emit(*entry.Change)
		}
		return false, nil
	})
}
