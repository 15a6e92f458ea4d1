package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	types "github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
)

// workDir is the path of the tenant's directory in every sandbox.
const workDir = "/work"

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

// status returns the state as text for people.
func (c shownContainer) status(now time.Time) string {
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

// containers returns the running containers, newest first; with all also the ended ones.
func (s *server) containers(all bool) []shownContainer {
	boxes := s.engine.Sandboxes(all)
	out := make([]shownContainer, len(boxes))
	for i, b := range boxes {
		out[i] = containerOf(b)
	}
	return out
}

// container returns the container with the given id, name or id prefix, in its current state.
func (s *server) container(ref string) (shownContainer, error) {
	ref = strings.TrimPrefix(ref, "/")
	var begin []*live.Sandbox
	for _, b := range s.engine.Sandboxes(true) {
		if b.ID == ref || isNamed(b, ref) {
			begin = []*live.Sandbox{b}
			break
		}
		if ref != "" && strings.HasPrefix(b.ID, ref) {
			begin = append(begin, b)
		}
	}
	switch len(begin) {
	case 0:
		return shownContainer{}, notFound("No such container: %s", ref)
	case 1:
	default:
		return shownContainer{}, badRequest("multiple IDs found with provided prefix: %s: %s and %s", ref, begin[0].ID, begin[1].ID)
	}
	c := containerOf(begin[0])
	if c.record == nil {
		return c, nil
	}
	record, err := s.engine.Container(c.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return shownContainer{}, notFound("No such container: %s", ref) // removed since the listing
	}
	if err != nil {
		return shownContainer{}, err
	}
	c.record, c.exit, c.started, c.finished = record, cmp.Or(record.Exit, c.exit), record.Started, record.Finished
	return c, nil
}

// live returns a running container.
func (s *server) live(ref string) (shownContainer, error) {
	c, err := s.container(ref)
	if err == nil && !c.running() {
		err = conflict("container %s is not running", c.ID)
	}
	return c, err
}

type endpoint struct {
	NetworkID  string
	EndpointID string
	Gateway    string
	IPAddress  string
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

func errorStatus(err error) int {
	status, _ := statusOf(err)
	return status
}

// networkID returns the id of a network, or "".
func networkID(name string) string { return networkIDs[name] }

var networkIDs = map[string]string{
	networkBridge: strings.Repeat("b", 64), networkHost: strings.Repeat("1", 64), networkNone: strings.Repeat("0", 64),
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "0001-01-01T00:00:00Z"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// containerInspect answers GET /containers/ID/json?size=.
func (s *server) containerInspect(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	args, config, limits, failure := strings.Fields(c.Command), containerConfig{Hostname: c.Function, Env: []string{}, WorkingDir: workDir}, c.Limits, ""
	config.Cmd = args
	host := map[string]any{
		"NetworkMode": c.network(), "CgroupnsMode": "private", "IpcMode": "private", "Isolation": "", "Privileged": false, "ReadonlyRootfs": true, "CapDrop": []string{"ALL"}, "SecurityOpt": c.Defences,
		"RestartPolicy": types.RestartPolicy{Name: types.RestartPolicyDisabled}, "LogConfig": types.LogConfig{Type: "json-file", Config: map[string]string{}},
	}
	if c.record != nil {
		cfg := c.record.Config
		args, limits, failure = c.record.Args, cfg.Limits, c.record.Error
		config = containerConfig{
			Hostname: cfg.Hostname, User: cfg.User, Env: c.record.Env, Cmd: cfg.Cmd, Entrypoint: cfg.Entrypoint, WorkingDir: cfg.Dir, Tty: cfg.TTY,
			AttachStdin: cfg.OpenStdin, AttachStdout: true, AttachStderr: true, OpenStdin: cfg.OpenStdin, StdinOnce: cfg.StdinOnce, StopSignal: cmp.Or(unix.SignalName(cfg.StopSignal), strconv.Itoa(int(cfg.StopSignal))),
		}
		host["ReadonlyRootfs"], host["AutoRemove"], host["CapAdd"], host["CapDrop"], host["GroupAdd"] = cfg.ReadOnly, cfg.AutoRemove, cfg.CapAdd, cfg.CapDrop, cfg.Groups
		host["ConsoleSize"] = [2]uint16{cfg.Rows, cfg.Columns}
		if len(cfg.Annotations) > 0 {
			host["Annotations"] = cfg.Annotations
		}
	}
	config.Image, config.Labels = c.Image, c.labels()
	host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"] = limits.MemoryBytes, limits.MemoryBytes, limits.CPUMillis*1e6, limits.Pids
	path := ""
	if len(args) > 0 {
		path, args = args[0], args[1:]
	}
	out := map[string]any{
		"Id": c.ID, "Created": stamp(c.made), "Path": path, "Args": args, "Image": c.Digest, "Name": "/" + c.name,
		"State": types.State{
			Status: types.ContainerState(c.state()), Running: c.running(), OOMKilled: c.exit != nil && c.exit.OOMKilled,
			Pid: c.PID, ExitCode: c.exitCode(), Error: failure, StartedAt: stamp(c.started), FinishedAt: stamp(c.finished),
		},
		"ResolvConfPath": "", "HostnamePath": "", "HostsPath": "", "LogPath": "", "RestartCount": 0, "Driver": "fre", "Platform": "linux",
		"MountLabel": "", "ProcessLabel": "", "AppArmorProfile": "", "ExecIDs": nil,
		"HostConfig": host, "GraphDriver": graphDriver, "Mounts": c.mounts(), "Config": config,
		"NetworkSettings": map[string]any{
			"Bridge": "", "SandboxID": "", "SandboxKey": "", "Ports": map[string]any{}, "Networks": map[string]endpoint{c.network(): {NetworkID: networkID(c.network())}},
		},
	}
	if boolOf(r, "size") {
		out["SizeRw"], out["SizeRootFs"] = s.sizes(c)
	}
	return reply(w, http.StatusOK, out)
}

// containerStop answers POST /containers/ID/stop?t=&signal=.
func (s *server) containerStop(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	how, err := stopOf(r)
	if err != nil {
		return err
	}
	switch {
	case !c.running():
		w.WriteHeader(http.StatusNotModified)
		return nil
	case c.record != nil:
		err = s.engine.StopContainer(r.Context(), c.ID, how)
	case how.Signal != 0:
		return leftOut("stop signals of an instance", "send a signal with docker kill -s; stop lets the instance finish the event first")
	default:
		err = s.engine.Stop(r.Context(), c.ID, how.Grace)
	}
	if err != nil && !ended(err) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// ended reports whether err means that the container no longer runs.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, live.ErrContainerStopped) || errors.Is(err, os.ErrProcessDone)
}

// containerKill answers POST /containers/ID/kill?signal=.
func (s *server) containerKill(w http.ResponseWriter, r *http.Request) error {
	sig, err := parseSignal(r.URL.Query().Get("signal"))
	if err != nil {
		return err
	}
	c, err := s.live(r.PathValue("id"))
	if err != nil {
		return err
	}
	switch {
	case c.record != nil:
		err = s.engine.SignalContainer(c.ID, sig)
	case sig == unix.SIGKILL:
		err = s.engine.Kill(c.ID)
	default:
		err = s.engine.Signal(c.ID, sig)
	}
	if err != nil && ended(err) {
		return conflict("container %s is not running", c.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// parseSignal parses the name or number of a signal; the default is SIGKILL.
func parseSignal(text string) (unix.Signal, error) {
	if text == "" {
		return unix.SIGKILL, nil
	}
	if sig, ok := container.ParseSignal(text); ok {
		return sig, nil
	}
	return 0, badRequest("invalid signal: %s: use a name such as TERM or RTMIN+3, or a number up to 64", text)
}

// containerWait answers POST /containers/ID/wait?condition=. The handler sends the status at
// once, because clients wait for the status before they start the container.
func (s *server) containerWait(w http.ResponseWriter, r *http.Request) error {
	condition := container.WaitCondition(cmp.Or(r.URL.Query().Get("condition"), string(container.WaitNotRunning)))
	switch condition {
	case container.WaitNotRunning, container.WaitNextExit, container.WaitRemoved:
	default:
		return badRequest("invalid condition: %q: use not-running, next-exit or removed", condition)
	}
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	wait := func(ctx context.Context) (int, error) {
		if !c.running() {
			return c.exitCode(), nil
		}
		ended, err := s.engine.Wait(ctx, c.ID)
		if err != nil {
			return 0, err
		}
		return container.ExitCode(ended.Exit), nil
	}
	if c.record != nil {
		await, err := s.engine.AwaitContainer(c.ID, condition)
		if err != nil {
			return err
		}
		wait = func(ctx context.Context) (int, error) {
			record, err := await(ctx)
			if err != nil {
				return 0, err
			}
			return container.ExitCode(record.Exit), nil
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	status, err := wait(r.Context())
	answer := types.WaitResponse{StatusCode: int64(status)}
	if err != nil {
		answer = types.WaitResponse{StatusCode: -1, Error: &types.WaitExitError{Message: err.Error()}}
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
	return nil
}
