package api

import "time"

// Version describes the answering program.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// Check is one line of `fre doctor`. CostNanos and CostOf are set if the caller asked for costs
// and the engine measured the cost of this check. CostOf alone holds the reason for a missing
// measurement.
type Check struct {
	ID       string `json:"id"` // name of the check in the daemon's configuration
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Optional bool   `json:"optional,omitempty"` // a failed check is no problem
	Found    string `json:"found"`
	Does     string `json:"does,omitempty"`   // FRE's use of the result
	Effect   string `json:"effect,omitempty"` // effect of a failed check on functions
	Next     string `json:"next,omitempty"`   // remedy

	CostNanos int64  `json:"cost_ns,omitempty"` // median time of the operation named by CostOf, on this host
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

// SyscallLine is a line of the answer of /v1/debug/syscalls. The first line reports that
// counting has begun; the last line has the counts or the error.
type SyscallLine struct {
	Counting bool      `json:"counting,omitempty"`
	Syscalls []Syscall `json:"syscalls,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// Holding counts the resources of one kind held by the engine's process.
type Holding struct {
	Kind  string `json:"kind"` // "buffer", "fd", "memory", "goroutine", "mount", "cgroup", "sandbox"
	Name  string `json:"name,omitempty"`
	Count int64  `json:"count"`
	Bytes int64  `json:"bytes,omitempty"`
}

// HeldStack counts the buffers in use that one call stack acquired.
type HeldStack struct {
	Count  int64    `json:"count"`
	Frames []string `json:"frames"` // function and line, innermost first
}

// Leaks is the answer of /v1/debug/leaks.
type Leaks struct {
	Holdings []Holding   `json:"holdings"`
	Stacks   []HeldStack `json:"stacks"` // a sample: 1 of 64 buffers
}

// Status is the answer of /v1/status: the load and health of the engine.
type Status struct {
	Version Version   `json:"version"`
	Started time.Time `json:"started"`

	State  string    `json:"state"`            // "normal", "degraded", "probing", "recovering"; "stopping"
	Reason string    `json:"reason,omitempty"` // for any state but normal: "memory", "waits"
	Since  time.Time `json:"since"`            // time of the last state change

	Events    EventStatus    `json:"events"`
	Functions []FunctionLoad `json:"functions"` // the busiest functions, at most ten
	Buffers   BufferStatus   `json:"buffers"`   // memory pool for answers

	Connections BufferStatus `json:"connections"` // memory pool for reading from and copying between connections

	Sandboxes SandboxStatus `json:"sandboxes"`
}

// EventStatus counts events of all functions.
type EventStatus struct {
	Running   int `json:"running"`
	Limit     int `json:"limit"`   // maximum of Running
	Waiting   int `json:"waiting"` // events that have an instance and wait for the engine
	Queued    int `json:"queued"`  // events that wait for an instance
	Functions int `json:"functions"`
}

// FunctionLoad is the load of one function.
type FunctionLoad struct {
	Name      string `json:"name"`
	Instances int    `json:"instances"`
	Busy      int    `json:"busy"`    // events that have an instance
	Waiting   int    `json:"waiting"` // events among Busy that wait for the engine
	Queued    int    `json:"queued"`  // events without an instance
}

// BufferStatus is the state of a memory pool; sizes are in bytes.
type BufferStatus struct {
	Bytes   int64 `json:"bytes"`
	Held    int64 `json:"held"`
	Peak    int64 `json:"peak"`
	High    int64 `json:"high"` // the pool becomes pressed at this many bytes in use
	Low     int64 `json:"low"`  // the pool stops being pressed at this many bytes in use
	Pressed bool  `json:"pressed"`
	Waiting int   `json:"waiting"` // callers waiting for a buffer
}

// SandboxStatus counts live sandboxes and the resources made ahead for further ones.
type SandboxStatus struct {
	Live     int `json:"live"`
	Bare     int `json:"bare"`     // parked sandboxes without an image
	Attached int `json:"attached"` // parked sandboxes with an image
	Cgroups  int `json:"cgroups"`  // in use and ready
}

// Change is one change of a list, or one action of a client.
type Change struct {
	Generation uint64            `json:"generation"` // number of the change, counted over all lists; never repeats
	Time       time.Time         `json:"time"`
	Kind       string            `json:"kind"`           // "image", "function", "sandbox", "cache"
	Action     string            `json:"action"`         // "create", "tag", "untag", "delete", "pull", "push", "load", "import", "save"; "deploy", "route", "remove"; "start", "kill", "stop", "exit"; of containers also "create", "rename", "delete", "restart", "attach", "detach", "resize"; "prune"
	ID         string            `json:"id"`             // an image's digest, a function's name, a sandbox's id; "" for all objects of the kind
	Name       string            `json:"name,omitempty"` // "name:version" of an image, name of a function
	Attributes map[string]string `json:"attributes,omitempty"`
}

// ChangeEntry is one line of the events route's answer: a change, or the error that ended the
// stream.
type ChangeEntry struct {
	Change *Change `json:"change,omitempty"`
	Error  *Error  `json:"error,omitempty"`
}

// ImageUsage is the disk usage of an image, in blocks and inodes. Other images share all that is
// not unique.
type ImageUsage struct {
	Digest       string `json:"digest"`
	Name         string `json:"name"`
	Version      string `json:"version"`
	Bytes        int64  `json:"bytes"`
	Inodes       int64  `json:"inodes"`
	UniqueBytes  int64  `json:"unique_bytes"`
	UniqueInodes int64  `json:"unique_inodes"`
	InUse        bool   `json:"in_use"` // a function or a sandbox uses the image, so the engine refuses to remove the image
}

// TenantUsage is the disk usage of a tenant's /work, in blocks and inodes.
type TenantUsage struct {
	Name       string     `json:"name"`
	Kind       string     `json:"kind"` // "quota", "image" (own file system) or "plain" (measured by walking, in the background)
	Bytes      int64      `json:"bytes"`
	Inodes     int64      `json:"inodes"`
	LimitBytes int64      `json:"limit_bytes,omitempty"`
	AsOf       *time.Time `json:"as_of,omitempty"` // time of measurement; nil: not measured yet
}

// ContainerUsage is the disk usage of a container's root, in blocks and inodes, without the
// image.
type ContainerUsage struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Running bool       `json:"running"`
	Bytes   int64      `json:"bytes"`
	Inodes  int64      `json:"inodes"`
	AsOf    *time.Time `json:"as_of,omitempty"` // time of measurement; nil: not measured yet, or never run
}

// CacheUsage is the disk usage of builds' downloads, in blocks and inodes.
type CacheUsage struct {
	Bytes  int64      `json:"bytes"`
	Inodes int64      `json:"inodes"`
	AsOf   *time.Time `json:"as_of,omitempty"` // time of measurement; nil: not measured yet
}

// DiskUsage is the answer of /v1/system/df.
type DiskUsage struct {
	Images           []ImageUsage     `json:"images"`            // newest first
	ImageBytes       int64            `json:"image_bytes"`       // of all images, with shared files counted once
	ImageInodes      int64            `json:"image_inodes"`      // likewise
	ReclaimableBytes int64            `json:"reclaimable_bytes"` // disk space that removing all unused images would free
	Tenants          []TenantUsage    `json:"tenants"`
	Containers       []ContainerUsage `json:"containers"` // newest first
	Cache            CacheUsage       `json:"cache"`
}
