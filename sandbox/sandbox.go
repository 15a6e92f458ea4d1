// Package sandbox turns a [Spec] into an isolated process tree. Package sandbox knows nothing
// of images, functions and protocols.
//
// A small static C program, the spawner (sandbox/spawner), forks the sandboxes. The Go side
// prepares the objects that sandboxes join (cgroups, network and user namespaces, detached
// mounts), and passes them to the spawner as file descriptors. See docs/starts.md for the
// order and the cost of the operations.
package sandbox

import (
	"os"
	"time"

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
