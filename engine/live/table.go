package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// endedKept is how many ended sandboxes lists keep.
const endedKept = 1000

// Table holds the live sandboxes of every origin and the last ended ones.
type Table struct {
	life    *Life
	host    *sandbox.Host
	changes *store.Changes

	mu     sync.Mutex
	closed bool // kill sandboxes that still start
	live   map[string]*Box
	serial uint64
	rows   []*Row // live and ended, by time of start
	ended  []*Row // by time of end
}

// NewTable returns an empty table of sandboxes of host. The table announces starts and ends to
// changes.
func NewTable(life *Life, host *sandbox.Host, changes *store.Changes) *Table {
	return &Table{life: life, host: host, changes: changes, live: make(map[string]*Box)}
}

// addLocked enters a live sandbox into the list. A container has a row already.
func (r *Table) addLocked(b *Box) {
	r.live[b.ID] = b
	b.name = b.Name
	s := &Sandbox{
		ID: b.ID, Function: b.Function, Revision: b.Revision, Name: b.name, Image: b.Image, Digest: b.Digest, Tenant: b.Tenant, Limits: b.Limits, Command: strings.Join(b.Command, " "),
		State: StateStarting, Created: b.created, Defences: b.defences, box: b,
	}
	if b.Row != nil {
		b.shown = b.Row
		s.Record = b.shown.shown.Load().Record
		b.shown.shown.Store(s)
		return
	}
	b.shown = r.addRowLocked(s)
}

func (r *Table) addRowLocked(s *Sandbox) *Row {
	r.serial++
	added := &Row{serial: r.serial}
	added.shown.Store(s)
	r.rows = append(r.rows, added)
	return added
}

func (r *Table) removeRowLocked(old *Row) {
	i, ok := slices.BinarySearchFunc(r.rows, old.serial, func(row *Row, serial uint64) int { return cmp.Compare(row.serial, serial) })
	if ok {
		r.rows = slices.Delete(r.rows, i, i+1)
	}
}

// AddResting enters a container that does not run, and announces changes.
func (r *Table) AddResting(s *Sandbox, changes ...store.Change) *Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	added := r.addRowLocked(s)
	r.changes.Add(changes...)
	return added
}

// RemoveResting removes a container's row, and announces change.
func (r *Table) RemoveResting(old *Row, change store.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeRowLocked(old)
	r.changes.Add(change)
}

// Rename renames a container, and its sandbox if the container runs.
func (r *Table) Rename(shown *Row, name string, change store.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := shown.Change(func(s *Sandbox) { s.Name = name })
	if b := r.live[s.ID]; b != nil {
		b.name = name
	}
	r.changes.Add(change)
}

// endLocked shows a sandbox as ended. Beyond endedKept the oldest ended sandbox leaves the list;
// a container keeps its row until the container is removed.
func (r *Table) endLocked(b *Box, exit sandbox.ExitStatus) {
	delete(r.live, b.ID)
	last := *b.shown.shown.Load()
	last.State, last.PID, last.Defences, last.box = StateExited, 0, nil, nil
	last.Ended, last.Exit = time.Now(), &exit
	b.shown.shown.Store(&last)
	if b.Row != nil { // shown until the container is removed
		return
	}
	r.ended = append(r.ended, b.shown)
	if len(r.ended) > endedKept {
		r.removeRowLocked(r.ended[0])
		r.ended = slices.Delete(r.ended, 0, 1)
	}
}

// Start starts spec's sandbox and keeps b in the table until the sandbox ends.
func (r *Table) Start(ctx context.Context, b *Box, spec sandbox.Spec) error {
	sb, err := r.Launch(ctx, b, spec)
	if err == nil {
		r.Adopt(b, sb)
	}
	return err
}

// Launch starts spec's sandbox. No list shows the sandbox before the caller calls Adopt.
func (r *Table) Launch(ctx context.Context, b *Box, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	sb, err := r.host.Start(ctx, spec)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	b.defences = spec.Defences(r.host)
	return sb, nil
}

// Adopt enters b with its sandbox sb into the table until sb ends.
func (r *Table) Adopt(b *Box, sb *sandbox.Sandbox) {
	b.sb = sb
	b.created = time.Now()
	b.gone = make(chan struct{})
	if b.defences == nil {
		b.defences = r.host.Defences()
	}
	r.mu.Lock()
	r.addLocked(b)
	r.changes.Add(b.changed(store.ActionStart)) // under mu: a reader of the change finds the sandbox in the list
	closed := r.closed
	r.mu.Unlock()
	if closed {
		b.Kill()
	}
	r.life.Spawn(func() {
		defer close(b.gone)
		<-sb.Done()
		exit := sb.Status()
		show := func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.endLocked(b, exit)
			r.changes.Add(b.exited(exit)...)
		}
		if b.Ended == nil {
			show()
			return
		}
		b.Ended(show)
	})
}

// stopping notes that a client ends the sandbox.
func (r *Table) stopping(b *Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.stopped = true
}

// sendSignal sends a signal to a sandbox, and announces the signal before an end that may follow.
// Errors: os.ErrProcessDone if the sandbox has ended.
func (r *Table) sendSignal(b *Box, sig unix.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.live[b.ID] != b:
		return os.ErrProcessDone
	case sig == unix.SIGKILL:
		b.Kill()
	default:
		if err := b.sb.Signal(sig); err != nil {
			return err
		}
	}
	r.changes.Add(b.changed(store.ActionKill, "signal", strconv.Itoa(int(sig))))
	return nil
}

// Close kills every sandbox, now and when one starts later.
func (r *Table) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	for _, b := range r.All() {
		b.Kill()
	}
}

// IsClosed reports whether Close was called.
func (r *Table) IsClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// All returns the live sandboxes in no order.
func (r *Table) All() []*Box {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*Box, 0, len(r.live))
	for _, b := range r.live {
		out = append(out, b)
	}
	return out
}

// Find returns the live sandbox with this id, container name or unambiguous prefix of an id.
func (r *Table) Find(id string) (*Box, error) {
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
	return ByPrefix(r.live, "sandbox", id)
}

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

// running returns the live sandbox with this id, name or prefix. Errors: fs.ErrNotExist,
// store.ErrAmbiguous, ErrContainerStopped.
func (r *Table) running(id string) (*Box, error) {
	b, err := r.Find(id)
	if errors.Is(err, fs.ErrNotExist) && r.resting(id) {
		return nil, fmt.Errorf("container %q: %w", id, ErrContainerStopped)
	}
	return b, err
}

// resting reports whether the id, name or unambiguous prefix of an id is a container's.
func (r *Table) resting(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]bool)
	for _, row := range r.rows {
		s := row.shown.Load()
		if s.Record == nil {
			continue
		}
		if s.ID == id || s.Name == id {
			return true
		}
		all[s.ID] = true
	}
	found, _ := ByPrefix(all, "container", id)
	return found
}

// StopOptions say how a container is stopped.
type StopOptions struct {
	Grace  time.Duration // time until the container is killed
	Signal unix.Signal   // asks the container to end; 0: the container's own way
}

// Stop asks the box's sandbox to end, kills it after the grace or once ctx ends, and returns when
// the sandbox has ended.
func (r *Table) Stop(ctx context.Context, b *Box, o StopOptions) {
	r.stopping(b)
	ask := b.Ask
	if o.Signal != 0 || ask == nil {
		ask = func() error { return r.sendSignal(b, cmp.Or(o.Signal, b.StopSignal, unix.SIGTERM)) }
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
	_ = r.Signal(b, unix.SIGKILL) // always nil
}

// Signal sends a client's signal. Errors: os.ErrProcessDone if the sandbox has ended. SIGKILL
// waits until the end is stored and always returns nil.
func (r *Table) Signal(b *Box, sig unix.Signal) error {
	err := r.sendSignal(b, sig)
	if sig != unix.SIGKILL {
		return err
	}
	<-b.gone
	return nil
}

// RunToEnd starts a sandbox, kills it when ctx ends, and waits for its end.
func (r *Table) RunToEnd(ctx context.Context, b *Box, spec sandbox.Spec) (sandbox.ExitStatus, error) {
	if err := r.Start(ctx, b, spec); err != nil {
		return sandbox.ExitStatus{}, err
	}
	return b.WaitEnd(ctx)
}

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

// Len returns the number of live sandboxes.
func (r *Table) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live)
}

// NewID returns a sandbox id: 12 hexadecimal digits.
func NewID() string { return fmt.Sprintf("%012x", rand.Uint64()>>16) }
