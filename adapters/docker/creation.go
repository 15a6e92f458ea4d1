package docker

import (
	"encoding/json"
	"slices"

	"golang.org/x/sys/unix"
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
