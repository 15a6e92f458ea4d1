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

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// Sandbox is what lists show of one, running or ended.
type Sandbox struct {
	ID       string
	Function string       // "" for runs, build steps and containers
	Revision int          // of it
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
	Defences []string // in force around it while it runs (sandbox.Host.Defences)

	// Container is what a container was made as, or found as when the engine
	// started; nil for others. What changes of it is not in there.
	Container *Container

	box *box // nil once it has ended
}

// box is a live sandbox with what lists need to know of it.
type box struct {
	id, function, image, tenant string
	digest                      store.Digest
	revision                    int // of the function
	limits                      sandbox.Limits
	command                     []string
	created                     time.Time
	state                       func() State
	ask                         func() error      // asks it to end; nil: stopSignal
	stopSignal                  unix.Signal       // 0: SIGTERM
	sb                          *sandbox.Sandbox  // set before the box is registered
	gone                        chan struct{}     // closed once its end is stored and shown
	ended                       func(show func()) // called at its end: stores it and calls show; nil for show alone
	labels                      map[string]string // of its changes
	attributes                  map[string]string // of its changes (changed)
	shown                       *row
	defences                    []string          // in force around it; nil: all
	container                   *container        // whose run it is; nil for none
	name                        string            // of that
	network                     image.NetworkMode // likewise
	work                        WorkAccess        // likewise
	stopped                     bool              // by a client, which the registry's mu guards
	terminal                    *os.File          // of that, the engine's end; nil without
}

// row is a sandbox in the list. What it shows is replaced when the sandbox
// changes and never changed: encoded lists know it by its pointer.
type row struct {
	serial uint64
	shown  atomic.Pointer[Sandbox]
}

// update returns what lists show now, from memory but for the process id, which
// is asked for once.
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

// change replaces what lists show, and returns that.
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

// endedKept is how many ended sandboxes lists remember.
const endedKept = 1000

// registry holds the live sandboxes of every origin and the last ended ones.
type registry struct {
	mu     sync.Mutex
	closed bool // what still starts is killed at once
	live   map[string]*box
	serial uint64
	rows   []*row // live and ended, in the order of their starts
	ended  []*row // in the order of their ends
}

// addLocked enters a live sandbox into the list, where a container is already.
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

// addContainer enters a container that does not run, and notes changes.
func (r *registry) addContainer(e *Engine, s *Sandbox, changes ...store.Change) *row {
	r.mu.Lock()
	defer r.mu.Unlock()
	added := r.addRowLocked(s)
	e.Changes().Add(changes...)
	return added
}

// removeContainer takes it out again.
func (r *registry) removeContainer(e *Engine, old *row, change store.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeRowLocked(old)
	e.Changes().Add(change)
}

// renameContainer gives it, and its sandbox if it runs, another name.
func (r *registry) renameContainer(e *Engine, shown *row, name string, change store.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := shown.change(func(s *Sandbox) { s.Name = name })
	if b := r.live[s.ID]; b != nil {
		b.name = name
	}
	e.Changes().Add(change)
}

// endLocked shows it as ended, and forgets the one that has been so for longest.
func (r *registry) endLocked(b *box, exit sandbox.ExitStatus) {
	delete(r.live, b.id)
	last := *b.shown.shown.Load()
	last.State, last.PID, last.Defences, last.box = StateExited, 0, nil, nil
	last.Ended, last.Exit = time.Now(), &exit
	b.shown.shown.Store(&last)
	if b.container != nil { // shown until it is removed
		return
	}
	r.ended = append(r.ended, b.shown)
	if len(r.ended) > endedKept {
		r.removeRowLocked(r.ended[0])
		r.ended = slices.Delete(r.ended, 0, 1)
	}
}

// start starts spec's sandbox and keeps b in the registry until it ends.
func (r *registry) start(ctx context.Context, e *Engine, b *box, spec sandbox.Spec) error {
	sb, err := b.launch(ctx, e, spec)
	if err == nil {
		r.adopt(e, b, sb)
	}
	return err
}

// launch starts spec's sandbox, which the caller has adopted: no list shows it before.
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

// adopt keeps b in the registry until sb, its sandbox, ends.
func (r *registry) adopt(e *Engine, b *box, sb *sandbox.Sandbox) {
	b.sb = sb
	b.created = time.Now()
	b.gone = make(chan struct{})
	if b.defences == nil {
		b.defences = e.cfg.Sandboxes.Defences()
	}
	r.mu.Lock()
	r.addLocked(b)
	e.Changes().Add(b.changed(store.ActionStart)) // with mu held: who knows of it finds it in the list
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

// stopping has the end of a sandbox noted as a client's doing.
func (r *registry) stopping(b *box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.stopped = true
}

// signal sends a signal to a sandbox and notes it, before anybody hears of the end that it
// may bring. os.ErrProcessDone if the sandbox has ended.
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
	for _, b := range r.live {
		if b.name == id && id != "" {
			return b, nil
		}
	}
	return byPrefix(r.live, "sandbox", id)
}

// byPrefix returns the one of a kind whose id begins so.
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

// Sandboxes lists the running sandboxes, the last started first; all adds the
// last ended ones. It reads memory only. The same pointer stands for the same
// content: nobody changes it.
func (e *Engine) Sandboxes(all bool) []*Sandbox {
	r := &e.boxes
	r.mu.Lock()
	rows := slices.Clone(r.rows)
	r.mu.Unlock()
	out := make([]*Sandbox, 0, len(rows))
	for _, row := range slices.Backward(rows) {
		// Not with mu held: a function's own is taken for its instance's state.
		if s := row.update(); all || s.box != nil {
			out = append(out, s)
		}
	}
	return out
}

// Size counts what a sandbox of a list holds in its own file systems, by one
// system call for each of at most two; os.ErrProcessDone if it has ended.
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
	b, err := e.running(id)
	if err != nil {
		return err
	}
	e.stop(ctx, b, StopOptions{Grace: grace})
	return nil
}

// StopOptions say how a container is stopped.
type StopOptions struct {
	Grace  time.Duration // until it is killed
	Signal unix.Signal   // that asks it to end; 0: its own way
}

// stop asks the box's sandbox to end, kills it when it has not after the grace or
// once ctx ends, and returns when it has ended.
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
	_ = e.signal(b, unix.SIGKILL) // nil
}

// Kill ends a sandbox's whole tree at once.
func (e *Engine) Kill(id string) error {
	b, err := e.running(id)
	if err != nil {
		return err
	}
	return e.signal(b, unix.SIGKILL)
}

// signal sends a client's signal: os.ErrProcessDone if the sandbox has ended. After a kill it
// returns once the end is stored, and nil.
func (e *Engine) signal(b *box, sig unix.Signal) error {
	err := e.boxes.signal(e, b, sig)
	if sig != unix.SIGKILL {
		return err
	}
	<-b.gone
	return nil
}

// running finds a sandbox that runs. Errors: fs.ErrNotExist, store.ErrAmbiguous,
// ErrContainerStopped.
func (e *Engine) running(id string) (*box, error) {
	b, err := e.boxes.find(id)
	if errors.Is(err, fs.ErrNotExist) {
		if c, _ := e.containers.find(id); c != nil {
			return nil, fmt.Errorf("container %q: %w", id, ErrContainerStopped)
		}
	}
	return b, err
}

// newID returns 12 hexadecimal digits, the name of a sandbox.
func newID() string { return fmt.Sprintf("%012x", rand.Uint64()>>16) }
