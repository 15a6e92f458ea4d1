package client

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
)

// Functions works on functions: deployment, calls, logs, revisions.
type Functions struct{ c *Client }

// Functions returns the calls for functions.
func (c *Client) Functions() Functions { return Functions{c} }

// List returns the deployed functions.
func (g Functions) List(ctx context.Context) ([]api.Function, error) {
	return get[[]api.Function](ctx, g.c, "/v1/functions", nil)
}

// Get describes the named function.
func (g Functions) Get(ctx context.Context, name string) (api.FunctionDetails, error) {
	return get[api.FunctionDetails](ctx, g.c, "/v1/functions/"+url.PathEscape(name), nil)
}

// Remove removes a function and keeps the image.
func (g Functions) Remove(ctx context.Context, name string) error {
	return g.c.call(ctx, http.MethodDelete, "/v1/functions/"+url.PathEscape(name), nil, "", nil, nil)
}

// Slim makes an image of only the files that a temporary function has opened so far. The
// function must be deployed with Trace. The new image has no name; [Images.Tag] adds one.
func (g Functions) Slim(ctx context.Context, function string, r api.SlimRequest) (api.Slimmed, error) {
	return post[api.Slimmed](ctx, g.c, "/v1/functions/"+url.PathEscape(function)+"/slim", r)
}

// LogOptions selects log lines.
type LogOptions struct {
	Tail   int       // only the last Tail lines; -1: all
	Since  time.Time // zero: from the beginning
	Follow bool      // also new lines, until ctx ends
}

// Logs calls emit for each selected log line of a function. Logs returns emit's error.
func (g Functions) Logs(ctx context.Context, name string, o LogOptions, emit func(api.LogLine) error) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}, "follow": {strconv.FormatBool(o.Follow)}}
	if !o.Since.IsZero() {
		q.Set("since", o.Since.UTC().Format(time.RFC3339Nano))
	}
	resp, err := g.c.send(ctx, http.MethodGet, "/v1/functions/"+url.PathEscape(name)+"/logs", q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readLines(ctx, resp.Body, "logs", endsWell, func(entry api.LogEntry) (bool, error) {
		switch {
		case entry.Error != nil:
			return true, entry.Error
		case entry.Line != nil:
			return false, emit(*entry.Line)
		}
		return false, nil
	})
}

// Event is one event for a function. The zero value is a POST to "/" without a body.
type Event struct {
	Method string
	Path   string
	Query  string // raw
	Header http.Header
	Body   io.Reader
}

// Invoke sends an event to a function and returns the function's answer, whatever the status.
// The caller closes the answer's Body. An *api.Error means that the engine has no answer of the
// function.
func (g Functions) Invoke(ctx context.Context, name string, e Event) (*http.Response, error) {
	q := url.Values{}
	for key, v := range map[string]string{"method": e.Method, "path": e.Path, "query": e.Query} {
		if v != "" {
			q.Set(key, v)
		}
	}
	req, err := g.c.request(ctx, http.MethodPost, "/v1/functions/"+url.PathEscape(name)+"/invoke", q, e.Body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, e.Header)
	resp, err := g.c.do(req)
	if err != nil {
		return nil, err
	}
	// Without an invocation id, the answer comes from the engine.
	if resp.Header.Get(api.InvocationHeader) == "" && resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
}

// Triggers returns the triggers of all functions: the sources of events other than requests.
func (g Functions) Triggers(ctx context.Context) ([]api.Trigger, error) {
	return get[[]api.Trigger](ctx, g.c, "/v1/triggers", nil)
}
