package engine

import (
	"context"
	"io"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// Names of package live's types, of which signatures of the engine consist.
type (
	Sandbox      = live.Sandbox
	State        = live.State
	Process      = live.Process
	LogLine      = live.LogLine
	LogOptions   = live.LogOptions
	StopOptions  = live.StopOptions
	EventOptions = live.EventOptions
	Quotas       = live.Quotas
	QuotaError   = live.QuotaError
	Use          = live.Use
	WorkConfig   = live.WorkConfig
	TenantUsage  = live.TenantUsage
)

// Names of package container's types, of which signatures of the engine consist.
type (
	Container       = container.Container
	ContainerConfig = container.Config
	RunRequest      = container.RunRequest
	RunResult       = container.RunResult
	Attachment      = container.Attachment
	AttachOptions   = container.AttachOptions
	RemoveForce     = container.RemoveForce
	WaitCondition   = container.WaitCondition
	WorkAccess      = container.WorkAccess
)

// The kinds of access to /work, and the conditions of [container.Manager.AwaitContainer].
const (
	WorkNone       = container.WorkNone
	WorkReadOnly   = container.WorkReadOnly
	WorkWrite      = container.WorkWrite
	WaitNotRunning = container.WaitNotRunning
	WaitNextExit   = container.WaitNextExit
	WaitRemoved    = container.WaitRemoved
)

// The states of a sandbox.
const (
	StateStarting = live.StateStarting
	StateIdle     = live.StateIdle
	StateBusy     = live.StateBusy
	StateStopping = live.StateStopping
	StateParked   = live.StateParked
	StateCreated  = live.StateCreated
	StateRunning  = live.StateRunning
	StateExited   = live.StateExited
)

// Errors of live sandboxes and containers.
var (
	ErrContainerStopped = live.ErrContainerStopped
	ErrContainerRunning = container.ErrContainerRunning
	ErrChangesLost      = live.ErrChangesLost
)

// QuotaOfBuilds is the What of the [QuotaError] of a build for which the queue has no room.
const QuotaOfBuilds = live.QuotaOfBuilds

// ContainerOf returns the container in a list of sandboxes, as it was created; nil for any other
// sandbox.
func ContainerOf(s *Sandbox) *Container {
	c, _ := s.Record.(*Container)
	return c
}

// ExitCode returns the status of a run as a command shell reports it: see [container.ExitCode].
func ExitCode(s *sandbox.ExitStatus) int { return container.ExitCode(s) }

// ParseSignal reads a signal's number or name: see [container.ParseSignal].
func ParseSignal(s string) (unix.Signal, bool) { return container.ParseSignal(s) }

// Names of package build's types, of which signatures of the engine consist.
type (
	GCPolicy       = build.GCPolicy
	GCConfig       = build.GCConfig
	GCReport       = build.GCReport
	GCImage        = build.GCImage
	GCOptions      = build.GCOptions
	Removed        = build.Removed
	RemoveOptions  = build.RemoveOptions
	ImageNameError = build.ImageNameError
)

// The rules of a [GCPolicy] in reports.
const (
	RuleNameless = build.RuleNameless
	RuleAll      = build.RuleAll
	RuleUnused   = build.RuleUnused
	RulePerName  = build.RulePerName
	RuleMaxBytes = build.RuleMaxBytes
)

// Errors of images and builds.
var (
	ErrBuildTime    = build.ErrBuildTime
	ErrOthersImage  = build.ErrOthersImage
	ErrSeveralNames = build.ErrSeveralNames
)

// ImageTenant returns the tenant of an image: see [build.ImageTenant].
func ImageTenant(img *store.Image) string { return build.ImageTenant(img) }

// KeepNames returns a context under which names stay with their tenant: see [build.KeepNames].
func KeepNames(ctx context.Context) context.Context { return build.KeepNames(ctx) }

// WithLogins returns a context with logins at registries: see [build.WithLogins].
func WithLogins(ctx context.Context, logins map[string]*oci.Auth) context.Context {
	return build.WithLogins(ctx, logins)
}

// WritingTo runs f, which writes below dir, while the disk has room: see [build.WritingTo].
func WritingTo(ctx context.Context, dir string, f func(context.Context) error) error {
	return build.WritingTo(ctx, dir, f)
}

// WhileRoom returns a writer that ends with ctx: see [build.WhileRoom].
func WhileRoom(ctx context.Context, w io.Writer) io.Writer { return build.WhileRoom(ctx, w) }
