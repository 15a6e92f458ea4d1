package api

import "time"

// Sandbox is a running sandbox, or one of the last ended ones.
type Sandbox struct {
	ID       string     `json:"id"`
	Function string     `json:"function,omitempty"` // empty for runs, build steps and containers
	Revision int        `json:"revision,omitempty"` // the function's revision
	Name     string     `json:"name,omitempty"`     // name of a container
	Image    string     `json:"image,omitempty"`
	Tenant   string     `json:"tenant,omitempty"`
	Command  string     `json:"command"`
	State    string     `json:"state"` // "starting", "parked", "idle", "busy", "stopping", "exited"; of containers "created", "running", "exited"
	PID      int        `json:"pid,omitempty"`
	Created  time.Time  `json:"created"`
	Ended    *time.Time `json:"ended,omitempty"`
	Exit     *Exit      `json:"exit,omitempty"`
	Size     *Size      `json:"size,omitempty"`     // on request, while running
	Stats    *Stats     `json:"stats,omitempty"`    // likewise
	Defences []string   `json:"defences,omitempty"` // active besides namespaces and limits, while running
}

// ContainerRequest describes a container to create. Empty fields default to the image's
// configuration.
type ContainerRequest struct {
	Image      string   `json:"image"`
	Name       string   `json:"name,omitempty"`   // default: a generated name
	Tenant     string   `json:"tenant,omitempty"` // default "default"
	Entrypoint []string `json:"entrypoint,omitempty"`
	Args       []string `json:"args,omitempty"`
	Env        []string `json:"env,omitempty"` // KEY=value
	Dir        string   `json:"dir,omitempty"`
	User       string   `json:"user,omitempty"`     // USER[:GROUP]
	Groups     []string `json:"groups,omitempty"`   // supplementary groups of User
	CapAdd     []string `json:"cap_add,omitempty"`  // capabilities that root keeps although CapDrop names them
	CapDrop    []string `json:"cap_drop,omitempty"` // capabilities that root loses, or ALL
	Network    string   `json:"network,omitempty"`  // "none", "egress", "host"
	Memory     string   `json:"memory,omitempty"`   // limit, such as "512MiB"
	CPUMillis  int64    `json:"cpu_millis,omitempty"`
	Pids       int64    `json:"pids,omitempty"`
	Scratch    string   `json:"scratch,omitempty"` // limit of writes to the root, such as "1GiB"
	ReadOnly   bool     `json:"read_only,omitempty"`
	Work       string   `json:"work,omitempty"`  // access to the tenant's /work: "ro", "rw", or "" for none
	Stdin      bool     `json:"stdin,omitempty"` // the container reads the first attachment's input, until its end
	TTY        bool     `json:"tty,omitempty"`   // a terminal instead of three streams; its input has no end
	AutoRemove bool     `json:"auto_remove,omitempty"`
}

// Container is a sandbox whose writes to the root persist until removal.
type Container struct {
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Image    string     `json:"image"`
	Digest   string     `json:"digest"`
	Tenant   string     `json:"tenant"`
	Args     []string   `json:"args"` // program and arguments
	Dir      string     `json:"dir"`
	User     string     `json:"user"`
	Stdin    bool       `json:"stdin"` // the container reads input of attachments
	TTY      bool       `json:"tty"`   // the container has a terminal
	State    string     `json:"state"` // "created", "running", "exited"
	PID      int        `json:"pid,omitempty"`
	Created  time.Time  `json:"created"`
	Started  *time.Time `json:"started,omitempty"`
	Finished *time.Time `json:"finished,omitempty"`
	Exit     *Exit      `json:"exit,omitempty"`  // of the last run
	Error    string     `json:"error,omitempty"` // why the last start failed
}

// RenameRequest changes the name of a container.
type RenameRequest struct {
	Name string `json:"name"`
}

// ContainerPruneRequest removes all stopped containers.
type ContainerPruneRequest struct {
	Before *time.Time `json:"before,omitempty"`  // only containers created before this time
	DryRun bool       `json:"dry_run,omitempty"` // only report
}

// ContainerPruneReport lists the removed containers or, for a dry run, the candidates. Bytes and
// Inodes measure the files that the containers wrote to their roots.
type ContainerPruneReport struct {
	DryRun     bool             `json:"dry_run,omitempty"`
	Containers []ContainerUsage `json:"containers"` // newest first
	Bytes      int64            `json:"bytes"`
	Inodes     int64            `json:"inodes"`
}

// Process is one process of a sandbox.
type Process struct {
	PID      int       `json:"pid"`    // on the host
	Parent   int       `json:"parent"` // on the host; the first process has the spawner as parent
	UID      int       `json:"uid"`    // on the host
	Started  time.Time `json:"started"`
	CPUNanos int64     `json:"cpu_ns"`  // user and system time so far
	Command  string    `json:"command"` // with arguments; "[name]" if the process has no arguments
}

// Size is a sandbox's usage of its writable file systems: allocated space, not file lengths.
type Size struct {
	Bytes int64 `json:"bytes"`
	Files int64 `json:"files"` // files and directories
}

// Stats is the current resource usage of a sandbox.
type Stats struct {
	MemoryBytes int64 `json:"memory_bytes"`
	CPUNanos    int64 `json:"cpu_ns"` // user and system time so far
	Processes   int   `json:"processes"`
	TmpBytes    int64 `json:"tmp_bytes"` // of /tmp
	TmpFiles    int64 `json:"tmp_files"`
}

// Exit reports the exit of a sandbox's first process and the resource usage of all processes.
type Exit struct {
	Code           int   `json:"code"`             // exit status, -1 if ended by a signal
	Signal         int   `json:"signal,omitempty"` // signal number, or 0
	OOMKilled      bool  `json:"oom_killed,omitempty"`
	CPUNanos       int64 `json:"cpu_ns"`
	MaxMemoryBytes int64 `json:"max_memory_bytes"`

	Start string      `json:"start,omitempty"` // for a run: spawner, bare or attached
	Trace []TraceStep `json:"trace,omitempty"` // for a run with Trace
}

// TraceStep is one step of a start.
type TraceStep struct {
	Name      string `json:"name"`
	DoneNanos int64  `json:"done_ns"` // time since the beginning of the start
}

// LogLine is one line of output or one log entry of a function.
type LogLine struct {
	Time       time.Time `json:"time"`
	Function   string    `json:"function"`
	Revision   int       `json:"revision,omitempty"` // of the function
	Sandbox    string    `json:"sandbox"`
	Invocation string    `json:"invocation,omitempty"`
	Stream     string    `json:"stream"` // "stdout", "stderr", "log"
	Level      string    `json:"level,omitempty"`
	Text       string    `json:"text"`
}

// String formats the line for people: the level, if any, and the unchanged text.
func (l LogLine) String() string {
	if l.Level == "" {
		return l.Text
	}
	return l.Level + " " + l.Text
}

// LogEntry is one line of the logs route's answer: a log line, or the error that ended the
// stream.
type LogEntry struct {
	Line  *LogLine `json:"line,omitempty"`
	Error *Error   `json:"error,omitempty"`
}

// RunRequest starts a command in a new sandbox. The request is the JSON body of an upgrade
// request; frame.go describes the frames after the upgrade.
type RunRequest struct {
	Image  string   `json:"image"`
	Args   []string `json:"args"`
	Env    []string `json:"env,omitempty"` // KEY=value
	Tenant string   `json:"tenant,omitempty"`
	Trace  bool     `json:"trace,omitempty"` // record the duration of each start step
}
