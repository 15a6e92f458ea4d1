package docker

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/store"
)

// event is one line of the events route. The first three are what clients of
// before version 1.22 read.
type event struct {
	Status string `json:"status,omitempty"`
	ID     string `json:"id,omitempty"`
	From   string `json:"from,omitempty"`
	Type   string
	Action string
	Actor  struct {
		ID         string
		Attributes map[string]string
	}
	Scope    string `json:"scope"`
	Time     int64  `json:"time"`
	TimeNano int64  `json:"timeNano"`
}

// eventOf is a change in Docker's words; ok is false for what Docker does not
// have: functions are seen by their instances.
func eventOf(c store.Change) (e event, ok bool) {
	attributes := make(map[string]string, len(c.Labels)+len(c.Attributes)+2)
	e = event{Status: string(c.Action), ID: c.ID, Action: string(c.Action), Scope: "local", Time: c.Time.Unix(), TimeNano: c.Time.UnixNano()}
	switch c.Kind {
	case store.ChangeImage:
		e.Type = "image"
		maps.Copy(attributes, labelsIn(c.Config))
		maps.Copy(attributes, c.Attributes)
		if c.Name != "" {
			attributes["name"] = c.Name
		}
	case store.ChangeSandbox:
		e.Type = "container"
		maps.Copy(attributes, c.Labels)
		e.From = c.Attributes["image"]
		attributes["image"] = e.From
		attributes["name"] = c.Name
		if c.Name == "" {
			attributes["name"] = cmp.Or(c.Attributes["function"], "run") + "-" + c.ID
		}
		if f := c.Attributes["function"]; f != "" {
			attributes[labelFunction] = f
		}
		attributes[labelTenant] = c.Attributes["tenant"]
		if c.Action == store.ActionExit {
			e.Action = "die"
			attributes["exitCode"] = exitCodeOf(c.Attributes)
		}
		if c.Action == store.ActionDelete {
			e.Action = "destroy"
		}
		e.Status = e.Action
	case store.ChangeFunction:
		return event{}, false
	}
	e.Actor.ID, e.Actor.Attributes = c.ID, attributes
	return e, true
}

// events answers GET /events?since=&until=&filters=: what is remembered where
// either is given, and what happens from now on until then.
func (s *server) events(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "config", "container", "daemon", "event", "image", "label", "network", "node", "plugin", "scope", "secret", "service", "type", "volume")
	if err != nil {
		return err
	}
	now := time.Now()
	var since, until time.Time
	if v := r.URL.Query().Get("since"); v != "" {
		if since, err = parseTime(v, now); err != nil {
			return badRequest("since: %v", err)
		}
	}
	if v := r.URL.Query().Get("until"); v != "" {
		if until, err = parseUntil(v, now); err != nil {
			return badRequest("until: %v", err)
		}
	}
	var over <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		over = timer.C
	}
	changes := s.engine.Changes()
	last := changes.Generation()
	if !since.IsZero() || !until.IsZero() {
		last = changes.Before(since)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	for {
		if flush.Flush() != nil {
			return nil
		}
		grown := changes.After(last)
		news, ok := changes.Since(last)
		if !ok { // slower than what is remembered: go on with that
			last = changes.Before(time.Time{})
			continue
		}
		for _, c := range news {
			last = c.Generation
			if !until.IsZero() && c.Time.After(until) {
				return nil
			}
			if e, ok := eventOf(c); ok && f.event(e) && encoder.Encode(e) != nil {
				return nil
			}
		}
		if len(news) > 0 {
			continue
		}
		select {
		case <-grown:
		case <-over:
			return nil
		case <-r.Context().Done():
			return nil
		case <-s.engine.Closed():
			return nil
		}
	}
}

// event says whether the filters want it.
func (f filters) event(e event) bool {
	is := func(key, kind string) bool {
		want, given := f[key]
		if !given {
			return true
		}
		if e.Type != kind {
			return false
		}
		for _, v := range want {
			if v != "" && strings.HasPrefix(e.Actor.ID, v) || v == e.Actor.Attributes["name"] {
				return true
			}
		}
		return false
	}
	if want := f["image"]; want != nil {
		name := e.Actor.Attributes["name"]
		if e.Type != "image" {
			name = e.Actor.Attributes["image"]
		}
		if !f.has("image", name, repositoryOf(name), e.Actor.ID) {
			return false
		}
	}
	for _, never := range []string{"config", "daemon", "network", "node", "plugin", "secret", "service", "volume"} {
		if f[never] != nil {
			return false
		}
	}
	return is("container", "container") && f.has("type", e.Type) && f.has("event", e.Action) && f.has("scope", e.Scope) && f.labels(e.Actor.Attributes)
}

// exitCodeOf is as a shell has it: 128 and the signal that ended it.
func exitCodeOf(attributes map[string]string) string {
	if signal, err := strconv.Atoi(attributes["signal"]); err == nil {
		return strconv.Itoa(128 + signal)
	}
	return attributes["exit_code"]
}
