package api

import "time"

// Version says which program answers.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// Check is one line of `fre doctor`. CostNanos and CostOf are there where costs
// were asked for and this check's could be measured; CostOf alone says why not.
type Check struct {
	ID       string `json:"id"` // as the daemon's configuration calls it
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Optional bool   `json:"optional,omitempty"` // nothing is amiss where it is not ok
	Found    string `json:"found"`
	Does     string `json:"does,omitempty"`   // what FRE does with what it found
	Effect   string `json:"effect,omitempty"` // what follows for functions where it is not ok
	Next     string `json:"next,omitempty"`   // what to do about it

	CostNanos int64  `json:"cost_ns,omitempty"` // median of what CostOf names takes on this host
	CostOf    string `json:"cost_of,omitempty"`
}

// Doctor is the answer of /v1/doctor.
type Doctor struct {
	Checks []Check `json:"checks"`
}

// Syscall is how often the engine made one system call.
type Syscall struct {
	Name  string `json:"name"`
	Calls int64  `json:"calls"`
}

// SyscallLine is a line of the answer of /v1/debug/syscalls: the first says that it
// counts, the last has the counts or the error.
type SyscallLine struct {
	Counting bool      `json:"counting,omitempty"`
	Syscalls []Syscall `json:"syscalls,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// Holding is what the engine's own program has of one thing.
type Holding struct {
	Kind  string `json:"kind"` // "buffer", "fd", "memory", "goroutine", "mount", "cgroup", "sandbox"
	Name  string `json:"name,omitempty"`
	Count int64  `json:"count"`
	Bytes int64  `json:"bytes,omitempty"`
}

// HeldStack is where buffers were asked for that are lent now.
type HeldStack struct {
	Count  int64    `json:"count"`
	Frames []string `json:"frames"` // function and line, the innermost first
}

// Leaks is the answer of /v1/debug/leaks.
type Leaks struct {
	Holdings []Holding   `json:"holdings"`
	Stacks   []HeldStack `json:"stacks"` // a sample: one of 64 buffers
}

// Status is the answer of /v1/status: how much the engine has to do, and how it does.
type Status struct {
	Version Version   `json:"version"`
	Started time.Time `json:"started"`

	State  string    `json:"state"`            // "normal", "degraded", "probing", "recovering"; "stopping"
	Reason string    `json:"reason,omitempty"` // unless it is normal: "memory", "waits"
	Since  time.Time `json:"since"`            // when the state came

	Events    EventStatus    `json:"events"`
	Functions []FunctionLoad `json:"functions"` // the busiest, ten at most
	Buffers   BufferStatus   `json:"buffers"`   // that answers wait in

	Connections BufferStatus `json:"connections"` // that connections are read into and copied through

	Sandboxes SandboxStatus `json:"sandboxes"`
}

// EventStatus counts events of all functions.
type EventStatus struct {
	Running   int `json:"running"`
	Limit     int `json:"limit"`   // of those that run
	Waiting   int `json:"waiting"` // their function has an instance for them: for the engine
	Queued    int `json:"queued"`  // for an instance
	Functions int `json:"functions"`
}

// FunctionLoad is what one function has to do.
type FunctionLoad struct {
	Name      string `json:"name"`
	Instances int    `json:"instances"`
	Busy      int    `json:"busy"`    // events that have an instance
	Waiting   int    `json:"waiting"` // of those, for the engine
	Queued    int    `json:"queued"`  // events without
}

// BufferStatus is memory that is lent, in bytes.
type BufferStatus struct {
	Bytes   int64 `json:"bytes"`
	Held    int64 `json:"held"`
	Peak    int64 `json:"peak"`
	High    int64 `json:"high"` // pressed from here
	Low     int64 `json:"low"`  // down to here
	Pressed bool  `json:"pressed"`
	Waiting int   `json:"waiting"` // who waits for a buffer
}

// SandboxStatus counts sandboxes and what is ready for more.
type SandboxStatus struct {
	Live     int `json:"live"`
	Bare     int `json:"bare"`     // shells parked
	Attached int `json:"attached"` // likewise, to an image
	Cgroups  int `json:"cgroups"`  // in use and ready
}

// Change is one change of what lists show, or what a client did beside.
type Change struct {
	Generation uint64            `json:"generation"` // counts the changes of everything; never comes twice
	Time       time.Time         `json:"time"`
	Kind       string            `json:"kind"`           // "image", "function", "sandbox", "cache"
	Action     string            `json:"action"`         // "create", "tag", "untag", "delete", "pull", "push", "load", "import", "save"; "deploy", "route", "remove"; "start", "kill", "stop", "exit"; of containers also "create", "rename", "delete", "restart", "attach", "detach", "resize"; "prune"
	ID         string            `json:"id"`             // an image's digest, a function's name, a sandbox's id; "" for all of the kind
	Name       string            `json:"name,omitempty"` // "name:version" of an image, a function's name
	Attributes map[string]string `json:"attributes,omitempty"`
}

// ChangeEntry is one line of the answer of the events route: a change, or the
// error that broke the stream off.
type ChangeEntry struct {
	Change *Change `json:"change,omitempty"`
	Error  *Error  `json:"error,omitempty"`
}

// ImageUsage is what an image takes on disk, in blocks and inodes. What is not
// unique to it other images have, too.
type ImageUsage struct {
	Digest       string `json:"digest"`
	Name         string `json:"name"`
	Version      string `json:"version"`
	Bytes        int64  `json:"bytes"`
	Inodes       int64  `json:"inodes"`
	UniqueBytes  int64  `json:"unique_bytes"`
	UniqueInodes int64  `json:"unique_inodes"`
	InUse        bool   `json:"in_use"` // by a function or a sandbox: it cannot be removed
}

// TenantUsage is what a tenant keeps in /work, in blocks and inodes.
type TenantUsage struct {
	Name       string     `json:"name"`
	Kind       string     `json:"kind"` // "quota", "image" (a file system of its own) or "plain" (walked now and then)
	Bytes      int64      `json:"bytes"`
	Inodes     int64      `json:"inodes"`
	LimitBytes int64      `json:"limit_bytes,omitempty"`
	AsOf       *time.Time `json:"as_of,omitempty"` // when it was counted; none: not yet
}

// ContainerUsage is what a container has written to its root, in blocks and inodes.
type ContainerUsage struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Running bool       `json:"running"`
	Bytes   int64      `json:"bytes"`
	Inodes  int64      `json:"inodes"`
	AsOf    *time.Time `json:"as_of,omitempty"` // when it was counted; none: it has not run, or not yet
}

// CacheUsage is what builds have downloaded, in blocks and inodes.
type CacheUsage struct {
	Bytes  int64      `json:"bytes"`
	Inodes int64      `json:"inodes"`
	AsOf   *time.Time `json:"as_of,omitempty"` // when it was counted; none: not yet
}

// DiskUsage is the answer of /v1/system/df.
type DiskUsage struct {
	Images           []ImageUsage     `json:"images"`            // newest first
	ImageBytes       int64            `json:"image_bytes"`       // of all together, what they share once
	ImageInodes      int64            `json:"image_inodes"`      // likewise
	ReclaimableBytes int64            `json:"reclaimable_bytes"` // what would be free without the images that nothing uses
	Tenants          []TenantUsage    `json:"tenants"`
	Containers       []ContainerUsage `json:"containers"` // newest first
	Cache            CacheUsage       `json:"cache"`
}
