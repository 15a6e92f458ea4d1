// Package server is the native control API. A handler decodes the request, calls the engine and
// encodes the answer. Package api holds the wire types, and openapi.yaml the description of the
// routes.
//
// The server authorizes callers: over the Unix socket by the socket's mode and the peer's
// credentials ([Listen]), and over TCP by token (Config.Access, guard.go).
//
// Each noun has a type with its routes and their handlers, such as imageRoutes. The files form
// layers: New wires nouns and guard; nouns use route.go, caller.go, answer.go, decode.go, convert.go
// and errors.go, and no other noun.
package server

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/server/listing"
	"github.com/fre-engine/fre/store"
)

// New returns the API's handler.
func New(cfg Config) http.Handler {
	if cfg.Scratch == nil {
		cfg.Scratch = func() (string, error) { return os.MkdirTemp("", "fre-upload-") }
	}
	if cfg.Invoker == nil {
		cfg.Invoker = cfg.Engine
	}
	if cfg.MaxTarBytes == 0 {
		cfg.MaxTarBytes = 512 << 20
	}
	if cfg.MaxTarEntries == 0 {
		cfg.MaxTarEntries = 100_000
	}
	if cfg.MaxInvokeBytes == 0 {
		cfg.MaxInvokeBytes = 64 << 20
	}
	routes, g := wire(cfg)
	mux := http.NewServeMux()
	for _, rt := range routes {
		handle := g.guarded(rt)
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
			if err := handle(w, r); err != nil {
				g.fail(w, r, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, err := g.identify(r); err != nil { // the set of routes is not public
			g.fail(w, r, err)
			return
		}
		g.fail(w, r, unknownRoute(mux, r))
	})
	if cfg.Remote {
		return limitBody(mux, bodyTime, unreadTime)
	}
	return mux
}

// wire makes the types that hold the routes, and the guard above them.
func wire(cfg Config) ([]route, *guard) {
	images := &imageRoutes{engine: cfg.Engine, log: cfg.Log}
	images.imageList.Row = func(buf []byte, img *store.Image) ([]byte, error) { return appendJSON(buf, imageOf(img)) }
	functions := &functionRoutes{engine: cfg.Engine, log: cfg.Log, invoker: cfg.Invoker, maxInvoke: cfg.MaxInvokeBytes}
	functions.functionList.Row = func(buf []byte, f *engine.Function) ([]byte, error) { return appendJSON(buf, functionOf(f)) }
	sandboxes := &sandboxRoutes{engine: cfg.Engine, sandboxList: map[bool]*listing.Cache[live.Sandbox]{false: {Row: appendSandbox}, true: {Row: appendSandbox}}}
	agents := &agentRoutes{of: cfg.Agents, log: cfg.Log, access: cfg.Access, maxInvoke: cfg.MaxInvokeBytes}
	queue := &queueRoutes{events: cfg.Events}
	tenants := &tenantRoutes{engine: cfg.Engine, access: cfg.Access, events: cfg.Events}
	tokens := &tokenRoutes{access: cfg.Access}
	g := &guard{engine: cfg.Engine, log: cfg.Log, access: cfg.Access, remote: cfg.Remote, find: map[*noun]finder{
		ofImage: images.find, ofFunction: functions.find, ofSandbox: sandboxes.find, ofAgent: agents.findAgent, ofSnapshot: agents.findSnapshot,
		ofEvent: queue.find, ofTenant: tenants.find, ofToken: tokens.find,
	}}
	builds := &buildRoutes{
		engine: cfg.Engine, log: cfg.Log, access: cfg.Access, remote: cfg.Remote, scratch: cfg.Scratch,
		maxTarBytes: cfg.MaxTarBytes, maxTarEntries: cfg.MaxTarEntries, uploads: intake.Slots[string]{All: maxUploads, Of: maxUploadsOf},
	}
	return slices.Concat(
		(&systemRoutes{engine: cfg.Engine, self: cfg.Version, connections: cfg.Connections}).routes(),
		(&storageRoutes{engine: cfg.Engine, log: cfg.Log}).routes(),
		(&changeRoutes{engine: cfg.Engine}).routes(),
		images.routes(), (&travelRoutes{engine: cfg.Engine, log: cfg.Log}).routes(), builds.routes(),
		functions.routes(), (&revisionRoutes{engine: cfg.Engine}).routes(), (&triggerRoutes{engine: cfg.Engine}).routes(),
		sandboxes.routes(), (&containerRoutes{engine: cfg.Engine}).routes(), (&runRoutes{engine: cfg.Engine}).routes(), agents.routes(),
		(&debugRoutes{engine: cfg.Engine, log: cfg.Log}).routes(), (&leakRoutes{engine: cfg.Engine}).routes(), (&nodeRoutes{cluster: cfg.Nodes}).routes(), queue.routes(),
		tenants.routes(), tokens.routes(), (&auditRoutes{engine: cfg.Engine, access: cfg.Access}).routes(),
	), g
}

// unknownRoute distinguishes a wrong method from a wrong path, in the API's error format,
// because ServeMux's own answers have another format.
func unknownRoute(mux *http.ServeMux, r *http.Request) error {
	var allowed []string
	for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		return &api.Error{Code: api.CodeMethod, Message: fmt.Sprintf("%s is not possible on %s", r.Method, r.URL.Path), Next: "use " + strings.Join(allowed, " or ")}
	}
	return &api.Error{Code: api.CodeNotFound, Message: "no route " + r.URL.Path, Next: "compare the versions of client and engine: fre version"}
}
