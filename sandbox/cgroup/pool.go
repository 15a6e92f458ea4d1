// Package cgroup keeps a pool of control groups, on cgroup v1, hybrid and v2
// hosts. A [Pool] owns one parent group (in each hierarchy, on v1) and the
// groups below it; a [Group] is leased to one sandbox at a time.
//
// Making a group costs up to milliseconds when many are made at once, so it is
// done in the background, as are cleaning and removal. A group is leased again
// only when no process is left in it.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissing is returned by [Open] when the host lacks a controller.
var ErrMissing = errors.New("controller missing")

// Config says how to open a [Pool]. Required: Parent.
type Config struct {
	Parent   string       // name of the pool's own group, such as "fre-1a2b3c"
	Size     int          // groups kept ready; default 16
	Optional []Controller // may be missing; their limits are then not enforced
	Log      *slog.Logger // default: discards
}

// Pool hands out groups. Its methods may be called from any goroutine.
type Pool struct {
	cfg     Config
	layout  Layout
	parents map[Controller]string
	unique  []string // the parents without repetition

	mu     sync.Mutex
	free   []*Group
	dirty  []*Group // released, not yet cleaned
	next   int
	closed bool

	wake   chan struct{} // one token: the worker has something to do
	cancel context.CancelFunc
	done   chan struct{}
}

// Open detects the host's layout, removes what a crashed engine left below the
// same parent, and starts to fill the pool. [ErrMissing] names controller and
// host.
func Open(cfg Config) (*Pool, error) {
	if cfg.Parent == "" || strings.Contains(cfg.Parent, "/") {
		return nil, fmt.Errorf("cgroup parent %q: %w", cfg.Parent, unix.EINVAL)
	}
	if cfg.Size == 0 {
		cfg.Size = 16
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	layout, err := Detect()
	if err != nil {
		return nil, fmt.Errorf("detect cgroups: %w", err)
	}
	for _, c := range layout.Missing() {
		if !slices.Contains(cfg.Optional, c) {
			host, _ := os.Hostname()
			return nil, fmt.Errorf("cgroup: %s on host %s, so its limit cannot be enforced: %w; "+
				"enable it at boot or list it as optional", c, host, ErrMissing)
		}
	}
	p := &Pool{
		cfg:     cfg,
		layout:  layout,
		parents: map[Controller]string{},
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	base := ""
	if layout.Version == V2 {
		base = layout.base()
		if err := enable(base, p.have()); err != nil {
			return nil, fmt.Errorf("cgroup %s: %w", base, err)
		}
	}
	for _, c := range p.have() {
		mount := layout.Mounts[c]
		if base != "" {
			mount = base
		}
		p.parents[c] = filepath.Join(mount, cfg.Parent)
	}
	p.unique = distinct(p.parents)
	if err := p.Reconcile(); err != nil {
		return nil, err
	}
	for _, dir := range p.unique {
		if err := os.Mkdir(dir, 0o755); err != nil {
			_ = p.removeParents()
			return nil, err
		}
		if layout.Version == V2 {
			if err := enable(dir, p.have()); err != nil {
				_ = p.removeParents()
				return nil, fmt.Errorf("cgroup %s: %w", dir, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.work(ctx)
	p.poke()
	return p, nil
}

// have lists the controllers present, in order.
func (p *Pool) have() []Controller {
	missing := p.layout.Missing()
	return slices.DeleteFunc(slices.Clone(controllers), func(c Controller) bool {
		return slices.Contains(missing, c)
	})
}

func distinct(dirs map[Controller]string) []string {
	var unique []string
	for _, c := range controllers {
		if dir, ok := dirs[c]; ok && !slices.Contains(unique, dir) {
			unique = append(unique, dir)
		}
	}
	return unique
}

// Acquire leases a group with these limits in force: from the pool, or made now
// when the pool is empty.
func (p *Pool) Acquire(l Limits) (*Group, error) {
	for {
		g, err := p.take(l)
		if err != nil {
			return nil, err
		}
		fresh := g == nil
		if fresh {
			if g, err = p.create(); err != nil {
				return nil, err
			}
		}
		p.poke()
		if err = g.set(l); err == nil {
			return g, nil
		}
		p.Release(g)
		// A recycled group can refuse a limit below what is still charged to
		// it (EBUSY); a fresh one cannot.
		if fresh || !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
}

// take pops a free group, one that has the limits already if it can; nil if
// none is free.
func (p *Pool) take(l Limits) (*Group, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("cgroup pool: %w", fs.ErrClosed)
	}
	if len(p.free) == 0 {
		return nil, nil
	}
	i := len(p.free) - 1
	for j := i; j >= 0; j-- {
		if p.free[j].limits == l {
			i = j
			break
		}
	}
	g := p.free[i]
	p.free = slices.Delete(p.free, i, i+1)
	return g, nil
}

// Release gives a group back; every process in it must have been killed. It
// returns at once.
func (p *Pool) Release(g *Group) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.dirty = append(p.dirty, g)
	}
	p.mu.Unlock()
	if closed {
		g.close() // Close has removed its directories
		return
	}
	p.poke()
}

func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// create makes a group without limits.
func (p *Pool) create() (*Group, error) {
	p.mu.Lock()
	p.next++
	g := &Group{name: strconv.Itoa(p.next), dirs: map[Controller]string{}, v2: p.layout.Version == V2}
	p.mu.Unlock()
	for c, parent := range p.parents {
		g.dirs[c] = filepath.Join(parent, g.name)
	}
	g.unique = distinct(g.dirs)
	for _, dir := range g.unique {
		if err := os.Mkdir(dir, 0o755); err != nil {
			_ = p.remove(g)
			return nil, err
		}
		path, flags := filepath.Join(dir, "cgroup.procs"), unix.O_WRONLY
		if g.v2 {
			path, flags = dir, unix.O_DIRECTORY
		}
		// Not os.OpenFile: it would add the files to the poller in vain.
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			_ = p.remove(g)
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		g.procs = append(g.procs, os.NewFile(uintptr(fd), path))
	}
	return g, nil
}

// remove deletes an empty group, as far as it was made.
func (p *Pool) remove(g *Group) error {
	g.close()
	var err error
	for _, dir := range g.unique {
		if e := unix.Rmdir(dir); e != nil && e != unix.ENOENT {
			err = errors.Join(err, fmt.Errorf("rmdir %s: %w", dir, e))
		}
	}
	return err
}

// retryEvery is how often the worker looks again at a group whose processes
// have not all gone: the kernel notifies of it at most once in 10 ms, and not
// at all on v1.
const retryEvery = 10 * time.Millisecond

// work cleans released groups and refills the pool until ctx ends.
func (p *Pool) work(ctx context.Context) {
	defer close(p.done)
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	for {
		waiting := p.clean()
		p.refill(ctx)
		var again <-chan time.Time
		if waiting {
			again = retry.C
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.settle(ctx)
		case <-again:
		}
	}
}

// A burst of starts comes before the pool's own work: the worker waits until
// nothing has been acquired or released for settleQuiet, but not longer than
// settleAtMost, so that steady load does not starve the pool.
const (
	settleQuiet  = 5 * time.Millisecond
	settleAtMost = 100 * time.Millisecond
)

func (p *Pool) settle(ctx context.Context) {
	quiet, most := time.NewTimer(settleQuiet), time.NewTimer(settleAtMost)
	defer quiet.Stop()
	defer most.Stop()
	for {
		select {
		case <-p.wake:
			quiet.Reset(settleQuiet)
		case <-quiet.C:
			return
		case <-most.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// clean recycles or removes the released groups; it reports whether some still
// hold processes.
func (p *Pool) clean() (waiting bool) {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = nil
	p.mu.Unlock()
	var busy []*Group
	for _, g := range dirty {
		empty, err := g.empty()
		if err == nil && !empty {
			busy = append(busy, g)
			continue
		}
		if err == nil && !g.v2 && p.recycle(g) {
			continue
		}
		if err := p.remove(g); errors.Is(err, unix.EBUSY) {
			busy = append(busy, g)
		} else if err != nil {
			p.cfg.Log.Warn("cgroup not removed", "name", g.name, "error", err)
		}
	}
	if len(busy) == 0 {
		return false
	}
	p.mu.Lock()
	p.dirty = append(p.dirty, busy...)
	p.mu.Unlock()
	return true
}

// recycle puts a cleaned group back if the pool has room.
func (p *Pool) recycle(g *Group) bool {
	p.mu.Lock()
	room := !p.closed && len(p.free) < p.cfg.Size
	p.mu.Unlock()
	if !room || g.reset() != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, g)
	return true
}

func (p *Pool) refill(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		full := len(p.free)+len(p.dirty) >= p.cfg.Size
		p.mu.Unlock()
		if full {
			return
		}
		g, err := p.create()
		if err != nil {
			p.cfg.Log.WarnContext(ctx, "cgroup not made", "error", err)
			return
		}
		p.mu.Lock()
		p.free = append(p.free, g)
		p.mu.Unlock()
	}
}

// Close removes every group and the parent. All groups must have been
// released; processes still in them are killed.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	<-p.done
	for _, g := range append(p.free, p.dirty...) {
		g.close()
	}
	p.free, p.dirty = nil, nil
	return p.Reconcile()
}

// reconcileFor bounds the wait for killed processes to be gone.
const reconcileFor = 10 * time.Second

// Reconcile removes whatever lies below the pool's parent, and the parent:
// processes are killed first. Open has called it before it makes anything.
func (p *Pool) Reconcile() error {
	deadline := time.Now().Add(reconcileFor)
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	for {
		err := p.removeParents()
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(deadline) {
			return err
		}
		<-retry.C
	}
}

func (p *Pool) removeParents() error {
	var err error
	for _, dir := range p.unique {
		err = errors.Join(err, removeTree(dir))
	}
	return err
}

// removeTree kills what is in dir and below and removes the groups; EBUSY while
// killed processes are still going.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	procs, e := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	err = errors.Join(err, e)
	for field := range strings.FieldsSeq(string(procs)) {
		if pid, e := strconv.Atoi(field); e == nil && pid > 1 && pid != os.Getpid() {
			err = errors.Join(err, ignoreGone(unix.Kill(pid, unix.SIGKILL)))
		}
	}
	if e := unix.Rmdir(dir); e != nil && e != unix.ENOENT {
		err = errors.Join(err, fmt.Errorf("rmdir %s: %w", dir, e))
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
