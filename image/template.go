package image

import "time"

// Template is a parsed fret.yaml with defaults applied. ParseTemplate is the
// only way to make one from bytes.
type Template struct {
	ID        string            // lower-case name, [a-z0-9][a-z0-9-]{0,62}
	Version   string            // "0.1.0"; default "latest"
	Base      string            // "python", "node", "native"
	Packages  Packages          //
	Libs      []string          // not supported yet: an error names the issue of the template, not of ours
	Code      Code              //
	Handler   string            // "main.handle" (module.function; python's default, node's is "index.handle"), or a path for native
	Runtime   string            // "" = by base; others not supported yet
	Env       map[string]string //
	Tenant    string            // default "default"
	Instances Instances
	Resources Resources
	Network   Network // default none

	source *source // for errors that point into the file; nil when made by hand
}

// Packages are requirement strings in each ecosystem's own syntax.
type Packages struct {
	Pip   []string // "lxml==5.3.0", "requests>=2"
	NPM   []string // "left-pad@1.3.0", "@scope/name@^2"
	Maven []string
	Deb   []string
}

// Code says where the function's own files come from.
type Code struct {
	Path string // clean relative path of a directory or file below the template's; default "."
	Git  *GitCode
}

// GitCode is parsed and refused: code from git is not supported yet.
type GitCode struct{ URL, Ref, Path, Auth string }

// Isolation says how long a sandbox lives.
type Isolation string

// The isolations.
const (
	IsolationEvent    Isolation = "event"    // a fresh sandbox for every event
	IsolationInstance Isolation = "instance" // reused while warm
)

// Fork says whether instances may be forked from a process that has imported the
// handler already, where the runtime can do that.
type Fork string

// The values of Fork.
const (
	ForkAuto  Fork = "auto"  // where it is faster, and the module allows it
	ForkNever Fork = "never" // every instance imports the handler itself
)

// Instances bound a function's sandboxes.
type Instances struct {
	Isolation   Isolation     `json:"isolation"`   // default instance; native defaults to event
	Fork        Fork          `json:"fork"`        // default auto
	Concurrency int           `json:"concurrency"` // events at once in one instance; default 1
	Min         int           `json:"min"`         // kept warm; default 0
	Max         int           `json:"max"`         // default 64
	Idle        time.Duration `json:"idle_ns"`     // an idle instance is stopped after this; default 5m
}

// Resources bound one sandbox.
type Resources struct {
	MemoryBytes int64         `json:"memory_bytes"` // "128MiB"; default 128 MiB
	CPUMillis   int64         `json:"cpu_millis"`   // "500m" or "1.5"; default 1000
	Pids        int64         `json:"pids"`         // processes and threads; default 64, or 2 × concurrency where that is more; at least concurrency + 8 in instances that are reused
	TmpBytes    int64         `json:"tmp_bytes"`    // default 64 MiB
	Files       int64         `json:"files"`        // default 1024
	Timeout     time.Duration `json:"timeout_ns"`   // of one event, wall clock; default 30s
}
