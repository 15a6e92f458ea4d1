// Package cgroup keeps a pool of control groups, on cgroup v1, hybrid and v2
// hosts. A [Pool] owns one parent group (in each hierarchy, on v1) and the
// groups below it; a [Group] is leased to one sandbox at a time.
//
// Making a group costs up to milliseconds when many are made at once, so it is
// done in the background (package pool), as are cleaning and removal. A group
// is leased again only when no process is left in it and next to no memory charged
// to it.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/pool"
)

// ErrMissing is returned by [Open] when the host lacks a controller.
var ErrMissing = errors.New("controller missing")

// Config says how to open a [Pool]. Required: Parent.
type Config struct {
	Parent   string       // name of the pool's own group, such as "fre-1a2b3c"
	Size     int          // groups kept ready; default 16
	Optional []Controller // may be missing; their limits are then not enforced
	Log      *slog.Logger // default: discards
	Busy     func() bool  // whether to put work off; default as pool.Config's
}

// Pool hands out groups. Its methods may be called from any goroutine.
type Pool struct {
	cfg     Config
	layout  Layout
	parents map[Controller]string
	unique  []string // the parents without repetition

	next    atomic.Int64
	closing sync.Once
	pool    *pool.Pool[*Group]
	watch   *watch
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
		watch:   newWatch(),
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
	p.pool = pool.New(pool.Config[*Group]{
		Name: "cgroup", Ready: cfg.Size, Make: p.create, Clean: (*Group).clean, Drop: p.remove, Log: cfg.Log, Busy: cfg.Busy,
	})
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

// Acquire leases a group with these limits in force: from the pool, preferably
// one that has them already, or made now when the pool is empty.
func (p *Pool) Acquire(l Limits) (*Group, error) {
	g, err := p.acquire(l)
	if err != nil {
		return nil, err
	}
	p.watch.begin(g)
	return g, nil
}

func (p *Pool) acquire(l Limits) (*Group, error) {
	var g *Group
	for range 2 {
		var err error
		if g, err = p.pool.Take(func(g *Group) bool { return g.limits == l }); err != nil {
			return nil, err
		}
		err = g.set(l)
		if err == nil {
			return g, nil
		}
		p.pool.Give(g)
		// A recycled group can refuse a limit below what is still charged to
		// it (EBUSY); a fresh one cannot.
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	g, err := p.create()
	if err != nil {
		return nil, err
	}
	if err := g.set(l); err != nil {
		p.pool.Give(g)
		return nil, err
	}
	return g, nil
}

// Release gives a group back; every process in it must have been killed. It
// returns at once.
func (p *Pool) Release(g *Group) {
	p.watch.end(g)
	p.pool.Give(g)
}

// Count is how many groups there are, leased or not.
func (p *Pool) Count() (n int, err error) {
	entries, err := os.ReadDir(p.unique[0])
	for _, e := range entries {
		if e.IsDir() {
			n++
		}
	}
	return n, err
}

// create makes a group without limits.
func (p *Pool) create() (*Group, error) {
	g := &Group{
		name: strconv.FormatInt(p.next.Add(1), 10), dirs: map[Controller]string{}, v2: p.layout.Version == V2, watch: p.watch,
	}
	for c, parent := range p.parents {
		g.dirs[c] = filepath.Join(parent, g.name)
	}
	g.unique = distinct(g.dirs)
	for _, dir := range g.unique {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, p.remove(g))
		}
		// "0" written to tasks moves the writer's one thread; cgroup.procs would
		// take a lock that waits for a grace period of RCU, some 10 ms, whenever
		// no other has lately (cgroup_procs_write_start in the kernel).
		path, flags := filepath.Join(dir, "tasks"), unix.O_WRONLY
		if g.v2 {
			path, flags = dir, unix.O_DIRECTORY
		}
		// Not os.OpenFile: it would add the files to the poller in vain.
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), p.remove(g))
		}
		g.procs = append(g.procs, os.NewFile(uintptr(fd), path))
	}
	if err := g.openCounters(); err != nil {
		return nil, errors.Join(err, p.remove(g))
	}
	// The first limit of a group has the kernel begin to count, for the first group by a
	// change to its own code: not on a request's time.
	if err := g.setSockets(math.MaxInt64); err != nil {
		return nil, errors.Join(err, p.remove(g))
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

// Close removes every group and the parent. All groups must have been
// released; processes still in them are killed.
func (p *Pool) Close() error {
	var err error
	p.closing.Do(func() {
		p.pool.Close()
		err = p.Reconcile()
	})
	return err
}

const (
	// reconcileFor bounds the wait for killed processes to be gone.
	reconcileFor = 10 * time.Second
	// retryEvery is how often it looks: the kernel notifies of an empty group
	// at most once in 10 ms, and not at all on v1.
	retryEvery = 10 * time.Millisecond
)

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
