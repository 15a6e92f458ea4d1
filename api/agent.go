package api

import "time"

// AgentRequest is the JSON body that makes a sandbox for an agent. All of it has
// defaults.
type AgentRequest struct {
	Image    string `json:"image,omitempty"`    // a base's name, or an image: name, name:version, digest or a prefix of it; "agent" if empty
	Tenant   string `json:"tenant,omitempty"`   // the token's, else "default"
	Snapshot string `json:"snapshot,omitempty"` // what /work begins with

	Memory    string   `json:"memory,omitempty"`     // "512MiB", which is the default
	CPUMillis int64    `json:"cpu_millis,omitempty"` // default 1000
	Work      string   `json:"work,omitempty"`       // limit of /work, such as "1GiB"; default as for functions
	Network   string   `json:"network,omitempty"`    // none or egress; default none
	Allow     []string `json:"allow,omitempty"`      // with egress: nothing but these, as in a template

	IdleSeconds int64 `json:"idle_seconds,omitempty"` // it is removed that long after its last use; default 900
	AgeSeconds  int64 `json:"age_seconds,omitempty"`  // and that long after it was made; default 28800
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
	WorkBytes   int64     `json:"work_bytes,omitempty"` // limit of /work; 0: none
	Created     time.Time `json:"created"`
	Used        time.Time `json:"used"`
	Expires     time.Time `json:"expires"`             // unless it is used before
	By          string    `json:"by,omitempty"`        // who made it
	Busy        int       `json:"busy"`                // commands and transfers under way
	Running     bool      `json:"running"`             // false: it ended, of too much memory perhaps, and starts with the next command
	OOMKills    int64     `json:"oom_kills,omitempty"` // processes that the kernel killed because memory_bytes were used up, since the sandbox's program began; not in lists
}

// AgentExec is a command: the first line of an exec's body. What follows that line is
// the command's stdin.
type AgentExec struct {
	Args      []string          `json:"args,omitempty"`       // program and arguments; or
	Shell     string            `json:"shell,omitempty"`      // a line for /bin/sh
	Dir       string            `json:"dir,omitempty"`        // default /work, which it is relative to
	Env       map[string]string `json:"env,omitempty"`        // besides the sandbox's own
	TimeoutMS int64             `json:"timeout_ms,omitempty"` // default 600000, at most 3600000
}

// AgentOutput is one line of an exec's answer: output of one of the streams, as text or,
// where it is no UTF-8, in base64; or, as the last line, the exit.
type AgentOutput struct {
	Stdout       string     `json:"stdout,omitempty"`
	StdoutBase64 []byte     `json:"stdout_base64,omitempty"`
	Stderr       string     `json:"stderr,omitempty"`
	StderrBase64 []byte     `json:"stderr_base64,omitempty"`
	Exit         *AgentExit `json:"exit,omitempty"`
}

// AgentExit is how a command ended.
type AgentExit struct {
	Code       int    `json:"code"`             // as shells have it: 128 and the signal's number
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

// AgentFiles is what is at a path, and what is in it where that is a directory.
type AgentFiles struct {
	AgentFile
	Path      string      `json:"path"`
	Entries   []AgentFile `json:"entries,omitempty"`
	Truncated bool        `json:"truncated,omitempty"` // there are more entries
}

// Snapshot is what was in a sandbox's /work: an image.
type Snapshot struct {
	Name    string    `json:"name"` // "name:version"
	Digest  string    `json:"digest"`
	Tenant  string    `json:"tenant"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"` // of all files
	Files   int       `json:"files"`
}
