package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/events"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/store"
)

// event is one line of the events route. Status, ID and From serve clients older than API
// version 1.22, and are set for containers and images.
type event struct {
	Status string `json:"status,omitempty"`
	ID     string `json:"id,omitempty"`
	From   string `json:"from,omitempty"`
	events.Message
}

// eventsOf returns the events that Docker's engine would send for a change, in Docker's order. A
// change unknown to Docker, such as a function's, has no events (clients see functions as
// instances). The start and end of a container also have events of the container's network and
// volume.
func eventsOf(c store.Change) []event {
	switch c.Kind {
	case store.ChangeImage:
		return []event{imageEvent(c)}
	case store.ChangeSandbox:
		return containerEvents(c)
	case store.ChangeCache:
		return []event{pruneEvent(events.BuilderEventType, c)}
	case store.ChangeFunction:
	}
	return nil
}

// newEvent returns an event without attributes at the time of c.
func newEvent(c store.Change, kind events.Type, action events.Action, id string) event {
	return event{Message: events.Message{
		Type: kind, Action: action, Actor: events.Actor{ID: id, Attributes: map[string]string{}},
		Scope: "local", Time: c.Time.Unix(), TimeNano: c.Time.UnixNano(),
	}}
}

func pruneEvent(kind events.Type, c store.Change) event {
	e := newEvent(c, kind, events.Action(c.Action), "")
	e.Actor.Attributes["reclaimed"] = c.Attributes["bytes"]
	return e
}

// imageEvent returns the event of an image. The actor is the image's id or, for a pull or push,
// the name.
func imageEvent(c store.Change) event {
	if c.Action == store.ActionPrune {
		return pruneEvent(events.ImageEventType, c)
	}
	e := newEvent(c, events.ImageEventType, events.Action(c.Action), c.ID)
	attributes := e.Actor.Attributes
	maps.Copy(attributes, labelsIn(c.Config))
	maps.Copy(attributes, c.Attributes)
	attributes["name"] = cmp.Or(c.Name, c.ID)
	if c.Action == store.ActionPull || c.Action == store.ActionPush {
		e.Actor.ID, attributes["name"] = c.Name, cmp.Or(repositoryOf(c.Name), c.Name)
	}
	e.Status, e.ID = string(e.Action), e.Actor.ID
	return e
}

// containerEvents returns the events of a change of a sandbox.
func containerEvents(c store.Change) []event {
	switch c.Action {
	case store.ActionStart:
		return append(attachments(c, events.ActionConnect, events.ActionMount), containerEvent(c, events.ActionStart))
	case store.ActionExit:
		return exitEvents(c)
	case store.ActionDelete:
		return []event{containerEvent(c, events.ActionDestroy)}
	case store.ActionKill:
		return []event{containerEvent(c, events.ActionKill, "signal", c.Attributes["signal"])}
	case store.ActionRename:
		return []event{containerEvent(c, events.ActionRename, "oldName", "/"+c.Attributes["old_name"])}
	case store.ActionResize:
		return []event{containerEvent(c, events.ActionResize, "height", c.Attributes["rows"], "width", c.Attributes["columns"])}
	case store.ActionPrune:
		return []event{pruneEvent(events.ContainerEventType, c)}
	case store.ActionCreate, store.ActionAttach, store.ActionDetach, store.ActionStop, store.ActionRestart:
		return []event{containerEvent(c, events.Action(c.Action))}
	case store.ActionTag, store.ActionUntag, store.ActionPull, store.ActionPush, store.ActionLoad, store.ActionImport, store.ActionSave, // of images
		store.ActionDeploy, store.ActionRemove, store.ActionRoute: // of functions
	}
	return nil
}

// containerEvent returns an event of the container of c. more holds keys and values of further
// attributes.
func containerEvent(c store.Change, action events.Action, more ...string) event {
	e := newEvent(c, events.ContainerEventType, action, c.ID)
	attributes := e.Actor.Attributes
	maps.Copy(attributes, c.Labels)
	attributes["image"], attributes["name"], attributes[labelTenant] = c.Attributes["image"], c.Name, c.Attributes["tenant"]
	if c.Name == "" {
		attributes["name"] = cmp.Or(c.Attributes["function"], "run") + "-" + c.ID
	}
	if f := c.Attributes["function"]; f != "" {
		attributes[labelFunction] = f
	}
	for i := 0; i < len(more); i += 2 {
		attributes[more[i]] = more[i+1]
	}
	e.Status, e.ID, e.From = string(action), c.ID, attributes["image"]
	return e
}

// exitEvents returns the events of the end of a container.
func exitEvents(c store.Change) (all []event) {
	if c.Attributes["oom"] != "" {
		all = append(all, containerEvent(c, events.ActionOOM))
	}
	all = append(all, attachments(c, events.ActionDisconnect, events.ActionUnmount)...)
	return append(all, containerEvent(c, events.ActionDie, "exitCode", exitCodeOf(c.Attributes), "execDuration", c.Attributes["seconds"]))
}

// attachments returns the events of a container's network and volume, if any.
func attachments(c store.Change, network, volume events.Action) (all []event) {
	for _, n := range networks() {
		if string(networkModes[n.Name]) == c.Attributes["network"] {
			e := newEvent(c, events.NetworkEventType, network, n.ID)
			e.Actor.Attributes = map[string]string{"container": c.ID, "name": n.Name, "type": n.Driver}
			all = append(all, e)
		}
	}
	if work := c.Attributes["work"]; work != "" {
		e := newEvent(c, events.VolumeEventType, volume, workVolume)
		e.Actor.Attributes = map[string]string{"container": c.ID, "driver": "local"}
		if volume == events.ActionMount {
			maps.Copy(e.Actor.Attributes, map[string]string{"destination": workDir, "propagation": "", "read/write": strconv.FormatBool(work == string(container.WorkWrite))})
		}
		all = append(all, e)
	}
	return all
}

// events answers GET /events?since=&until=&filters=. With since or until, the answer begins with
// the remembered events. The answer continues with new events until the time until.
func (s *server) events(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "config", "container", "daemon", "event", "image", "label", "network", "node", "plugin", "scope", "secret", "service", "type", "volume")
	if err != nil {
		return err
	}
	since, until, err := window(r.URL.Query())
	if err != nil {
		return err
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
	stream := eventStream{filters: f, changes: changes, last: last, until: until, encoder: json.NewEncoder(w)}
	for flush := http.NewResponseController(w); flush.Flush() == nil; {
		grown := changes.After(stream.last)
		sent, more := stream.send()
		if !more || !sent && !s.awaitChange(r.Context(), grown, over) {
			return nil
		}
	}
	return nil // the client has disconnected
}

// awaitChange waits for a change, and reports false if the time is over or the client or the
// engine ends.
func (s *server) awaitChange(ctx context.Context, grown <-chan struct{}, over <-chan time.Time) bool {
	select {
	case <-grown:
		return true
	case <-over:
	case <-ctx.Done():
	case <-s.engine.Closed():
	}
	return false
}

// eventStream sends the wanted events of changes to a client.
type eventStream struct {
	filters
	changes *store.Changes
	last    uint64    // generation of the last change sent
	until   time.Time // zero: without end
	encoder *json.Encoder
}

// send sends the changes after last. sent reports whether the log of changes may have further ones;
// more is false if the stream ends.
func (s *eventStream) send() (sent, more bool) {
	news, ok := s.changes.Since(s.last)
	if !ok { // slower than the log of changes: continue with the oldest remembered change
		s.last = s.changes.Before(time.Time{})
		return true, true
	}
	for _, c := range news {
		s.last = c.Generation
		if !s.until.IsZero() && c.Time.After(s.until) || s.encode(s.encoder, c) != nil {
			return true, false
		}
	}
	return len(news) > 0, true
}

// window parses since and until. An absent time is zero.
func window(q url.Values) (since, until time.Time, err error) {
	now := time.Now()
	if v := q.Get("since"); v != "" {
		if since, err = parseTime(v, now); err != nil {
			return since, until, badRequest("since: %v", err)
		}
	}
	if v := q.Get("until"); v != "" {
		if until, err = parseUntil(v, now); err != nil {
			return since, until, badRequest("until: %v", err)
		}
	}
	return since, until, nil
}

// encode writes the wanted events of a change.
func (f filters) encode(to *json.Encoder, c store.Change) error {
	for _, e := range eventsOf(c) {
		if !f.event(e) {
			continue
		}
		if err := to.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// event reports whether e passes the filters.
func (f filters) event(e event) bool {
	for _, never := range []string{"config", "daemon", "node", "plugin", "secret", "service"} {
		if f[never] != nil {
			return false
		}
	}
	return f.ofImage(e) && f.actor("container", e) && f.actor("network", e) && f.actor("volume", e) &&
		f.has("type", string(e.Type)) && f.has("event", string(e.Action)) && f.has("scope", e.Scope) && f.labels(e.Actor.Attributes)
}

// actor reports whether the filter kind is absent, or e is an event of an object of this kind and
// a value is a prefix of the object's id or name.
func (f filters) actor(kind string, e event) bool {
	want, given := f[kind]
	return !given || string(e.Type) == kind && slices.ContainsFunc(want, func(v string) bool {
		return v != "" && (strings.HasPrefix(e.Actor.ID, v) || strings.HasPrefix(e.Actor.Attributes["name"], v))
	})
}

// ofImage reports whether the filter image is absent, or matches the event's image.
func (f filters) ofImage(e event) bool {
	name := e.Actor.Attributes["name"]
	if e.Type != events.ImageEventType {
		name = e.Actor.Attributes["image"]
	}
	return f["image"] == nil || f.has("image", name, repositoryOf(name), e.Actor.ID)
}

// exitCodeOf returns the exit status as in sh: 128 plus the signal number after a signal.
func exitCodeOf(attributes map[string]string) string {
	if signal, err := strconv.Atoi(attributes["signal"]); err == nil {
		return strconv.Itoa(128 + signal)
	}
	return attributes["exit_code"]
}
