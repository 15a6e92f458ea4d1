package image

import (
	"context"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/fre-engine/fre/store"
)

// Base is a base environment that FRE makes out of Debian packages.
// runtimes.Bases lists them.
type Base struct {
	Name string   // of the template's base field: "python", "native"
	Spec BaseSpec // its packages, and what is left out of them

	// Finish runs once over a freshly unpacked base environment: for example it
	// compiles bytecode. It returns further parts to place over it. nil: nothing to do.
	Finish func(ctx context.Context, s *Step) ([]store.Part, error)
}

// Site is a place that packages of one ecosystem come from, by way of its own
// tool. The implementations live in runtimes/; runtimes.Sites lists them. A Site
// is stateless and safe for use by several goroutines.
type Site interface {
	// Name is the key below the template's packages: "pip", "npm".
	Name() string

	// Bases are the base environments of FRE's that its packages are for; nil:
	// all of them. In other bases it looks for what it needs.
	Bases() []string

	// Env says what a program needs in its environment to find the packages, where
	// its runtime does not see to that.
	Env() []string

	// Packages resolves and installs what the template asks of this site and
	// returns one part per package version. lock, never nil, holds the site's
	// section where the one on disk answers the template's request: then exactly
	// those versions and hashes are installed. Where the section is nil and there
	// is something to lock, Packages sets it. It is called where the template asks
	// for something only.
	Packages(ctx context.Context, s *Step, t *Template, lock *Lock) ([]store.Part, error)
}

// RequestReader is a Site whose file of requests counts together with others: those
// it names, or the tool's own lock beside it.
type RequestReader interface {
	Site

	// ReadRequests calls read for each further file that r.File, read already, takes,
	// and checks what can be checked before the base environment is there. Paths are
	// relative to the template's directory; what read returns is kept in r.Beside. Its
	// errors are fs.ErrNotExist, and others that say which file.
	ReadRequests(r *Requests, read func(path string) ([]byte, error)) error
}

// ProgramDirs is a Site whose packages bring programs: functions of every contract have
// these directories on their PATH, before the system's.
type ProgramDirs interface {
	Site
	ProgramDirs() []string
}

// Programs is a Site whose packages' programs need links, which functions and build steps
// find on their PATH.
type Programs interface {
	Site

	// Programs returns the part that holds them, and its directory in the image,
	// for packages that Packages has returned with this lock; no Tree for none.
	Programs(ctx context.Context, s *Step, lock *Lock) (part store.Part, dir string, err error)
}

// Runtime teaches the builder how functions of one language are run. The
// implementations live in runtimes/; runtimes.All lists them. A Runtime is
// stateless and safe for use by several goroutines.
type Runtime interface {
	// Name is the value of the template's runtime field: "python", "go", "http".
	Name() string

	// Bases are the base environments of FRE's that it runs in, the default first
	// and, where it runs in any other, AnyBase last.
	Bases() []string

	// Bootstrap returns the files placed under /opt/fre (path relative to it →
	// content): the program that speaks the channel protocol and loads the
	// handler. Empty for native.
	Bootstrap() map[string][]byte

	// Command returns argv and additional environment of a sandbox that runs
	// the function. It reports bad handler strings as a *FieldError.
	Command(t *Template) (args, env []string, err error)

	// Shell returns how the interpreter for t is started ahead of it, or nil
	// where that cannot be: because there is none, or because env, the function's
	// whole environment, would come too late ([Shell.Fits]).
	Shell(t *Template, env []string) *Shell
}

// ForkServer is a Runtime whose bootstrap, started with FRE_FORK=1 in its
// environment, imports the handler and then makes children that are instances
// (docs/protocol.md).
type ForkServer interface {
	Runtime
	ForkServer()
}

// AnyBase stands for every base environment among [Runtime.Bases].
const AnyBase = "*"

// Compiler is a Runtime whose bootstrap is made in a build step out of what
// Bootstrap returns.
type Compiler interface {
	Runtime

	// CompileBootstrap returns the part to place below /opt/fre instead of the
	// files of Bootstrap. The builder sets its kind, name, version and prefix, and
	// keeps it for as long as the files and the base environment are the same.
	CompileBootstrap(ctx context.Context, s *Step) (store.Part, error)
}

// CodeBuilder is a Runtime that makes functions out of source.
type CodeBuilder interface {
	Runtime

	// Builds says whether code that consists of these files (paths below
	// /function, sorted) has to be built, and on what else than code, template and
	// lock the result depends: a compiler's version. What was built is kept.
	Builds(t *Template, files []string) (toolchain string, ok bool)

	// BuildCode builds the code below source, a directory of this call's own in
	// s.Scratch, and returns the directory, in s.Scratch too, that becomes
	// /function instead. Faults of the code come as a *FieldError for "code.path".
	BuildCode(ctx context.Context, s *Step, t *Template, lock *Lock, source string) (built string, err error)
}

// Project is a CodeBuilder whose source may say itself which packages it needs.
type Project interface {
	CodeBuilder

	// Requests returns the package site whose requests stand in a file of the code,
	// the file's path in it and its text; "" for none. It counts where the template
	// asks nothing of that site. Faults of the file come with the site, as a
	// *FieldError for "code.path".
	Requests(code fs.FS) (site, file string, text []byte, err error)
}

// Repository fetches code from git: runtimes/git implements it.
type Repository interface {
	// Fetch checks out what code asks for, or commit where that is not "", to a
	// directory in s.Scratch, without git's own files, all time stamps those of the
	// commit. It returns the directory and the commit's id. Faults that the template
	// or the engine's configuration can mend are a *FieldError below "code.git".
	Fetch(ctx context.Context, s *Step, code *GitCode, commit string) (dir, id string, err error)
}

// BaseSpec names the Debian packages of a base environment.
type BaseSpec struct {
	Roots   []string // packages whose dependency closure is taken
	Also    []string `json:",omitempty"` // packages that are taken like Roots, if the release has them
	Exclude []string // packages left out of the closure (and not followed)
	Drop    []string // path globs (path.Match, "**" for any depth) of what no program of the base reads
	Keep    []string `json:",omitempty"` // path globs of what stays in spite of Drop

	// A template with slim: true also leaves out the packages Also and SlimExclude and
	// the files SlimDrop.
	SlimExclude []string `json:",omitempty"`
	SlimDrop    []string `json:",omitempty"`

	// Apart are parts of the language that Debian has in packages of their own, too
	// large for a base: what a program asks for → the package.
	Apart map[string]string `json:",omitempty"`
}

// slimmed is s for a template with that slim and keep.
func (s BaseSpec) slimmed(slim Slim, keep []string) BaseSpec {
	switch slim {
	case SlimDefault:
	case SlimTrue:
		s.Exclude = slices.Concat(s.Exclude, s.Also, s.SlimExclude)
		s.Drop = slices.Concat(s.Drop, s.SlimDrop)
	case SlimFalse:
		s.Drop = documentation()
	}
	s.SlimExclude, s.SlimDrop = nil, nil
	s.Keep = slices.Compact(slices.Sorted(slices.Values(keep)))
	return s
}

// Step is what a Runtime may use while building: the store, a sandbox runner,
// settings taken from the host's own tool configuration, and a progress sink.
type Step struct {
	// Rootfs is the directory of the base environment: for Base.Finish the
	// unpacked one, for others the finished one. Read-only.
	Rootfs string

	// Path is the PATH of programs in it.
	Path string

	// Platform tells apart the systems that what is compiled for one of them may
	// not run on: "" for all of FRE's own bases of one version of an interpreter.
	Platform string

	// LeavesOut, for Base.Finish alone, says whether slimming leaves out a path below
	// the root that Finish would add, and if so counts it. A path of part of a file, such
	// as a module of a JVM, has names: what a program asks for.
	LeavesOut func(path string, bytes int64, names ...string) bool

	// Debian are the Debian packages of the base environment that FRE made, and their
	// versions; nil for other bases and for Base.Finish.
	Debian map[string]string

	// Dir is the template's directory, for files that the template names; nil for
	// Base.Finish. Read-only.
	Dir *os.Root

	Store    *store.Store
	Run      Runner
	Settings Settings
	Report   func(Event)

	// Tools returns the rootfs directory of a tool image: the named base's
	// environment plus further Debian packages (pip, npm), built on first use and
	// kept in the local registry.
	Tools func(ctx context.Context, base string, debianPackages ...string) (rootfs string, err error)

	// Scratch is a directory on the store's file system, writable, removed when
	// the build ends.
	Scratch string
}

// Program finds a program of the base environment along its PATH: an absolute path
// there. Errors: fs.ErrNotExist.
func (s *Step) Program(name string) (string, error) { return lookPath(s.Rootfs, name, s.Path) }

// Runner runs a build step inside a sandbox: unprivileged user, no function's
// data, network only where asked. engine implements it over package sandbox.
type Runner interface {
	Run(ctx context.Context, c Command) error
}

// Command is one sandboxed build step. Run returns an *ExitError with the last
// lines of output when it exits non-zero.
type Command struct {
	Rootfs  string
	Args    []string
	Env     []string
	Dir     string
	Binds   []Bind // writable binds are made usable for the sandbox's user by the Runner
	Network bool   // host network, for package sites
	Stdout  io.Writer
	Stderr  io.Writer

	// Parks says that the program can be started before its last argument is known,
	// and before what it writes to is there: without that argument it parks
	// (docs/protocol.md), and then finds it in LOAD, as the handler. The Runner may
	// keep some ready, each for one run. Until LOAD it must not run anything but
	// FRE's own and the distribution's programs: read-only binds, which are there
	// from the start, hold nothing of a build's.
	Parks bool
}

// Bind places a host file or directory in the sandbox. Target must exist in
// the rootfs (/work always does).
type Bind struct {
	Source, Target string
	Writable       bool
}

// Settings are the host's own configuration of package tools, read by the
// daemon (pip, npm, apt, CA certificates, proxies) and overridable in FRE's own
// configuration file. Values may hold credentials: never log or lock them.
type Settings struct {
	PipEnv       []string          // environment for pip and uv: PIP_INDEX_URL, UV_DEFAULT_INDEX, …
	PipIndexes   map[string]string // URLs of the indexes that packages.pip_index may name; they may hold passwords
	NpmRC        string            // host path of an npmrc to bind, "" for none
	GemSources   []string          // URLs of gem sources, none for RubyGems' own default; they may hold passwords
	ComposerHome string            // host directory of Composer's config.json and auth.json, "" for none
	ComposerEnv  []string          // environment for Composer: COMPOSER_AUTH
	Git          []GitCredential
	GoEnv        []string // environment for the go command: GOPROXY, GOPRIVATE, …
	Netrc        string   // host path of the passwords for sites of Go modules (netrc(5)), "" for none
	CACerts      string   // host path of the CA bundle

	MavenSettings, MavenGlobal string   // host paths of Maven's settings.xml, the user's and the machine's, "" for none
	Env                        []string // for every step: http_proxy, https_proxy, no_proxy in both cases, npm_config_registry, …
}

// Event is one line of build progress.
type Event struct {
	Step    string `json:"step"`              // "wait" (for its turn), "base", "packages", "code", "link"
	Name    string `json:"name,omitempty"`    // the part in question
	Message string `json:"message,omitempty"` // for people
	Done    int64  `json:"done,omitempty"`    // of Total; with End its size, where known
	Total   int64  `json:"total,omitempty"`   // 0: not known
	Unit    string `json:"unit,omitempty"`    // of Done and Total: UnitBytes or UnitItems
	End     bool   `json:"end,omitempty"`     // the part is whole: nothing more comes of this Step and Name
}

// Units of an [Event]; without one, those who show it say items.
const (
	UnitBytes = "bytes"
	UnitItems = "items"
)
