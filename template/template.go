// Package template reads fret.yaml, a function's template. A [Dialect] holds the part of the language
// that bases, runtimes and package sites bring, and parses a [Template] or writes the schema of
// templates.
package template

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Template is a parsed fret.yaml with defaults applied. Only Parse makes a Template from
// bytes.
type Template struct {
	ID      string // lower-case name, [a-z0-9][a-z0-9-]{0,62}
	Version string // "0.1.0"; default "latest"
	// Base is for example "native", "native:trixie" or "oci:IMAGE" (see [ParseBase]). Before
	// [Template.Check] it is "" if the runtime decides.
	Base    string
	Runtime string // for example "native"; default: the base's
	// Pipeline are the steps, NAME or NAME@REVISION, functions of the same tenant. A pipeline has
	// no base, runtime, contract or code.
	Pipeline  []string
	Contract  Contract          // default fre, or http or stdio as runtime and isolation say
	Packages  Packages          //
	Slim      Slim              // omissions from FRE's bases
	Keep      []string          // path globs of files that stay in spite of Slim (see [BaseSpec])
	Libs      []string          // shared libraries, "libxml2.so.2"
	Code      Code              //
	Handler   string            // in the runtime's syntax; default: the runtime's
	Env       map[string]string //
	Tenant    string            // default "default"
	Instances Instances
	Resources Resources
	Network   Network // default none
	HTTP      HTTP    // for the runtime http
	Lambda    Lambda  // for the contract lambda
	Events    Events
	Triggers  []Trigger

	Secrets []string // names of the tenant's secrets that instances find in /run/secrets; sorted
	Access  Access   // callers allowed at the gateway; "" (default): the engine's configuration decides
	CORS    *CORS    // nil: the engine's configuration decides

	source *source // for errors with a position; nil for a template that no file holds
}

// Code says where the function's files come from.
type Code struct {
	// Path is the clean relative path of a directory or file in the template's directory, the
	// archive or the repository; default ".".
	Path    string
	Archive string // clean relative path of an archive beside the template, "" for none
	Git     *GitCode
	Build   *BuildStep // nil: use the files unchanged, or as built by the runtime
}

// BuildStep makes the function's files from the code. It runs in a sandbox without network, in a
// copy of the code.
type BuildStep struct {
	Run      string   // by /bin/sh, at the top of the copy
	Packages Packages // available to Run, beside the function's own; lists only
	Output   string   // clean relative path of the directory that becomes /function; default "."
}

// GitCode is a commit of a git repository.
type GitCode struct {
	URL        string // https, ssh or http; also "git@host:path"
	Ref        string // branch, tag or commit; default the repository's HEAD
	Auth       string // name of a credential in the engine's configuration, "" for none
	Submodules bool   // fetch submodules
}

// Key returns the text by which a lock identifies the request. It is a hash, because a URL would
// put a host name into the lock.
func (g *GitCode) Key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %v", g.URL, g.Ref, g.Submodules))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// HTTP says how to reach a function that is an HTTP server.
type HTTP struct {
	Listen Listen // default port
	Port   int    // of the server: $PORT in its environment and command line; default 8080
	// Ready is the path requested until the status is below 500, before the first event. With ""
	// (default), accepting a connection suffices.
	Ready string
}

// Listen says who binds the server's socket.
type Listen string

// The values of Listen.
const (
	ListenPort Listen = "port" // FRE; the server finds the socket as systemd's first (sd_listen_fds(3))
	ListenFD   Listen = "fd"   // FRE, and the server finds it as systemd's first (sd_listen_fds(3))
)

// Slim says what a template leaves out of FRE's bases and of Debian packages.
type Slim int

// The values of Slim.
const (
	SlimDefault Slim = iota // documentation, and files needed only for installation
	SlimTrue                // also files that most functions do not load (BaseSpec.SlimDrop)
	SlimFalse               // of a base documentation, of a package nothing
)

// Isolation says how long a sandbox lives.
type Isolation string

// The isolations.
const (
	IsolationEvent    Isolation = "event"    // a fresh sandbox for every event
	IsolationInstance Isolation = "instance" // reused while warm
)

// Fork says whether instances may be forked from a process that has already imported the handler,
// if the runtime supports forking.
type Fork string

// The values of Fork.
const (
	ForkAuto  Fork = "auto"  // if forking is faster and the module allows it
	ForkNever Fork = "never" // every instance imports the handler itself
)

// Instances bound a function's sandboxes.
type Instances struct {
	Isolation   Isolation     `json:"isolation"`   // default instance; native defaults to event
	Fork        Fork          `json:"fork"`        // default auto
	Concurrency int           `json:"concurrency"` // events at once in one instance; default 1
	Min         int           `json:"min"`         // kept warm; default 0
	Max         int           `json:"max"`         // default 64
	Idle        time.Duration `json:"idle_ns"`     // time until an idle instance is stopped; default 5m
}

// Resources bound one sandbox.
type Resources struct {
	MemoryBytes int64 `json:"memory_bytes"` // "128MiB"; default 128 MiB
	CPUMillis   int64 `json:"cpu_millis"`   // "500m" or "1.5"; default 1000
	// Pids limits processes and threads; default 64, or 2 × concurrency if more. Reused instances
	// need at least concurrency + 8.
	Pids     int64         `json:"pids"`
	TmpBytes int64         `json:"tmp_bytes"`  // default 64 MiB
	Files    int64         `json:"files"`      // default 1024
	Timeout  time.Duration `json:"timeout_ns"` // of one event, wall clock; default 30s
}

// bound is the range of a number.
type bound struct {
	name           string
	n, least, most int64
}

func inBounds(bounds ...bound) error {
	for _, b := range bounds {
		if b.n < b.least || b.n > b.most {
			return fmt.Errorf("%s is %d: must be from %d to %d", b.name, b.n, b.least, b.most)
		}
	}
	return nil
}

// Check refuses numbers that no template can have, in an image from elsewhere.
func (in Instances) Check() error {
	err := inBounds(
		bound{"instances.concurrency", int64(in.Concurrency), 1, maxConcurrency},
		bound{"instances.min", int64(in.Min), 0, maxInstances},
		bound{"instances.max", int64(in.Max), max(1, int64(in.Min)), maxInstances},
		bound{"instances.idle", int64(in.Idle), 0, int64(maxIdle)},
	)
	if err == nil && in.Isolation != IsolationEvent && in.Isolation != IsolationInstance {
		err = fmt.Errorf("instances.isolation %q is unknown", in.Isolation)
	}
	return err
}

// Check refuses numbers that no template can have, in an image from elsewhere.
func (r Resources) Check() error {
	return inBounds(
		bound{"resources.memory", r.MemoryBytes, minMemory, maxMemory},
		bound{"resources.cpu", r.CPUMillis, minCPU, maxCPU},
		bound{"resources.pids", r.Pids, 1, maxPids},
		bound{"resources.tmp", r.TmpBytes, minTmp, maxTmp},
		bound{"resources.files", r.Files, minFiles, maxFiles},
		bound{"resources.timeout", int64(r.Timeout), int64(minTimeout), int64(maxTimeout)},
	)
}

// FileName is the name of a function's template.
const FileName = "fret.yaml"

// Fault adds the position in the template to a [FieldError] in err; other errors pass unchanged.
func (t *Template) Fault(err error) error {
	var field *FieldError
	if err == nil || t.source == nil || !errors.As(err, &field) {
		return err
	}
	p := t.source.place(field.Field)
	if p == t.source.at[""] {
		p = position{} // the template does not set the field, so no line is at fault
	}
	return Errors{t.source.errorAt(p, field.Message)}
}

// Access says who may call a function at the gateway.
type Access string

// The values of Access.
const (
	AccessToken Access = "token" // holders of a token of the function's tenant with the scope invoke
	AccessOpen  Access = "open"  // everybody, if the engine's configuration lets templates say so
)

// CORS says to which web pages of other origins browsers give a function's answers
// (https://fetch.spec.whatwg.org/#http-cors-protocol).
type CORS struct {
	Origins     []string      `json:"origins"`               // "https://app.example", or only "*" for all
	Methods     []string      `json:"methods,omitempty"`     // default GET, HEAD, POST
	Headers     []string      `json:"headers,omitempty"`     // fields that requests may have beyond the safelisted ones
	Credentials bool          `json:"credentials,omitempty"` // send cookies and the like; not with "*"
	MaxAge      time.Duration `json:"max_age_ns,omitempty"`  // how long a browser may cache the permission; default 5m
}

// ofPipelines are the keys allowed in the template of a pipeline, including the keys below.
var ofPipelines = []string{"id", "version", "pipeline", "tenant", "access", "cors", "events", "triggers", "resources"}
