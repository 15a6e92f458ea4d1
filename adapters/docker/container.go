package docker

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	types "github.com/moby/moby/api/types/container"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// The tenant's directory: its path in every sandbox, and the name of its volume.
const (
	workDir    = "/work"
	workVolume = "fre-work"
)

// Labels with FRE's properties of a container.
const (
	labelFunction = "fre.function"
	labelTenant   = "fre.tenant"
)

// shownContainer is a sandbox or a container, as shown to Docker's clients.
type shownContainer struct {
	*live.Sandbox
	name   string               // without Docker's leading slash
	record *container.Container // nil for instances and runs; in lists, the record as of the creation
	exit   *sandbox.ExitStatus  // nil while running

	made, started, finished time.Time // finished is zero while running
}

// containerOf converts a sandbox. An instance of a function is named FUNCTION-ID.
func containerOf(b *live.Sandbox) shownContainer {
	c := shownContainer{Sandbox: b, name: b.Name, record: container.Of(b), exit: b.Exit, made: b.Created, started: b.Created, finished: b.Ended}
	if c.record != nil {
		c.made = c.record.Created
	}
	if c.name == "" {
		c.name = c.origin() + "-" + b.ID
	}
	return c
}

// isNamed reports whether containerOf gives b this name.
func isNamed(b *live.Sandbox, name string) bool {
	if b.Name != "" {
		return b.Name == name
	}
	origin, ok := strings.CutSuffix(name, "-"+b.ID)
	return ok && origin == cmp.Or(b.Function, "run")
}

func (c shownContainer) labels() map[string]string {
	out := map[string]string{labelTenant: c.Tenant}
	if c.record != nil {
		maps.Copy(out, c.record.Config.Labels)
	}
	if c.Function != "" {
		out[labelFunction] = c.Function
	}
	return out
}

// origin returns the function of an instance, or "run".
func (c shownContainer) origin() string { return cmp.Or(c.Function, "run") }

func (c shownContainer) running() bool {
	return c.State != live.StateExited && c.State != live.StateCreated && c.State != live.StateStarting
}

// state returns Docker's name of the state.
func (c shownContainer) state() string {
	switch {
	case c.running():
		return "running"
	case c.State == live.StateExited:
		return "exited"
	}
	return "created"
}

// exitCode returns the exit status as in sh: 128 plus the signal number after a signal.
func (c shownContainer) exitCode() int {
	if c.running() {
		return 0
	}
	return container.ExitCode(c.exit)
}

// statusText returns the state as text for people.
func (c shownContainer) statusText(now time.Time) string {
	switch c.state() {
	case "running":
		return "Up " + span(now.Sub(c.started))
	case "created":
		return "Created"
	}
	return fmt.Sprintf("Exited (%d) %s ago", c.exitCode(), span(now.Sub(c.finished)))
}

// span formats a duration like docker (github.com/docker/go-units, HumanDuration).
func span(d time.Duration) string {
	seconds, minutes, hours := int(d.Seconds()), int(d.Minutes()), int(d.Hours()+0.5)
	switch {
	case seconds < 1:
		return "Less than a second"
	case seconds == 1:
		return "1 second"
	case seconds < 60:
		return fmt.Sprintf("%d seconds", seconds)
	case minutes == 1:
		return "About a minute"
	case minutes < 60:
		return fmt.Sprintf("%d minutes", minutes)
	case hours == 1:
		return "About an hour"
	case hours < 48:
		return fmt.Sprintf("%d hours", hours)
	case hours < 24*7*2:
		return fmt.Sprintf("%d days", hours/24)
	case hours < 24*30*2:
		return fmt.Sprintf("%d weeks", hours/24/7)
	case hours < 24*365*2:
		return fmt.Sprintf("%d months", hours/24/30)
	}
	return fmt.Sprintf("%d years", int(d.Hours())/24/365)
}

// mounts returns the persistent mounts of a sandbox: the tenant's directory.
func (c shownContainer) mounts() []types.MountPoint {
	if c.record != nil {
		switch c.record.Config.Work {
		case container.WorkNone:
			return []types.MountPoint{}
		case container.WorkReadOnly:
			return []types.MountPoint{{Type: "volume", Name: workVolume, Source: workDir, Destination: workDir, Driver: "local", Mode: "ro"}}
		case container.WorkWrite:
		}
	}
	return []types.MountPoint{{Type: "volume", Name: workVolume, Source: workDir, Destination: workDir, Driver: "local", Mode: "rw", RW: true}}
}

// network returns Docker's name of the container's network. For an instance, the result is none,
// because the template holds the network.
func (c shownContainer) network() string {
	if c.record != nil {
		for name, mode := range networkModes {
			if mode == c.record.Config.Network {
				return name
			}
		}
	}
	return networkNone
}

// containerConfig is the configuration of a container: the image's, or the one of a create
// request.
type containerConfig struct {
	Hostname     string
	Domainname   string
	User         string
	AttachStdin  bool
	AttachStdout bool
	AttachStderr bool
	ExposedPorts map[string]struct{} `json:",omitempty"`
	Tty          bool
	OpenStdin    bool
	StdinOnce    bool
	Env          []string
	Cmd          []string
	Image        string
	Volumes      map[string]struct{}
	WorkingDir   string
	Entrypoint   []string
	Labels       map[string]string
	StopSignal   string `json:",omitempty"`
	StopTimeout  *int   `json:",omitempty"`
}

// configOf converts an image's configuration to Docker's format.
func configOf(cfg image.Config, labels map[string]string) containerConfig {
	out := containerConfig{Env: cfg.Env, Cmd: cfg.Args, WorkingDir: workDir, Labels: labels}
	if c := cfg.Container; c != nil {
		out.Entrypoint, out.Cmd, out.WorkingDir, out.User, out.StopSignal = c.Entrypoint, c.Cmd, c.WorkingDir, c.User, c.StopSignal
		out.ExposedPorts, out.Volumes = set(c.ExposedPorts), set(c.Volumes)
	}
	return out
}

func set(keys []string) map[string]struct{} {
	if len(keys) == 0 {
		return nil
	}
	out := make(map[string]struct{}, len(keys))
	for _, key := range keys {
		out[key] = struct{}{}
	}
	return out
}
