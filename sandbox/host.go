package sandbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/sandbox/netns"
)

// Config configures [Open]. Dir is required.
type Config struct {
	Dir string       // private directory for mount points; created by Open
	Log *slog.Logger // default: discard
	// PoolSize is the number of cgroups, of network namespaces and of bare parked sandboxes to
	// keep ready; default 16. Open reduces the number if the host has no room.
	PoolSize     int
	CgroupParent string // default "fre-" and a hash of Dir
	// Optional are controllers that the host may lack. Their limits are then not enforced, and
	// CheckLimits refuses such limits.
	Optional []cgroup.Controller
	// Parked is the most parked sandboxes; default 4 × PoolSize, none if negative. Open reduces
	// the number if the host has no room.
	Parked   int
	Spawners int           // spawner processes; default 2, or 1 on one CPU
	Egress   egress.Config // for sandboxes with egress; Open sets Name and Log by default
	OwnBase  uint32        // first host id of sandboxes with User.Own; default 0x80000000
}

// startsPerCPU bounds the concurrent starts for each CPU; further starts wait. Measured: 256
// attached starts at once on two CPUs, median/slowest in ms, medians of three times six bursts
// of bench/start. 1 for each CPU: 138/254, 2: 159/288, 4: 166/309, 16: 165/301, unlimited:
// 185/289. Not 1, because a single start that waits for a disk would then idle half the
// machine.
const startsPerCPU = 2

// Host starts sandboxes. Its methods are safe for concurrent use.
type Host struct {
	cfg       Config
	log       *slog.Logger
	program   *os.File      // fre-spawner
	filters   *os.File      // system call filters
	devices   *os.File      // a mount of /dev without a path on the host
	landlock  atomic.Uint32 // ABI of Landlock, 0 without Landlock
	cgroups   *cgroup.Pool
	networks  *netns.Pool
	wayOut    wayOut
	visitor   *visitor
	own       ranges
	layers    layers
	proc      *procFiles
	next      atomic.Uint64
	parked    *parkedSandboxes
	admitted  chan struct{}  // one token for each start in progress
	starts    atomic.Int64   // Start calls in progress; the pools give way to them
	lastStart atomic.Int64   // end of the latest start: monotonic, in ns
	ending    sync.WaitGroup // ends of sandboxes in progress
	reading   sync.WaitGroup // readers of spawners
	starting  sync.WaitGroup // Start calls in progress
	slots     []slot

	startWithin time.Duration
	cpus        unix.CPUSet // the engine's CPUs
	maxFiles    int64       // most open files of a sandbox

	mu     sync.Mutex
	closed bool
	ids    map[string]*Sandbox
	users  map[string]*userns
}

// slot holds one of the spawners. The next start replaces a spawner that has ended.
type slot struct {
	mu sync.Mutex
	s  *spawner
}

// userns is a tenant's user namespace, made once.
type userns struct {
	base uint32
	once sync.Once
	file *os.File
	err  error
}

// Open removes the leftovers of a crashed engine with the same Dir, mounts the shared /dev
// below Dir in the caller's mount namespace (see [Isolate]), starts the spawners and fills the
// pools. Open needs root.
func Open(cfg Config) (host *Host, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	h := &Host{
		cfg: cfg, log: cfg.Log, own: ranges{first: cfg.OwnBase},
		ids: map[string]*Sandbox{}, users: map[string]*userns{},
		slots: make([]slot, cfg.Spawners), startWithin: startWithin,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := unix.SchedGetaffinity(0, &h.cpus); err != nil {
		return nil, fmt.Errorf("read the engine's CPUs: %w", err)
	}
	bounds, err := h.bounds()
	if err != nil {
		return nil, err
	}
	room := cutLimits(Limits{MemoryBytes: math.MaxInt64, Pids: math.MaxInt64}, bounds)
	h.cfg.sizePools(room.MemoryBytes, room.Pids)
	h.admitted = make(chan struct{}, startsPerCPU*h.cpus.Count())
	if err := h.openHelpers(); err != nil {
		return nil, err
	}
	if err := h.makeDirs(); err != nil {
		return nil, err
	}
	if h.cgroups, err = cgroup.Open(cgroup.Config{
		Parent: cfg.CgroupParent, Size: h.cfg.PoolSize, Optional: cfg.Optional, Log: cfg.Log, Busy: h.Busy,
	}); err != nil {
		return nil, err
	}
	h.networks = netns.Open(netns.Config{Size: h.cfg.PoolSize, Log: cfg.Log, Busy: h.Busy})
	if err := h.startSpawners(); err != nil {
		return nil, err
	}
	h.parked = openParked(h, h.cfg.PoolSize, h.cfg.Parked)
	return h, nil
}

// complete sets the defaults of a Config.
func (cfg *Config) complete() (err error) {
	if cfg.Dir == "" {
		return errors.New("sandbox: Config.Dir is required")
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Egress.Log == nil {
		cfg.Egress.Log = cfg.Log
	}
	// Names on the host for the engine of this directory.
	sum := sha256.Sum256([]byte(cfg.Dir))
	name := "fre-" + hex.EncodeToString(sum[:6])
	cfg.CgroupParent = cmp.Or(cfg.CgroupParent, name)
	cfg.Egress.Name = cmp.Or(cfg.Egress.Name, name[:15]) // the most bytes in the name of a link
	// A spawner waits for each child's execve. Slowest of 256 starts at once on two CPUs,
	// in ms, one spawner/two spawners: 530/457, 1062/763, 814/748, 771/824; of 64 starts:
	// 192/231, 124/118, 256/195, 191/282 (BenchmarkBurst on a busy machine). The difference
	// is noise, but with two spawners the death of one costs only half of the sandboxes.
	cfg.Spawners = cmp.Or(cfg.Spawners, min(2, runtime.NumCPU()))
	cfg.OwnBase = cmp.Or(cfg.OwnBase, 0x80000000)
	return nil
}

// openHelpers starts the thread that enters namespaces, and opens the spawner's program and the
// system call filters.
func (h *Host) openHelpers() (err error) {
	if h.visitor, err = newVisitor(); err != nil {
		return err
	}
	if h.program, err = openProgram(); err != nil {
		return err
	}
	h.filters, err = newFilters()
	return err
}

// makeDirs removes the mounts of a crashed engine, and makes the directories and mounts that all
// sandboxes share.
func (h *Host) makeDirs() (err error) {
	dir := h.cfg.Dir
	for _, old := range []string{devDir(dir), procDir(dir), layersDir(dir)} {
		if err := removeMounts(old); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(layersDir(dir), 0o700); err != nil {
		return err
	}
	if err := makeDev(devDir(dir)); err != nil {
		return err
	}
	if h.devices, err = openDevices(devDir(dir)); err != nil {
		return err
	}
	h.proc, err = openProcFiles(procDir(dir), h.log)
	return err
}

func (h *Host) startSpawners() error {
	for i := range h.slots {
		s, err := h.spawner(uint64(i))
		if err != nil {
			return err
		}
		var files unix.Rlimit
		if err := unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &files); err != nil {
			return fmt.Errorf("read the spawner's limits: %w", err)
		}
		h.maxFiles = int64(min(files.Max, math.MaxInt64))
	}
	return nil
}

// Cgroups returns the number of cgroups, leased or ready.
func (h *Host) Cgroups() (int, error) { return h.cgroups.Count() }

// openDevices makes a separate mount of dev. A file opened there shows no path of the host in
// the /proc/self/fd of a sandbox.
func openDevices(dev string) (*os.File, error) {
	tree, err := cloneTree(dev, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(tree), "devices"), nil
}

// spawner returns the spawner for a turn, and restarts a spawner that has ended.
func (h *Host) spawner(turn uint64) (*spawner, error) {
	slot := &h.slots[turn%uint64(len(h.slots))]
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.s != nil && !slot.s.ended() {
		return slot.s, nil
	}
	s, err := newSpawner(h)
	if err != nil {
		return nil, err
	}
	slot.s = s
	h.reading.Go(func() {
		if err := s.read(); !errors.Is(err, net.ErrClosed) {
			h.log.Error("spawner ended, and all its sandboxes", "error", err)
		}
	})
	return s, nil
}

// startWithin bounds the wait for a spawner's answer, which normally takes a millisecond. A
// spawner that is stopped or stuck in the kernel must not block the engine.
const startWithin = time.Minute

func (spec *Spec) setDefaults() {
	if spec.Dir == "" {
		spec.Dir = "/"
	}
	if spec.Hostname == "" {
		spec.Hostname = "fre"
	}
	if spec.Network == "" {
		spec.Network = NetworkNone
	}
	spec.Limits.setDefaults()
	if spec.Scratch != nil {
		s := *spec.Scratch // a copy: leave the caller's Scratch unchanged
		s.setDefaults()
		spec.Scratch = &s
	}
}

func (l *Limits) setDefaults() {
	for _, d := range []struct {
		field *int64
		value int64
	}{
		{&l.MemoryBytes, 128 << 20},
		{&l.CPUMillis, 1000},
		{&l.Pids, 64},
		{&l.TmpBytes, 64 << 20},
		{&l.Files, 1024},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if l.TmpInodes == 0 {
		l.TmpInodes = max(l.TmpBytes/4096, 16)
	}
}

// register assigns the sandbox's name and counts its start as in progress.
func (h *Host) register(s *Sandbox, id string) error {
	if id == "" {
		id = "sb-" + strconv.FormatUint(s.number, 10)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("sandbox host: %w", fs.ErrClosed)
	}
	if h.ids[id] != nil {
		return fmt.Errorf("sandbox %s: %w", id, fs.ErrExist)
	}
	s.id = id
	h.ids[id] = s
	h.starting.Add(1)
	return nil
}

func (h *Host) forget(s *Sandbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[s.id] == s { // a parked sandbox has no name
		delete(h.ids, s.id)
	}
}

// identity returns the user namespace and the first host id of a sandbox. With User.Own the
// message owns both until the sandbox owns them.
func (h *Host) identity(m *startMessage, u User) (*os.File, uint32, error) {
	if !u.Own {
		file, err := h.userns(u)
		return file, u.HostBase, err
	}
	base, err := h.own.acquire()
	if err != nil {
		return nil, 0, err
	}
	file, err := newUserns(h.program, base, 0)
	if err != nil {
		h.own.release(base)
		return nil, 0, err
	}
	m.userns, m.base = file, base
	m.undo = append(m.undo, func() {
		_ = file.Close()
		h.own.release(base)
	})
	return file, base, nil
}

// userns returns the tenant's user namespace; the tenant's first sandbox makes the namespace.
func (h *Host) userns(u User) (*os.File, error) {
	if u.HostBase > math.MaxUint32-idCount {
		return nil, fmt.Errorf("tenant %s: host id %d leaves no room for %d ids: %w", u.Tenant, u.HostBase, idCount, unix.EINVAL)
	}
	h.mu.Lock()
	n := h.users[u.Tenant]
	if n == nil {
		n = &userns{base: u.HostBase}
		h.users[u.Tenant] = n
	}
	h.mu.Unlock()
	if n.base != u.HostBase {
		return nil, fmt.Errorf("tenant %s: host ids begin at %d, not %d: %w", u.Tenant, n.base, u.HostBase, unix.EINVAL)
	}
	n.once.Do(func() { n.file, n.err = newUserns(h.program, u.HostBase, 0) })
	if n.err != nil {
		h.mu.Lock()
		delete(h.users, u.Tenant) // so that the next start tries again
		h.mu.Unlock()
		return nil, fmt.Errorf("tenant %s: %w", u.Tenant, n.err)
	}
	return n.file, nil
}

// Close waits for starts in progress, kills every sandbox, waits until all have been reaped,
// and removes the objects that Open made.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.mu.Unlock()
	h.starting.Wait()
	if h.parked != nil {
		h.parked.close()
	}
	h.stopSpawners()
	if h.visitor != nil {
		h.visitor.close()
	}
	var err error
	if h.cgroups != nil {
		err = errors.Join(err, h.cgroups.Close())
	}
	if h.networks != nil {
		h.networks.Close()
	}
	err = errors.Join(err, h.wayOut.close(h.cfg.Dir))
	for _, u := range h.users {
		_ = u.file.Close() // of a nil file: an error
	}
	for _, f := range []*os.File{h.program, h.filters, h.devices} {
		_ = f.Close()
	}
	if h.proc != nil {
		err = errors.Join(err, h.proc.close())
	}
	return errors.Join(err, removeMounts(devDir(h.cfg.Dir)), removeMounts(procDir(h.cfg.Dir)), removeMounts(layersDir(h.cfg.Dir)))
}

func (h *Host) stopSpawners() {
	for i := range h.slots {
		if s := h.slots[i].s; s != nil {
			_ = s.conn.Close() // the spawner ends at end of file; the reader waits for that
		}
	}
	h.reading.Wait()
	h.ending.Wait()
}
