package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

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

// Len returns the number of live sandboxes.
func (r *Table) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live)
}
