package api

import "time"

// AgentRequest is the JSON body that creates a sandbox for an agent. Every field has a default.
type AgentRequest struct {
	Image    string `json:"image,omitempty"`    // base environment or image: name, name:version, digest or digest prefix; default "agent"
	Tenant   string `json:"tenant,omitempty"`   // default: the token's tenant, else "default"
	Snapshot string `json:"snapshot,omitempty"` // snapshot to fill /work with

	Memory    string   `json:"memory,omitempty"`     // such as "512MiB", the default
	CPUMillis int64    `json:"cpu_millis,omitempty"` // default 1000
	Work      string   `json:"work,omitempty"`       // limit of /work, such as "1GiB"; default as for functions
	Network   string   `json:"network,omitempty"`    // none or egress; default none
	Allow     []string `json:"allow,omitempty"`      // with egress: allow only these destinations, as in a template

	IdleSeconds int64 `json:"idle_seconds,omitempty"` // the engine removes the sandbox after this idle time; default 900
	AgeSeconds  int64 `json:"age_seconds,omitempty"`  // maximum age, after which the engine removes the sandbox; default 28800
}

// Agent is a sandbox for an agent.
type Agent struct {
	ID          string    `json:"id"`
	Tenant      string    `json:"tenant"`
	Image       string    `json:"image"`
	Snapshot    string    `json:"snapshot,omitempty"` // digest
	Network     string    `json:"network"`
	Allow       []string  `json:"allow,omitempty"`
	MemoryBytes int64     `json:"memory_bytes"`
	CPUMillis   int64     `json:"cpu_millis"`
	WorkBytes   int64     `json:"work_bytes,omitempty"` // limit of /work; 0: no limit
	Created     time.Time `json:"created"`
	Used        time.Time `json:"used"`
	Expires     time.Time `json:"expires"`             // time of removal if the sandbox stays idle
	By          string    `json:"by,omitempty"`        // name of the creator
	Busy        int       `json:"busy"`                // commands and transfers in progress
	Running     bool      `json:"running"`             // false: the sandbox has ended, for example out of memory; the next command restarts it
	OOMKills    int64     `json:"oom_kills,omitempty"` // processes killed for exceeding memory_bytes since the sandbox's program started; omitted in lists
}

// AgentExec is a command: the first line of an exec request's body. The rest of the body is the
// command's stdin.
type AgentExec struct {
	Args      []string          `json:"args,omitempty"`       // program and arguments; excludes Shell
	Shell     string            `json:"shell,omitempty"`      // command line for /bin/sh; excludes Args
	Dir       string            `json:"dir,omitempty"`        // working directory, absolute or relative to /work; default /work
	Env       map[string]string `json:"env,omitempty"`        // added to the sandbox's environment
	TimeoutMS int64             `json:"timeout_ms,omitempty"` // default 600000, at most 3600000
}

// AgentOutput is one line of an exec's answer. A line holds output of one stream, as text or, if
// the output is not UTF-8, in base64. The last line holds the exit.
type AgentOutput struct {
	Stdout       string     `json:"stdout,omitempty"`
	StdoutBase64 []byte     `json:"stdout_base64,omitempty"`
	Stderr       string     `json:"stderr,omitempty"`
	StderrBase64 []byte     `json:"stderr_base64,omitempty"`
	Exit         *AgentExit `json:"exit,omitempty"`
}

// AgentExit reports how a command ended.
type AgentExit struct {
	Code       int    `json:"code"`             // exit status; 128 plus the signal number after a signal, as in sh
	Signal     string `json:"signal,omitempty"` // "SIGKILL"
	TimedOut   bool   `json:"timed_out,omitempty"`
	DurationMS int64  `json:"duration_ms"`
}

// AgentFile is a file in a sandbox.
type AgentFile struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"` // "file", "directory", "symlink", "other"
	Size     int64     `json:"size"`
	Mode     string    `json:"mode"` // "644"
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a symlink
}

// AgentFiles describes a path, and lists the entries if the path is a directory.
type AgentFiles struct {
	AgentFile
	Path      string      `json:"path"`
	Entries   []AgentFile `json:"entries,omitempty"`
	Truncated bool        `json:"truncated,omitempty"` // the directory has more entries
}

// Snapshot is a saved copy of an agent sandbox's /work, stored as an image.
type Snapshot struct {
	Name    string    `json:"name"` // "name:version"
	Digest  string    `json:"digest"`
	Tenant  string    `json:"tenant"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"` // of all files
	Files   int       `json:"files"`
}
