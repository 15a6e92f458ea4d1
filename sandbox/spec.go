package sandbox

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/sandbox/seccomp"
)

// Network is the kind of a sandbox's network namespace.
type Network string

// The networks a sandbox can have.
const (
	NetworkNone   Network = "none"   // a pooled namespace with loopback only
	NetworkEgress Network = "egress" // a pooled namespace with a way to the public internet
	NetworkHost   Network = "host"   // the host's own namespace, without any isolation
)

// Spec describes one sandbox. Rootfs, Args and User are required.
type Spec struct {
	ID      string   // unique name; "" lets Start choose one
	Rootfs  string   // directory that becomes the root; read-only without Scratch
	Scratch *Scratch // makes the root writable
	// Args[0] is a path inside the root, relative to Dir unless absolute. Without a slash,
	// Start searches PATH of Env (execvp(3)).
	Args     []string
	Env      []string // KEY=value
	Dir      string   // working directory, "/" if empty
	Hostname string   // "fre" if empty
	User     User     // identity of the processes
	Groups   []uint32 // supplementary groups, MaxGroups at most
	Work     string   // host directory mounted at /work; "" for none
	Mounts   []Mount  // further binds
	// Secrets are files in memory, in /run/secrets. A sandbox with secrets uses no attached
	// parked sandbox.
	Secrets []Secret
	Limits  Limits
	// Repeats means that similar starts are likely: the Host keeps parked sandboxes for them.
	// The Host ignores Repeats if the Spec has Mounts, Secrets, Groups, Capabilities,
	// WorkOwner, WorkReadOnly, Scratch, TTY or ProcFiles.
	Repeats bool
	Pin     bool           // stay on one CPU for a short while, for a faster start
	Trace   bool           // record the time of each step of the start, for [Sandbox.Trace]
	Network Network        // NetworkNone if empty
	Egress  egress.Policy  // allowed destinations of NetworkEgress; Rootfs needs an /etc/resolv.conf
	Policy  seccomp.Policy // system calls; seccomp.Default if zero

	// Without removes defences. Without is for tests alone, which show the worth of each
	// defence: no configuration, interface or template may set Without (TestWithoutIsForTests).
	Without Defence

	// WorkMapped is Mount.Mapped for /work. With WorkMapped and a WorkOwner above 0, all files
	// in /work have that id on disk and belong to User inside the sandbox; other ids own no
	// files there.
	WorkMapped bool
	WorkOwner  uint32

	WorkReadOnly bool // /work is read-only

	// ProcFiles adds the files of /proc that ordinary tools read (free, top, df). The files
	// show Limits instead of the host. Without ProcFiles, /proc shows only processes.
	ProcFiles bool

	// Opens records the files that are opened in the root. The Spec must then have neither
	// Scratch nor Forks. The sandbox uses no parked sandbox.
	Opens *Opens

	// Background gives every other sandbox the CPU first, until Furnish.
	Background bool
	// Forks makes the sandbox a fork server: its program may have that many children at once
	// that become sandboxes (see [Sandbox.Fork]). A fork server has a user namespace of its
	// own, and CAP_SYS_ADMIN inside.
	Forks int

	// Capabilities are the capabilities of uid 0, at most ContainerCapabilities. A sandbox with
	// another UID has none.
	Capabilities Capabilities

	// TTY makes Stdin the controlling terminal of the sandbox. Stdin must be a terminal that is
	// not yet the controlling terminal of any process.
	TTY bool

	// Stdin, Stdout and Stderr become fds 0 to 2 (/dev/null if nil). Channel becomes fd 3
	// (closed if nil). Start duplicates the files; the caller keeps its own.
	Stdin, Stdout, Stderr, Channel *os.File
}

// MaxGroups is the most supplementary groups of a sandbox.
const MaxGroups = 16

// User selects the user namespace and the identity inside. Each tenant has one user namespace,
// kept for the life of the [Host]. Ids 0 to 65535 inside are the host ids from HostBase on.
type User struct {
	Tenant   string // key of the tenant's user namespace
	HostBase uint32 // first host id of the tenant's range
	UID, GID uint32 // inside the namespace

	// Own gives the sandbox a user namespace of its own, instead of Tenant and HostBase. Its
	// range of host ids (Config.OwnBase) belongs to no other live sandbox of the Host.
	Own bool
}

// Mount binds a host directory or file into the sandbox, nosuid and nodev. The mount point
// Target must exist in Rootfs, unless the Spec has a Scratch.
type Mount struct {
	Source   string
	Target   string
	Writable bool

	// Mapped interprets the owners of Source's files as ids inside the sandbox's user namespace
	// (mount_setattr(2), MOUNT_ATTR_IDMAP), so that the same files suit every tenant. [CanMap]
	// reports whether Source's file system supports Mapped.
	Mapped bool
}

// Limits are the limits of a sandbox; zero means the documented default.
type Limits struct {
	MemoryBytes int64 // memory and swap together; default 128 MiB
	CPUMillis   int64 // thousandths of one CPU; default 1000
	Pids        int64 // processes and threads; default 64
	TmpBytes    int64 // size of /tmp; default 64 MiB
	TmpInodes   int64 // files in /tmp; default TmpBytes/4096
	Files       int64 // open files per process; default 1024
}

// Scratch makes a sandbox's root writable: writes go to a layer of the sandbox over Rootfs
// (overlayfs), and Rootfs never changes. The owners on disk of Rootfs's files are ids inside
// the sandbox.
//
// The layer costs the kernel about 0.7 MiB more than a read-only root.
type Scratch struct {
	// Limits of a layer in memory, which counts towards Limits.MemoryBytes and ends with the
	// sandbox. Default 64 MiB, and an inode for each 4 KiB.
	Bytes, Inodes int64

	// ReadOnly shows the root with its owners, but read-only.
	ReadOnly bool

	// Dir keeps the layer in a host directory of the caller instead. One sandbox at a time may
	// use Dir, and the next sandbox finds the files of the last. Bytes and Inodes do not apply:
	// only Dir's own file system sets limits. The files in Dir belong to the host ids of the
	// user namespace.
	Dir string
}

// Secret is a file in /run/secrets, readable only by the sandbox's user.
type Secret struct {
	Name  string
	Value []byte // Start and Furnish copy Value
}

// Defence is a set of a sandbox's protections besides its namespaces.
type Defence uint32

// The defences. [Spec] itself selects limits and network.
const (
	DefenceSeccomp      Defence = 1 << iota // the system call filter
	DefenceLandlock                         // no signal to outside, no connection to abstract sockets outside
	DefenceCapabilities                     // no capabilities, not even over the tenant's own user namespace
	DefenceNoNewPrivs                       // execve grants nothing; required by the filter and by Landlock
	DefenceNoSuid                           // nosuid and nodev on every mount
	DefenceReadOnlyRoot                     // a read-only root and /dev
	DefenceProcSubset                       // /proc shows only processes
	DefenceKeyring                          // a session keyring of its own
)

func (spec *Spec) setDefaults() {
	if spec.Dir == "" {
		spec.Dir = "/"
	}
	if spec.Hostname == "" {
		spec.Hostname = "fre"
	}
	if spec.Network == "" {
		spec.Network = NetworkNone
	}
	spec.Limits.setDefaults()
	if spec.Scratch != nil {
		s := *spec.Scratch // a copy: leave the caller's Scratch unchanged
		s.setDefaults()
		spec.Scratch = &s
	}
}

func (l *Limits) setDefaults() {
	for _, d := range []struct {
		field *int64
		value int64
	}{
		{&l.MemoryBytes, 128 << 20},
		{&l.CPUMillis, 1000},
		{&l.Pids, 64},
		{&l.TmpBytes, 64 << 20},
		{&l.Files, 1024},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if l.TmpInodes == 0 {
		l.TmpInodes = max(l.TmpBytes/4096, 16)
	}
}

func (s *Scratch) setDefaults() {
	s.Bytes = cmp.Or(s.Bytes, 64<<20)
	s.Inodes = cmp.Or(s.Inodes, max(s.Bytes/4096, 1024))
}

// ExitStatus is the result of a sandbox's first process, and the resources used.
type ExitStatus struct {
	Code      int  // exit status, -1 after a signal
	Signal    int  // signal number, 0 after an exit
	OOMKilled bool // the memory limit killed a process, and the first process failed
	// CPU is user and system time. After exit status 0, CPU includes only processes that were
	// waited for; a fork's CPU is always complete.
	CPU time.Duration
	// MaxMemory is the peak in bytes. After exit status 0, MaxMemory is the peak of the largest
	// process; a fork's MaxMemory is that of its cgroup, if known.
	MaxMemory int64
}

// maxForks bounds Spec.Forks.
const maxForks = 4096

// idCount is the number of user and group ids in a user namespace.
const idCount = 65536

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

// check refuses an invalid Scratch.
func (s *Scratch) check() error {
	switch {
	case s.Bytes < 0 || s.Inodes < 0:
		return fmt.Errorf("sandbox scratch of %d bytes and %d inodes: %w", s.Bytes, s.Inodes, unix.EINVAL)
	case s.Dir != "" && !filepath.IsAbs(s.Dir):
		return fmt.Errorf("sandbox scratch directory %q is not absolute: %w", s.Dir, unix.EINVAL)
	}
	return nil
}

// checkSecrets refuses names that are no file names, so that no secret leaves the directory.
func checkSecrets(all []Secret) error {
	for _, s := range all {
		if s.Name == "" || s.Name == "." || s.Name == ".." || len(s.Name) > 255 || strings.ContainsAny(s.Name, "/\x00") {
			return fmt.Errorf("secret %q is no file name: %w", s.Name, unix.EINVAL)
		}
	}
	return nil
}

func (l Limits) cgroup() cgroup.Limits {
	return cgroup.Limits{MemoryBytes: l.MemoryBytes, CPUMillis: l.CPUMillis, Pids: l.Pids}
}

func (spec *Spec) cgroup() cgroup.Limits {
	l := spec.Limits.cgroup()
	l.Background = spec.Background
	return l
}
