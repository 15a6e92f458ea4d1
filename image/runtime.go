package image

import (
	"context"
	"io"
	"io/fs"
	"os"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Base is a base environment that FRE makes from Debian packages. runtimes.Bases lists all bases.
type Base struct {
	Name string   // in the template's base field, for example "native"
	Spec BaseSpec // packages and omissions

	// Finish runs once in a newly unpacked base environment, for example to compile bytecode. It
	// returns parts to place over the base. nil: nothing to do.
	Finish func(ctx context.Context, s *Step) ([]store.Part, error)
}

// Site is a source of packages of one ecosystem, used through the ecosystem's own tool. The
// implementations are in runtimes/; runtimes.Sites lists them. A Site is stateless and safe for
// concurrent use.
type Site interface {
	// Name returns the key below the template's packages.
	Name() string

	// Syntax returns how templates write requests. Name and Bases are set by [Dialect].
	Syntax() template.Site

	// Bases returns the FRE bases that the packages are for; nil: all. In foreign bases the site
	// searches for the programs it needs.
	Bases() []string

	// Env returns variables by which programs find the packages, unless the runtime sets them.
	Env() []string

	// Packages resolves and installs the packages that the template requests, and returns one part
	// for each package version. lock is never nil. If the lock file answers the request, lock.Sites
	// has the site's section, and Packages installs exactly its versions and hashes. Otherwise it
	// has none, and Packages sets it if there is something to lock. Packages is called only for
	// templates that request packages of the site.
	Packages(ctx context.Context, s *Step, t *template.Template, lock *Lock) ([]store.Part, error)
}

// Locker is a Site with a section in the lock.
type Locker interface {
	Site

	// Section returns an empty section, to be read from a lock.
	Section() Section
}

// Packaged is a Site whose packages have files of the ecosystem's own kinds.
type Packaged interface {
	Site
	Packaging() Packaging
}

// Packaging describes the packages of an ecosystem.
type Packaging struct {
	Metadata []string // path globs of files that describe a package as a whole, for programs and people
	Addons   []string // extensions of shared libraries beside ".so", each with its dot

	// Kinds of parts are packages of Type, in package URLs (github.com/package-url/purl-spec).
	Kinds []string
	Type  string
	// URLName returns the name in package URLs, with a slash after a namespace; "" for a part that is
	// no package. nil: the part's name.
	URLName func(name string) string
}

// RequestReader is a Site whose request file refers to further files: included files, or the tool's
// own lock file.
type RequestReader interface {
	Site

	// ReadRequests calls read for each further file that r.File uses (r.File itself is read), and
	// checks as much as possible without the base environment. Paths are relative to the template's
	// directory; results of read are kept in r.Beside. Errors of read: fs.ErrNotExist, and errors
	// that name the file.
	ReadRequests(r *template.Requests, read func(path string) ([]byte, error)) error
}

// ProgramDirs is a Site whose packages contain programs: functions of every contract have these
// directories on their PATH, before the system's.
type ProgramDirs interface {
	Site
	ProgramDirs() []string
}

// Programs is a Site whose packages' programs need links. Functions and build steps find the links
// on their PATH.
type Programs interface {
	Site

	// Programs returns the part with the links and its directory in the image, for the packages
	// that Packages returned with this lock. No Tree: no links.
	Programs(ctx context.Context, s *Step, lock *Lock) (part store.Part, dir string, err error)
}

// Runtime tells the builder how to run functions of one language. The implementations are in
// runtimes/; runtimes.All lists them. A Runtime is stateless and safe for concurrent use.
type Runtime interface {
	// Name returns the value of the template's runtime field, for example "native".
	Name() string

	// Bases returns the FRE bases in which the runtime works, the default first. AnyBase, as the
	// last, means any base.
	Bases() []string

	// Bootstrap returns the files below /opt/fre, by relative path: the program that speaks the
	// channel protocol and loads the handler. Empty for native.
	Bootstrap() map[string][]byte

	// Command returns argv and additional environment of a function's sandbox. A bad handler gives
	// a *FieldError.
	Command(t *template.Template) (args, env []string, err error)

	// Parked returns how to start a parked interpreter for t. nil: the runtime has no interpreter,
	// or the interpreter reads a variable of env, the function's whole environment, when it starts
	// ([ParkedInterpreter.Fits]).
	Parked(t *template.Template, env []string) *ParkedInterpreter
}

// Described is a Runtime that adds to the template language: see [Dialect].
type Described interface {
	Runtime

	// Describe returns the default handlers and the like. Name, Bases and Anywhere are set by Dialect.
	Describe() template.Runtime
}

// ForkServer is a Runtime whose bootstrap, with FRE_FORK=1 in the environment, imports the handler
// and then forks children that are instances (docs/protocol.md).
type ForkServer interface {
	Runtime
	ForkServer()
}

// AnyBase stands for every base environment in [Runtime.Bases].
const AnyBase = "*"

// Compiler is a Runtime whose bootstrap is built, in a build step, from the files of Bootstrap.
type Compiler interface {
	Runtime

	// CompileBootstrap returns the part below /opt/fre that replaces the files of Bootstrap. The
	// builder sets kind, name, version and prefix of the part, and keeps the part while files and
	// base environment are the same.
	CompileBootstrap(ctx context.Context, s *Step) (store.Part, error)
}

// CodeBuilder is a Runtime that builds functions from source.
type CodeBuilder interface {
	Runtime

	// Builds reports whether code with the given files (sorted paths below /function) must be
	// built. toolchain names what else the result depends on, apart from code, template and lock: a
	// compiler's version. Results are cached.
	Builds(t *template.Template, files []string) (toolchain string, ok bool)

	// BuildCode builds the code in source, a private directory in s.Scratch, and returns the
	// directory in s.Scratch that becomes /function. Faults of the code give a *FieldError for
	// "code.path".
	BuildCode(ctx context.Context, s *Step, t *template.Template, lock *Lock, source string) (built string, err error)
}

// Project is a CodeBuilder whose source can itself request packages.
type Project interface {
	CodeBuilder

	// Requests returns the package site whose requests a file of the code contains, the file's path
	// and its text; "" without such a file. The requests count only if the template requests
	// nothing of the site. Faults of the file give the site and a *FieldError for "code.path".
	Requests(code fs.FS) (site, file string, text []byte, err error)
}

// Repository fetches code from git. runtimes/git implements it.
type Repository interface {
	// Fetch checks out code's ref, or commit unless "", into a directory in s.Scratch, without
	// git's own files and with the time of the commit on all files. It returns the directory and
	// the commit's id. Faults that the template or the engine's configuration can correct give a
	// *FieldError below "code.git".
	Fetch(ctx context.Context, s *Step, code *template.GitCode, commit string) (dir, id string, err error)
}

// BaseSpec says which Debian packages a base environment has.
type BaseSpec struct {
	Roots   []string // packages taken with all their dependencies
	Also    []string `json:",omitempty"` // like Roots, but only if the release has them
	Exclude []string // packages left out of the closure, and not followed
	Drop    []string // path globs (path.Match, "**" for any depth) of files that no program of the base reads
	Keep    []string `json:",omitempty"` // path globs of files that stay in spite of Drop

	// A template with slim: true also leaves out the packages in Also and SlimExclude, and the
	// files in SlimDrop.
	SlimExclude []string `json:",omitempty"`
	SlimDrop    []string `json:",omitempty"`

	// Apart are parts of the language that Debian packages separately and that are too large for a
	// base: name that a program asks for → package.
	Apart map[string]string `json:",omitempty"`
}

// Step is what a build step may use: the store, a sandbox runner, the host's settings of package
// tools, and a report of progress.
type Step struct {
	// Rootfs is the directory of the base environment: for Base.Finish the unpacked one, otherwise
	// the finished one. Read-only.
	Rootfs string

	// Path is the PATH of programs in Rootfs.
	Path string

	// Platform distinguishes systems that need separately compiled code. "": FRE's own bases, which
	// are compatible for each version of an interpreter.
	Platform string

	// LeavesOut, only for Base.Finish, reports whether slimming leaves out a path below the root
	// that Finish would add, and then counts the bytes. A path inside a file, for example a module
	// of a JVM, has names by which programs ask for it.
	LeavesOut func(path string, bytes int64, names ...string) bool

	// Debian are the Debian packages of an FRE base, with their versions; nil for other bases and
	// for Base.Finish.
	Debian map[string]string

	// Dir is the template's directory, for files that the template names; nil for Base.Finish.
	// Read-only.
	Dir *os.Root

	Store    *store.Store
	Run      Runner
	Settings Settings
	Report   func(Progress)

	// Tools returns the rootfs directory of a tool image: the named base with further Debian
	// packages for a site. The image is built on first use and stays in the store.
	Tools func(ctx context.Context, base string, debianPackages ...string) (rootfs string, err error)

	// Scratch is a writable directory on the store's file system, removed after the step.
	Scratch string
}

// Runner runs a build step in a sandbox: as an unprivileged user, without data of functions, with
// network only if requested. engine implements Runner with package sandbox.
type Runner interface {
	Run(ctx context.Context, c Command) error
}

// Command is a sandboxed build step. Run returns an *ExitError with the last lines of output if the
// command exits non-zero.
type Command struct {
	Rootfs  string
	Args    []string
	Env     []string
	Dir     string
	Binds   []Bind // the Runner makes writable binds usable for the sandbox's user
	Network bool   // the host's network, for package sites
	Stdout  io.Writer
	Stderr  io.Writer

	// Parks says that the program can start before its last argument is known and before its output
	// directory exists. Without the argument the program parks (docs/protocol.md), and later reads
	// the argument from LOAD, as the handler. The Runner may keep such programs parked, each for
	// one run. Before LOAD the program must run only programs of FRE and of the distribution;
	// read-only binds exist from the start, so they must not hold data of a build.
	Parks bool
}

// Bind places a host file or directory in the sandbox. Target must exist in the rootfs (/work
// always does).
type Bind struct {
	Source, Target string
	Writable       bool
}

// Progress is one line of build progress.
type Progress struct {
	Step    string `json:"step"`              // "wait" (for a turn), "base", "packages", "code", "link"
	Name    string `json:"name,omitempty"`    // of the part
	Message string `json:"message,omitempty"` // for people
	Done    int64  `json:"done,omitempty"`    // of Total; with End the size, if known
	Total   int64  `json:"total,omitempty"`   // 0: unknown
	Unit    string `json:"unit,omitempty"`    // of Done and Total: UnitBytes or UnitItems
	End     bool   `json:"end,omitempty"`     // the part is complete: the last event with this Step and Name
}

// Units of an [Progress]. Without a unit, clients display items.
const (
	UnitBytes = "bytes"
	UnitItems = "items"
)
