package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// QueueFilter selects asynchronous events. The zero value selects unfinished events and dead
// letters.
type QueueFilter struct {
	Function, Tenant string
	States           []string
	Limit            int // for List; 0: the engine's default
}

func (f QueueFilter) query() url.Values {
	q := url.Values{"state": f.States}
	for name, v := range map[string]string{"function": f.Function, "tenant": f.Tenant} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// Queue works on asynchronous events.
type Queue struct{ c *Client }

// Queue returns the calls for asynchronous events.
func (c *Client) Queue() Queue { return Queue{c} }

// List returns the selected asynchronous events, newest first.
func (g Queue) List(ctx context.Context, f QueueFilter) ([]api.QueuedEvent, error) {
	return get[[]api.QueuedEvent](ctx, g.c, "/v1/events/queue", f.query())
}

// Get returns an asynchronous event, with the result if the event is done.
func (g Queue) Get(ctx context.Context, id string) (api.QueuedEventDetails, error) {
	return get[api.QueuedEventDetails](ctx, g.c, "/v1/events/queue/"+url.PathEscape(id), nil)
}

// Replay puts a dead letter back into its queue.
func (g Queue) Replay(ctx context.Context, id string) error {
	return g.c.call(ctx, http.MethodPost, "/v1/events/queue/"+url.PathEscape(id)+"/replay", nil, "", nil, nil)
}

// Discard removes a dead letter.
func (g Queue) Discard(ctx context.Context, id string) error {
	return g.c.call(ctx, http.MethodDelete, "/v1/events/queue/"+url.PathEscape(id), nil, "", nil, nil)
}

// Tail calls emit for each state change of a selected asynchronous event, until ctx ends
// or emit fails.
func (g Queue) Tail(ctx context.Context, f QueueFilter, emit func(api.QueuedEvent) error) error {
	resp, err := g.c.send(ctx, http.MethodGet, "/v1/events/tail", f.query(), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readLines(ctx, resp.Body, "events", endsWell, func(line api.QueuedEventLine) (bool, error) {
		switch {
		case line.Error != nil:
			return true, line.Error
		case line.Event != nil:
			return false, emit(*line.Event)
		}
		return false, nil
	})
}
