// Package server is the native control API. A handler decodes the request, calls the engine and
// encodes the answer. Package api holds the wire types, and openapi.yaml the description of the
// routes.
//
// The server authorizes callers: over the Unix socket by the socket's mode and the peer's
// credentials ([Listen]), and over TCP by token (Config.Access, guard.go).
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/server/listing"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Engine is the part of *engine.Engine that the server uses. Package servertest holds the other
// implementation.
type Engine interface {
	ForTenant(ctx context.Context) context.Context
	Build(ctx context.Context, dir *os.Root, report func(image.Event)) (*store.Image, *image.Lock, error)
	Base(ctx context.Context, name string, report func(image.Event)) (*store.Image, error)

	Load(ctx context.Context, r io.Reader, report func(image.Event)) ([]*store.Image, error)
	Save(ctx context.Context, w io.Writer, refs []string) error
	Import(ctx context.Context, r io.Reader, o oci.ImportOptions, report func(image.Event)) (*store.Image, error)
	Pull(ctx context.Context, ref, platform string, auth *oci.Auth, report func(image.Event)) (*store.Image, oci.Remote, error)
	Resolve(ctx context.Context, ref string, auth *oci.Auth) (string, error)
	AttachSignature(ctx context.Context, ref string, payload []byte, sig string, auth *oci.Auth) error
	Push(ctx context.Context, ref, to string, auth *oci.Auth, o oci.PushOptions, report func(image.Event)) (oci.Remote, error)

	ImageList() (images []*store.Image, generation uint64)
	Image(ref string) (*store.Image, error)
	History(ref string) ([]oci.Step, error)
	SBOM(ref string) ([]byte, error)
	TagImage(ctx context.Context, ref, name string) (*store.Image, error)
	RemoveImage(ctx context.Context, ref string, o engine.RemoveOptions) (engine.Removed, error)
	GC(ctx context.Context, o engine.GCOptions) (*engine.GCReport, error)
	Fsck(ctx context.Context, o store.CheckOptions) (store.Checked, error)

	Hold() (release func())
	LeaveRoom(ctx context.Context) (_ context.Context, stop func(), err error)
	Deploy(ctx context.Context, name string, img *store.Image, o engine.DeployOptions) (*engine.Function, error)
	Slim(ctx context.Context, function string, o image.SlimOptions) (*image.Slimmed, error)
	Functions() []*engine.Function
	TenantUse(tenant string) engine.Use
	DiskUsage() (*engine.DiskUsage, error)
	Function(name string) (*engine.Function, error)
	RemoveFunction(ctx context.Context, name string) error

	Revisions(name string) (*engine.Revisions, error)
	SetTraffic(ctx context.Context, name string, o engine.Split) (*engine.Revisions, error)
	Rollback(ctx context.Context, name, to string) (*engine.Revisions, error)
	SetAliases(ctx context.Context, name string, set map[string]string, remove []string) (*engine.Revisions, error)
	RemoveRevision(ctx context.Context, name, revision string) error

	Closed() <-chan struct{}
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
	Logs(ctx context.Context, name string, o engine.LogOptions, emit func(engine.LogLine) error) error

	CreateContainer(ctx context.Context, cfg engine.ContainerConfig) (*engine.Container, error)
	Container(ref string) (*engine.Container, error)
	Containers(all bool) []*engine.Container
	StartContainer(ctx context.Context, ref string) error
	AwaitContainer(ref string, until engine.WaitCondition) (func(context.Context) (*engine.Container, error), error)
	Attach(ref string, o engine.AttachOptions) (*engine.Attachment, error)
	RenameContainer(ref, name string) error
	RemoveContainer(ref string, force engine.RemoveForce) error

	Sandboxes(all bool) []*engine.Sandbox
	Size(s *engine.Sandbox) (sandbox.Size, error)
	Stats(id string) (sandbox.Stats, error)
	Processes(id string) ([]engine.Process, error)
	Wait(ctx context.Context, id string) (*engine.Sandbox, error)
	Stop(ctx context.Context, id string, grace time.Duration) error
	Kill(id string) error
	Signal(id string, sig unix.Signal) error
	Run(ctx context.Context, r engine.RunRequest) (engine.RunResult, error)

	Changes() *store.Changes
	Events(ctx context.Context, o engine.EventOptions, emit func(store.Change) error) error

	Checks(o engine.CheckOptions) ([]engine.Check, error)
	Holdings() (engine.Holdings, error)
	Status() (engine.Status, error)
}

// Config configures the server. Engine and Log are required. For other fields, zero means the
// documented default.
type Config struct {
	Engine  Engine
	Log     *slog.Logger
	Version api.Version

	// Scratch creates an empty directory for an uploaded template. The server removes the
	// directory. The default creates the directory below os.TempDir.
	Scratch func() (dir string, err error)

	// Access holds tenants, tokens and secrets. If nil, the server has none of these and no
	// audit log. With Remote, every request needs a token. Without Remote, every caller is root.
	Access *access.Access
	Remote bool

	Invoker gateway.Invoker // receiver of events; default Engine
	// Events is the service of asynchronous events; nil: none.
	Events *events.Service
	Nodes  Nodes // the cluster's nodes; nil: the engine is alone

	// Agents is the engine of agents' sandboxes; nil: none.
	Agents *engine.Engine

	// Connections is the memory pool of the gateway's connections, shown by the status route;
	// nil: none.
	Connections *buffer.Pool

	MaxTarBytes    int64 // maximum size of an uploaded template, packed and unpacked; default 512 MiB
	MaxTarEntries  int   // maximum number of files and directories in a template; default 100,000
	MaxInvokeBytes int64 // maximum size of an event's body; default 64 MiB
}

const maxJSONBytes = 1 << 20

type server struct {
	cfg    Config
	engine Engine
	log    *slog.Logger

	profiling sync.Mutex            // held while a profile is taken
	uploads   intake.Places[string] // uploads of templates from remote clients, by tenant

	imageList    listing.Cache[store.Image]
	functionList listing.Cache[engine.Function]
	sandboxList  map[bool]*listing.Cache[engine.Sandbox] // key: whether the list includes ended sandboxes
}

// route is one route of the API. A handler may return an error only if no part of the answer was
// sent.
type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request) error
}

func (s *server) routes() []route {
	return []route{
		{"GET", "/v1/version", s.version},
		{"GET", "/v1/status", s.status},
		{"GET", "/v1/doctor", s.doctor},
		{"GET", "/v1/system/df", s.diskUsage},
		{"GET", "/v1/template/schema", s.templateSchema},
		{"POST", "/v1/template/check", s.templateCheck},
		{"POST", "/v1/build", s.build},
		{"POST", "/v1/bases/{name}", s.base},
		{"GET", "/v1/images", s.images},
		{"POST", "/v1/images/load", s.load},
		{"GET", "/v1/images/save", s.save},
		{"POST", "/v1/images/import", s.importImage},
		{"POST", "/v1/images/pull", s.pull},
		{"POST", "/v1/images/push", s.push},
		{"POST", "/v1/images/resolve", s.resolve},
		{"POST", "/v1/images/sign", s.sign},
		{"GET", "/v1/images/{ref}", s.image},
		{"DELETE", "/v1/images/{ref}", s.removeImage},
		{"GET", "/v1/images/{ref}/history", s.imageHistory},
		{"GET", "/v1/images/{ref}/sbom", s.imageSBOM},
		{"POST", "/v1/images/{ref}/tag", s.tagImage},
		{"POST", "/v1/images/prune", s.pruneImages},
		{"GET", "/v1/functions", s.functions},
		{"POST", "/v1/functions", s.deploy},
		{"GET", "/v1/functions/{name}", s.function},
		{"DELETE", "/v1/functions/{name}", s.removeFunction},
		{"POST", "/v1/functions/{name}/invoke", s.invoke},
		{"GET", "/v1/functions/{name}/logs", s.logs},
		{"POST", "/v1/functions/{name}/slim", s.slim},
		{"GET", "/v1/functions/{name}/revisions", s.revisions},
		{"DELETE", "/v1/functions/{name}/revisions/{revision}", s.removeRevision},
		{"POST", "/v1/functions/{name}/split", s.split},
		{"POST", "/v1/functions/{name}/rollback", s.rollback},
		{"POST", "/v1/functions/{name}/aliases", s.aliases},
		{"GET", "/v1/sandboxes", s.sandboxes},
		{"POST", "/v1/sandboxes/{id}/stop", s.stop},
		{"POST", "/v1/sandboxes/{id}/kill", s.kill},
		{"POST", "/v1/sandboxes/{id}/wait", s.wait},
		{"GET", "/v1/sandboxes/{id}/processes", s.processes},
		{"POST", "/v1/run", s.run},
		{"POST", "/v1/containers", s.createContainer},
		{"POST", "/v1/containers/prune", s.pruneContainers},
		{"GET", "/v1/containers/{ref}", s.container},
		{"DELETE", "/v1/containers/{ref}", s.removeContainer},
		{"POST", "/v1/containers/{ref}/start", s.startContainer},
		{"POST", "/v1/containers/{ref}/attach", s.attach},
		{"POST", "/v1/containers/{ref}/rename", s.renameContainer},
		{"GET", "/v1/agents", s.listAgents},
		{"POST", "/v1/agents", s.createAgent},
		{"GET", "/v1/agents/{id}", s.agent},
		{"DELETE", "/v1/agents/{id}", s.removeAgent},
		{"POST", "/v1/agents/{id}/exec", s.agentEvent("/exec")},
		{"GET", "/v1/agents/{id}/files", s.agentEvent("/files")},
		{"PUT", "/v1/agents/{id}/files", s.agentEvent("/files")},
		{"DELETE", "/v1/agents/{id}/files", s.agentEvent("/files")},
		{"GET", "/v1/agents/{id}/list", s.agentEvent("/list")},
		{"POST", "/v1/agents/{id}/mkdir", s.agentEvent("/mkdir")},
		{"POST", "/v1/agents/{id}/snapshots", s.snapshotAgent},
		{"GET", "/v1/snapshots", s.snapshots},
		{"DELETE", "/v1/snapshots/{ref}", s.removeSnapshot},
		{"GET", "/v1/debug/profiles/{kind}", s.profile},
		{"POST", "/v1/debug/syscalls", s.syscalls},
		{"GET", "/v1/debug/leaks", s.leaks},
		{"GET", "/v1/events", s.events},
		{"GET", "/v1/nodes", s.nodes},
		{"POST", "/v1/nodes/{name}/drain", s.drainNode},
		{"POST", "/v1/nodes/{name}/undrain", s.undrainNode},
		{"GET", "/v1/events/queue", s.queue},
		{"GET", "/v1/events/queue/{id}", s.queuedEvent},
		{"DELETE", "/v1/events/queue/{id}", s.discardEvent},
		{"POST", "/v1/events/queue/{id}/replay", s.replayEvent},
		{"GET", "/v1/events/tail", s.tailEvents},
		{"GET", "/v1/triggers", s.triggers},
		{"POST", "/v1/system/gc", s.gc},
		{"POST", "/v1/system/fsck", s.fsck},

		{"GET", "/v1/audit", s.auditLog},
		{"GET", "/v1/whoami", s.whoami},
		{"GET", "/v1/tenants", s.tenants},
		{"POST", "/v1/tenants", s.createTenant},
		{"GET", "/v1/tenants/{tenant}", s.tenant},
		{"DELETE", "/v1/tenants/{tenant}", s.removeTenant},
		{"POST", "/v1/tenants/{tenant}/quotas", s.setQuotas},
		{"GET", "/v1/tenants/{tenant}/secrets", s.secrets},
		{"POST", "/v1/tenants/{tenant}/secrets/{secret}", s.putSecret},
		{"DELETE", "/v1/tenants/{tenant}/secrets/{secret}", s.removeSecret},
		{"POST", "/v1/secrets/rotate-key", s.rotateKey},
		{"GET", "/v1/tokens", s.tokens},
		{"POST", "/v1/tokens", s.createToken},
		{"POST", "/v1/tokens/{id}/rotate", s.rotateToken},
		{"DELETE", "/v1/tokens/{id}", s.removeToken},
	}
}

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
	s := &server{cfg: cfg, engine: cfg.Engine, log: cfg.Log, uploads: intake.Places[string]{All: maxUploads, Of: maxUploadsOf}}
	s.sandboxList = map[bool]*listing.Cache[engine.Sandbox]{false: {Row: appendSandbox}, true: {Row: appendSandbox}}
	s.functionList.Row = func(buf []byte, f *engine.Function) ([]byte, error) { return appendJSON(buf, functionOf(f)) }
	s.imageList.Row = func(buf []byte, img *store.Image) ([]byte, error) { return appendJSON(buf, imageOf(img)) }
	mux := http.NewServeMux()
	for _, rt := range s.routes() {
		handle := s.guarded(rt)
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
			if err := handle(w, r); err != nil {
				s.fail(w, r, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, err := s.identify(r); err != nil { // the set of routes is not public
			s.fail(w, r, err)
			return
		}
		s.fail(w, r, unknownRoute(mux, r))
	})
	if cfg.Remote {
		return limitBody(mux, bodyTime, unreadTime)
	}
	return mux
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

func (s *server) version(w http.ResponseWriter, _ *http.Request) error {
	return reply(w, http.StatusOK, s.cfg.Version)
}

// doctor answers GET /v1/doctor?costs=.
func (s *server) doctor(w http.ResponseWriter, r *http.Request) error {
	costs, err := queryBool(r.URL.Query().Get("costs"))
	if err != nil {
		return badRequest("costs: %v", err)
	}
	checks, err := s.engine.Checks(engine.CheckOptions{Costs: costs})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.Doctor{Checks: Checks(checks)})
}

func (s *server) templateSchema(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/schema+json")
	_, _ = w.Write(api.TemplateSchema) // the client may have disconnected
	return nil
}

func (s *server) templateCheck(w http.ResponseWriter, r *http.Request) error {
	src, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read template: %w", err)
	}
	t, err := template.Parse(api.TemplateFile, src)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.TemplateInfo{ID: t.ID, Version: t.Version, Base: t.Base, Code: t.Code.Path, Reads: t.Reads()})
}

func (s *server) image(w http.ResponseWriter, r *http.Request) error {
	img, err := s.engine.Image(r.PathValue("ref"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.ImageDetails{Image: imageOf(img), Parts: list(img.Parts, partOf), Config: img.Config})
}

func (s *server) tagImage(w http.ResponseWriter, r *http.Request) error {
	var req api.TagRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	img, err := s.engine.TagImage(r.Context(), r.PathValue("ref"), req.Name)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, imageOf(img))
}

// removeImage answers DELETE /v1/images/{ref}?force=.
func (s *server) removeImage(w http.ResponseWriter, r *http.Request) error {
	force, err := queryBool(r.URL.Query().Get("force"))
	if err != nil {
		return badRequest("force: %v", err)
	}
	gone, err := s.engine.RemoveImage(r.Context(), r.PathValue("ref"), engine.RemoveOptions{Force: force})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.RemovedImage{Image: imageOf(gone.Image), Untagged: gone.Untagged, Deleted: gone.Deleted})
}

func (s *server) functions(w http.ResponseWriter, r *http.Request) error {
	if id := identityOf(r); !id.All() {
		return reply(w, http.StatusOK, list(only(s.engine.Functions(), id, functionTenant), functionOf))
	}
	body, err := s.functionList.Of(s.engine.Functions())
	if err != nil {
		return err
	}
	body.ServeHTTP(w, r)
	return nil
}

func (s *server) function(w http.ResponseWriter, r *http.Request) error {
	f, err := s.engine.Function(r.PathValue("name"))
	if err != nil {
		return err
	}
	config, err := json.Marshal(f.Config)
	if err != nil {
		return fmt.Errorf("encode configuration of %s: %w", f.Name, err)
	}
	details := api.FunctionDetails{Function: functionOf(f), Config: config, Defences: list(f.Defences, func(s string) string { return s })}
	if f.Shells != nil {
		details.ParkedInterpreters = &api.ParkedInterpreters{Ready: f.Shells.Ready, Want: f.Shells.Want, MemoryBytes: f.Shells.Bytes}
	}
	return reply(w, http.StatusOK, details)
}

func (s *server) removeFunction(w http.ResponseWriter, r *http.Request) error {
	if err := s.engine.RemoveFunction(r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// reply sends v as JSON.
func reply(w http.ResponseWriter, status int, v any) error {
	body, err := appendJSON(nil, v)
	if err != nil {
		return err
	}
	listing.Send(w, status, body)
	return nil
}

func appendJSON(buf []byte, v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return append(buf, raw...), nil
}

// fail sends err in the API's error format.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := errorOf(err)
	if e.Code == api.CodeInternal {
		s.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	challenge(w, err)
	_ = reply(w, e.Status, api.ErrorBody{Error: e})
}

// decode parses a JSON body and rejects unknown fields. A malformed body is a 400 with line and
// column.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	err = d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("several JSON values")
	}
	if err == nil {
		return nil
	}
	offset := d.InputOffset()
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset - 1 // Offset includes the offending byte
	case errors.As(err, &kind):
		offset = kind.Offset
	}
	before := string(body[:min(max(offset, 0), int64(len(body)))])
	line := 1 + strings.Count(before, "\n")
	column := len(before) - strings.LastIndexByte(before, '\n')
	return badRequest("body:%d:%d: %s", line, column, wording.JSON(err))
}
