package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mostRefused is how many processes and threads a lease may be refused before its
	// group gives way. The kernel copies a process's memory map before it finds that
	// there may be no further one, and lets nobody else have the CPU until it is done:
	// what tries again and again delays every neighbour, whatever its quota.
	mostRefused = 32

	// Every group is looked at in turn, by a read of some 2 µs; cgroup v1 tells nobody.
	watchEvery = 50 * time.Millisecond
	watchEach  = 250 * time.Microsecond // is added for each group
)

// forkWatch puts groups that are refused process after process behind all others
// (cpu.idle) for the rest of their lease. It sleeps while there are none.
type forkWatch struct {
	mu     sync.Mutex
	groups map[*Group]struct{}
	timer  *time.Timer // runs while there are groups
}

func newForkWatch() *forkWatch {
	w := &forkWatch{groups: map[*Group]struct{}{}}
	w.timer = time.AfterFunc(0, w.look)
	return w
}

// WatchForks has the group give way to all others once the kernel has refused it some
// dozens of processes over its limit, until the end of the lease. It is for groups that
// run what nobody trusts.
func (g *Group) WatchForks() {
	w := g.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if !g.leased || g.events == nil {
		return
	}
	if w.groups[g] = struct{}{}; len(w.groups) == 1 {
		w.timer.Reset(watchEvery)
	}
}

// begin and end are those of a lease.
func (w *forkWatch) begin(g *Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.leased = true
}

func (w *forkWatch) end(g *Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.leased = false
	delete(w.groups, g)
}

func (w *forkWatch) look() {
	w.mu.Lock()
	groups := make([]*Group, 0, len(w.groups))
	for g := range w.groups {
		groups = append(groups, g)
	}
	w.mu.Unlock()
	for _, g := range groups {
		g.giveWay()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.groups); n > 0 {
		w.timer.Reset(watchEvery + time.Duration(n)*watchEach)
	}
}

// openEvents opens what counts refused processes; a kernel without it does without.
func (g *Group) openEvents() error {
	dir, ok := g.dirs[Pids]
	if !ok {
		return nil
	}
	path := filepath.Join(dir, "pids.events")
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	g.events = os.NewFile(uintptr(fd), path)
	return nil
}

// refusals is how many processes the group has been refused, in all leases.
func (g *Group) refusals() (int64, error) {
	if g.events == nil {
		return 0, nil
	}
	var b [64]byte
	n, err := unix.Pread(int(g.events.Fd()), b[:], 0)
	if err != nil {
		return 0, err
	}
	return fieldOf(b[:n], "max")
}

// giveWay puts the group behind all others if its lease has been refused too much.
// What cannot be read or written leaves it where it is.
func (g *Group) giveWay() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gaveWay {
		return
	}
	refused, err := g.refusals()
	if err == nil && refused-g.before.refused >= mostRefused {
		g.gaveWay = g.setBackground(true) == nil
	}
}

// forgive ends that with the lease, when no process is left.
func (g *Group) forgive() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	refused, err := g.refusals()
	if err != nil {
		return err
	}
	g.before.refused = refused
	if !g.gaveWay {
		return nil
	}
	g.gaveWay = false
	return g.setBackground(g.limits.Background)
}
