// Package cgroup keeps a pool of control groups, on hosts with cgroup v1, hybrid or v2. A
// [Pool] owns one parent group (on v1 one in each hierarchy) and the groups below. A [Group] is
// leased to one sandbox at a time.
//
// To make many groups at once costs up to milliseconds for each group. So the pool makes,
// cleans and removes groups in the background (package pool). The pool leases a used group
// again only if the group has no process and next to no charged memory.
package cgroup

import (
	"cmp"
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

// ErrMissing is the error of [Open] if the host lacks a controller.
var ErrMissing = errors.New("controller missing")

// Config configures [Open]. Parent is required.
type Config struct {
	Parent   string       // name of the pool's parent group, such as "fre-1a2b3c"
	Size     int          // ready groups; default 16
	Optional []Controller // controllers that may be missing; the pool then skips their limits
	Log      *slog.Logger // default: discard
	Busy     func() bool  // whether to put work off; default as in pool.Config
}

// Pool leases groups. Its methods are safe for concurrent use.
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

// Open detects the host's layout, removes the groups that a crashed engine left below the same
// parent, and starts to fill the pool. An error that is [ErrMissing] names the controller and
// the host.
func Open(cfg Config) (*Pool, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	layout, err := Detect()
	if err != nil {
		return nil, fmt.Errorf("detect cgroups: %w", err)
	}
	if err := cfg.require(layout); err != nil {
		return nil, err
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
		if err := p.enable(base); err != nil {
			return nil, err
		}
	}
	for _, c := range p.have() {
		p.parents[c] = filepath.Join(cmp.Or(base, layout.Mounts[c]), cfg.Parent)
	}
	p.unique = distinct(p.parents)
	if err := p.Reconcile(); err != nil {
		return nil, err
	}
	if err := p.makeParents(); err != nil {
		return nil, errors.Join(err, p.removeParents())
	}
	p.pool = pool.New(pool.Config[*Group]{
		Name: "cgroup", Ready: cfg.Size, Make: p.create, Clean: (*Group).clean, Drop: p.remove, Log: cfg.Log, Busy: cfg.Busy,
	})
	return p, nil
}

func (cfg *Config) complete() error {
	if cfg.Parent == "" || strings.Contains(cfg.Parent, "/") {
		return fmt.Errorf("cgroup parent %q: %w", cfg.Parent, unix.EINVAL)
	}
	cfg.Size = cmp.Or(cfg.Size, 16)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// require returns ErrMissing if the layout lacks a controller that is not optional.
func (cfg *Config) require(layout Layout) error {
	for _, c := range layout.Missing() {
		if !slices.Contains(cfg.Optional, c) {
			host, _ := os.Hostname()
			return fmt.Errorf("cgroup controller %s on host %s, required for the limit: %w; "+
				"enable the controller at boot, or list the controller as optional", c, host, ErrMissing)
		}
	}
	return nil
}

func (p *Pool) makeParents() error {
	for _, dir := range p.unique {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if p.layout.Version == V2 {
			if err := p.enable(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Pool) enable(dir string) error {
	if err := enable(dir, p.have()); err != nil {
		return fmt.Errorf("cgroup %s: %w", dir, err)
	}
	return nil
}

// have lists the host's controllers, in the order of controllers.
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

// Acquire leases a group with the limits in force: from the pool, preferably one that already
// has these limits, or a new group if the pool is empty.
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
		// A used group can refuse a limit below its current charge (EBUSY). A new group cannot.
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

// Release ends the lease of a group. The caller must have killed every process in the group.
// Release never blocks.
func (p *Pool) Release(g *Group) {
	p.watch.end(g)
	p.pool.Give(g)
}

// Count returns the number of groups, leased or not.
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
		// A write of "0" to tasks moves the single thread of the writer. A write to
		// cgroup.procs takes a lock that waits for a grace period of RCU, some 10 ms, unless
		// another process took the lock lately (cgroup_procs_write_start in the kernel).
		path, flags := filepath.Join(dir, "tasks"), unix.O_WRONLY
		if g.v2 {
			path, flags = dir, unix.O_DIRECTORY
		}
		// Not os.OpenFile, which would add the files to the poller in vain.
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), p.remove(g))
		}
		g.procs = append(g.procs, os.NewFile(uintptr(fd), path))
	}
	if err := g.openCounters(); err != nil {
		return nil, errors.Join(err, p.remove(g))
	}
	// The first limit of a group makes the kernel begin to count; for the first group of all,
	// the kernel patches its own code. Set a limit now, so that no request waits for that.
	if err := g.setSockets(math.MaxInt64); err != nil {
		return nil, errors.Join(err, p.remove(g))
	}
	return g, nil
}

// remove deletes an empty group, complete or half made.
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

// Close removes every group and the parent. The caller must have released all groups; Close
// kills any process left in them.
func (p *Pool) Close() error {
	var err error
	p.closing.Do(func() {
		p.pool.Close()
		err = p.Reconcile()
	})
	return err
}

const (
	// reconcileFor bounds the wait for killed processes to end.
	reconcileFor = 10 * time.Second
	// retryEvery is the interval between attempts: the kernel reports an empty group at most
	// once in 10 ms, and never on v1.
	retryEvery = 10 * time.Millisecond
)

// Reconcile kills all processes below the pool's parent and removes the groups and the parent.
// Open calls Reconcile before Open makes any group.
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

// removeTree kills the processes in dir and below and removes the groups. The error is EBUSY
// while killed processes are still ending.
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
	err = errors.Join(err, killAll(dir))
	if e := unix.Rmdir(dir); e != nil && e != unix.ENOENT {
		err = errors.Join(err, fmt.Errorf("rmdir %s: %w", dir, e))
	}
	return err
}

// killAll kills the processes of the group in dir.
func killAll(dir string) error {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for field := range strings.FieldsSeq(string(procs)) {
		if pid, e := strconv.Atoi(field); e == nil && pid > 1 && pid != os.Getpid() {
			err = errors.Join(err, ignoreGone(unix.Kill(pid, unix.SIGKILL)))
		}
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
