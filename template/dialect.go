package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// Dialect is the part of the template language that bases, runtimes and package sites bring. The
// parser and the schema read the same Dialect. A Dialect is immutable and safe for concurrent use.
type Dialect struct {
	Bases    []string // names of FRE's base environments
	Runtimes []Runtime
	Sites    []Site
}

// Runtime is what a runtime brings to the template language.
type Runtime struct {
	Name     string
	Bases    []string // FRE's bases in which the runtime works, the default first; it works in bases of others, too
	Anywhere bool     // the runtime works in every base

	// Handlers are the contracts of the runtime, each with its default handler, "" for none.
	Handlers map[Contract]string
	Required string // says what a required handler is; "": templates need none
	Handler  string // describes the handlers of the contract fre, for the schema

	// Serial are contracts under which an instance handles one event at a time.
	Serial []Contract

	// Connection says that functions of the contract fre may write to the connections of clients.
	Connection bool

	// Dotted rewrites handlers of contracts other than fre into the runtime's own syntax; nil: keep.
	Dotted func(handler string) string
}

// Site is what a package site brings to the template language: a key below packages.
type Site struct {
	Name     string   // the key
	Bases    []string // FRE's bases that the packages are for, beside bases of others; nil: all
	About    string   // describes the key, for the schema
	Request  Pattern  // of one package
	Step     string   // says what to write in code.build.packages; "": the key is not allowed there
	Examples []any

	// Extras splits the name of a file with requests into the file and optional dependencies; nil:
	// files have none.
	Extras func(name string) (file string, extras []string)

	Scripts *Names // a key that names packages whose install scripts run; nil for none
	Index   *Names // a key that maps packages to an index; nil for none
}

// Names is a further key of a site, about packages by name.
type Names struct {
	Key      string
	About    string
	Name     Pattern                  // of a package
	Normal   func(name string) string // returns the form in which names are compared; nil: as written
	Examples []any
}

// Pattern is a syntax of strings.
type Pattern struct {
	Pattern *lazyregexp.Regexp
	Want    string // says what to write
}

// runtime returns the runtime with the name, or nil.
func (dialect *Dialect) runtime(name string) *Runtime {
	i := slices.IndexFunc(dialect.Runtimes, func(r Runtime) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &dialect.Runtimes[i]
}

// having returns the names of the runtimes that have a contract.
func (dialect *Dialect) having(c Contract) []string {
	return dialect.named(func(r *Runtime) bool {
		_, ok := r.Handlers[c]
		return ok
	})
}

// named returns the names of the runtimes that is accepts.
func (dialect *Dialect) named(is func(*Runtime) bool) []string {
	var names []string
	for i := range dialect.Runtimes {
		if is(&dialect.Runtimes[i]) {
			names = append(names, dialect.Runtimes[i].Name)
		}
	}
	return names
}

// implied returns the runtime of a contract that only one runtime has, or nil.
func (dialect *Dialect) implied(c Contract) *Runtime {
	names := dialect.having(c)
	if len(names) != 1 {
		return nil
	}
	return dialect.runtime(names[0])
}

// connected names the runtimes with Connection, for errors and the schema.
func (dialect *Dialect) connected() string {
	var names []string
	for i := range dialect.Runtimes {
		switch r := &dialect.Runtimes[i]; {
		case !r.Connection:
		case r.Name == runtimeNative:
			names = append(names, `for native with instances.isolation "instance"`)
		default:
			names = append([]string{"for the runtime " + r.Name}, names...)
		}
	}
	return strings.Join(names, ", and ")
}

// Names of the runtimes that run programs of any language.
const (
	runtimeHTTP   = "http"   // HTTP servers
	runtimeNative = "native" // programs
)

// handlers describes the handlers of each runtime.
func (dialect *Dialect) handlers() string {
	var b strings.Builder
	for _, r := range dialect.Runtimes {
		if r.Handler != "" {
			fmt.Fprintf(&b, "%s: %s. ", r.Name, r.Handler)
		}
	}
	return b.String() + "Other contracts have others: docs/contracts.md."
}

// example names a runtime, for errors.
func (dialect *Dialect) example() string {
	if len(dialect.Runtimes) == 0 {
		return ""
	}
	return fmt.Sprintf(" such as %q", dialect.Runtimes[0].Name)
}

// baseExample names a base, for errors.
func (dialect *Dialect) baseExample() string {
	if len(dialect.Bases) == 0 {
		return ""
	}
	return fmt.Sprintf(" such as %q", dialect.Bases[0])
}

// buildExamples is an example of code.build.
func (dialect *Dialect) buildExamples() []any {
	return []any{object{{"run", "make"}, {"packages", object{{SiteDebian, []string{"make"}}}}, {"output", "dist"}}}
}

// scriptsNeed says in the schema which keys of sites need requests.
func (dialect *Dialect) scriptsNeed(step bool) object {
	var need object
	for _, s := range dialect.Sites {
		if s.Scripts != nil && (!step || s.Step != "") {
			need = append(need, member{s.Scripts.Key, []string{s.Name}})
		}
		if s.Index != nil && !step {
			need = append(need, member{s.Index.Key, []string{s.Name}})
		}
	}
	if need == nil {
		return nil
	}
	return object{{"dependentRequired", need}}
}
