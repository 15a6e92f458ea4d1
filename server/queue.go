package server

import (
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/failure"
)

// shownBody is the maximum number of bytes shown of a body.
const shownBody = 1 << 20

// queueRoutes are the routes of asynchronous events.
type queueRoutes struct {
	events *events.Service // nil: none
}

func (s *queueRoutes) routes() []route {
	return []route{
		{"GET", "/v1/events/queue", s.queue},
		{"GET", "/v1/events/queue/{id}", s.queuedEvent},
		{"DELETE", "/v1/events/queue/{id}", s.discardEvent},
		{"POST", "/v1/events/queue/{id}/replay", s.replayEvent},
		{"GET", "/v1/events/tail", s.tailEvents},
	}
}

// queueService returns the service of asynchronous events, or an error if the engine has no such
// service.
func (s *queueRoutes) queueService() (*events.Service, error) {
	if s.events == nil {
		return nil, &api.Error{Code: failure.Unsupported, Message: "the queue of events is off or did not start", Next: "see the engine's log, and events in the engine's configuration"}
	}
	return s.events, nil
}

// queueFilter parses ?function=&tenant=&state=&limit=. A tenant's token sees only the tenant's
// events.
func queueFilter(r *http.Request) (events.Filter, error) {
	q := r.URL.Query()
	f := events.Filter{Function: q.Get("function"), Tenant: q.Get("tenant")}
	if id := identityOf(r); !id.All() {
		if f.Tenant != "" && !id.Of(f.Tenant) {
			return f, notOfTenant("tenant " + f.Tenant)
		}
		f.Tenant = id.Tenant
	}
	for _, v := range q["state"] {
		state := events.State(v)
		if !slices.Contains([]events.State{events.StateQueued, events.StateRunning, events.StateWaiting, events.StateDone, events.StateDead}, state) {
			return f, badRequest("state: %q is none of queued, running, waiting, done, dead", v)
		}
		f.States = append(f.States, state)
	}
	if v := q.Get("limit"); v != "" {
		var err error
		if f.Limit, err = strconv.Atoi(v); err != nil || f.Limit < 1 || f.Limit > 100_000 {
			return f, badRequest("limit: %q is no number from 1 to 100000", v)
		}
	}
	return f, nil
}

// queued returns the service of asynchronous events and the request's filter.
func (s *queueRoutes) queued(r *http.Request) (*events.Service, events.Filter, error) {
	ev, err := s.queueService()
	if err != nil {
		return nil, events.Filter{}, err
	}
	f, err := queueFilter(r)
	return ev, f, err
}

// queue answers GET /v1/events/queue.
func (s *queueRoutes) queue(w http.ResponseWriter, r *http.Request) error {
	ev, f, err := s.queued(r)
	if err != nil {
		return err
	}
	all, err := ev.List(r.Context(), f)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(all, queuedEventOf))
}

// queuedEvent answers GET /v1/events/queue/{id}.
func (s *queueRoutes) queuedEvent(w http.ResponseWriter, r *http.Request) error {
	ev, err := s.queueService()
	if err != nil {
		return err
	}
	d, err := ev.Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	out := api.QueuedEventDetails{QueuedEvent: queuedEventOf(d.Entry), Method: d.Method, Path: d.Path, Query: d.Query, Callback: d.Callback, Header: d.Header, Result: d.Result}
	if d.Result {
		out.Header = d.ResultHeader
	}
	body, err := d.Body()
	if err != nil {
		return err
	}
	defer body.Close()
	if out.Body, err = io.ReadAll(io.LimitReader(body, shownBody+1)); err != nil {
		return err
	}
	if len(out.Body) > shownBody {
		out.Body, out.BodyRest = out.Body[:shownBody], true
	}
	return reply(w, http.StatusOK, out)
}

// replayEvent answers POST /v1/events/queue/{id}/replay.
func (s *queueRoutes) replayEvent(w http.ResponseWriter, r *http.Request) error {
	ev, err := s.queueService()
	if err != nil {
		return err
	}
	if err := ev.Replay(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// discardEvent answers DELETE /v1/events/queue/{id}.
func (s *queueRoutes) discardEvent(w http.ResponseWriter, r *http.Request) error {
	ev, err := s.queueService()
	if err != nil {
		return err
	}
	if err := ev.Discard(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// tailEvents answers GET /v1/events/tail.
func (s *queueRoutes) tailEvents(w http.ResponseWriter, r *http.Request) error {
	ev, f, err := s.queued(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	err = ev.Watch(r.Context(), f, func(e events.Entry) error {
		shown := queuedEventOf(e)
		return writeLine(w, api.QueuedEventLine{Event: &shown})
	})
	if err != nil && r.Context().Err() == nil {
		_ = writeLine(w, api.QueuedEventLine{Error: errorOf(err)}) // best effort: the stream is broken already
	}
	return nil
}

func queuedEventOf(e events.Entry) api.QueuedEvent {
	return api.QueuedEvent{
		ID: e.ID, Function: e.Function, Tenant: e.Tenant, Priority: string(e.Priority), State: string(e.State), Source: e.Source,
		Accepted: e.Accepted, Changed: e.Changed, Attempts: e.Attempts, Status: e.Status, Error: e.Error, Size: e.Size,
	}
}

func (s *queueRoutes) find(r *http.Request) (string, error) {
	ev, err := s.queueService()
	if err != nil {
		return "", err
	}
	d, err := ev.Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return "", err
	}
	return d.Tenant, nil
}
