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
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// workDir is where the tenant's directory is in every sandbox.
const workDir = "/work"

// The labels that say what a container is in FRE's words.
const (
	labelFunction = "fre.function"
	labelTenant   = "fre.tenant"
)

// container is what runs, or has run, as Docker's clients see it.
type container struct {
	*engine.Sandbox
	name   string // without Docker's leading slash
	labels map[string]string
	record *engine.Container // of a container proper; nil for instances and runs

	made, started, finished time.Time // finished is zero where it has not
}

// containerOf names a sandbox: FUNCTION-ID for an instance of a function.
func containerOf(b *engine.Sandbox, record *engine.Container) container {
	c := container{Sandbox: b, name: b.Name, labels: map[string]string{labelTenant: b.Tenant}, record: record, made: b.Created, started: b.Created, finished: b.Ended}
	if record != nil {
		maps.Copy(c.labels, record.Config.Labels)
		c.made, c.started, c.finished = record.Created, record.Started, record.Finished
		return c
	}
	if b.Function != "" {
		c.labels[labelFunction] = b.Function
	}
	c.name = c.origin() + "-" + b.ID
	return c
}

// isNamed says whether that is the name that containerOf gives.
func isNamed(b *engine.Sandbox, name string) bool {
	if b.Name != "" {
		return b.Name == name
	}
	origin, ok := strings.CutSuffix(name, "-"+b.ID)
	return ok && origin == cmp.Or(b.Function, "run")
}

// origin is the function that an instance is of.
func (c container) origin() string { return cmp.Or(c.Function, "run") }

func (c container) running() bool {
	return c.State != engine.StateExited && c.State != engine.StateCreated && c.State != engine.StateStarting
}

// state is Docker's word.
func (c container) state() string {
	switch {
	case c.running():
		return "running"
	case c.State == engine.StateExited:
		return "exited"
	}
	return "created"
}

// digest is the image's.
func (c container) digest() store.Digest {
	if c.record != nil {
		return c.record.Digest
	}
	return c.Digest
}

// exit says how it ended; nil where it has not.
func (c container) exit() *sandbox.ExitStatus {
	if c.record != nil {
		return c.record.Exit
	}
	return c.Exit
}

// exitCode is as a shell has it: 128 and the signal that ended it.
func (c container) exitCode() int {
	if c.running() {
		return 0
	}
	return engine.ExitCode(c.exit())
}

// status is the text for people.
func (c container) status(now time.Time) string {
	switch c.state() {
	case "running":
		return "Up " + span(now.Sub(c.started))
	case "created":
		return "Created"
	}
	return fmt.Sprintf("Exited (%d) %s ago", c.exitCode(), span(now.Sub(c.finished)))
}

// span is a duration in docker's words (github.com/docker/go-units, HumanDuration).
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

// containers lists what runs, and with all what has run, newest first.
func (s *server) containers(all bool) []container {
	boxes := s.engine.Sandboxes(all)
	records := make(map[string]*engine.Container)
	for _, record := range s.engine.Containers(all) {
		records[record.ID] = record
	}
	out := make([]container, 0, len(boxes))
	for _, b := range boxes {
		record := records[b.ID]
		if b.Name != "" && record == nil {
			continue // removed since
		}
		out = append(out, containerOf(b, record))
	}
	return out
}

// container finds one by its id, name, or the beginning of its id.
func (s *server) container(ref string) (container, error) {
	ref = strings.TrimPrefix(ref, "/")
	var begin []*engine.Sandbox
	for _, b := range s.engine.Sandboxes(true) {
		if b.ID == ref || isNamed(b, ref) {
			begin = []*engine.Sandbox{b}
			break
		}
		if ref != "" && strings.HasPrefix(b.ID, ref) {
			begin = append(begin, b)
		}
	}
	switch len(begin) {
	case 0:
		return container{}, notFound("No such container: %s", ref)
	case 1:
	default:
		return container{}, badRequest("multiple IDs found with provided prefix: %s: %s and %s", ref, begin[0].ID, begin[1].ID)
	}
	if begin[0].Name == "" {
		return containerOf(begin[0], nil), nil
	}
	record, err := s.engine.Container(begin[0].ID)
	if errors.Is(err, fs.ErrNotExist) {
		return container{}, notFound("No such container: %s", ref) // removed since
	}
	if err != nil {
		return container{}, err
	}
	return containerOf(begin[0], record), nil
}

// live finds a container that runs.
func (s *server) live(ref string) (container, error) {
	c, err := s.container(ref)
	if err == nil && !c.running() {
		err = conflict("container %s is not running", c.ID)
	}
	return c, err
}

type port struct {
	PrivatePort uint16
	Type        string
}

type mountPoint struct {
	Type        string
	Name        string `json:",omitempty"`
	Source      string
	Destination string
	Driver      string `json:",omitempty"`
	Mode        string
	RW          bool
	Propagation string
}

type endpoint struct {
	NetworkID  string
	EndpointID string
	Gateway    string
	IPAddress  string
}

type containerSummary struct {
	ID              string `json:"Id"`
	Names           []string
	Image           string
	ImageID         string
	Command         string
	Created         int64
	Ports           []port
	SizeRw          int64 `json:",omitempty"`
	SizeRootFs      int64 `json:",omitempty"`
	Labels          map[string]string
	State           string
	Status          string
	HostConfig      struct{ NetworkMode string }
	NetworkSettings struct{ Networks map[string]endpoint }
	Mounts          []mountPoint
}

// mounts are the places of a sandbox that last: the tenant's directory.
func (c container) mounts() []mountPoint {
	if c.record != nil {
		switch c.record.Config.Work {
		case engine.WorkNone:
			return []mountPoint{}
		case engine.WorkReadOnly:
			return []mountPoint{{Type: "volume", Name: workVolume, Source: workDir, Destination: workDir, Driver: "local", Mode: "ro"}}
		case engine.WorkWrite:
		}
	}
	return []mountPoint{{Type: "volume", Name: workVolume, Source: workDir, Destination: workDir, Driver: "local", Mode: "rw", RW: true}}
}

// network is Docker's word for what it reaches. That of a function stands in its
// template.
func (c container) network() string {
	if c.record != nil {
		for name, mode := range networkModes {
			if mode == c.record.Config.Network {
				return name
			}
		}
	}
	return networkNone
}

func (s *server) summary(c container, now time.Time) containerSummary {
	out := containerSummary{
		ID: c.ID, Names: []string{"/" + c.name}, Image: c.Image, ImageID: string(c.digest()), Command: c.Command, Created: c.made.Unix(),
		Ports: []port{}, Labels: c.labels, State: c.state(), Status: c.status(now), Mounts: c.mounts(),
	}
	out.HostConfig.NetworkMode = c.network()
	out.NetworkSettings.Networks = map[string]endpoint{c.network(): {}}
	return out
}

// containerList answers GET /containers/json?all=&limit=&size=&filters=. With
// size it costs each running sandbox a fixed few system calls.
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
	size := boolOf(r, "size")
	now := time.Now()
	out := []containerSummary{}
	for _, c := range s.containers(all) {
		if !keep(c) {
			continue
		}
		if limit > 0 && len(out) == limit {
			break
		}
		item := s.summary(c, now)
		if size {
			item.SizeRw, item.SizeRootFs = s.sizes(c)
		}
		out = append(out, item)
	}
	return reply(w, http.StatusOK, out)
}

// sizes are what a container has written, and that with its image.
func (s *server) sizes(c container) (written, whole int64) {
	switch {
	case c.record != nil:
		if used, err := s.engine.ContainerScratch(c.ID); err == nil { // else it is gone
			written = used.Bytes
		}
	case c.running():
		if size, err := s.engine.Size(c.Sandbox); err == nil { // else it has ended since
			written = size.Bytes
		}
	}
	whole = written
	if img, err := s.engine.Image(string(c.digest())); err == nil {
		whole += img.Size
	}
	return written, whole
}

var containerStates = []string{"created", "dead", "exited", "paused", "removing", "restarting", "running"}

// containerFilter is the test that the filters make. What FRE has none of
// matches nothing: health checks, swarm tasks, published ports.
func (s *server) containerFilter(f filters) (func(container) bool, error) {
	for _, v := range f["status"] {
		if !slices.Contains(containerStates, v) {
			return nil, badRequest("invalid filter 'status=%s': use one of %s", v, strings.Join(containerStates, ", "))
		}
	}
	for _, v := range f["exited"] {
		if _, err := strconv.Atoi(v); err != nil {
			return nil, badRequest("invalid filter 'exited=%s': use an exit status", v)
		}
	}
	for _, v := range f["health"] {
		if !slices.Contains([]string{"starting", "healthy", "unhealthy", "none"}, v) {
			return nil, badRequest("invalid filter 'health=%s': use starting, healthy, unhealthy or none", v)
		}
	}
	task, tasks, err := f.flag("is-task")
	if err != nil {
		return nil, err
	}
	var before, since time.Time
	for key, at := range map[string]*time.Time{"before": &before, "since": &since} {
		for _, ref := range f[key] {
			c, err := s.container(ref)
			if err != nil {
				return nil, err
			}
			*at = c.made
		}
	}
	ancestors := make([]string, 0, len(f["ancestor"]))
	for _, ref := range f["ancestor"] {
		img, err := s.image(ref)
		switch {
		case err == nil:
			ancestors = append(ancestors, string(img.Digest))
		case errorStatus(err) != http.StatusNotFound:
			return nil, err
		}
	}
	return func(c container) bool {
		switch {
		case f["ancestor"] != nil && !slices.Contains(ancestors, string(c.digest())),
			f["exited"] != nil && (c.state() != "exited" || !f.has("exited", strconv.Itoa(c.exitCode()))),
			f["publish"] != nil, f["expose"] != nil, tasks && task,
			!before.IsZero() && !c.made.Before(before),
			!since.IsZero() && !c.made.After(since):
			return false
		}
		var places []string
		if f["volume"] != nil {
			for _, m := range c.mounts() {
				places = append(places, m.Name, m.Destination)
			}
		}
		return f.like("id", c.ID) && f.like("name", c.name, "/"+c.name) && f.labels(c.labels) && f.has("status", c.state()) && f.has("health", "none") &&
			f.has("network", c.network(), networkID(c.network())) && f.has("volume", places...) && f.has("isolation", "default", "")
	}, nil
}

func errorStatus(err error) int {
	status, _ := statusOf(err)
	return status
}

// networkID is that of one of the networks; "" for another name.
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
		"NetworkMode": c.network(), "Privileged": false, "ReadonlyRootfs": true, "CapDrop": []string{"ALL"}, "SecurityOpt": c.Defences,
		"RestartPolicy": map[string]any{"Name": "no", "MaximumRetryCount": 0}, "LogConfig": map[string]any{"Type": "json-file", "Config": map[string]string{}},
	}
	if c.record != nil {
		cfg := c.record.Config
		args, limits, failure = c.record.Args, cfg.Limits, c.record.Error
		config = containerConfig{
			Hostname: cfg.Hostname, User: cfg.User, Env: c.record.Env, Cmd: cfg.Cmd, Entrypoint: cfg.Entrypoint, WorkingDir: cfg.Dir, Tty: cfg.TTY,
			AttachStdin: cfg.OpenStdin, AttachStdout: true, AttachStderr: true, OpenStdin: cfg.OpenStdin, StdinOnce: cfg.StdinOnce, StopSignal: unix.SignalName(cfg.StopSignal),
		}
		host["ReadonlyRootfs"], host["AutoRemove"], host["CapDrop"] = cfg.ReadOnly, cfg.AutoRemove, nil
	}
	config.Image, config.Labels = c.Image, c.labels
	host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"] = limits.MemoryBytes, limits.MemoryBytes, limits.CPUMillis*1e6, limits.Pids
	path := ""
	if len(args) > 0 {
		path, args = args[0], args[1:]
	}
	exit := c.exit()
	out := map[string]any{
		"Id": c.ID, "Created": stamp(c.made), "Path": path, "Args": args, "Image": c.digest(), "Name": "/" + c.name,
		"State": map[string]any{
			"Status": c.state(), "Running": c.running(), "Paused": false, "Restarting": false, "OOMKilled": exit != nil && exit.OOMKilled, "Dead": false,
			"Pid": c.PID, "ExitCode": c.exitCode(), "Error": failure, "StartedAt": stamp(c.started), "FinishedAt": stamp(c.finished),
		},
		"ResolvConfPath": "", "HostnamePath": "", "HostsPath": "", "LogPath": "", "RestartCount": 0, "Driver": "fre", "Platform": "linux",
		"MountLabel": "", "ProcessLabel": "", "AppArmorProfile": "", "ExecIDs": nil,
		"HostConfig": host, "GraphDriver": map[string]any{"Name": "fre", "Data": map[string]string{}}, "Mounts": c.mounts(), "Config": config,
		"NetworkSettings": map[string]any{
			"Bridge": "", "SandboxID": "", "SandboxKey": "", "Ports": map[string]any{}, "Networks": map[string]endpoint{c.network(): {NetworkID: networkID(c.network())}},
		},
	}
	if boolOf(r, "size") {
		out["SizeRw"], out["SizeRootFs"] = s.sizes(c)
	}
	return reply(w, http.StatusOK, out)
}

// containerStop answers POST /containers/ID/stop?t=.
func (s *server) containerStop(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	grace, err := graceOf(r)
	if err != nil {
		return err
	}
	switch {
	case !c.running():
		w.WriteHeader(http.StatusNotModified)
		return nil
	case c.record != nil:
		err = s.engine.StopContainer(r.Context(), c.ID, grace)
	default:
		err = s.engine.Stop(r.Context(), c.ID, grace)
	}
	if err != nil && !ended(err) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// ended says whether something failed because the container ran no more.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, engine.ErrContainerStopped) || errors.Is(err, os.ErrProcessDone)
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

// parseSignal reads a signal's number or name, with or without SIG; SIGKILL is
// the default.
func parseSignal(text string) (unix.Signal, error) {
	if text == "" {
		return unix.SIGKILL, nil
	}
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= 64 {
		return unix.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, badRequest("invalid signal: %s", text)
}

// containerWait answers POST /containers/ID/wait?condition=. The status goes out
// at once, since clients wait for it before they start the container.
func (s *server) containerWait(w http.ResponseWriter, r *http.Request) error {
	condition := engine.WaitCondition(cmp.Or(r.URL.Query().Get("condition"), string(engine.WaitNotRunning)))
	switch condition {
	case engine.WaitNotRunning, engine.WaitNextExit, engine.WaitRemoved:
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
		return engine.ExitCode(ended.Exit), nil
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
			return engine.ExitCode(record.Exit), nil
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	answer := map[string]any{}
	if answer["StatusCode"], err = wait(r.Context()); err != nil {
		answer = map[string]any{"StatusCode": -1, "Error": errorBody{err.Error()}}
	}
	_ = json.NewEncoder(w).Encode(answer) // a client that has gone is no failure of ours
	return nil
}
