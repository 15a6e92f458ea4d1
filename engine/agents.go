package engine

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// An agent's sandbox is a function with one instance. No user deploys this function, and no
// event finds it by name. It runs FRE's own program in an image of the caller's choice and has
// its own /work. Commands and file accesses are events (function/adapter/agent.go),
// so all rules for functions apply without a second mechanism:
//
//	create ─▶ event, event, … ─▶ removed, idle for too long, too old, or the engine ended
//
// A snapshot, an image like any other, keeps the content of /work.

// ErrNoAgent reports an unknown agent's sandbox. It wraps fs.ErrNotExist.
var ErrNoAgent = failure.Wrap(failure.NotFound, fmt.Errorf("no such agent's sandbox: %w", fs.ErrNotExist), "the sandbox may have expired: list sandboxes with fre agent ls, or create one with fre agent create")

// Defaults and limits of agents' sandboxes.
const (
	agentMemory      = 512 << 20
	agentLeastMemory = 32 << 20
	agentCPU         = 1000
	agentPids        = 256
	agentTmp         = 64 << 20
	agentFiles       = 1024
	agentIdle        = 15 * time.Minute
	agentAge         = 8 * time.Hour
	agentMostAge     = 7 * 24 * time.Hour
	agentEvents      = 32 // at once; the program has its own limit of commands
	agentEventTime   = time.Hour + time.Minute
	agentsOfTenant   = 128
)

// AgentOptions configure an agent's sandbox. The zero value means the tenant "default" and the
// base "agent".
type AgentOptions struct {
	Tenant   string
	Image    string // name of a base, or an image; "agent" if empty
	Snapshot string // an image made by TakeSnapshot with the first content of /work

	MemoryBytes, CPUMillis, WorkBytes int64
	Network                           template.Network
	Idle                              time.Duration // lifetime after the last use
	Age                               time.Duration // lifetime after creation
	By                                string        // the creator, for the record
}

// Agent describes an agent's sandbox in lists. The caller owns it.
type Agent struct {
	ID        string
	Tenant    string
	Image     string // as named in AgentOptions
	Digest    store.Digest
	Snapshot  store.Digest // "" for none
	Network   template.Network
	Created   time.Time
	Used      time.Time
	Expires   time.Time // if the sandbox is not used before
	By        string
	Busy      int // events under way
	Running   bool
	OOMKills  int64 // processes killed since the program began because of the memory limit; 0 in lists
	Resources template.Resources
	WorkBytes int64 // limit of /work; 0: none
}

// Agents is the table of all agents' sandboxes, safe for use by several goroutines. See
// [Engine.Agents].
type Agents struct {
	e *Engine

	mu   sync.Mutex
	byID map[string]*agent
}

func newAgents(e *Engine) *Agents { return &Agents{e: e, byID: make(map[string]*agent)} }

type agent struct {
	f     *function
	shown Agent // the fields that never change

	idle, age time.Duration

	mu    sync.Mutex
	used  time.Time
	busy  int
	ended bool
	timer *time.Timer
}

func (o *AgentOptions) complete() error {
	o.Tenant, o.Image = cmp.Or(o.Tenant, template.DefaultTenant), cmp.Or(o.Image, "agent")
	o.MemoryBytes, o.CPUMillis = cmp.Or(o.MemoryBytes, agentMemory), cmp.Or(o.CPUMillis, agentCPU)
	o.Idle, o.Age = cmp.Or(o.Idle, agentIdle), cmp.Or(o.Age, agentAge)
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("agent's sandbox: %w", &template.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case !template.ValidName(o.Tenant):
		return bad("tenant", "%q is not a tenant's name", o.Tenant)
	case o.MemoryBytes < agentLeastMemory:
		return bad("memory_bytes", "must be at least %d", agentLeastMemory)
	case o.CPUMillis < 1:
		return bad("cpu_millis", "%d is not positive", o.CPUMillis)
	case o.WorkBytes < 0 || o.WorkBytes > 0 && o.WorkBytes < volume.MinBytes:
		return bad("work_bytes", "a limit is %d at least", int64(volume.MinBytes))
	case o.Idle < time.Second || o.Idle > agentMostAge:
		return bad("idle", "%s is not within 1s and %s", o.Idle, agentMostAge)
	case o.Age < time.Second || o.Age > agentMostAge:
		return bad("age", "%s is not within 1s and %s", o.Age, agentMostAge)
	case o.Network.Mode == template.NetworkHost, o.Network.LendConnection:
		return bad("network", "unknown mode for an agent's sandbox: write none or egress")
	}
	return nil
}

// expiresLocked returns when the sandbox ends without further use. An event under way is a use.
func (a *agent) expiresLocked() time.Time {
	used := a.used
	if a.busy > 0 {
		used = time.Now()
	}
	idle, old := used.Add(a.idle), a.shown.Created.Add(a.age)
	if old.Before(idle) {
		return old
	}
	return idle
}

func (a *agent) describe() *Agent {
	out := a.shown
	a.mu.Lock()
	out.Used, out.Expires, out.Busy = a.used.UTC(), a.expiresLocked().UTC(), a.busy
	a.mu.Unlock()
	if a.f != nil {
		out.Running = a.f.count().instances > 0
	}
	return &out
}

// find returns a started sandbox, or ErrNoAgent.
func (t *Agents) find(id string) (*agent, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.byID[id]
	if a == nil || a.f == nil {
		return nil, fmt.Errorf("%q: %w", id, ErrNoAgent)
	}
	return a, nil
}

func (t *Agents) all() []*agent {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*agent
	for _, a := range t.byID {
		if a.f != nil {
			out = append(out, a)
		}
	}
	return out
}

// List lists the agents' sandboxes, oldest first.
func (t *Agents) List() []*Agent {
	var out []*Agent
	for _, a := range t.all() {
		out = append(out, a.describe())
	}
	slices.SortFunc(out, func(a, b *Agent) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return out
}

// Get describes a sandbox. Error: ErrNoAgent for an unknown id.
func (t *Agents) Get(id string) (*Agent, error) {
	a, err := t.find(id)
	if err != nil {
		return nil, err
	}
	out := a.describe()
	for _, box := range a.f.running() { // at most one
		if stats, err := box.Sandbox().Stats(); err == nil { // otherwise the sandbox has ended
			out.OOMKills += stats.OOMKills
		}
	}
	return out, nil
}

func (a *agent) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.busy++
	return true
}

// leave undoes enter and reports whether the sandbox has ended.
func (a *agent) leave() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy--
	a.used = time.Now()
	if a.ended {
		a.f.host.metrics.forget(a.f.name, 0) // end forgot the metrics before this event was counted
	}
	return a.ended
}

// Remove kills the processes of a sandbox and removes the sandbox with its /work.
func (t *Agents) Remove(id string) error {
	if err := t.e.life.Begin(); err != nil {
		return err
	}
	defer t.e.life.Done()
	a, err := t.find(id)
	if err != nil {
		return err
	}
	return t.end(a)
}
