package sandbox

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/seccomp"
)

// check refuses a Spec that cannot start as intended.
func (spec *Spec) check() error {
	return cmp.Or(spec.checkProgram(), spec.checkUser(), spec.checkIsolation(), spec.checkForks(), spec.checkFiles())
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("sandbox %s: %w", fmt.Sprintf(format, args...), unix.EINVAL)
}

func (spec *Spec) checkProgram() error {
	switch {
	case len(spec.Args) == 0 || spec.Args[0] == "":
		return invalid("has no program")
	case spec.TTY && spec.Stdin == nil:
		return invalid("has a terminal without stdin")
	case !path.IsAbs(spec.Dir):
		return invalid("directory %q is not absolute", spec.Dir)
	case len(spec.Hostname) > 64:
		return invalid("host name %q is longer than 64 bytes", spec.Hostname)
	case spec.Forks < 0 || spec.Forks > maxForks:
		return invalid("asks for %d forks", spec.Forks)
	}
	hasNUL := func(s string) bool { return strings.IndexByte(s, 0) >= 0 }
	if slices.ContainsFunc(slices.Concat(spec.Args, spec.Env, []string{spec.Dir, spec.Hostname}), hasNUL) {
		return invalid("has a string with a NUL byte")
	}
	return nil
}

func (spec *Spec) checkUser() error {
	user := spec.User
	switch {
	case user.Own:
		if user.Tenant != "" || user.HostBase != 0 {
			return invalid("has both a tenant and a private user namespace")
		}
	case user.Tenant == "":
		return invalid("has no tenant")
	case user.HostBase == 0:
		return invalid("tenant has no range of host ids")
	}
	switch {
	case max(user.UID, user.GID) >= idCount:
		return invalid("user or group id is above 65535")
	case len(spec.Groups) > MaxGroups || slices.ContainsFunc(spec.Groups, func(g uint32) bool { return g >= idCount }):
		return invalid("has more than %d supplementary groups, or an id above 65535", MaxGroups)
	}
	return nil
}

func (spec *Spec) checkIsolation() error {
	l := spec.Limits
	switch {
	case spec.Capabilities&^ContainerCapabilities != 0:
		return invalid("asks for the capabilities %v, beyond those of containers", spec.Capabilities&^ContainerCapabilities)
	case !slices.Contains([]Network{NetworkNone, NetworkEgress, NetworkHost}, spec.Network):
		return invalid("network %q is unknown", spec.Network)
	case !slices.Contains(seccomp.Policies(), spec.Policy):
		return invalid("system call policy %d is unknown", spec.Policy)
	case min(l.MemoryBytes, l.CPUMillis, l.Pids, l.TmpBytes, l.TmpInodes, l.Files) < 0:
		return invalid("limits %+v are negative", l)
	}
	return nil
}

// checkForks refuses a fork server with parts of a sandbox that its forks cannot have of their own.
func (spec *Spec) checkForks() error {
	switch {
	case spec.Forks == 0:
		return nil
	case spec.Capabilities != 0:
		return invalid("is a fork server with capabilities")
	case spec.Scratch != nil:
		return invalid("is a fork server with a writable root")
	case spec.ProcFiles:
		return invalid("is a fork server with files in /proc")
	case len(spec.Secrets) > 0:
		return invalid("is a fork server with secrets")
	case spec.User.Own:
		return invalid("is a fork server without a tenant")
	case spec.Network != NetworkNone:
		return invalid("is a fork server with a network")
	case spec.Opens != nil:
		return invalid("is a fork server with a trace of opened files")
	}
	return nil
}

func (spec *Spec) checkFiles() error {
	switch {
	case !filepath.IsAbs(spec.Rootfs):
		return invalid("root %q is not absolute", spec.Rootfs)
	case spec.Scratch != nil && spec.Opens != nil:
		return invalid("has a writable root: tracing of opened files needs a read-only root")
	case spec.Scratch != nil && len(spec.Secrets) > 0:
		return invalid("has secrets and a writable root")
	}
	for _, m := range spec.Mounts {
		if err := checkTarget(m.Target); err != nil {
			return err
		}
	}
	if err := checkSecrets(spec.Secrets); err != nil || spec.Scratch == nil {
		return err
	}
	return spec.Scratch.check()
}

// checkTarget refuses mount targets that would cover mounts of the sandbox itself.
func checkTarget(target string) error {
	if !path.IsAbs(target) || path.Clean(target) != target || strings.IndexByte(target, 0) >= 0 {
		return fmt.Errorf("mount target %q is not a clean absolute path: %w", target, unix.EINVAL)
	}
	for _, taken := range []string{"/proc", "/dev", "/sys"} {
		if target == "/" || target == taken || strings.HasPrefix(target, taken+"/") {
			return fmt.Errorf("mount target %q is reserved: %w", target, unix.EINVAL)
		}
	}
	return nil
}
