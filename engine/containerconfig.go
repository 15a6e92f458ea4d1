package engine

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

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// ContainerConfig is what a container is made from. Required: Image. What the
// zero value leaves open, the image says.
type ContainerConfig struct {
	Image  string `json:"image"`            // reference
	Name   string `json:"name"`             // unique; made up if empty
	Tenant string `json:"tenant,omitempty"` // "default" if empty

	Entrypoint []string          `json:"entrypoint,omitempty"` // with Cmd behind it; one "" for none
	Cmd        []string          `json:"cmd,omitempty"`
	Env        []string          `json:"env,omitempty"`         // KEY=value, over the image's
	Unset      []string          `json:"unset,omitempty"`       // variables that it has not, whoever sets them
	Dir        string            `json:"dir,omitempty"`         // made if it is missing
	User       string            `json:"user,omitempty"`        // name or id, with ":" and a group's or without
	Groups     []string          `json:"groups,omitempty"`      // beside those the image gives User: names or ids
	CapAdd     []string          `json:"cap_add,omitempty"`     // of those that containers have at most; over CapDrop
	CapDrop    []string          `json:"cap_drop,omitempty"`    // that root is not to have; ALL for every one
	Hostname   string            `json:"hostname,omitempty"`    // the id's first 12 digits if empty
	Labels     map[string]string `json:"labels,omitempty"`      // over the image's
	StopSignal unix.Signal       `json:"stop_signal,omitempty"` // SIGTERM if 0

	Annotations map[string]string `json:"annotations,omitempty"` // kept for clients, as the OCI's are; the engine reads none

	Network      image.NetworkMode `json:"network,omitempty"` // none if empty
	Limits       sandbox.Limits    `json:"limits,omitzero"`   // zero: all CPUs, a quarter of the memory, 4096 processes; at most a quarter of a quota
	ScratchBytes int64             `json:"scratch_bytes,omitempty"`
	ReadOnly     bool              `json:"read_only,omitempty"` // the root takes no writes
	Work         WorkAccess        `json:"work,omitempty"`      // whether it sees its tenant's /work

	TTY       bool   `json:"tty,omitempty"`  // a terminal instead of three streams
	Rows      uint16 `json:"rows,omitempty"` // its size as the program finds it, in characters; 0 for none
	Columns   uint16 `json:"columns,omitempty"`
	OpenStdin bool   `json:"open_stdin,omitempty"` // stdin comes from attachments; else there is none
	StdinOnce bool   `json:"stdin_once,omitempty"` // and ends with the first one's

	AutoRemove bool `json:"auto_remove,omitempty"` // once it has ended
}

// WorkAccess says what a container may do with its tenant's /work.
type WorkAccess string

// The ways to see /work.
const (
	WorkNone     WorkAccess = "" // not at all
	WorkReadOnly WorkAccess = "ro"
	WorkWrite    WorkAccess = "rw"
)

// scratchBytes is the limit of what a container writes where none is asked for and
// the host can keep one.
const scratchBytes = 10 << 30

// completeContainer fills in what the image and the engine say.
func (e *Engine) completeContainer(rec *Container, img *store.Image, cfg ContainerConfig) error {
	own, err := image.ConfigOf(img)
	if err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return &image.FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
	}
	if err := imageDefaults(&cfg, own); err != nil {
		return err
	}
	if cfg.Tenant == "" {
		cfg.Tenant = image.DefaultTenant
	}
	if cfg.Hostname == "" {
		cfg.Hostname = rec.ID[:12]
	}
	if cfg.StopSignal == 0 {
		cfg.StopSignal = unix.SIGTERM
	}
	if cfg.Network == "" {
		cfg.Network = image.NetworkNone
	}
	switch {
	case cfg.Name != "" && !validContainerName(cfg.Name):
		return bad("name", "%q is not a container's name: letters, digits, and after the first one also _ . -, 2 to 128 of them", cfg.Name)
	case !image.ValidName(cfg.Tenant):
		return bad("tenant", "%q is not a tenant's name", cfg.Tenant)
	case !path.IsAbs(cfg.Dir):
		return bad("dir", "%q is not an absolute path", cfg.Dir)
	case len(cfg.Dir) >= unix.PathMax, strings.Contains(cfg.Dir, "\x00"), slices.ContainsFunc(strings.Split(cfg.Dir, "/"), func(name string) bool { return len(name) > maxFileName }):
		return bad("dir", "%.40q… is no path that Linux takes", cfg.Dir)
	case len(cfg.Hostname) > 64 || strings.ContainsAny(cfg.Hostname, " \t\r\n\x00"):
		return bad("hostname", "%q is no host name of 64 bytes at most", cfg.Hostname)
	case cfg.StopSignal < 1 || cfg.StopSignal > 64:
		return bad("stop_signal", "there is no signal %d", cfg.StopSignal)
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
		return bad("cmd", "name a command: this image has no default")
	}
	if i := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, "\x00") }); i >= 0 {
		return bad("cmd", "%.40q holds a NUL byte", args[i])
	}
	if cfg.ScratchBytes > 0 {
		if err := e.volumes.CanLimit(); err != nil {
			return bad("scratch_bytes", "%v", err)
		}
	}
	if _, err := cfg.capabilities(); err != nil {
		return err
	}
	who, err := userOf(e.cfg.Store.Rootfs(img.Digest), cfg.User, cfg.Groups)
	if err != nil {
		return err
	}
	cfg.Limits, err = e.containerLimits(cfg.Tenant, cfg.Limits)
	if err != nil {
		return err
	}
	if err := e.setNetwork(&sandbox.Spec{}, image.Network{Mode: cfg.Network}); err != nil {
		return err
	}
	rec.Config, rec.Digest, rec.Args, rec.Env = cfg, img.Digest, args, containerEnv(cfg, own, who)
	return nil
}

// capabilities are those that root has in a container. What it cannot have is an
// *image.FieldError.
func (cfg *ContainerConfig) capabilities() (sandbox.Capabilities, error) {
	drop, err := sandbox.ParseCapabilities(cfg.CapDrop)
	if err != nil {
		return 0, &image.FieldError{Field: "cap_drop", Message: err.Error()}
	}
	add, err := sandbox.ParseCapabilities(cfg.CapAdd)
	if err == nil && add&^sandbox.ContainerCapabilities != 0 {
		err = fmt.Errorf("containers have none but %v", sandbox.ContainerCapabilities)
	}
	if err != nil {
		return 0, &image.FieldError{Field: "cap_add", Message: err.Error()}
	}
	return sandbox.ContainerCapabilities&^drop | add, nil
}

// imageDefaults takes from the image what cfg leaves open, as Docker does: an entry
// point of one's own is without the image's command.
func imageDefaults(cfg *ContainerConfig, own image.Config) error {
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
			return &image.FieldError{Field: "stop_signal", Message: fmt.Sprintf("the image's %q is no signal", says.StopSignal)}
		}
	}
	maps.Copy(labels, says.Labels)
	maps.Copy(labels, cfg.Labels)
	cfg.Labels = labels
	return nil
}

// ParseSignal reads a signal's number, or its name with SIG or without; the real-time
// ones are RTMIN+1, RTMAX-2 and so on (signal(7), of glibc's).
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

// containerPath is where programs are looked for in an image that does not say.
const containerPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// containerEnv is a container's whole environment: each variable once, the last
// one of a name, but for those that it is not to have.
func containerEnv(cfg ContainerConfig, own image.Config, who account) []string {
	all := []string{"PATH=" + containerPath, "HOSTNAME=" + cfg.Hostname, "HOME=" + who.home}
	if cfg.TTY {
		all = append(all, "TERM=xterm")
	}
	all = slices.DeleteFunc(lastOfEach(slices.Concat(all, own.Env, cfg.Env)), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(cfg.Unset, name)
	})
	return withLimits(all, image.Resources{CPUMillis: cfg.Limits.CPUMillis, MemoryBytes: cfg.Limits.MemoryBytes})
}

// lastOfEach is an environment with each variable once, as it was set last.
func lastOfEach(env []string) []string {
	at := map[string]int{}
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

// containerLimits fills in the limits of an ordinary program, and refuses those
// that the host cannot keep, or its tenant's quotas.
func (e *Engine) containerLimits(tenant string, l sandbox.Limits) (sandbox.Limits, error) {
	if l.MemoryBytes < 0 || l.CPUMillis < 0 || l.Pids < 0 || l.TmpBytes < 0 || l.TmpInodes < 0 || l.Files < 0 {
		return l, &image.FieldError{Field: "limits", Message: "are negative"}
	}
	if err := e.checkLimits(image.Resources{MemoryBytes: l.MemoryBytes, CPUMillis: l.CPUMillis, Pids: l.Pids, Files: l.Files}); err != nil {
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
	if l, err = e.withinQuotas(tenant, given, l); err != nil {
		return l, err
	}
	return e.cfg.Sandboxes.CutLimits(l)
}

// maxFileName is how many bytes a file's name may have (limits.h, NAME_MAX).
const maxFileName = 255

// validContainerName is Docker's rule (moby, daemon/names).
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
