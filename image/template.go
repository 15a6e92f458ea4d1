package image

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Template is a parsed fret.yaml with defaults applied. ParseTemplate is the
// only way to make one from bytes.
type Template struct {
	ID        string            // lower-case name, [a-z0-9][a-z0-9-]{0,62}
	Version   string            // "0.1.0"; default "latest"
	Base      string            // "python", "node", "python:trixie" (see [ParseBase]); "" until [Template.Check] where the runtime says it
	Runtime   string            // "python", "go", "http"; default the base's own
	Pipeline  []string          // functions of the same tenant, NAME or NAME@REVISION, that it is one behind the other; then it has no base, runtime, contract, code
	Contract  Contract          // default fre; http and stdio where the runtime and isolation say so
	Packages  Packages          //
	Slim      Slim              // what is left out of FRE's bases
	Keep      []string          // path globs of what stays nevertheless (see [BaseSpec])
	Libs      []string          // shared libraries, "libxml2.so.2"
	Code      Code              //
	Handler   string            // in the runtime's own syntax; "main.handle" is python's default
	Env       map[string]string //
	Tenant    string            // default "default"
	Instances Instances
	Resources Resources
	Network   Network // default none
	HTTP      HTTP    // of the runtime http
	Lambda    Lambda  // of the contract lambda
	Events    Events
	Triggers  []Trigger

	Secrets []string // of the tenant's, that instances find in /run/secrets; sorted
	Access  Access   // who may call it by the gateway; "" (default): as the engine's configuration says
	CORS    *CORS    // nil: as the engine's configuration says

	source *source // for errors that point into the file; nil when made by hand
}

// Packages are what a template asks of each package site.
type Packages struct {
	Pip      Requests // "lxml==5.3.0", "requests>=2"
	Composer Requests // "monolog/monolog:^3"
	Gem      Requests // "sinatra:~> 4.0"
	NPM      Requests // "left-pad@1.3.0", "@scope/name@^2"
	Maven    Requests
	Deb      Requests

	// PipIndex has the index that a package of pip comes from, by a name that the engine's
	// configuration knows ([Settings.PipIndexes]). Packages are by [NormalName]; all others
	// come from the host's indexes.
	PipIndex map[string]string `json:",omitempty"`

	// Names of npm packages whose install scripts run.
	NPMScripts []string `json:",omitempty"`
}

// of returns the requests of the site of that name, or nil.
func (p *Packages) of(site string) *Requests {
	switch site {
	case "pip":
		return &p.Pip
	case "composer":
		return &p.Composer
	case "gem":
		return &p.Gem
	case "npm":
		return &p.NPM
	case "maven":
		return &p.Maven
	case "deb":
		return &p.Deb
	}
	return nil
}

// Requests are packages by name, in the site's own syntax, or a file beside the
// template that says so: at most one of the two.
type Requests struct {
	List   []string
	File   string   // clean relative path
	Extras []string // sorted; of a pyproject.toml: its optional dependencies

	Text   []byte            // of the file, once Build has read it
	Beside map[string][]byte // further files it takes, by clean relative path: see [RequestReader]
}

// Key stands in a lock for the requests that it answers: the list, or name and
// digest of each file.
func (r Requests) Key() []string {
	if r.File == "" {
		return slices.Clone(r.List)
	}
	extras := ""
	if len(r.Extras) > 0 {
		extras = "[" + strings.Join(r.Extras, ",") + "]"
	}
	out := []string{fmt.Sprintf("%s%s sha256:%x", r.File, extras, sha256.Sum256(r.Text))}
	for _, name := range slices.Sorted(maps.Keys(r.Beside)) {
		out = append(out, fmt.Sprintf("%s sha256:%x", name, sha256.Sum256(r.Beside[name])))
	}
	return out
}

// None says that nothing is asked for.
func (r Requests) None() bool { return len(r.List) == 0 && r.File == "" }

// Reads are the paths beside the template that a build of it reads, whether or not
// .freignore leaves them out of the code: requests for packages, the base, the code's archive.
func (t *Template) Reads() []string {
	var out []string
	if ref, err := ParseBase(t.Base); err == nil && ref.Kind != BaseDebian && ref.Kind != BaseOCI {
		out = append(out, ref.Name)
	}
	for _, r := range []Requests{t.Packages.Pip, t.Packages.NPM, t.Packages.Maven, t.Packages.Composer, t.Packages.Gem} {
		if r.File != "" {
			out = append(out, r.File)
		}
	}
	if t.Code.Archive != "" {
		out = append(out, t.Code.Archive)
	}
	return out
}

// Code says where the function's own files come from.
type Code struct {
	Path    string // clean relative path of a directory or file below the template's directory, the archive's or the repository's top; default "."
	Archive string // clean relative path of an archive beside the template, "" for none
	Git     *GitCode
	Build   *BuildStep // nil: the files are taken as they are, or built by the runtime
}

// BuildStep makes the function's files out of the code: in a sandbox, in a copy of
// it, without network.
type BuildStep struct {
	Run      string   // by /bin/sh, in the copy's top
	Packages Packages // there while it runs, beside the function's own; lists only
	Output   string   // clean relative path of the directory that becomes /function; default "."
}

// GitCode is a commit of a git repository.
type GitCode struct {
	URL        string // https, ssh or http; "git@host:path" too
	Ref        string // branch, tag or commit; default the repository's HEAD
	Auth       string // name of a credential in the engine's configuration, "" for none
	Submodules bool   // whether they are fetched
}

// HTTP says how a function that is an HTTP server is reached.
type HTTP struct {
	Listen Listen // default port
	Port   int    // where the server listens: $PORT in its environment and its command line; default 8080
	Ready  string // path asked for until its status is below 500, before the first event; "" (default): to accept is enough
}

// Listen says who binds a server's socket.
type Listen string

// The values of Listen.
const (
	ListenPort Listen = "port" // the server
	ListenFD   Listen = "fd"   // FRE, and the server finds it as systemd's first (sd_listen_fds(3))
)

// Slim says what FRE's bases and Debian packages leave out for a template.
type Slim int

// The values of Slim.
const (
	SlimDefault Slim = iota // documentation, and what serves installation alone
	SlimTrue                // also what most functions do not load (BaseSpec.SlimDrop)
	SlimFalse               // of a base documentation, of a package nothing
)

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
