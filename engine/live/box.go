package live

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// State is the state of a sandbox.
type State string

// The states, in order; idle and busy alternate.
const (
	StateStarting State = "starting"
	StateIdle     State = "idle"
	StateBusy     State = "busy"
	StateStopping State = "stopping"
	StateParked   State = "parked"  // a fork server, or a fork before its first event
	StateCreated  State = "created" // a container before its first run
	StateRunning  State = "running" // a running container
	StateExited   State = "exited"
)

// ErrNameTaken refuses a name that another object has.
var ErrNameTaken = failure.New(failure.NameTaken, "name already taken", "choose another name (--name) or replace the object (--replace)")

// ErrContainerStopped refuses an operation that needs a running container.
var ErrContainerStopped = failure.New(failure.InUse, "container is not running", "start the container first (fre start)")

// Sandbox is a row in the list of sandboxes: a running or ended sandbox, or a container.
type Sandbox struct {
	ID       string
	Function string       // "" for runs, build steps and containers
	Revision int          // of Function
	Name     string       // of a container
	Image    string       // "name:version"
	Digest   store.Digest // of the image; "" for build steps
	Tenant   string
	Limits   sandbox.Limits // zero for build steps
	Command  string
	State    State
	PID      int // on the host; 0 once exited
	Created  time.Time
	Ended    time.Time // zero while running
	Exit     *sandbox.ExitStatus
	Defences []string // in force around the running sandbox (sandbox.Host.Defences)

	// Record is the container as created, or as found when the engine started, a
	// *[engine.Container]; nil for other sandboxes. Later changes of the container do not show here.
	Record any

	box *Box // nil once the sandbox has ended
}

// Box is a live sandbox with the data for lists. The exported fields are set before the start and
// never change.
type Box struct {
	ID, Function, Image, Tenant string
	Name                        string // of a container
	Digest                      store.Digest
	Revision                    int // of the function
	Limits                      sandbox.Limits
	Command                     []string
	State                       func() State
	Ask                         func() error                 // asks the sandbox to end; nil: send StopSignal
	StopSignal                  unix.Signal                  // 0: SIGTERM
	Ended                       func(show func())            // called at the end: stores the end and calls show; nil: only show
	Written                     func() (volume.Usage, error) // the size of a scratch layer on disk; nil: none
	Labels                      map[string]string            // of changes in the list
	More                        []string                     // further attributes of changes: keys and values in turn
	Row                         *Row                         // a row from AddResting, which outlives the sandbox; nil: a new row

	name       string // of a container; guarded by Table.mu
	created    time.Time
	sb         *sandbox.Sandbox  // set before the box enters the table
	gone       chan struct{}     // closed once the end is stored and shown
	attributes map[string]string // of changes in the list (changed)
	shown      *Row
	defences   []string // in force around the sandbox; nil: all
	stopped    bool     // by a client; guarded by Table.mu
}

// Sandbox returns the sandbox of a box that is in the table.
func (b *Box) Sandbox() *sandbox.Sandbox { return b.sb }

// Gone returns a channel that is closed once the end is stored and shown.
func (b *Box) Gone() <-chan struct{} { return b.gone }

// Kill kills all processes of the sandbox.
func (b *Box) Kill() { b.sb.Kill() }

// WaitEnd waits for the end of a started sandbox, and kills the sandbox when ctx ends.
func (b *Box) WaitEnd(ctx context.Context) (sandbox.ExitStatus, error) {
	stop := context.AfterFunc(ctx, b.Kill)
	defer stop()
	<-b.sb.Done()
	if ctx.Err() != nil {
		return b.sb.Status(), context.Cause(ctx)
	}
	return b.sb.Status(), nil
}

// changed returns a change of a sandbox. Its attributes are function, image and tenant,
// b.More, and more: keys and values in turn.
func (b *Box) changed(a store.ChangeAction, more ...string) store.Change {
	if b.attributes == nil {
		b.attributes = Attributes(append([]string{"function", b.Function, "image", b.Image, "tenant", b.Tenant}, b.More...)...)
	}
	attributes := b.attributes
	if len(more) > 0 {
		attributes = maps.Clone(attributes)
		maps.Copy(attributes, Attributes(more...))
	}
	return store.Change{Kind: store.ChangeSandbox, Action: a, ID: b.ID, Name: b.name, Attributes: attributes, Labels: b.Labels}
}

// exited returns the changes at the end of a sandbox: exit status, lifetime in whole seconds,
// and a stop by a client.
func (b *Box) exited(exit sandbox.ExitStatus) []store.Change {
	how := []string{"exit_code", strconv.Itoa(exit.Code), "seconds", strconv.Itoa(int(time.Since(b.created).Seconds()))}
	if exit.Signal != 0 {
		how = append(how, "signal", strconv.Itoa(exit.Signal))
	}
	if exit.OOMKilled {
		how = append(how, "oom", "true")
	}
	changes := []store.Change{b.changed(store.ActionExit, how...)}
	if b.stopped {
		changes = append(changes, b.changed(store.ActionStop))
	}
	return changes
}

// Attributes makes a map of keys and values in turn. It omits empty values.
func Attributes(pairs ...string) map[string]string {
	attributes := make(map[string]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			attributes[pairs[i]] = pairs[i+1]
		}
	}
	return attributes
}

// Row is a sandbox's row in the list. A change replaces shown and never modifies the Sandbox:
// caches of encoded lists compare pointers.
type Row struct {
	serial uint64
	shown  atomic.Pointer[Sandbox]
}

// update returns the Sandbox as lists show it now. All data is in memory, but the process id is
// asked for once.
func (r *Row) update() *Sandbox {
	for {
		s := r.shown.Load()
		if s.box == nil {
			return s
		}
		state := s.box.State()
		if state == s.State && s.PID != 0 {
			return s
		}
		next := *s
		next.State, next.PID = state, 0
		if state != StateExited {
			next.PID = s.box.sb.PID()
		}
		if next.State == s.State && next.PID == s.PID {
			return s
		}
		if r.shown.CompareAndSwap(s, &next) {
			return &next
		}
	}
}

// Change replaces the Sandbox shown in lists, and returns the new one.
func (r *Row) Change(f func(*Sandbox)) *Sandbox {
	for {
		s := r.shown.Load()
		next := *s
		f(&next)
		if r.shown.CompareAndSwap(s, &next) {
			return &next
		}
	}
}

// NewID returns a sandbox id: 12 hexadecimal digits.
func NewID() string { return fmt.Sprintf("%012x", rand.Uint64()>>16) }

// ByPrefix returns the only element whose id begins with prefix. Errors: fs.ErrNotExist,
// store.ErrAmbiguous.
func ByPrefix[T any](all map[string]T, kind, prefix string) (found T, err error) {
	n := 0
	for id, v := range all {
		if prefix != "" && strings.HasPrefix(id, prefix) {
			found = v
			n++
		}
	}
	switch n {
	case 0:
		return found, fmt.Errorf("%s %q: %w", kind, prefix, fs.ErrNotExist)
	case 1:
		return found, nil
	}
	return found, fmt.Errorf("%s %q: %w", kind, prefix, store.ErrAmbiguous)
}
