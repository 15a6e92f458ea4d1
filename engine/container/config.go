package container

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// Config configures a container. Required: Image. A zero value means the image's own
// setting unless the field names a default.
type Config struct {
	Image  string `json:"image"`            // reference
	Name   string `json:"name"`             // unique; generated if empty
	Tenant string `json:"tenant,omitempty"` // "default" if empty

	Entrypoint []string          `json:"entrypoint,omitempty"` // precedes Cmd; a single "" means none
	Cmd        []string          `json:"cmd,omitempty"`
	Env        []string          `json:"env,omitempty"`         // KEY=value, overrides the image's
	Unset      []string          `json:"unset,omitempty"`       // names of variables to remove, whether set by the image, FRE or Env
	Dir        string            `json:"dir,omitempty"`         // working directory; created if missing
	User       string            `json:"user,omitempty"`        // name or id, optionally ":" and the name or id of a group
	Groups     []string          `json:"groups,omitempty"`      // names or ids, beside the groups of User in the image
	CapAdd     []string          `json:"cap_add,omitempty"`     // from sandbox.ContainerCapabilities; overrides CapDrop
	CapDrop    []string          `json:"cap_drop,omitempty"`    // removed from root's capabilities; ALL for all
	Hostname   string            `json:"hostname,omitempty"`    // the id's first 12 digits if empty
	Labels     map[string]string `json:"labels,omitempty"`      // overrides the image's
	StopSignal unix.Signal       `json:"stop_signal,omitempty"` // SIGTERM if 0

	Annotations map[string]string `json:"annotations,omitempty"` // kept for clients, as the OCI's are; the engine reads none

	Network      template.NetworkMode `json:"network,omitempty"` // none if empty
	Limits       sandbox.Limits       `json:"limits,omitzero"`   // zero: all CPUs, a quarter of the memory, 4096 processes; at most a quarter of a quota
	ScratchBytes int64                `json:"scratch_bytes,omitempty"`
	ReadOnly     bool                 `json:"read_only,omitempty"` // the root is read-only
	Work         WorkAccess           `json:"work,omitempty"`      // access to the tenant's /work

	TTY       bool   `json:"tty,omitempty"`  // a terminal instead of three streams
	Rows      uint16 `json:"rows,omitempty"` // initial size of the terminal, in characters; 0 for none
	Columns   uint16 `json:"columns,omitempty"`
	OpenStdin bool   `json:"open_stdin,omitempty"` // stdin comes from attachments; otherwise the program has no stdin
	StdinOnce bool   `json:"stdin_once,omitempty"` // stdin ends with the first attachment's

	AutoRemove bool `json:"auto_remove,omitempty"` // remove the container after its run
}

// WorkAccess says how a container may use its tenant's /work.
type WorkAccess string

// The kinds of access to /work.
const (
	WorkNone     WorkAccess = "" // no access
	WorkReadOnly WorkAccess = "ro"
	WorkWrite    WorkAccess = "rw"
)

// ScratchBytes is the default limit of a scratch layer, on hosts that can enforce limits.
const ScratchBytes = 10 << 30

// completeContainer checks cfg, adds the defaults of the image and the engine, and stores the
// result in rec.
func (m *Manager) completeContainer(rec *Container, img *store.Image, cfg Config) error {
	own, err := image.ConfigOf(img)
	if err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return &template.FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
	}
	if err := imageDefaults(&cfg, own); err != nil {
		return err
	}
	if cfg.Tenant == "" {
		cfg.Tenant = template.DefaultTenant
	}
	if cfg.Hostname == "" {
		cfg.Hostname = rec.ID[:12]
	}
	if cfg.StopSignal == 0 {
		cfg.StopSignal = unix.SIGTERM
	}
	if cfg.Network == "" {
		cfg.Network = template.NetworkNone
	}
	switch {
	case cfg.Name != "" && !validContainerName(cfg.Name):
		return bad("name", "%q is not a container's name: use 2 to 128 letters, digits and _ . -, beginning with a letter or digit", cfg.Name)
	case !template.ValidName(cfg.Tenant):
		return bad("tenant", "%q is not a tenant's name", cfg.Tenant)
	case !path.IsAbs(cfg.Dir):
		return bad("dir", "%q is not an absolute path", cfg.Dir)
	case len(cfg.Dir) >= unix.PathMax, strings.Contains(cfg.Dir, "\x00"), slices.ContainsFunc(strings.Split(cfg.Dir, "/"), func(name string) bool { return len(name) > maxFileName }):
		return bad("dir", "%.40q… is not a valid path: too long, or with a NUL byte", cfg.Dir)
	case len(cfg.Hostname) > 64 || strings.ContainsAny(cfg.Hostname, " \t\r\n\x00"):
		return bad("hostname", "%q is no host name of 64 bytes at most", cfg.Hostname)
	case cfg.StopSignal < 1 || cfg.StopSignal > 64:
		return bad("stop_signal", "signal %d does not exist: use 1 to 64", cfg.StopSignal)
	case cfg.ScratchBytes < 0 || cfg.ScratchBytes > 0 && cfg.ScratchBytes < volume.MinBytes:
		return bad("scratch_bytes", "a limit is %d bytes at least", int64(volume.MinBytes))
	case cfg.Work != WorkNone && cfg.Work != WorkReadOnly && cfg.Work != WorkWrite:
		return bad("work", "%q is neither ro nor rw", string(cfg.Work))
	case cfg.StdinOnce && !cfg.OpenStdin:
		return bad("stdin_once", "takes open_stdin")
	}
	for _, kv := range cfg.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.Contains(kv, "\x00") {
			return bad("env", "%q is not NAME=value", kv)
		}
	}
	args := slices.Concat(cfg.Entrypoint, cfg.Cmd)
	if len(cfg.Entrypoint) == 1 && cfg.Entrypoint[0] == "" {
		args = cfg.Cmd
	}
	if len(args) == 0 || args[0] == "" {
		return bad("cmd", "the image has no default command: name a command")
	}
	if i := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, "\x00") }); i >= 0 {
		return bad("cmd", "%.40q holds a NUL byte", args[i])
	}
	if cfg.ScratchBytes > 0 {
		if err := m.volumes.CanLimit(); err != nil {
			return bad("scratch_bytes", "%v", err)
		}
	}
	if _, err := cfg.capabilities(); err != nil {
		return err
	}
	who, err := userOf(m.store.Rootfs(img.Digest), cfg.User, cfg.Groups)
	if err != nil {
		return err
	}
	cfg.Limits, err = m.containerLimits(cfg.Tenant, cfg.Limits)
	if err != nil {
		return err
	}
	if err := m.networks.Set(&sandbox.Spec{}, template.Network{Mode: cfg.Network}); err != nil {
		return err
	}
	rec.Config, rec.Digest, rec.Args, rec.Env = cfg, img.Digest, args, containerEnv(cfg, own, who)
	return nil
}

// capabilities returns root's capabilities in the container. Error: a *template.FieldError for an
// unknown capability or a capability that containers never have.
func (cfg *Config) capabilities() (sandbox.Capabilities, error) {
	drop, err := sandbox.ParseCapabilities(cfg.CapDrop)
	if err != nil {
		return 0, &template.FieldError{Field: "cap_drop", Message: err.Error()}
	}
	add, err := sandbox.ParseCapabilities(cfg.CapAdd)
	if err == nil && add&^sandbox.ContainerCapabilities != 0 {
		err = fmt.Errorf("containers have none but %v", sandbox.ContainerCapabilities)
	}
	if err != nil {
		return 0, &template.FieldError{Field: "cap_add", Message: err.Error()}
	}
	return sandbox.ContainerCapabilities&^drop | add, nil
}

// imageDefaults copies the image's settings to the empty fields of cfg, as Docker does: with an
// entry point in cfg the image's command is ignored.
func imageDefaults(cfg *Config, own image.Config) error {
	labels := maps.Clone(own.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	says := own.AsContainer()
	if cfg.Entrypoint == nil {
		cfg.Entrypoint = says.Entrypoint
		if cfg.Cmd == nil {
			cfg.Cmd = says.Cmd
		}
	}
	if cfg.User == "" {
		cfg.User = says.User
	}
	if cfg.Dir == "" {
		cfg.Dir = path.Join("/", says.WorkingDir)
	}
	if cfg.StopSignal == 0 && says.StopSignal != "" {
		var ok bool
		if cfg.StopSignal, ok = ParseSignal(says.StopSignal); !ok {
			return &template.FieldError{Field: "stop_signal", Message: fmt.Sprintf("the image's %q is no signal", says.StopSignal)}
		}
	}
	maps.Copy(labels, says.Labels)
	maps.Copy(labels, cfg.Labels)
	cfg.Labels = labels
	return nil
}

// ParseSignal reads a signal's number, or its name with or without SIG. Names of real-time
// signals are RTMIN+1, RTMAX-2 and so on, numbered as in glibc (signal(7)).
func ParseSignal(s string) (unix.Signal, bool) {
	const rtmin, rtmax = 34, 64
	if n, err := strconv.Atoi(s); err == nil {
		return unix.Signal(n), n >= 1 && n <= rtmax
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for prefix, first := range map[string]int{"RTMIN": rtmin, "RTMAX": rtmax} {
		if offset, ok := strings.CutPrefix(name, prefix); ok {
			n, err := strconv.Atoi(cmp.Or(offset, "0"))
			n += first
			return unix.Signal(n), err == nil && n >= rtmin && n <= rtmax
		}
	}
	sig := unix.SignalNum("SIG" + name)
	return sig, sig != 0
}

// containerPath is the PATH of a container if neither the image nor Env sets PATH.
const containerPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// containerEnv returns a container's whole environment. Of several settings of a variable the
// last counts. Variables in Unset are removed.
func containerEnv(cfg Config, own image.Config, who account) []string {
	all := []string{"PATH=" + containerPath, "HOSTNAME=" + cfg.Hostname, "HOME=" + who.home}
	if cfg.TTY {
		all = append(all, "TERM=xterm")
	}
	all = slices.DeleteFunc(live.LastOfEach(slices.Concat(all, own.Env, cfg.Env)), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(cfg.Unset, name)
	})
	return live.WithLimits(all, template.Resources{CPUMillis: cfg.Limits.CPUMillis, MemoryBytes: cfg.Limits.MemoryBytes})
}

// containerLimits fills in default limits and refuses limits that the host cannot enforce or
// that exceed the tenant's quotas.
func (m *Manager) containerLimits(tenant string, l sandbox.Limits) (sandbox.Limits, error) {
	if l.MemoryBytes < 0 || l.CPUMillis < 0 || l.Pids < 0 || l.TmpBytes < 0 || l.TmpInodes < 0 || l.Files < 0 {
		return l, &template.FieldError{Field: "limits", Message: "are negative"}
	}
	if err := live.CheckLimits(m.host, template.Resources{MemoryBytes: l.MemoryBytes, CPUMillis: l.CPUMillis, Pids: l.Pids, Files: l.Files}); err != nil {
		return l, err
	}
	memory, err := sandbox.HostMemory()
	if err != nil {
		return l, err
	}
	given := l
	l = sandbox.Limits{MemoryBytes: memory / 4, CPUMillis: int64(runtime.NumCPU()) * 1000, Pids: 4096, TmpBytes: 256 << 20, Files: 65536}
	for _, f := range []struct{ to, from *int64 }{
		{&l.MemoryBytes, &given.MemoryBytes},
		{&l.CPUMillis, &given.CPUMillis},
		{&l.Pids, &given.Pids},
		{&l.TmpBytes, &given.TmpBytes},
		{&l.TmpInodes, &given.TmpInodes},
		{&l.Files, &given.Files},
	} {
		if *f.from != 0 {
			*f.to = *f.from
		}
	}
	if l, err = m.withinQuotas(tenant, given, l); err != nil {
		return l, err
	}
	return m.host.CutLimits(l)
}

// maxFileName is the longest name of a file in bytes (limits.h, NAME_MAX).
const maxFileName = 255

// validContainerName applies Docker's rule (moby, daemon/names).
func validContainerName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return len(s) >= 2 && len(s) <= 128
}

// leastMemory is the least memory of a container created without a memory limit.
const leastMemory = 32 << 20

// withinQuotas cuts default limits (0 in given) to a quarter of the tenant's quota, to leave
// room for several containers. Limits above the whole quota are a *live.QuotaError, because the
// container could never start.
func (m *Manager) withinQuotas(tenant string, given, l sandbox.Limits) (sandbox.Limits, error) {
	q := m.tenants.Quotas(tenant)
	if q.MemoryBytes > 0 && given.MemoryBytes == 0 {
		l.MemoryBytes = min(l.MemoryBytes, q.MemoryBytes, max(q.MemoryBytes/4, leastMemory))
	}
	if q.CPUMillis > 0 && given.CPUMillis == 0 {
		l.CPUMillis = min(l.CPUMillis, q.CPUMillis, max(q.CPUMillis/4, 100))
	}
	switch {
	case q.MemoryBytes > 0 && l.MemoryBytes > q.MemoryBytes:
		return l, &live.QuotaError{Tenant: tenant, What: live.QuotaOfMemory, Limit: q.MemoryBytes}
	case q.CPUMillis > 0 && l.CPUMillis > q.CPUMillis:
		return l, &live.QuotaError{Tenant: tenant, What: live.QuotaOfCPU, Limit: q.CPUMillis}
	}
	return l, nil
}
