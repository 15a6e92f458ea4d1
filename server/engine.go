package server

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/cluster"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Engine is the part of *engine.Engine that the server uses. Package servertest holds the other
// implementation.
type Engine interface {
	ForTenant(ctx context.Context) context.Context
	ParseTemplate(name string, src []byte) (*template.Template, error)
	Template(dir *os.Root) (*template.Template, error)
	Build(ctx context.Context, dir *os.Root, t *template.Template, report func(image.Progress)) (*store.Image, *image.Lock, error)
	Base(ctx context.Context, name string, report func(image.Progress)) (*store.Image, error)

	Load(ctx context.Context, r io.Reader, report func(image.Progress)) ([]*store.Image, error)
	Save(ctx context.Context, w io.Writer, refs []string) error
	Import(ctx context.Context, r io.Reader, o oci.ImportOptions, report func(image.Progress)) (*store.Image, error)
	Pull(ctx context.Context, ref, platform string, auth *oci.Auth, report func(image.Progress)) (*store.Image, oci.Remote, error)
	Resolve(ctx context.Context, ref string, auth *oci.Auth) (string, error)
	AttachSignature(ctx context.Context, ref string, payload []byte, sig string, auth *oci.Auth) error
	Push(ctx context.Context, ref, to string, auth *oci.Auth, o oci.PushOptions, report func(image.Progress)) (oci.Remote, error)

	ImageList() (images []*store.Image, generation uint64)
	Image(ref string) (*store.Image, error)
	History(ref string) ([]oci.Step, error)
	SBOM(ref string) ([]byte, error)
	TagImage(ctx context.Context, ref, name string) (*store.Image, error)
	RemoveImage(ctx context.Context, ref string, o build.RemoveOptions) (build.Removed, error)
	GC(ctx context.Context, o build.GCOptions) (*build.GCReport, error)
	Fsck(ctx context.Context, o store.CheckOptions) (store.Checked, error)

	Hold() (release func())
	LeaveRoom(ctx context.Context) (_ context.Context, stop func(), err error)
	Deploy(ctx context.Context, name string, img *store.Image, o engine.DeployOptions) (*engine.Function, error)
	Slim(ctx context.Context, function string, o image.SlimOptions) (*image.Slimmed, error)
	Functions() []*engine.Function
	TenantUse(tenant string) live.Use
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
	Logs(ctx context.Context, name string, o live.LogOptions, emit func(live.LogLine) error) error

	CreateContainer(ctx context.Context, cfg container.Config) (*container.Container, error)
	Container(ref string) (*container.Container, error)
	Containers(all bool) []*container.Container
	StartContainer(ctx context.Context, ref string) error
	AwaitContainer(ref string, until container.WaitCondition) (func(context.Context) (*container.Container, error), error)
	Attach(ref string, o container.AttachOptions) (*container.Attachment, error)
	RenameContainer(ref, name string) error
	RemoveContainer(ref string, force container.RemoveForce) error

	Sandboxes(all bool) []*live.Sandbox
	Size(s *live.Sandbox) (sandbox.Size, error)
	Stats(id string) (sandbox.Stats, error)
	Processes(id string) ([]live.Process, error)
	Wait(ctx context.Context, id string) (*live.Sandbox, error)
	Stop(ctx context.Context, id string, grace time.Duration) error
	Kill(id string) error
	Signal(id string, sig unix.Signal) error
	Run(ctx context.Context, r container.RunRequest) (container.RunResult, error)

	Changes() *store.Changes
	Events(ctx context.Context, o live.EventOptions, emit func(store.Change) error) error

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

	// Agents are the agents' sandboxes; nil: none.
	Agents *engine.Agents

	// Connections is the memory pool of the gateway's connections, shown by the status route;
	// nil: none.
	Connections *buffer.Pool

	MaxTarBytes    int64 // maximum size of an uploaded template, packed and unpacked; default 512 MiB
	MaxTarEntries  int   // maximum number of files and directories in a template; default 100,000
	MaxInvokeBytes int64 // maximum size of an event's body; default 64 MiB
}

// Nodes is the part of *cluster.Node that the server uses.
type Nodes interface {
	Nodes() []cluster.Member
	Drain(ctx context.Context, node string) error
	Undrain(ctx context.Context, node string) error
}
