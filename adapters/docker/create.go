package docker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
)

// creation is the body of the create route, reduced to the settings supported by FRE.
type creation struct {
	containerConfig
	unset       []string // variables of the image to omit
	network     string   // one of the network constants
	memoryBytes int64    // 0: the engine's default, for every limit
	cpuMillis   int64
	pids        int64
	files       int64
	scratch     int64 // limit of the writable root, in bytes
	work        bool  // mount the tenant's directory
	workDenied  bool  // mount the tenant's directory read-only
	readOnly    bool
	autoRemove  bool
	console     [2]uint16 // rows and columns; 0: unspecified
	capAdd      []string
	capDrop     []string
	groups      []string // supplementary groups
	annotations map[string]string
	tmpBytes    int64
	tenant      string
	stopSignal  unix.Signal // 0: the image's signal
}

// words is a list of strings. In JSON, a string stands for a list of one, because older clients
// send commands in both forms.
type words []string

func (w *words) UnmarshalJSON(text []byte) error {
	var one *string
	if json.Unmarshal(text, &one) == nil {
		if *w = nil; one != nil {
			*w = words{*one}
		}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(w))
}

// hostMount is an entry of HostConfig.Mounts.
type hostMount struct {
	Type          string
	Source        string
	Target        string
	ReadOnly      bool
	VolumeOptions *struct {
		NoCopy       bool // nothing is ever copied into /work
		Subpath      string
		DriverConfig *struct{ Name string }
	}
	TmpfsOptions *struct {
		SizeBytes int64
		Mode      uint32
		Options   [][]string
	}
}

// hostConfig is the part of HostConfig that FRE supports. Other fields are refused unless they
// have the zero value.
type hostConfig struct {
	Binds          []string
	NetworkMode    string
	AutoRemove     bool
	Memory         int64
	MemorySwap     int64
	NanoCpus       int64
	CPUPeriod      int64 `json:"CpuPeriod"`
	CPUQuota       int64 `json:"CpuQuota"`
	PidsLimit      *int64
	ReadonlyRootfs bool
	Tmpfs          map[string]string
	StorageOpt     map[string]string
	SecurityOpt    []string
	CapAdd         []string
	CapDrop        []string
	GroupAdd       []string
	Mounts         []hostMount
	Ulimits        []struct {
		Name string
		Hard int64
		Soft int64
	}
	RestartPolicy struct{ Name string }
	LogConfig     struct {
		Type   string
		Config map[string]string
	}
	ConsoleSize     [2]int // rows and columns of the terminal, if any
	ContainerIDFile string
	Annotations     map[string]string
}

// handled lists the fields of hostConfig. The list includes fields without effect, such as the
// path of a file on the client.
var handled = []string{
	"Binds", "NetworkMode", "AutoRemove", "Memory", "MemorySwap", "NanoCpus", "CpuPeriod", "CpuQuota", "PidsLimit", "ReadonlyRootfs",
	"Tmpfs", "StorageOpt", "SecurityOpt", "CapAdd", "CapDrop", "GroupAdd", "Mounts", "Ulimits", "RestartPolicy", "LogConfig", "ConsoleSize",
	"ContainerIDFile", "Annotations",
}

// refused maps unsupported fields in common use to a reason and an alternative.
var refused = map[string][2]string{
	"Privileged":        {"privileged containers", "sandboxes have no access to the host; leave --privileged out"},
	"Devices":           {"host devices", "leave --device out"},
	"DeviceRequests":    {"host devices", "leave --gpus out"},
	"DeviceCgroupRules": {"host devices", "leave --device-cgroup-rule out"},
	"PortBindings":      {"published ports", "deploy a function: the gateway serves functions over HTTP"},
	"PublishAllPorts":   {"published ports", "deploy a function: the gateway serves functions over HTTP"},
	"PidMode":           {"shared pid namespaces", "leave --pid out"},
	"UTSMode":           {"shared UTS namespaces", "leave --uts out"},
	"UsernsMode":        {"shared user namespaces", "leave --userns out"},
	"Links":             {"links between containers", "exchange files through /work"},
	"VolumesFrom":       {"volumes from containers", "mount the tenant's directory: -v /work"},
	"Dns":               {"custom name servers", "the operator chooses name servers (docs/networks.md)"},
	"DnsOptions":        {"resolver options", "leave --dns-option out"},
	"DnsSearch":         {"search domains", "use whole names"},
	"ExtraHosts":        {"custom entries in /etc/hosts", "leave --add-host out"},
	"Sysctls":           {"kernel settings", "leave --sysctl out"},
	"CpusetCpus":        {"CPU sets", "limit the share: --cpus"},
	"CpusetMems":        {"memory nodes", "leave --cpuset-mems out"},
	"CpuShares":         {"CPU weights", "limit the share: --cpus"},
	"MemoryReservation": {"soft memory limits", "limit memory: -m"},
	"KernelMemory":      {"kernel memory limits", "-m counts the kernel's memory as well"},
	"OomKillDisable":    {"containers without end", "a memory limit needs the OOM killer: leave --oom-kill-disable out"},
	"OomScoreAdj":       {"custom OOM scores", "leave --oom-score-adj out"},
	"Init":              {"init process", "let the program reap its children, or start the program from a shell"},
	"Runtime":           {"other runtimes", "leave --runtime out"},
	"CgroupParent":      {"custom cgroups", "leave --cgroup-parent out"},
	"ShmSize":           {"/dev/shm of another size", "leave --shm-size out"},
	"MemorySwappiness":  {"swappiness of containers", "the memory limit counts swap as well; leave --memory-swappiness out"},
	"MaskedPaths":       {"custom paths to mask in /proc", "the sandbox's /proc shows only processes of the sandbox; leave --security-opt systempaths out"},
	"ReadonlyPaths":     {"custom paths to protect in /proc", "the sandbox's /proc shows only processes of the sandbox; leave --security-opt systempaths out"},
	"Isolation":         {"isolation of another kind", "leave --isolation out"},
	"VolumeDriver":      {"volume drivers", "mount the tenant's directory: -v /work"},
}

// harmless lists values of unsupported fields that equal FRE's behaviour.
var harmless = map[string][]string{
	"IpcMode": {`"private"`, `"none"`, `"shareable"`}, "CgroupnsMode": {`"private"`}, "UsernsMode": {`"private"`}, "Runtime": {`"fre"`},
	"ShmSize": {"67108864"}, "MemorySwappiness": {"-1"}, "Isolation": {`"default"`},
}

// idle reports whether the value of an unsupported field has no effect.
func idle(key string, text json.RawMessage) bool {
	if key == "MaskedPaths" || key == "ReadonlyPaths" {
		return string(text) == "null" // an empty list would remove the defaults
	}
	return zero(text) || slices.Contains(harmless[key], string(text))
}

// zero reports whether a JSON value is a zero value.
func zero(text json.RawMessage) bool {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return false
	}
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any: // zero if all members are zero
		for _, member := range v {
			if text, err := json.Marshal(member); err != nil || !zero(text) {
				return false
			}
		}
		return true
	}
	return false
}

// createRequest is the body of the create route.
type createRequest struct {
	containerConfig
	Cmd, Entrypoint  words
	Shell, OnBuild   []string
	MacAddress       string
	NetworkDisabled  bool
	Healthcheck      *struct{ Test []string }
	HostConfig       map[string]json.RawMessage
	NetworkingConfig struct {
		EndpointsConfig map[string]map[string]json.RawMessage
	}
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
	if err := c.host(&host); err != nil {
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

// host applies the supported part of HostConfig.
func (c *creation) host(h *hostConfig) error {
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

// mounts applies Binds, Mounts and Tmpfs.
func (c *creation) mounts(h *hostConfig) error {
	for _, b := range h.Binds {
		source, target, ok := strings.Cut(b, ":")
		if !ok {
			source, target = workVolume, b
		}
		target, options, _ := strings.Cut(target, ":")
		if err := c.mount(source, target, options, false); err != nil {
			return err
		}
	}
	for i := range h.Mounts {
		if err := c.mountOf(&h.Mounts[i]); err != nil {
			return err
		}
	}
	for target, options := range h.Tmpfs {
		if err := c.tmpfs(target, options); err != nil {
			return err
		}
	}
	return nil
}

// partial reports whether the mount is of a part of a volume, or by a driver.
func (m *hostMount) partial() bool {
	o := m.VolumeOptions
	return o != nil && (o.Subpath != "" || o.DriverConfig != nil && o.DriverConfig.Name != "")
}

func (c *creation) mountOf(m *hostMount) error {
	switch m.Type {
	case "volume":
		if m.partial() {
			return leftOut("mounts of a part of a volume, or by a driver", "mount the tenant's directory as a whole: -v /work")
		}
		return c.mount(cmp.Or(m.Source, workVolume), m.Target, "", m.ReadOnly)
	case "tmpfs":
		if path.Clean(m.Target) != "/tmp" {
			return noTmpfs(m.Target)
		}
		if o := m.TmpfsOptions; o != nil {
			if o.Mode != 0 && o.Mode != 0o1777 || len(o.Options) > 0 {
				return leftOut("tmpfs options but the size", tmpfsNext)
			}
			c.tmpBytes = o.SizeBytes
		}
		return nil
	}
	return leftOut(m.Type+" mounts of the host", "mount the tenant's directory: -v /work")
}

// tmpfs applies the options of a mount at target: a size, and options that the sandbox's /tmp has.
func (c *creation) tmpfs(target, options string) error {
	if path.Clean(target) != "/tmp" {
		return noTmpfs(target)
	}
	for o := range strings.SplitSeq(options, ",") {
		size, sized := strings.CutPrefix(o, "size=")
		if !sized {
			if !slices.Contains([]string{"", "rw", "nosuid", "nodev", "exec", "mode=1777"}, o) {
				return leftOut("tmpfs option "+o, tmpfsNext)
			}
			continue
		}
		n, err := parseSize(size)
		if err != nil {
			return badRequest("Tmpfs: %v", err)
		}
		c.tmpBytes = n
	}
	return nil
}

const tmpfsNext = "/tmp is writable for all, with nosuid and nodev: give the size alone"

func noTmpfs(target string) error {
	return leftOut("tmpfs at "+target, "/tmp is a tmpfs already (--tmpfs /tmp:size=64m), and the root is writable unless --read-only")
}

// mount applies one mount. Only the tenant's directory, at /work, is supported.
func (c *creation) mount(source, target, options string, readOnly bool) error {
	const instead = "mount the tenant's persistent directory: -v /work, or -v " + workVolume + ":/work"
	switch absolute := strings.HasPrefix(source, "/"); {
	case absolute && path.Clean(source) != workDir:
		return leftOut("mounts of the host's "+source, instead)
	case !absolute && source != workVolume:
		return leftOut("custom volumes ("+source+")", instead)
	}
	if path.Clean(target) != workDir {
		return leftOut("volumes at "+target, "the tenant's directory is at /work: -v /work")
	}
	for o := range strings.SplitSeq(options, ",") {
		switch o {
		case "", "rw", "z", "Z", "nocopy":
		case "ro":
			readOnly = true
		default:
			return badRequest("invalid mode %q of volume %s: use rw or ro", o, target)
		}
	}
	c.work, c.workDenied = true, readOnly
	return nil
}
