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
	// mostRefused is the number of refused processes and threads in one lease after which the
	// group gives way. The kernel copies a process's memory map before the kernel checks the
	// limit of processes, and does not give up the CPU meanwhile. So a group that tries again
	// and again delays every neighbour, whatever its quota.
	mostRefused = 32

	// The watch reads every group in turn, some 2 µs each, since cgroup v1 sends no
	// notifications.
	watchEvery = 50 * time.Millisecond
	watchEach  = 250 * time.Microsecond // longer for each group
)

// watch checks the groups that run untrusted code. The watch puts a group behind all others
// (cpu.idle) for the rest of the lease if the kernel keeps refusing processes to the group. The
// watch ends the lease if the group holds too much kernel memory that no cgroup is charged for:
// data in sockets, file locks. The watch sleeps while no group is watched.
type watch struct {
	mu     sync.Mutex
	groups map[*Group]struct{}
	timer  *time.Timer // runs while any group is watched
	locks  int64       // the host's file locks at the last read of /proc/locks, or the lowest number since
}

func newWatch() *watch {
	w := &watch{groups: map[*Group]struct{}{}}
	w.timer = time.AfterFunc(0, w.look)
	return w
}

// Watch starts the watch over the group, until the end of the lease. Use Watch for groups that
// run untrusted code. After mostRefused refused processes the group gives way to all others.
// The watch calls end, which must kill the processes in the group, in three cases: the group
// holds more than mostLocks file locks; the group's charge for sockets (V1) is twice its limit;
// or queued is above that limit. queued, which may be nil, returns the bytes in sockets that
// the kernel charges to no cgroup.
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

// begin marks the group as leased; end clears the mark and stops the watch over the group.
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

// openCounters opens the files that the watch reads. A file that the kernel lacks stays nil.
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

// boundSockets ends the lease of a group whose sockets hold twice their limit. TCP takes some
// 80 KiB for each connection beyond the limit, so the limit alone does not bound a group that
// may open thousands of connections.
func (g *Group) boundSockets() {
	g.mu.Lock()
	lease, end, queued, most, held := g.lease, g.end, g.queued, g.socketBytes, g.socketsHeldLocked()
	g.mu.Unlock()
	// Call queued without the lock, since queued takes a while. Call end without the lock: the
	// owner of end may call Stats under a lock that end needs.
	if end != nil && (held/2 > most || queued != nil && queued() > most) {
		g.flood(lease)
	}
}

// flood ends the given lease once, unless the lease is already over.
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

// socketsHeldLocked returns the charge of the group's sockets in bytes; 0 if unknown.
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

// refusals returns the number of processes refused to the group, in all leases.
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

// giveWay puts the group behind all others if its lease has had too many refusals. If a read or
// write fails, the group keeps its priority.
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

// forgive resets the state of the watch for the next lease. No process is left in the group.
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
