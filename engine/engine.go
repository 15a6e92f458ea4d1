// Package engine is the heart of the daemon. The engine knows functions, starts and stops their
// instances, leases instances to invocations, keeps logs, and lists the node's state. The engine
// speaks no protocol towards users: packages gateway and server translate.
//
// The main types: [Engine]; a function (function.go) has a program (program.go), which its sandboxes
// run, owns its instances (instance.go) and hands them out as leases (lease.go); an event (event.go)
// holds one lease until the body of its answer is closed.
//
// The files form layers: a file uses the files of its own line and of the lines above it.
//
//	errors, config, response, revision     values: errors, options, answers, lists
//	host, metrics, slots, answers          shared by all functions
//	program, channel, secret, explain      what the sandboxes of one revision run
//	interpreters, tools, fork              sources of sandboxes
//	state, function, queue, instance       a function, its waiting events and its instances
//	boot, warm, lease                      the life of instances, and how events get one
//	spec, deployment, engine, agents       the tables of functions and agents
//	event, receive, stdio, call, pipeline  one event, from its body to its answer
//	load, rest, route, deploy, rollout     revisions come, serve and go
//	invoke, replica, agent, open           Invoke, deployments of other nodes, Create, Open
//
// Lock order: those of packages container and build; and Engine.deployMu, live.Tenants.mu,
// interpreters.disk, interpreters.mu, function.mu, live.Log.mu. No code takes one of these locks
// while it holds slots.mu.
//
// Held during disk I/O: Engine.deployMu, live.Tenants.mu, interpreters.disk and live.Log.mu. An
// event waits for such a lock in two cases: the event asks for a revision at rest (deployMu), or
// the engine logs a line of the event (live.Log.mu).
package engine

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// Engine is safe for use by several goroutines.
type Engine struct {
	*host
	live.List          // the client's view of boxes
	*container.Manager // of containers
	*build.Library     // of images
	holds              *live.Holds
	agents             *Agents
	interpreters       *interpreters
	started            time.Time
	nextID             atomic.Uint64 // of invocations; starts at the time of Open, so that ids stay unique over restarts

	measuring sync.Mutex // held while Measure runs

	volumes   *volume.Manager            // size-limited directories: tenants' /work, containers' scratch layers
	scratches *pool.Pool[*volume.Volume] // scratch layers for new containers; nil if a layer costs no time

	deployMu  sync.Mutex
	functions atomic.Pointer[map[string]*deployment] // by qualified name; replaced whole under deployMu
}

// Stopping reports whether Close was called: the engine refuses new work.
func (e *Engine) Stopping() bool { return e.life.Stopping() }

// Closed returns a channel that Close closes when it is called.
func (e *Engine) Closed() <-chan struct{} { return e.life.Closed() }

// Agents returns the sandboxes of agents.
func (e *Engine) Agents() *Agents { return e.agents }

// Work returns the directory seen by a tenant's sandboxes as /work. It is made at first use.
func (e *Engine) Work(tenant string) (string, error) { return e.tenants.Work(tenant) }

// StateDir returns the directory of all state that outlives the engine.
func (e *Engine) StateDir() string { return e.cfg.StateDir }

// UnknownError says that no function has this name, or that the function has no such revision.
// UnknownError wraps fs.ErrNotExist, an error that the start of an instance may return as well.
type UnknownError struct{ Function, Revision string }

func (e *UnknownError) Error() string {
	if e.Revision != "" {
		return fmt.Sprintf("function %q has no revision %q: list revisions with fre function revisions %s", e.Function, e.Revision, e.Function)
	}
	return fmt.Sprintf("there is no function %q", e.Function)
}

func (e *UnknownError) Unwrap() error { return fs.ErrNotExist }

// Code returns [failure.NotFound].
func (e *UnknownError) Code() failure.Code { return failure.NotFound }

// find returns the deployment of a qualified name.
func (e *Engine) find(name string) (*deployment, error) {
	all := *e.functions.Load()
	if d := all[name]; d != nil {
		return d, nil
	}
	if plain, tenant, err := template.SplitName(name); err == nil { // maybe NAME.default
		if d := all[template.QualifiedName(plain, tenant)]; d != nil {
			return d, nil
		}
	}
	return nil, &UnknownError{Function: name}
}

// lookup returns the main revision of a function.
func (e *Engine) lookup(name string) (*function, error) {
	d, err := e.find(name)
	if err != nil {
		return nil, err
	}
	return d.main, nil
}

// resolve returns the number of the revision that a number, an alias or "latest" names.
func (s *functionSpec) resolve(name, what string) (int, error) {
	number, ok := s.Aliases[what]
	if !ok {
		number, _ = strconv.Atoi(what)
	}
	if what == latest {
		number = s.Last
	}
	if s.keptRevision(number) == nil || strconv.Itoa(number) != what && !ok && what != latest {
		return 0, &UnknownError{Function: name, Revision: what}
	}
	return number, nil
}

// each calls fn with every live revision and with the functions behind agents.
func (e *Engine) each(fn func(*function)) {
	for _, d := range *e.functions.Load() {
		for _, f := range d.live {
			fn(f)
		}
	}
	for _, a := range e.agents.all() {
		fn(a.f)
	}
}

// Functions lists the deployed functions by name. Equal content has the same pointer, and the
// content is immutable.
func (e *Engine) Functions() []*Function {
	m := *e.functions.Load()
	out := make([]*Function, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[name].describe())
	}
	return out
}

// Function describes a function. Error: an *UnknownError (fs.ErrNotExist).
func (e *Engine) Function(name string) (*Function, error) {
	d, err := e.find(name)
	if err != nil {
		return nil, err
	}
	return d.describe(), nil
}

// Revisions returns a function's revisions. Errors: *UnknownError.
func (e *Engine) Revisions(name string) (*Revisions, error) {
	d, err := e.find(name)
	if err != nil {
		return nil, err
	}
	return d.listRevisions(), nil
}

// publishLocked publishes a new map of functions with name set to d, or removed if d is nil. The
// caller holds deployMu.
func (e *Engine) publishLocked(name string, d *deployment) {
	next := maps.Clone(*e.functions.Load())
	if d == nil {
		delete(next, name)
	} else {
		next[name] = d
	}
	e.functions.Store(&next)
}

// withLiveLocked publishes d with the revision f live under number, or without that revision if f
// is nil. The caller holds deployMu.
func (e *Engine) withLiveLocked(d *deployment, number int, f *function) error {
	live := maps.Clone(d.live)
	delete(live, number)
	if f != nil {
		live[number] = f
	}
	next, err := newDeployment(d.name, d.spec, live, d.logs)
	if err == nil {
		e.publishLocked(d.name, next)
	}
	return err
}
