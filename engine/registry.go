package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

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

	// Container is the container as created, or as found when the engine started; nil for other
	// sandboxes. Later changes of the container do not show here.
	Container *Container

	box *box // nil once the sandbox has ended
}

// box is a live sandbox with the data for lists.
type box struct {
	id, function, image, tenant string
	digest                      store.Digest
	revision                    int // of the function
	limits                      sandbox.Limits
	command                     []string
	created                     time.Time
	state                       func() State
	ask                         func() error      // asks the sandbox to end; nil: send stopSignal
	stopSignal                  unix.Signal       // 0: SIGTERM
	sb                          *sandbox.Sandbox  // set before the box is registered
	gone                        chan struct{}     // closed once the end is stored and shown
	ended                       func(show func()) // called at the end: stores the end and calls show; nil: only show
	labels                      map[string]string // of changes in the list
	attributes                  map[string]string // of changes in the list (changed)
	shown                       *row
	defences                    []string             // in force around the sandbox; nil: all
	container                   *container           // the container of the run; nil for a sandbox without a container
	name                        string               // of container
	network                     template.NetworkMode // of container
	work                        WorkAccess           // of container
	stopped                     bool                 // by a client; guarded by registry.mu
	terminal                    *os.File             // the engine's end of the container's terminal; nil without a terminal
}

// row is a sandbox's row in the list. A change replaces shown and never modifies the Sandbox:
// caches of encoded lists compare pointers.
type row struct {
	serial uint64
	shown  atomic.Pointer[Sandbox]
}

// update returns the Sandbox as lists show it now. All data is in memory, but the process id is
// asked for once.
func (r *row) update() *Sandbox {
	for {
		s := r.shown.Load()
		if s.box == nil {
			return s
		}
		state := s.box.state()
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

// change replaces the Sandbox shown in lists, and returns the new one.
func (r *row) change(f func(*Sandbox)) *Sandbox {
	for {
		s := r.shown.Load()
		next := *s
		f(&next)
		if r.shown.CompareAndSwap(s, &next) {
			return &next
		}
	}
}

func (b *box) kill() { b.sb.Kill() }

// endedKept is how many ended sandboxes lists keep.
const endedKept = 1000

// registry holds the live sandboxes of every origin and the last ended ones.
type registry struct {
	mu     sync.Mutex
	closed bool // kill sandboxes that still start
	live   map[string]*box
	serial uint64
	rows   []*row // live and ended, by time of start
	ended  []*row // by time of end
}

// addLocked enters a live sandbox into the list. A container has a row already.
func (r *registry) addLocked(b *box) {
	r.live[b.id] = b
	s := &Sandbox{
		ID: b.id, Function: b.function, Revision: b.revision, Name: b.name, Image: b.image, Digest: b.digest, Tenant: b.tenant, Limits: b.limits, Command: strings.Join(b.command, " "),
		State: StateStarting, Created: b.created, Defences: b.defences, box: b,
	}
	if b.container != nil {
		b.shown = b.container.row
		s.Container = b.shown.shown.Load().Container
		b.shown.shown.Store(s)
		return
	}
	b.shown = r.addRowLocked(s)
}

func (r *registry) addRowLocked(s *Sandbox) *row {
	r.serial++
	added := &row{serial: r.serial}
	added.shown.Store(s)
	r.rows = append(r.rows, added)
	return added
}

func (r *registry) removeRowLocked(old *row) {
	i, ok := slices.BinarySearchFunc(r.rows, old.serial, func(row *row, serial uint64) int { return cmp.Compare(row.serial, serial) })
	if ok {
		r.rows = slices.Delete(r.rows, i, i+1)
	}
}

// addContainer enters a container that does not run, and announces changes.
func (r *registry) addContainer(e *Engine, s *Sandbox, changes ...store.Change) *row {
	r.mu.Lock()
	defer r.mu.Unlock()
	added := r.addRowLocked(s)
	e.Changes().Add(changes...)
	return added
}

// removeContainer removes a container's row, and announces change.
func (r *registry) removeContainer(e *Engine, old *row, change store.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeRowLocked(old)
	e.Changes().Add(change)
}

// renameContainer renames a container, and its sandbox if the container runs.
func (r *registry) renameContainer(e *Engine, shown *row, name string, change store.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := shown.change(func(s *Sandbox) { s.Name = name })
	if b := r.live[s.ID]; b != nil {
		b.name = name
	}
	e.Changes().Add(change)
}

// endLocked shows a sandbox as ended. Beyond endedKept the oldest ended sandbox leaves the list;
// a container keeps its row until the container is removed.
func (r *registry) endLocked(b *box, exit sandbox.ExitStatus) {
	delete(r.live, b.id)
	last := *b.shown.shown.Load()
	last.State, last.PID, last.Defences, last.box = StateExited, 0, nil, nil
	last.Ended, last.Exit = time.Now(), &exit
	b.shown.shown.Store(&last)
	if b.container != nil { // shown until the container is removed
		return
	}
	r.ended = append(r.ended, b.shown)
	if len(r.ended) > endedKept {
		r.removeRowLocked(r.ended[0])
		r.ended = slices.Delete(r.ended, 0, 1)
	}
}

// start starts spec's sandbox and keeps b in the registry until the sandbox ends.
func (r *registry) start(ctx context.Context, e *Engine, b *box, spec sandbox.Spec) error {
	sb, err := b.launch(ctx, e, spec)
	if err == nil {
		r.adopt(e, b, sb)
	}
	return err
}

// launch starts spec's sandbox. No list shows the sandbox before the caller calls adopt.
func (b *box) launch(ctx context.Context, e *Engine, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	sb, err := e.cfg.Sandboxes.Start(ctx, spec)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	b.defences = spec.Defences(e.cfg.Sandboxes)
	return sb, nil
}

// adopt enters b with its sandbox sb into the registry until sb ends.
func (r *registry) adopt(e *Engine, b *box, sb *sandbox.Sandbox) {
	b.sb = sb
	b.created = time.Now()
	b.gone = make(chan struct{})
	if b.defences == nil {
		b.defences = e.cfg.Sandboxes.Defences()
	}
	r.mu.Lock()
	r.addLocked(b)
	e.Changes().Add(b.changed(store.ActionStart)) // under mu: a reader of the change finds the sandbox in the list
	closed := r.closed
	r.mu.Unlock()
	if closed {
		b.kill()
	}
	e.spawn(func() {
		defer close(b.gone)
		<-sb.Done()
		exit := sb.Status()
		show := func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.endLocked(b, exit)
			e.Changes().Add(b.exited(exit)...)
		}
		if b.ended == nil {
			show()
			return
		}
		b.ended(show)
	})
}

// stopping notes that a client ends the sandbox.
func (r *registry) stopping(b *box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.stopped = true
}

// signal sends a signal to a sandbox, and announces the signal before an end that may follow.
// Errors: os.ErrProcessDone if the sandbox has ended.
func (r *registry) signal(e *Engine, b *box, sig unix.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.live[b.id] != b:
		return os.ErrProcessDone
	case sig == unix.SIGKILL:
		b.kill()
	default:
		if err := b.sb.Signal(sig); err != nil {
			return err
		}
	}
	e.Changes().Add(b.changed(store.ActionKill, "signal", strconv.Itoa(int(sig))))
	return nil
}

// close kills every sandbox, now and when one starts later.
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

// find returns the live sandbox with this id, container name or unambiguous prefix of an id.
func (r *registry) find(id string) (*box, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.live[id]; b != nil {
		return b, nil
	}
	for _, b := range r.live {
		if b.name == id && id != "" {
			return b, nil
		}
	}
	return byPrefix(r.live, "sandbox", id)
}

// byPrefix returns the only element whose id begins with prefix. Errors: fs.ErrNotExist,
// store.ErrAmbiguous.
func byPrefix[T any](all map[string]T, kind, prefix string) (found T, err error) {
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

// Sandboxes lists the running sandboxes, newest first; all adds the last ended ones and the
// containers that do not run. Sandboxes reads only memory. A *Sandbox is immutable: the same
// pointer means the same content.
func (e *Engine) Sandboxes(all bool) []*Sandbox {
	r := &e.boxes
	r.mu.Lock()
	rows := slices.Clone(r.rows)
	r.mu.Unlock()
	out := make([]*Sandbox, 0, len(rows))
	for _, row := range slices.Backward(rows) {
		// Without mu: update takes function.mu for the state of an instance.
		if s := row.update(); all || s.box != nil {
			out = append(out, s)
		}
	}
	return out
}

// Size returns how much a listed sandbox holds in its own file systems, by at most two system
// calls. It returns os.ErrProcessDone if the sandbox has ended.
func (e *Engine) Size(s *Sandbox) (sandbox.Size, error) {
	if s.box == nil {
		return sandbox.Size{}, os.ErrProcessDone
	}
	size, err := s.box.sb.Size()
	if c := s.box.container; c != nil && err == nil {
		var used volume.Usage
		used, err = c.written()
		size.Bytes, size.Inodes = size.Bytes+used.Bytes, size.Inodes+used.Inodes
	}
	return size, err
}

// Stats returns the current resource usage of a running sandbox, by a fixed number of system
// calls.
func (e *Engine) Stats(id string) (sandbox.Stats, error) {
	b, err := e.boxes.find(id)
	if err != nil {
		return sandbox.Stats{}, err
	}
	return b.sb.Stats()
}

// Stop asks a sandbox to end, kills it after grace, and returns once the sandbox has ended. An
// instance with a channel takes no new event, finishes its events and exits. Any other sandbox's
// first process gets SIGTERM; as pid 1 it needs a handler for the signal.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	b, err := e.running(id)
	if err != nil {
		return err
	}
	e.stop(ctx, b, StopOptions{Grace: grace})
	return nil
}

// StopOptions say how a container is stopped.
type StopOptions struct {
	Grace  time.Duration // time until the container is killed
	Signal unix.Signal   // asks the container to end; 0: the container's own way
}

// stop asks the box's sandbox to end, kills it after the grace or once ctx ends, and returns when
// the sandbox has ended.
func (e *Engine) stop(ctx context.Context, b *box, o StopOptions) {
	e.boxes.stopping(b)
	ask := b.ask
	if o.Signal != 0 || ask == nil {
		ask = func() error { return e.boxes.signal(e, b, cmp.Or(o.Signal, b.stopSignal, unix.SIGTERM)) }
	}
	if ask() == nil {
		t := time.NewTimer(o.Grace)
		defer t.Stop()
		select {
		case <-b.gone:
			return
		case <-t.C:
		case <-ctx.Done():
		}
	}
	_ = e.signal(b, unix.SIGKILL) // always nil
}

// Kill kills all processes of a sandbox at once.
func (e *Engine) Kill(id string) error {
	b, err := e.running(id)
	if err != nil {
		return err
	}
	return e.signal(b, unix.SIGKILL)
}

// signal sends a client's signal. Errors: os.ErrProcessDone if the sandbox has ended. SIGKILL
// waits until the end is stored and always returns nil.
func (e *Engine) signal(b *box, sig unix.Signal) error {
	err := e.boxes.signal(e, b, sig)
	if sig != unix.SIGKILL {
		return err
	}
	<-b.gone
	return nil
}

// running returns the live sandbox with this id, name or prefix. Errors: fs.ErrNotExist,
// store.ErrAmbiguous, ErrContainerStopped.
func (e *Engine) running(id string) (*box, error) {
	b, err := e.boxes.find(id)
	if errors.Is(err, fs.ErrNotExist) {
		if c, _ := e.containers.find(id); c != nil {
			return nil, fmt.Errorf("container %q: %w", id, ErrContainerStopped)
		}
	}
	return b, err
}

// newID returns a sandbox id: 12 hexadecimal digits.
func newID() string { return fmt.Sprintf("%012x", rand.Uint64()>>16) }
