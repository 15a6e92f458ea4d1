package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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

// watch looks at groups that run what nobody trusts. It puts those that are refused
// process after process behind all others (cpu.idle) for the rest of their lease, and
// ends those that have too much kernel memory which nothing charges them: data in
// sockets, file locks. It sleeps while there are no groups.
type watch struct {
	mu     sync.Mutex
	groups map[*Group]struct{}
	timer  *time.Timer // runs while there are groups
	locks  int64       // file locks of the host when it was looked whose they are, or fewer since
}

func newWatch() *watch {
	w := &watch{groups: map[*Group]struct{}{}}
	w.timer = time.AfterFunc(0, w.look)
	return w
}

// Watch has the group give way to all others once the kernel has refused it some dozens
// of processes over its limit, until the end of the lease. It calls end, which is to kill
// what runs in the group, if data in sockets passes its limit by far (on V1 what the group
// is charged, and what queued, unless nil, says of those that are charged to nobody), or
// if it holds very many file locks. It is for groups that run what nobody trusts.
func (g *Group) Watch(end func(), queued func() int64) {
	w := g.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if !g.leased || g.events == nil && g.sockets == nil && queued == nil {
		return
	}
	g.mu.Lock()
	g.end, g.queued = end, queued
	g.mu.Unlock()
	if w.groups[g] = struct{}{}; len(w.groups) == 1 {
		w.timer.Reset(watchEvery)
	}
}

// begin and end are those of a lease.
func (w *watch) begin(g *Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.leased = true
}

func (w *watch) end(g *Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.leased = false
	delete(w.groups, g)
}

func (w *watch) look() {
	w.mu.Lock()
	groups := make([]*Group, 0, len(w.groups))
	for g := range w.groups {
		groups = append(groups, g)
	}
	w.mu.Unlock()
	for _, g := range groups {
		g.giveWay()
		g.boundSockets()
	}
	w.boundLocks(groups)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.groups); n > 0 {
		w.timer.Reset(watchEvery + time.Duration(n)*watchEach)
	}
}

// openCounters opens what the watch reads; a kernel without one does without.
func (g *Group) openCounters() (err error) {
	if g.events, err = g.openCounter(Pids, "pids.events"); err == nil && !g.v2 {
		g.sockets, err = g.openCounter(Memory, socketUsage)
	}
	return err
}

func (g *Group) openCounter(c Controller, name string) (*os.File, error) {
	dir, ok := g.dirs[c]
	if !ok {
		return nil, nil
	}
	path := filepath.Join(dir, name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// boundSockets ends the lease of a group whose sockets hold twice what they may: TCP
// takes some 80 KiB for each connection beyond the limit, so that the limit alone bounds
// nothing that may open thousands of them.
func (g *Group) boundSockets() {
	g.mu.Lock()
	lease, end, queued, most, held := g.lease, g.end, g.queued, g.socketBytes, g.socketsHeldLocked()
	g.mu.Unlock()
	// Without the lock: queued takes a while, and the owner of end may hold a lock that
	// Stats is called under.
	if end != nil && (held/2 > most || queued != nil && queued() > most) {
		g.flood(lease)
	}
}

// flood ends a lease, once, unless it has ended by itself.
func (g *Group) flood(lease int64) {
	g.mu.Lock()
	end := g.end
	if g.lease != lease || g.flooded {
		end = nil
	}
	g.flooded = g.flooded || end != nil
	g.mu.Unlock()
	if end != nil {
		end()
	}
}

// socketsHeldLocked is what the group's sockets are charged, 0 where that cannot be read.
func (g *Group) socketsHeldLocked() int64 {
	if g.sockets == nil {
		return 0
	}
	var b [32]byte
	n, err := unix.Pread(int(g.sockets.Fd()), b[:], 0)
	if err != nil {
		return 0
	}
	held, _ := strconv.ParseInt(string(bytes.TrimSpace(b[:n])), 10, 64)
	return held
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

// forgive ends what the watch has done to the lease, when no process is left.
func (g *Group) forgive() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	refused, err := g.refusals()
	if err != nil {
		return err
	}
	g.before.refused = refused
	g.end, g.queued, g.flooded = nil, nil, false
	g.lease++
	if !g.gaveWay {
		return nil
	}
	g.gaveWay = false
	return g.setBackground(g.limits.Background)
}
