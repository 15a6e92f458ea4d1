package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// List is the view of a table for clients: rows, sizes, signals, changes.
type List struct{ table *Table }

// NewList returns the view of a table.
func NewList(t *Table) List { return List{t} }

// Sandboxes lists the running sandboxes, newest first; all adds the last ended ones and the
// containers that do not run. Sandboxes reads only memory. A *Sandbox is immutable: the same
// pointer means the same content.
func (l List) Sandboxes(all bool) []*Sandbox {
	r := l.table
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
func (l List) Size(s *Sandbox) (sandbox.Size, error) {
	if s.box == nil {
		return sandbox.Size{}, os.ErrProcessDone
	}
	size, err := s.box.sb.Size()
	if written := s.box.Written; written != nil && err == nil {
		var used volume.Usage
		used, err = written()
		size.Bytes, size.Inodes = size.Bytes+used.Bytes, size.Inodes+used.Inodes
	}
	return size, err
}

// Stats returns the current resource usage of a running sandbox, by a fixed number of system
// calls.
func (l List) Stats(id string) (sandbox.Stats, error) {
	b, err := l.table.Find(id)
	if err != nil {
		return sandbox.Stats{}, err
	}
	return b.sb.Stats()
}

// Stop asks a sandbox to end, kills it after grace, and returns once the sandbox has ended. An
// instance with a channel takes no new event, finishes its events and exits. Any other sandbox's
// first process gets SIGTERM; as pid 1 it needs a handler for the signal.
func (l List) Stop(ctx context.Context, id string, grace time.Duration) error {
	b, err := l.table.running(id)
	if err != nil {
		return err
	}
	l.table.Stop(ctx, b, StopOptions{Grace: grace})
	return nil
}

// Kill kills all processes of a sandbox at once.
func (l List) Kill(id string) error {
	b, err := l.table.running(id)
	if err != nil {
		return err
	}
	return l.table.Signal(b, unix.SIGKILL)
}

// Processes lists the processes of a sandbox, oldest first; id is the sandbox's id or a prefix of
// it. Errors: fs.ErrNotExist, store.ErrAmbiguous, ErrContainerStopped, os.ErrProcessDone.
func (l List) Processes(id string) ([]Process, error) {
	b, err := l.table.running(id)
	if err != nil {
		return nil, err
	}
	ids, err := b.sb.Processes()
	if err != nil {
		return nil, err
	}
	return processesOf(ids)
}

// Signal sends a signal to a sandbox's first process, which is pid 1 and so must have a handler
// for the signal. SIGKILL needs no handler and kills all processes. Errors as of
// [List.Processes].
func (l List) Signal(id string, sig unix.Signal) error {
	b, err := l.table.running(id)
	if err != nil {
		return err
	}
	return l.table.sendSignal(b, sig)
}

// Wait waits until a sandbox has ended and returns its row in the list. An ended sandbox is found
// as long as lists keep it. Errors: fs.ErrNotExist, store.ErrAmbiguous, the cause of ctx.
func (l List) Wait(ctx context.Context, id string) (*Sandbox, error) {
	if b, err := l.table.Find(id); err == nil {
		select {
		case <-b.gone:
			id = b.ID
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	for i := len(l.table.ended) - 1; i >= 0; i-- {
		if s := l.table.ended[i].shown.Load(); s.ID == id {
			return s, nil
		}
	}
	return nil, fmt.Errorf("sandbox %q: %w", id, fs.ErrNotExist)
}

// Forget removes an ended sandbox from the lists. Errors: fs.ErrNotExist if no ended sandbox has
// the id.
func (l List) Forget(id string) error {
	r := l.table
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.ended, func(row *Row) bool { return row.shown.Load().ID == id })
	if i < 0 {
		return fmt.Errorf("ended sandbox %q: %w", id, fs.ErrNotExist)
	}
	r.removeRowLocked(r.ended[i])
	r.ended = slices.Delete(r.ended, i, i+1)
	return nil
}

// ErrChangesLost: the engine no longer remembers all requested changes, or another engine
// counted them.
var ErrChangesLost = failure.New(failure.Gone, "the requested changes are too old", "read the list again (since=0 returns the generation), then follow changes after the list")

// Changes returns the record of changes to everything in lists (images, functions, sandboxes)
// and of further actions of clients: signals, pulls, prunes.
func (l List) Changes() *store.Changes { return l.table.changes }

// EventOptions select changes.
type EventOptions struct {
	Since  uint64 // changes after this generation
	Follow bool   // also new changes, until ctx ends or the engine stops
}

// Events calls emit for every change after a generation, oldest first. With Follow it continues
// with new changes until ctx ends or the engine stops, then returns nil. Errors: those of emit;
// ErrChangesLost if changes are missing, also because emit was too slow.
func (l List) Events(ctx context.Context, o EventOptions, emit func(store.Change) error) error {
	since := o.Since
	for all := l.Changes(); ; {
		changes, ok := all.Since(since)
		if !ok {
			return fmt.Errorf("changes since generation %d: %w", since, ErrChangesLost)
		}
		for _, c := range changes {
			if err := emit(c); err != nil {
				return err
			}
			since = c.Generation
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-all.After(since):
		case <-ctx.Done():
			return nil
		case <-l.table.life.Closed():
			return nil
		}
	}
}
