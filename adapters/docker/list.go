package docker

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/server/listing"
)

// containerList answers GET /containers/json?all=&limit=&size=&filters=. With size, the handler
// makes a fixed small number of system calls per running sandbox.
func (s *server) containerList(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "ancestor", "before", "expose", "exited", "health", "id", "is-task", "isolation", "label", "label!", "name", "network", "publish", "since", "status", "volume")
	if err != nil {
		return err
	}
	limit := 0
	if v := r.URL.Query().Get("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil {
			return badRequest("limit: %q is not a number", v)
		}
	}
	keep, err := s.containerFilter(f)
	if err != nil {
		return err
	}
	all := boolOf(r, "all") || limit > 0 || f["status"] != nil || f["before"] != nil || f["since"] != nil
	sizes := s.sizes
	if !boolOf(r, "size") {
		sizes = nil
	}
	boxes := s.engine.Sandboxes(all)
	body, err := s.boxes[index(all)].append(make([]byte, 0, 1024*(len(boxes)+1)), boxes, limit, keep, sizes)
	if err != nil {
		return err
	}
	listing.Send(w, http.StatusOK, body)
	return nil
}

var containerStates = []string{"created", "dead", "exited", "paused", "removing", "restarting", "running"}

// checkStates refuses values that a container's state, exit status and health cannot have.
func (f filters) checkStates() error {
	for _, v := range f["status"] {
		if !slices.Contains(containerStates, v) {
			return badRequest("invalid filter 'status=%s': use one of %s", v, strings.Join(containerStates, ", "))
		}
	}
	for _, v := range f["exited"] {
		if _, err := strconv.Atoi(v); err != nil {
			return badRequest("invalid filter 'exited=%s': use an exit status", v)
		}
	}
	for _, v := range f["health"] {
		if !slices.Contains([]string{"starting", "healthy", "unhealthy", "none"}, v) {
			return badRequest("invalid filter 'health=%s': use starting, healthy, unhealthy or none", v)
		}
	}
	return nil
}

// ancestors returns the digests of the named images that exist.
func (s *server) ancestors(refs []string) ([]string, error) {
	ancestors := make([]string, 0, len(refs))
	for _, ref := range refs {
		img, err := s.image(ref)
		switch {
		case err == nil:
			ancestors = append(ancestors, string(img.Digest))
		case errorStatus(err) != http.StatusNotFound:
			return nil, err
		}
	}
	return ancestors, nil
}

// containerFilter returns the test for the filters. Features that FRE lacks match nothing:
// health checks, swarm tasks, published ports.
func (s *server) containerFilter(f filters) (func(shownContainer) bool, error) {
	if len(f) == 0 { // the usual case: skip the test of every row
		return func(shownContainer) bool { return true }, nil
	}
	if err := f.checkStates(); err != nil {
		return nil, err
	}
	task, tasks, err := f.flag("is-task")
	if err != nil {
		return nil, err
	}
	t := containerTest{filters: f, never: f["publish"] != nil || f["expose"] != nil || tasks && task, likeID: f.like("id"), likeName: f.like("name")}
	for key, at := range map[string]*time.Time{"before": &t.before, "since": &t.since} {
		for _, ref := range f[key] {
			c, err := s.container(ref)
			if err != nil {
				return nil, err
			}
			*at = c.made
		}
	}
	if t.ancestors, err = s.ancestors(f["ancestor"]); err != nil {
		return nil, err
	}
	return t.passes, nil
}

// containerTest is a checked filter of containers.
type containerTest struct {
	filters
	never            bool     // a filter that no container passes
	ancestors        []string // digests
	before, since    time.Time
	likeID, likeName func(...string) bool
}

func (t *containerTest) passes(c shownContainer) bool {
	return !t.never && !t.excludes(c) && t.named(c) && t.labelled(c) && t.has("status", c.state()) && t.has("health", "none") &&
		t.has("network", c.network(), networkID(c.network())) && t.mounted(c) && t.has("isolation", "default", "")
}

// named tests the filters of ids and names.
func (t *containerTest) named(c shownContainer) bool {
	return t.likeID(c.ID) && t.likeName(c.name, "/"+c.name)
}

// labelled tests the filters of labels.
func (t *containerTest) labelled(c shownContainer) bool {
	if t.filters["label"] == nil && t.filters["label!"] == nil {
		return true // most filters: make no map of labels for every row
	}
	return t.labels(c.labels())
}

// excludes reports whether the image, the exit status or the time of the container is not wanted.
func (t *containerTest) excludes(c shownContainer) bool {
	return t.filters["ancestor"] != nil && !slices.Contains(t.ancestors, string(c.Digest)) ||
		t.filters["exited"] != nil && (c.state() != "exited" || !t.has("exited", strconv.Itoa(c.exitCode()))) ||
		!t.before.IsZero() && !c.made.Before(t.before) ||
		!t.since.IsZero() && !c.made.After(t.since)
}

// mounted tests the filter of volumes.
func (t *containerTest) mounted(c shownContainer) bool {
	var places []string
	if t.filters["volume"] != nil {
		for _, m := range c.mounts() {
			places = append(places, m.Name, m.Destination)
		}
	}
	return t.has("volume", places...)
}
