package server

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/store"
)

// changeRoutes are the route of the engine's changes.
type changeRoutes struct {
	engine Engine
}

func (s *changeRoutes) routes() []route {
	return []route{
		{"GET", "/v1/events", s.events},
	}
}

// events answers GET /v1/events?since=&follow=&kind=&action=.
func (s *changeRoutes) events(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	o, err := s.eventOptions(q)
	if err != nil {
		return err
	}
	if _, ok := s.engine.Changes().Since(o.Since); !ok {
		return live.ErrChangesLost
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	id := identityOf(r)
	err = s.engine.Events(r.Context(), o, func(c store.Change) error {
		if !id.Of(c.Attributes["tenant"]) || !wanted(q.Values["kind"], string(c.Kind)) || !wanted(q.Values["action"], string(c.Action)) {
			return nil
		}
		return writeLine(w, api.ChangeEntry{Change: changeOf(c)})
	})
	if err != nil && r.Context().Err() == nil {
		_ = writeLine(w, api.ChangeEntry{Error: errorOf(err)}) // best effort: the stream is broken already
	}
	return nil
}

func (s *changeRoutes) eventOptions(q *query) (live.EventOptions, error) {
	o := live.EventOptions{Follow: q.flag("follow") || q.Get("follow") == ""}
	if q.err != nil {
		return o, q.err
	}
	v := q.Get("since")
	if v == "" {
		o.Since = s.engine.Changes().Generation()
		return o, nil
	}
	var err error
	if o.Since, err = strconv.ParseUint(v, 10, 64); err == nil {
		return o, nil
	}
	at, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		return o, badRequest("since: %q is neither a generation nor an RFC 3339 time", v)
	}
	o.Since = s.engine.Changes().Before(at)
	return o, nil
}

// wanted reports whether the filter is empty or contains v.
func wanted(filter []string, v string) bool { return len(filter) == 0 || slices.Contains(filter, v) }

func changeOf(c store.Change) *api.Change {
	return &api.Change{
		Generation: c.Generation, Time: c.Time, Kind: string(c.Kind), Action: string(c.Action),
		ID: c.ID, Name: c.Name, Attributes: c.Attributes,
	}
}
