package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"

	types "github.com/moby/moby/api/types/container"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

// containerCreate answers POST /containers/create?name=&platform=.
func (s *server) containerCreate(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	c, err := parseCreation(body, func(image string) error {
		_, err := s.image(image)
		return err
	})
	if err != nil {
		return err
	}
	if err := oci.CheckPlatform(r.URL.Query().Get("platform")); err != nil {
		return badRequest("%v", err) // not a 404, because clients would pull the image
	}
	cfg, warnings := c.config(strings.TrimPrefix(r.URL.Query().Get("name"), "/")), []string{}
	made, err := s.engine.CreateContainer(r.Context(), cfg)
	// Clients request bridge when users request no network.
	var field *template.FieldError
	if cfg.Network == template.NetworkEgress && errors.As(err, &field) && field.Field == "network" {
		warnings = append(warnings, "the container has no network: "+field.Message+"; use --network none for containers without a network")
		cfg.Network = template.NetworkNone
		made, err = s.engine.CreateContainer(r.Context(), cfg)
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, types.CreateResponse{ID: made.ID, Warnings: warnings})
}

// config converts the request to the engine's container configuration.
func (c *creation) config(name string) container.Config {
	dir := c.WorkingDir
	if dir != "" {
		dir = path.Clean(dir)
	}
	out := container.Config{
		Image: oci.Familiar(c.Image), Name: name, Tenant: c.tenant, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, Unset: c.unset, Dir: dir, User: c.User, Groups: c.groups, CapAdd: c.capAdd, CapDrop: c.capDrop,
		Hostname: c.Hostname, Labels: c.Labels, Annotations: c.annotations, StopSignal: c.stopSignal, Network: networkModes[c.network],
		Limits:       sandbox.Limits{MemoryBytes: c.memoryBytes, CPUMillis: c.cpuMillis, Pids: c.pids, TmpBytes: c.tmpBytes, Files: c.files},
		ScratchBytes: c.scratch, ReadOnly: c.readOnly, TTY: c.Tty, Rows: c.console[0], Columns: c.console[1], OpenStdin: c.OpenStdin, StdinOnce: c.OpenStdin && c.StdinOnce, AutoRemove: c.autoRemove,
	}
	switch {
	case c.work && c.workDenied:
		out.Work = container.WorkReadOnly
	case c.work:
		out.Work = container.WorkWrite
	}
	return out
}

// parseCreation parses and checks the body of the create route. Settings that FRE cannot honour
// are refused, with an alternative. A missing image, as reported by found, takes precedence over
// such a refusal.
func parseCreation(body []byte, found func(image string) error) (*creation, error) {
	var c createRequest
	if err := decodeJSON(body, &c); err != nil {
		return nil, err
	}
	out := &creation{containerConfig: c.containerConfig, tenant: c.Labels[labelTenant]}
	out.Cmd, out.Entrypoint = c.Cmd, c.Entrypoint
	if err := c.supported(found); err != nil {
		return nil, err
	}
	err := known(body, c)
	if err != nil {
		return nil, err
	}
	if err := out.process(&c.containerConfig); err != nil {
		return nil, err
	}
	for volume := range c.Volumes {
		if err := out.mount(workVolume, volume, "", false); err != nil {
			return nil, err
		}
	}
	mode, err := out.parseHost(c.HostConfig)
	if err != nil {
		return nil, err
	}
	if c.NetworkDisabled {
		out.network = networkNone
	}
	return out, c.checkNetworks(mode, out.network)
}

// supported refuses settings that FRE cannot honour.
func (c *createRequest) supported(found func(image string) error) error {
	switch {
	case c.Image == "":
		return badRequest("Image: name the image to run")
	case len(c.Image) > 0 && found(c.Image) != nil:
		return found(c.Image) // in Docker's words: clients pull the image after this error
	case c.MacAddress != "":
		return leftOut("custom hardware addresses", "leave --mac-address out")
	case c.StopTimeout != nil:
		return leftOut("stop time-outs of containers", "give the time when stopping: docker stop -t")
	case c.Domainname != "":
		return leftOut("domain names of containers", "leave --domainname out")
	case c.Healthcheck != nil && len(c.Healthcheck.Test) > 0 && c.Healthcheck.Test[0] != "NONE":
		return leftOut("health checks", "leave --health-cmd out; the gateway detects unresponsive functions")
	}
	return nil
}

// process sets the variables and the signal of the program.
func (c *creation) process(from *containerConfig) (err error) {
	if c.Env, c.unset, err = environment(from.Env); err != nil {
		return err
	}
	if from.StopSignal != "" {
		c.stopSignal, err = parseSignal(from.StopSignal)
	}
	return err
}

// checkNetworks refuses a second network, and settings of the first.
func (c *createRequest) checkNetworks(mode, network string) error {
	for name, endpoint := range c.NetworkingConfig.EndpointsConfig {
		if name != mode && name != "default" && name != network {
			return leftOut("second network for a container", "give a single --network: none, bridge or host")
		}
		if err := checkEndpoint(endpoint); err != nil {
			return err
		}
	}
	return nil
}

// parseHost parses HostConfig, applies it and returns the network's mode. Settings without an effect
// leave the map.
func (c *creation) parseHost(config map[string]json.RawMessage) (mode string, err error) {
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if slices.Contains(handled, key) {
			continue
		}
		if idle(key, config[key]) {
			delete(config, key)
			continue
		}
		if r, ok := refused[key]; ok {
			return "", leftOut(r[0], r[1])
		}
		return "", leftOut(fmt.Sprintf("HostConfig.%s (%s)", key, config[key]), "leave it out")
	}
	text, err := json.Marshal(config)
	if err != nil {
		return "", err
	}
	var host hostConfig
	if err := decodeJSON(text, &host); err != nil {
		return "", err
	}
	if err := c.applyHost(&host); err != nil {
		return "", err
	}
	return host.NetworkMode, known(text, host)
}

// checkEndpoint refuses the settings of a network's endpoint.
func checkEndpoint(endpoint map[string]json.RawMessage) error {
	for _, key := range slices.Sorted(maps.Keys(endpoint)) {
		if !zero(endpoint[key]) {
			return leftOut("custom network settings ("+key+")", "leave them out")
		}
	}
	return nil
}

// environment splits variables into variables to set, and variables of the image to omit (a name
// without =). The last entry of a name wins.
func environment(given []string) (set, unset []string, err error) {
	last := make(map[string]int, len(given))
	for i, v := range given {
		name, _, _ := strings.Cut(v, "=")
		if name == "" {
			return nil, nil, badRequest("Env: a variable has no name before the =")
		}
		last[name] = i
	}
	for i, v := range given {
		switch name, _, valued := strings.Cut(v, "="); {
		case last[name] != i:
		case valued:
			set = append(set, v)
		default:
			unset = append(unset, name)
		}
	}
	return set, unset, nil
}

// applyHost applies the supported part of HostConfig.
func (c *creation) applyHost(h *hostConfig) error {
	if err := c.setNetwork(h.NetworkMode); err != nil {
		return err
	}
	if err := h.supported(); err != nil {
		return err
	}
	c.annotations = h.Annotations
	c.capAdd, c.capDrop, c.groups = h.CapAdd, h.CapDrop, h.GroupAdd
	c.autoRemove, c.readOnly = h.AutoRemove, h.ReadonlyRootfs
	for i, n := range h.ConsoleSize {
		if n < 0 || n > math.MaxUint16 {
			return badRequest("ConsoleSize: %d is not a number of rows or columns", n)
		}
		c.console[i] = uint16(n)
	}
	if err := c.limits(h); err != nil {
		return err
	}
	return c.mounts(h)
}

func (c *creation) setNetwork(mode string) error {
	switch mode {
	case "", "default", networkBridge:
		c.network = networkBridge
	case networkNone, networkHost:
		c.network = mode
	default:
		if strings.HasPrefix(mode, "container:") {
			return leftOut("shared network namespaces", "use --network none, bridge or host")
		}
		return badRequest("network %s not found: use none, bridge or host", mode) // not a 404, because clients would pull the image
	}
	return nil
}

// supported refuses settings that the sandbox cannot have.
func (h *hostConfig) supported() error {
	if n := h.RestartPolicy.Name; n != "" && n != "no" {
		return leftOut("restart policies", "deploy a function: the engine scales the instances")
	}
	switch h.LogConfig.Type {
	case "", "json-file", "local":
		if len(h.LogConfig.Config) > 0 {
			return leftOut("log options", "logs are rotated by size; leave --log-opt out")
		}
	default:
		return leftOut("log driver "+h.LogConfig.Type, "read docker logs; leave --log-driver out")
	}
	for _, o := range h.SecurityOpt {
		if !slices.Contains([]string{"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}, o) {
			return leftOut("security option "+o, "the sandbox's own filter is always in force")
		}
	}
	if add, err := sandbox.ParseCapabilities(h.CapAdd); err == nil && add&^sandbox.ContainerCapabilities != 0 {
		return leftOut("further capabilities", fmt.Sprintf("root has %v in the sandbox's user namespace, and all users may listen on any port; leave --cap-add out", sandbox.ContainerCapabilities))
	}
	if _, nameless := h.Annotations[""]; nameless {
		return badRequest("Annotations: the empty string is not permitted as an annotation key")
	}
	return nil
}
