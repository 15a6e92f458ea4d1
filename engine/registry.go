package engine

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// Sandbox is what lists show of one, running or ended.
type Sandbox struct {
	ID       string
	Function string // "" for runs and build steps
	Image    string // "name:version"
	Tenant   string
	Command  string
	State    State
	PID      int // on the host; 0 once exited
	Created  time.Time
	Ended    time.Time // zero while running
	Exit     *sandbox.ExitStatus
	Defences []string // in force around it while it runs (sandbox.Host.Defences)
}

// box is a live sandbox with what lists need to know of it.
type box struct {
	id, function, image, tenant string
	digest                      store.Digest
	command                     []string
	created                     time.Time
	state                       func() State
	ask                         func() error      // asks it to end; nil: SIGTERM
	sb                          *sandbox.Sandbox  // set before the box is registered
	gone                        chan struct{}     // closed once lists show it as ended
	ended                       func()            // called then; nil for nothing
	attributes                  map[string]string // of its changes (started)
}

func (b *box) kill() { b.sb.Kill() }

// endedKept is how many ended sandboxes lists remember.
const endedKept = 1000

// registry holds the live sandboxes of every origin and the last ended ones.
type registry struct {
	mu     sync.Mutex
	closed bool // what still starts is killed at once
	live   map[string]*box
	ended  []*Sandbox // oldest first
}

// start starts spec's sandbox and keeps b in the registry until it ends.
func (r *registry) start(ctx context.Context, e *Engine, b *box, spec sandbox.Spec) error {
	sb, err := e.cfg.Sandboxes.Start(ctx, spec)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	r.adopt(e, b, sb)
	return nil
}

// adopt keeps b in the registry until sb, its sandbox, ends.
func (r *registry) adopt(e *Engine, b *box, sb *sandbox.Sandbox) {
	b.sb = sb
	b.created = time.Now()
	b.gone = make(chan struct{})
	r.mu.Lock()
	r.live[b.id] = b
	e.Changes().Add(b.started()) // with mu held: who knows of it finds it in the list
	closed := r.closed
	r.mu.Unlock()
	if closed {
		b.kill()
	}
	e.spawn(func() {
		defer close(b.gone)
		if b.ended != nil {
			defer b.ended()
		}
		<-sb.Done()
		exit := sb.Status()
		s := b.describe(StateExited)
		s.Ended, s.Exit = time.Now(), &exit
		r.mu.Lock()
		delete(r.live, b.id)
		if len(r.ended) == endedKept {
			r.ended = append(r.ended[:0], r.ended[1:]...)
		}
		r.ended = append(r.ended, s)
		e.Changes().Add(b.exited(exit))
		r.mu.Unlock()
	})
}

// close kills every sandbox, and from now on each that starts.
func (r *registry) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	for _, b := range r.all() {
		b.kill()
	}
}

func (r *registry) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

func (r *registry) all() []*box {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*box, 0, len(r.live))
	for _, b := range r.live {
		out = append(out, b)
	}
	return out
}

// find returns the live sandbox of an id or an unambiguous prefix of it.
func (r *registry) find(id string) (*box, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.live[id]; b != nil {
		return b, nil
	}
	var found *box
	for k, b := range r.live {
		if id != "" && strings.HasPrefix(k, id) {
			if found != nil {
				return nil, fmt.Errorf("sandbox %q: %w", id, store.ErrAmbiguous)
			}
			found = b
		}
	}
	if found == nil {
		return nil, fmt.Errorf("sandbox %q: %w", id, fs.ErrNotExist)
	}
	return found, nil
}

func (b *box) describe(s State) *Sandbox {
	out := &Sandbox{
		ID: b.id, Function: b.function, Image: b.image, Tenant: b.tenant,
		Command: strings.Join(b.command, " "), State: s, Created: b.created,
	}
	if s != StateExited {
		out.PID = b.sb.PID() // a read of /proc
	}
	return out
}

// Sandboxes lists the running sandboxes, newest first; all adds the last ended
// ones.
func (e *Engine) Sandboxes(all bool) []*Sandbox {
	var out []*Sandbox
	defences := e.cfg.Sandboxes.Defences()
	for _, b := range e.boxes.all() {
		s := b.describe(b.state())
		s.Defences = defences
		out = append(out, s)
	}
	if all {
		e.boxes.mu.Lock()
		out = append(out, e.boxes.ended...)
		e.boxes.mu.Unlock()
	}
	sortNewest(out)
	return out
}

// Stats reads what a running sandbox uses now, by a fixed number of system
// calls.
func (e *Engine) Stats(id string) (sandbox.Stats, error) {
	b, err := e.boxes.find(id)
	if err != nil {
		return sandbox.Stats{}, err
	}
	return b.sb.Stats()
}

// Stop asks a sandbox to end, and kills the tree when it has not ended after
// grace. An instance with a channel takes no new event, finishes what it has and
// exits; the first process of any other gets SIGTERM, which it must handle, as it
// is pid 1. Stop returns once the sandbox has ended.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	b, err := e.boxes.find(id)
	if err != nil {
		return err
	}
	ask := b.ask
	if ask == nil {
		ask = func() error { return b.sb.Signal(unix.SIGTERM) }
	}
	if ask() == nil {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-b.gone:
			return nil
		case <-t.C:
		case <-ctx.Done():
		}
	}
	b.kill()
	<-b.gone
	return nil
}

// Kill ends a sandbox's whole tree at once.
func (e *Engine) Kill(id string) error {
	b, err := e.boxes.find(id)
	if err != nil {
		return err
	}
	b.kill()
	<-b.gone
	return nil
}

// newID returns 12 hexadecimal digits, the name of a sandbox.
func newID() string { return fmt.Sprintf("%012x", rand.Uint64()>>16) }

func sortNewest(s []*Sandbox) {
	slices.SortFunc(s, func(a, b *Sandbox) int { return b.Created.Compare(a.Created) })
}
