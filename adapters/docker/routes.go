package docker

import (
	"cmp"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/volume"
)

// New returns the handler of the API.
func New(cfg Config) http.Handler {
	s := &server{cfg: cfg, engine: cfg.Engine, log: cfg.Log, host: thisHost(), images: newImageLists(), boxes: [2]*containerRows{newContainerRows(), newContainerRows()}}
	mux := http.NewServeMux()
	s.register(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1."+strconv.Itoa(maxVersion))
		w.Header().Set("Docker-Experimental", "false")
		w.Header().Set("Ostype", "linux")
		w.Header().Set("Server", "FRE/"+cfg.Version.Version+" (linux)")
		r, err := versioned(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// routes returns the served routes, with every parameter that clients send: Docker's own, the
// ones of the SDK for Python (trunc_cmd, only_ids, force of a tag) and of dockerode (hijack).
func (s *server) routes() []route {
	images := imageRoutes{s}
	all := []route{
		{"GET", "/_ping", nil, s.ping, false},
		{"HEAD", "/_ping", nil, s.ping, false},
		{"GET", "/version", nil, s.version, false},
		{"GET", "/info", nil, s.info, false},
		{"GET", "/events", takes("since", "until", "filters"), s.events, false},
		{"GET", "/system/df", takes("type"), s.diskUsage, false},

		{"GET", "/images/json", takes("all", "filters", "shared-size", "digests", "manifests", "only_ids").
			without("filter", "filter parameter", "use filters={\"reference\":[NAME]}"), images.imageList, false},
		{"POST", "/images/prune", takes("filters"), images.imagePrune, false},
		{"POST", "/auth", nil, s.auth, true},
		{"POST", "/images/create", takes("fromImage", "fromSrc", "repo", "tag", "message", "changes", "platform"), images.imageCreate, true},
		{"POST", "/images/load", takes("quiet", "platform"), images.imageLoad, true},
		{"GET", "/images/get", takes("names", "platform"), images.imageSave, false},
		{"GET", "/images/{name...}/get", takes("platform"), images.imageSave, false},
		{"GET", "/images/{name...}/json", takes("platform", "manifests"), images.imageInspect, false},
		{"GET", "/images/{name...}/history", takes("platform"), images.imageHistory, false},
		{"POST", "/images/{name...}/tag", takes("repo", "tag", "force"), images.imageTag, false},
		{"POST", "/images/{name...}/push", takes("tag", "platform"), images.imagePush, false},
		{"DELETE", "/images/{name...}", takes("force", "noprune", "platforms"), images.imageRemove, false},

		{"GET", "/containers/json", takes("all", "limit", "size", "filters", "trunc_cmd").
			without("since", "since parameter", "use filters={\"since\":[ID]}").without("before", "before parameter", "use filters={\"before\":[ID]}"), s.containerList, false},
		{"GET", "/containers/{id}/json", takes("size"), s.containerInspect, false},
		{"GET", "/containers/{id}/logs", takes("follow", "stdout", "stderr", "since", "until", "timestamps", "tail").
			without("details", "details in logs", "docker inspect shows labels and variables"), s.containerLogs, false},
		{"GET", "/containers/{id}/stats", takes("stream", "one-shot"), s.containerStats, false},
		{"GET", "/containers/{id}/top", takes("ps_args"), s.containerTop, false},
		{"POST", "/containers/{id}/kill", takes("signal"), s.containerKill, false},
		{"POST", "/containers/{id}/stop", takes("t", "signal"), s.containerStop, false},
		{"POST", "/containers/{id}/wait", takes("condition"), s.containerWait, false},
		{"POST", "/containers/create", takes("name", "platform"), s.containerCreate, true},
		{"POST", "/containers/prune", takes("filters"), s.containerPrune, false},
		{"POST", "/containers/{id}/start", takes("detachKeys").
			without("checkpoint", "checkpoints", noCheckpoints).without("checkpoint-dir", "checkpoints", noCheckpoints), s.containerStart, false},
		{"POST", "/containers/{id}/restart", takes("t", "signal"), s.containerRestart, false},
		{"POST", "/containers/{id}/rename", takes("name"), s.containerRename, false},
		{"POST", "/containers/{id}/attach", takes("stdin", "stdout", "stderr", "stream", "logs", "detachKeys", "hijack"), s.containerAttach, false},
		{"POST", "/containers/{id}/resize", takes("h", "w"), s.containerResize, false},
		{"DELETE", "/containers/{id}", takes("force", "v").without("link", "links between containers", "exchange files through /work"), s.containerRemove, false},

		{"GET", "/networks", takes("filters"), networkList, false},
		{"GET", "/networks/{id}", takes("verbose", "scope"), networkInspect, false},
		{"POST", "/networks/prune", takes("filters"), prunedNothing(map[string]any{"NetworksDeleted": []string{}}, "until", "label", "label!"), false},
		{"GET", "/volumes", takes("filters"), volumeList, false},
		{"GET", "/volumes/{name}", nil, volumeInspect, false},
		{"POST", "/volumes/prune", takes("filters"), prunedNothing(volume.PruneReport{VolumesDeleted: []string{}}, "all", "label", "label!"), false},
		{"POST", "/build/prune", takes("all", "filters", "keep-storage", "reserved-space", "max-used-space", "min-free-space"), s.buildPrune, false},
		{"GET", "/plugins", takes("filters"), s.pluginList, false},
	}
	for _, a := range absent {
		all = append(all, route{a.method, a.path, nil, func(_ http.ResponseWriter, r *http.Request) error { return s.refuse(a, r) }, true})
	}
	return all
}

// register registers the routes. Routes that continue after {name...} share one pattern of the
// mux.
func (s *server) register(mux *http.ServeMux) {
	longer := map[string][]route{} // by pattern
	for _, rt := range s.routes() {
		if begin, _, more := strings.Cut(rt.path, "{name...}/"); more {
			pattern := rt.method + " " + begin + "{name...}"
			longer[pattern] = append(longer[pattern], rt)
			continue
		}
		mux.HandleFunc(strings.TrimSpace(rt.method+" "+rt.path), s.handler(rt))
	}
	for pattern, routes := range longer {
		handlers := map[string]http.HandlerFunc{} // by the path after the name
		for _, rt := range routes {
			_, rest, _ := strings.Cut(rt.path, "{name...}")
			handlers[rest] = s.handler(rt)
		}
		none := s.handler(route{pattern[:strings.IndexByte(pattern, ' ')], pattern[strings.IndexByte(pattern, ' ')+1:], nil, notHere, true})
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			name := r.PathValue("name")
			if i := strings.LastIndexByte(name, '/'); i > 0 && handlers[name[i:]] != nil {
				r.SetPathValue("name", name[:i])
				handlers[name[i:]](w, r)
				return
			}
			none(w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, notHere(w, r)) })
}

// handler returns the HTTP handler of a route: check the request, then handle it.
func (s *server) handler(rt route) http.HandlerFunc {
	judged := rt
	judged.handle = func(w http.ResponseWriter, r *http.Request) error {
		if rt.query != nil || !rt.body {
			if err := rt.check(r, func() error { return s.exists(rt.path, r) }); err != nil {
				return err
			}
		}
		if !rt.body {
			if err := rt.drain(w, r); err != nil {
				return err
			}
		}
		return rt.handle(w, r)
	}
	handle := s.audited(judged)
	return func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			s.fail(w, r, err)
		}
	}
}

// exists returns an error if the object in the path does not exist.
func (s *server) exists(path string, r *http.Request) (err error) {
	kind, _, _ := strings.Cut(path[1:], "/")
	if object := cmp.Or(r.PathValue("id"), r.PathValue("name")); object != "" {
		return s.find(kind, object, r)
	}
	rest, _, _ := strings.Cut(r.PathValue("rest"), "/")
	switch kind {
	case "commit":
		_, err = s.container(r.URL.Query().Get("container"))
	case "exec":
		err = notFound("No such exec instance: %s", rest)
	case "plugins":
		if !slices.Contains([]string{"pull", "create", "privileges"}, rest) {
			err = notFound("plugin %q not found", rest)
		}
	}
	return err
}

// find returns an error if the named object does not exist.
func (s *server) find(kind, object string, r *http.Request) (err error) {
	switch kind {
	case "containers":
		_, err = s.container(object)
	case "images":
		_, err = s.image(object)
	case "volumes":
		err = findVolume(object)
	case "networks":
		if _, err = findNetwork(object); err == nil && r.Method == http.MethodPost {
			err = s.member(r)
		}
	}
	return err
}

// member returns an error if the container to connect or disconnect does not exist.
func (s *server) member(r *http.Request) error {
	var asked struct{ Container string }
	body, err := io.ReadAll(io.LimitReader(r.Body, maxJSONBytes))
	if err == nil && decodeJSON(body, &asked) == nil && asked.Container != "" {
		_, err = s.container(asked.Container)
		return err
	}
	return nil // refused anyway
}

// refuse returns the error for l, or a 404 if the object in the path does not exist.
func (s *server) refuse(l left, r *http.Request) error {
	return cmp.Or(s.exists(l.path, r), leftOut(l.what, l.instead))
}

// pluginList answers GET /plugins?filters=.
func (s *server) pluginList(w http.ResponseWriter, r *http.Request) error {
	if _, err := filtersOf(r, "capability", "enabled"); err != nil {
		return err
	}
	return reply(w, http.StatusOK, []any{})
}
