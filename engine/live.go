package engine

import "github.com/fre-engine/fre/engine/live"

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

// Errors of live sandboxes.
var (
	ErrContainerStopped = live.ErrContainerStopped
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
