package image

import (
	"context"
	"io"

	"github.com/fre-engine/fre/store"
)

// Runtime teaches the builder one language. The implementations live in
// runtimes/; runtimes.All lists them. A Runtime is stateless and safe for use
// by several goroutines.
type Runtime interface {
	// Name is the value of the template's base field: "python", "node", "native".
	Name() string

	// Base says which Debian packages make the base environment and what is
	// left out of them.
	Base() BaseSpec

	// FinishBase runs once over a freshly unpacked base environment: for
	// example it compiles bytecode. It returns further parts to place over it.
	FinishBase(ctx context.Context, b *Step) ([]store.Part, error)

	// Packages resolves and installs what the template asks of the runtime's
	// own package site and returns one part per package version. lock, never
	// nil, holds the runtime's section where the one on disk answers the
	// template's request: then exactly those versions and hashes are installed.
	// Where the section is nil and there is something to lock, Packages sets it.
	Packages(ctx context.Context, b *Step, t *Template, lock *Lock) ([]store.Part, error)

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

// BaseSpec names the Debian packages of a base environment.
type BaseSpec struct {
	Roots   []string // packages whose dependency closure is taken
	Exclude []string // packages left out of the closure (and not followed)
	Drop    []string // path globs (path.Match, "**" for any depth) left out of the tree
}

// Step is what a Runtime may use while building: the store, a sandbox runner,
// settings taken from the host's own tool configuration, and a progress sink.
type Step struct {
	// Rootfs is the directory of the base environment: for FinishBase the
	// unpacked one, for Packages the finished one. Read-only.
	Rootfs string

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
	PipEnv  []string // environment for pip and uv: PIP_INDEX_URL, UV_DEFAULT_INDEX, …
	NpmRC   string   // host path of an npmrc to bind, "" for none
	CACerts string   // host path of the CA bundle
	Env     []string // for every step: http_proxy, https_proxy, no_proxy in both cases, npm_config_registry, …
}

// Event is one line of build progress.
type Event struct {
	Step    string `json:"step"`              // "base", "packages", "code", "link"
	Name    string `json:"name,omitempty"`    // the part in question
	Message string `json:"message,omitempty"` // for people
	Done    int64  `json:"done,omitempty"`    // of Total, bytes or items
	Total   int64  `json:"total,omitempty"`
}
