package api

import "time"

// Sandbox is one sandbox that lives, or of the last ones that ended.
type Sandbox struct {
	ID       string     `json:"id"`
	Function string     `json:"function,omitempty"` // empty for runs, build steps and containers
	Revision int        `json:"revision,omitempty"` // of the function
	Name     string     `json:"name,omitempty"`     // of a container
	Image    string     `json:"image,omitempty"`
	Tenant   string     `json:"tenant,omitempty"`
	Command  string     `json:"command"`
	State    string     `json:"state"` // "starting", "parked", "idle", "busy", "stopping", "exited"; of containers "created", "running", "exited"
	PID      int        `json:"pid,omitempty"`
	Created  time.Time  `json:"created"`
	Ended    *time.Time `json:"ended,omitempty"`
	Exit     *Exit      `json:"exit,omitempty"`
	Size     *Size      `json:"size,omitempty"`     // where asked for, of live ones
	Stats    *Stats     `json:"stats,omitempty"`    // likewise
	Defences []string   `json:"defences,omitempty"` // in force besides namespaces and limits, of live ones
}

// ContainerRequest says what a container is made from; what it leaves out, the
// image says.
type ContainerRequest struct {
	Image      string   `json:"image"`
	Name       string   `json:"name,omitempty"`   // made up if empty
	Tenant     string   `json:"tenant,omitempty"` // "default" if empty
	Entrypoint []string `json:"entrypoint,omitempty"`
	Args       []string `json:"args,omitempty"`
	Env        []string `json:"env,omitempty"` // KEY=value
	Dir        string   `json:"dir,omitempty"`
	User       string   `json:"user,omitempty"`     // USER[:GROUP]
	Groups     []string `json:"groups,omitempty"`   // further ones of that user
	CapAdd     []string `json:"cap_add,omitempty"`  // capabilities root keeps though cap_drop names them
	CapDrop    []string `json:"cap_drop,omitempty"` // capabilities root is not to have, or ALL
	Network    string   `json:"network,omitempty"`  // "none", "egress", "host"
	Memory     string   `json:"memory,omitempty"`   // limit, as "512MiB"
	CPUMillis  int64    `json:"cpu_millis,omitempty"`
	Pids       int64    `json:"pids,omitempty"`
	Scratch    string   `json:"scratch,omitempty"` // limit of what it writes to its root, as "1GiB"
	ReadOnly   bool     `json:"read_only,omitempty"`
	Work       string   `json:"work,omitempty"`  // "ro", "rw": whether it sees the tenant's /work
	Stdin      bool     `json:"stdin,omitempty"` // it reads what the first attachment sends, to its end
	TTY        bool     `json:"tty,omitempty"`   // a terminal instead of three streams; its input does not end
	AutoRemove bool     `json:"auto_remove,omitempty"`
}

// Container is a sandbox that keeps what it writes until it is removed.
type Container struct {
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Image    string     `json:"image"`
	Digest   string     `json:"digest"`
	Tenant   string     `json:"tenant"`
	Args     []string   `json:"args"` // program and arguments
	Dir      string     `json:"dir"`
	User     string     `json:"user"`
	Stdin    bool       `json:"stdin"` // it reads what attachments send
	TTY      bool       `json:"tty"`   // at a terminal
	State    string     `json:"state"` // "created", "running", "exited"
	PID      int        `json:"pid,omitempty"`
	Created  time.Time  `json:"created"`
	Started  *time.Time `json:"started,omitempty"`
	Finished *time.Time `json:"finished,omitempty"`
	Exit     *Exit      `json:"exit,omitempty"`  // of the last run
	Error    string     `json:"error,omitempty"` // why it could not be started, the last time
}

// RenameRequest gives a container another name.
type RenameRequest struct {
	Name string `json:"name"`
}

// ContainerPruneRequest asks for the removal of the containers that do not run.
type ContainerPruneRequest struct {
	Before *time.Time `json:"before,omitempty"`  // only those made before
	DryRun bool       `json:"dry_run,omitempty"` // say what would go
}

// ContainerPruneReport says what went, or would go: blocks and inodes of what was
// written to roots.
type ContainerPruneReport struct {
	DryRun     bool             `json:"dry_run,omitempty"`
	Containers []ContainerUsage `json:"containers"` // newest first
	Bytes      int64            `json:"bytes"`
	Inodes     int64            `json:"inodes"`
}

// Process is one of a sandbox's.
type Process struct {
	PID      int       `json:"pid"`    // on the host
	Parent   int       `json:"parent"` // likewise; of the first process the spawner
	UID      int       `json:"uid"`    // on the host
	Started  time.Time `json:"started"`
	CPUNanos int64     `json:"cpu_ns"`  // user and system time so far
	Command  string    `json:"command"` // with its arguments; "[name]" where it has none
}

// Size is what a sandbox holds in its writable file systems: what is in use
// there, not the lengths of files.
type Size struct {
	Bytes int64 `json:"bytes"`
	Files int64 `json:"files"` // and directories
}

// Stats is what a sandbox uses now.
type Stats struct {
	MemoryBytes int64 `json:"memory_bytes"`
	CPUNanos    int64 `json:"cpu_ns"` // user and system time so far
	Processes   int   `json:"processes"`
	TmpBytes    int64 `json:"tmp_bytes"` // of /tmp
	TmpFiles    int64 `json:"tmp_files"`
}

// Exit says how a sandbox's first process ended and what its tree used.
type Exit struct {
	Code           int   `json:"code"`             // exit status, -1 if ended by a signal
	Signal         int   `json:"signal,omitempty"` // signal number, 0 if it exited
	OOMKilled      bool  `json:"oom_killed,omitempty"`
	CPUNanos       int64 `json:"cpu_ns"`
	MaxMemoryBytes int64 `json:"max_memory_bytes"`

	Start string      `json:"start,omitempty"` // of a run: spawner, shell or attached
	Trace []TraceStep `json:"trace,omitempty"` // of a run that asked for it
}

// TraceStep is one step of a start.
type TraceStep struct {
	Name      string `json:"name"`
	DoneNanos int64  `json:"done_ns"` // since the start began
}

// LogLine is one line a function wrote or logged.
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

// String is the line as people read it: its level, if it has one, and its text unchanged.
func (l LogLine) String() string {
	if l.Level == "" {
		return l.Text
	}
	return l.Level + " " + l.Text
}

// LogEntry is one line of the answer of the logs route: a log line, or the
// error that broke the stream off.
type LogEntry struct {
	Line  *LogLine `json:"line,omitempty"`
	Error *Error   `json:"error,omitempty"`
}

// RunRequest starts a command in a sandbox of its own. It travels as the JSON
// body of an upgrade request; see frame.go for what follows.
type RunRequest struct {
	Image  string   `json:"image"`
	Args   []string `json:"args"`
	Env    []string `json:"env,omitempty"` // KEY=value
	Tenant string   `json:"tenant,omitempty"`
	Trace  bool     `json:"trace,omitempty"` // note when each step of the start was done
}
