// Package sandbox turns a [Spec] into an isolated process tree. It never sees
// an image, a function or a protocol.
//
// A small static C program, the spawner (sandbox/shell), forks the sandboxes;
// the Go side prepares what they join (cgroups, network and user namespaces,
// detached mounts) and hands it over as file descriptors. See ARCHITECTURE.md
// for the order of operations and what each costs.
package sandbox

import (
	"os"
	"time"

	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/sandbox/seccomp"
)

// Network says which network namespace a sandbox joins.
type Network string

// The networks a sandbox can have.
const (
	NetworkNone   Network = "none"   // a pooled namespace with loopback only
	NetworkEgress Network = "egress" // a pooled namespace with a way to the public internet
	NetworkHost   Network = "host"   // the host's own: nothing is kept off
)

// Spec describes one sandbox. Required: Rootfs, Args, User.
type Spec struct {
	ID       string   // unique name; "" lets Start choose one
	Rootfs   string   // directory that becomes the root, read-only without Scratch
	Scratch  *Scratch // makes the root writable
	Args     []string // Args[0] is a path inside the root, from Dir on if it is relative; without a slash looked for in Env's PATH (execvp(3))
	Env      []string // KEY=value
	Dir      string   // working directory, "/" if empty
	Hostname string   // "fre" if empty
	User     User     // who the processes are
	Groups   []uint32 // supplementary groups, MaxGroups at most
	Work     string   // host directory mounted at /work; "" for none
	Mounts   []Mount  // further binds
	Secrets  []Secret // files in /run/secrets, in memory; the sandbox takes no attached shell then
	Limits   Limits
	Repeats  bool           // more starts like this one are likely: shells are kept for them, unless there are Mounts, Groups, Capabilities, a WorkOwner, WorkReadOnly, a Scratch, a TTY or ProcFiles
	Pin      bool           // begin on one CPU and keep to it for a little while, which starts faster
	Trace    bool           // note when each step of the start was done, for [Sandbox.Trace]
	Network  Network        // NetworkNone if empty
	Egress   egress.Policy  // where NetworkEgress may go; Rootfs needs an /etc/resolv.conf
	Policy   seccomp.Policy // system calls; seccomp.Default if zero

	// Without is for tests alone: they show by it what a defence is worth. No
	// configuration, interface or template may ever reach it (TestWithoutIsForTests).
	Without Defence

	// WorkMapped is Mount.Mapped of /work. With WorkOwner above 0, all in there
	// belongs to that id on disk and to User inside, whoever that is; other ids have
	// no files there.
	WorkMapped bool
	WorkOwner  uint32

	WorkReadOnly bool // /work takes no writes

	// ProcFiles adds the files of /proc that ordinary tools read (free, top, df). They
	// tell of Limits instead of the host. Without it /proc has processes alone.
	ProcFiles bool

	// Opens notes what is opened in the root, which has no Scratch and no Forks then.
	// The sandbox takes nobody's shell.
	Opens *Opens

	// Background lets every other sandbox have the CPU first, until Furnish.
	Background bool
	// Forks makes the sandbox a fork server, whose program may make that many
	// children at once that become sandboxes: see [Sandbox.Fork]. It has a user
	// namespace of its own, and CAP_SYS_ADMIN there.
	Forks int

	// Capabilities are those that uid 0 keeps, of ContainerCapabilities at most; a
	// function has none, whoever it is.
	Capabilities Capabilities

	// TTY says that Stdin is a terminal, no process's controlling one so far, and
	// makes it the sandbox's.
	TTY bool

	// Stdin, Stdout and Stderr become fds 0 to 2 (/dev/null where nil), Channel
	// fd 3 (closed where nil). Start duplicates them; the caller keeps its own.
	Stdin, Stdout, Stderr, Channel *os.File
}

// MaxGroups is how many supplementary groups a sandbox can have.
const MaxGroups = 16

// User selects the user namespace: each tenant has one, kept for the life of
// the [Host]; ids 0 to 65535 inside map to HostBase… outside.
type User struct {
	Tenant   string // pool key
	HostBase uint32 // first host id of the tenant's range
	UID, GID uint32 // inside the namespace

	// Own instead of Tenant and HostBase gives the sandbox a user namespace of
	// its own, with a range of host ids that no other live sandbox of the Host
	// has (Config.OwnBase).
	Own bool
}

// Mount binds a host directory or file into the sandbox, nosuid and nodev.
// Target's mount point must exist in Rootfs, unless there is a Scratch.
type Mount struct {
	Source   string
	Target   string
	Writable bool

	// Mapped takes the owners of Source's files for ids inside the sandbox's
	// user namespace (mount_setattr(2), MOUNT_ATTR_IDMAP), so that the same files
	// suit any. [CanMap] says whether Source's file system can.
	Mapped bool
}

// Limits bound a sandbox; zero means the documented default.
type Limits struct {
	MemoryBytes int64 // memory and swap together; default 128 MiB
	CPUMillis   int64 // thousandths of one CPU; default 1000
	Pids        int64 // processes and threads; default 64
	TmpBytes    int64 // size of /tmp; default 64 MiB
	TmpInodes   int64 // files in /tmp; default TmpBytes/4096
	Files       int64 // open files per process; default 1024
}

// ExitStatus says how a sandbox's first process ended and what it used.
type ExitStatus struct {
	Code      int           // exit status, -1 if ended by a signal
	Signal    int           // signal number, 0 if it exited
	OOMKilled bool          // the memory limit killed something inside, and the first process failed
	CPU       time.Duration // user and system time; after a good end without processes nobody waited for
	MaxMemory int64         // bytes at the peak; after a good end of the largest process
}
