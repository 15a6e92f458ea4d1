package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/pool"
)

// period is the kernel's default period of a CPU quota.
const period = 100 * time.Millisecond

// Limits are the limits of one group; all are required.
type Limits struct {
	MemoryBytes int64 // with swap if the host accounts for swap
	CPUMillis   int64 // thousandths of one CPU
	Pids        int64 // processes and threads
	Background  bool  // the pool's other groups have the CPU first
}

// Stats is the usage of one group since the lease began.
type Stats struct {
	MemoryBytes int64         // in use now, sockets included
	MaxMemory   int64         // peak; 0 if the kernel cannot tell the peak of this lease
	CPU         time.Duration // user and system
	OOMKills    int64         // processes killed by the memory limit, plus 1 if the watch ended the lease
}

// counters never decrease: the share of one lease is the increase during the lease.
type counters struct {
	oomKills int64
	refused  int64 // processes refused by the limit; guarded by Group.mu
	cpu      time.Duration
}

// Group is one cgroup, or on V1 one cgroup in each hierarchy. The caller owns the group from
// [Pool.Acquire] to [Pool.Release].
type Group struct {
	name   string
	dirs   map[Controller]string // V2: all the same
	unique []string              // dirs without repetition, in the order of controllers
	procs  []*os.File            // V1: the tasks file of each hierarchy; V2: the directory
	limits Limits                // in force; zero if unknown
	before counters              // the counters at the start of the lease
	v2     bool
	watch  *watch
	leased bool // guarded by watch.mu

	mu          sync.Mutex   // for the owner of the lease and the watch
	gaveWay     bool         // the watch has put the group behind all others
	events      *os.File     // pids.events; nil: absent
	sockets     *os.File     // V1: the usage of socket memory; nil: not counted, or part of the memory limit
	socketBytes int64        // limit of socket memory
	lease       int64        // number of the current lease
	end         func()       // kills the processes in the group; nil: not watched
	queued      func() int64 // see Group.Watch
	flooded     bool         // the watch has called end
}

// Files returns the files by which a single-threaded process joins the group. On V1 they are
// the tasks file of each hierarchy: the process writes "0" to each of them. On V2 the only file
// is the directory, for CLONE_INTO_CGROUP. The group owns the files.
func (g *Group) Files() []*os.File { return g.procs }

// V2 reports whether Files returns the directory of V2.
func (g *Group) V2() bool { return g.v2 }

// Add moves another process into the group; on V1 only the first thread of the process. Add can
// block for up to 20 ms if no process of the host has changed cgroups lately, so do not call
// Add while a request waits.
func (g *Group) Add(pid int) error {
	number := []byte(strconv.Itoa(pid))
	for _, f := range g.procs {
		fd := int(f.Fd())
		if g.v2 {
			var err error
			if fd, err = unix.Openat(fd, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
				return fmt.Errorf("open cgroup.procs: %w", err)
			}
		}
		_, err := unix.Write(fd, number)
		if g.v2 {
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("move process %d into cgroup %s: %w", pid, g.name, err)
		}
	}
	return nil
}

// SetLimits changes the limits of a leased group. The error is EBUSY if the group already uses
// more memory than the new limit.
func (g *Group) SetLimits(l Limits) error { return g.set(l) }

// set writes the limits that differ from the limits in force.
func (g *Group) set(l Limits) error {
	if min(l.MemoryBytes, l.CPUMillis, l.Pids) <= 0 {
		return fmt.Errorf("limits %+v: %w", l, unix.EINVAL)
	}
	if l.Pids != g.limits.Pids {
		if err := g.write(Pids, "pids.max", strconv.FormatInt(l.Pids, 10)); err != nil {
			return err
		}
		g.limits.Pids = l.Pids
	}
	if l.CPUMillis != g.limits.CPUMillis {
		if err := g.setCPU(l.CPUMillis); err != nil {
			return err
		}
		g.limits.CPUMillis = l.CPUMillis
	}
	if err := g.limitBackground(l.Background); err != nil {
		return err
	}
	if l.MemoryBytes != g.limits.MemoryBytes {
		if err := g.setMemory(l.MemoryBytes); err != nil {
			g.limits.MemoryBytes = 0 // unknown: setMemory may have written one of two files
			return err
		}
		g.limits.MemoryBytes = l.MemoryBytes
	}
	return nil
}

func (g *Group) limitBackground(background bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if background == g.limits.Background {
		return nil
	}
	err := g.setBackground(background || g.gaveWay)
	if err == nil {
		g.limits.Background = background
	}
	return err
}

// setCPU sets the quota. The kernel also gives the group a whole new period's time at once.
func (g *Group) setCPU(millis int64) error {
	quota := strconv.FormatInt(max(millis*period.Microseconds()/1000, 1000), 10)
	if g.v2 {
		return g.write(CPU, "cpu.max", quota+" "+strconv.FormatInt(period.Microseconds(), 10))
	}
	return g.write(CPU, "cpu.cfs_quota_us", quota)
}

// setBackground has the scheduler run the group only when no other group wants the CPU
// (cpu.idle, Linux 5.15). On older kernels setBackground does nothing.
func (g *Group) setBackground(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return ignoreMissing(g.write(CPU, "cpu.idle", value))
}

// Background reports whether the group gives way to other groups; false on a kernel without
// cpu.idle.
func (g *Group) Background() bool {
	dir, ok := g.dirs[CPU]
	if !ok {
		return false
	}
	n, err := readInt(filepath.Join(dir, "cpu.idle"))
	return err == nil && n == 1
}

func (g *Group) setMemory(bytes int64) error {
	value := strconv.FormatInt(bytes, 10)
	if g.v2 {
		if err := g.write(Memory, "memory.max", value); err != nil {
			return err
		}
		return errors.Join(ignoreMissing(g.write(Memory, "memory.swap.max", "0")), g.setSockets(bytes))
	}
	// The limit of memsw (memory and swap) must never lie below the memory limit, so the order
	// depends on the direction. For an unlimited group, every limit is a decrease.
	steps := []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	if g.limits.MemoryBytes != 0 && bytes > g.limits.MemoryBytes {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, name := range steps {
		err := g.write(Memory, name, value)
		if name == "memory.memsw.limit_in_bytes" && errors.Is(err, fs.ErrNotExist) {
			// The kernel does not account for swap (swapaccount=0). Then the group must not
			// swap to stay below the memory limit. A swappiness of 0 forbids exactly that; the
			// host may still swap the group's pages out when the host is short of memory.
			err = g.write(Memory, "memory.swappiness", "0")
		}
		if err != nil {
			return err
		}
	}
	return g.setSockets(bytes)
}

// socketShare is the divisor of a memory limit that gives the V1 limit of data in sockets. On
// V1 the kernel allows that data beside the memory limit; V2 counts it in the memory limit.
const socketShare = 4

// setSockets limits the data that waits in TCP and UDP sockets on V1. V1 counts such data apart
// from other memory, and only in groups with a limit in memory.kmem.tcp, a name older than the
// charge for UDP (net/core/sock.c, __sk_mem_raise_allocated). TCP exceeds the limit rather than
// stall a connection: see [Group.Watch].
func (g *Group) setSockets(memoryBytes int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.socketBytes = memoryBytes / socketShare; g.v2 {
		return nil
	}
	return ignoreMissing(g.write(Memory, socketLimit, strconv.FormatInt(g.socketBytes, 10)))
}

// The V1 files for the memory of sockets.
const (
	socketLimit = "memory.kmem.tcp.limit_in_bytes"
	socketUsage = "memory.kmem.tcp.usage_in_bytes"
)

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// write sets one file, or does nothing if the host lacks the controller (Config.Optional).
func (g *Group) write(c Controller, name, value string) error {
	dir, ok := g.dirs[c]
	if !ok {
		return nil
	}
	return writeFile(filepath.Join(dir, name), value)
}

// Stats returns the usage of the current lease. Stats reads a few small files.
func (g *Group) Stats() (Stats, error) {
	s, err := g.count()
	s.OOMKills -= g.before.oomKills
	s.CPU -= g.before.cpu
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.flooded {
		s.OOMKills++
	}
	return s, err
}

// count reads the counters, earlier leases included.
func (g *Group) count() (Stats, error) {
	var s Stats
	var err error
	read := func(c Controller, name string) int64 {
		dir, ok := g.dirs[c]
		if !ok {
			return 0
		}
		n, e := readInt(filepath.Join(dir, name))
		err = errors.Join(err, e)
		return n
	}
	field := func(c Controller, name, key string) int64 {
		dir, ok := g.dirs[c]
		if !ok {
			return 0
		}
		n, e := readField(filepath.Join(dir, name), key)
		err = errors.Join(err, e)
		return n
	}
	if g.v2 {
		s.MemoryBytes = read(Memory, "memory.current")
		s.OOMKills = field(Memory, "memory.events", "oom_kill")
		s.CPU = time.Duration(field(CPUAcct, "cpu.stat", "usage_usec")) * time.Microsecond
		if dir, ok := g.dirs[Memory]; ok && g.before == (counters{}) { // memory.peak: Linux 5.19; its reset: Linux 6.12
			peak, e := readInt(filepath.Join(dir, "memory.peak"))
			err = errors.Join(err, ignoreMissing(e))
			s.MaxMemory = max(peak, s.MemoryBytes)
		}
	} else {
		s.MemoryBytes = read(Memory, "memory.usage_in_bytes")
		s.MaxMemory = read(Memory, "memory.max_usage_in_bytes")
		if dir, ok := g.dirs[Memory]; ok {
			sockets, e := readInt(filepath.Join(dir, socketUsage))
			err = errors.Join(err, ignoreMissing(e))
			s.MemoryBytes += sockets
			s.MaxMemory = max(s.MaxMemory, s.MemoryBytes)
		}
		s.OOMKills = field(Memory, "memory.oom_control", "oom_kill")
		s.CPU = time.Duration(read(CPUAcct, "cpuacct.usage"))
	}
	return s, err
}

func readInt(path string) (int64, error) {
	b, err := readFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// Memory returns the bytes that the group is charged, and how many of them are cached
// files, which the kernel can reclaim. Both are 0 if the host has no memory limits.
func (g *Group) Memory() (used, cached int64, err error) {
	dir, ok := g.dirs[Memory]
	if !ok {
		return 0, 0, nil
	}
	usage, keys := "memory.usage_in_bytes", []string{"total_active_file", "total_inactive_file"}
	if g.v2 {
		usage, keys = "memory.current", []string{"active_file", "inactive_file"}
	}
	if used, err = readInt(filepath.Join(dir, usage)); err != nil {
		return 0, 0, err
	}
	stat, err := readFile(filepath.Join(dir, "memory.stat"))
	for _, key := range keys {
		n, e := fieldOf(stat, key)
		cached, err = cached+n, errors.Join(err, e)
	}
	return used, cached, err
}

// readField returns the value of "key value" in a flat keyed file; 0 if the key is absent.
func readField(path, key string) (int64, error) {
	b, err := readFile(path)
	if err != nil {
		return 0, err
	}
	return fieldOf(b, key)
}

func fieldOf(b []byte, key string) (int64, error) {
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, nil
}

// Threads lists the ids of the threads in the group, in the caller's pid namespace.
func (g *Group) Threads() ([]int, error) {
	if g.v2 {
		return g.ids("cgroup.threads")
	}
	return g.ids("tasks")
}

// Processes lists the ids of the processes in the group, in the caller's pid namespace.
func (g *Group) Processes() ([]int, error) { return g.ids("cgroup.procs") }

func (g *Group) ids(name string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(g.unique[0], name))
	if err != nil {
		return nil, err
	}
	var ids []int
	for field := range strings.FieldsSeq(string(text)) {
		id, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("read %s of cgroup %s: %w", name, g.name, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// empty reports whether the group has no process. Every process is in every hierarchy, so one
// hierarchy is enough.
func (g *Group) empty() (bool, error) {
	if dir, ok := g.dirs[Pids]; ok {
		n, err := readInt(filepath.Join(dir, "pids.current"))
		return n == 0, err
	}
	for _, dir := range g.unique {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || len(procs) > 0 {
			return false, err
		}
	}
	return true, nil
}

// MostKept is the charge in bytes that a used group may carry into the next lease. The rest is
// page cache of shared image files; to reclaim such pages would evict them for all sandboxes.
const MostKept = 4 << 20

// charged returns the bytes that count against the memory limit; on V1 swap included.
func (g *Group) charged() (int64, error) {
	dir, ok := g.dirs[Memory]
	if !ok {
		return 0, nil
	}
	if g.v2 {
		return readInt(filepath.Join(dir, "memory.current"))
	}
	n, err := readInt(filepath.Join(dir, "memory.memsw.usage_in_bytes"))
	if errors.Is(err, fs.ErrNotExist) { // swapaccount=0
		n, err = readInt(filepath.Join(dir, "memory.usage_in_bytes"))
	}
	return n, err
}

// discharge reclaims the memory that the last lease left in the group. The error is EBUSY if
// more than MostKept remains, which the next lease would pay for: memory files or a /tmp still
// open elsewhere, or pages that another sandbox has locked.
func (g *Group) discharge() error {
	n, err := g.charged()
	if err != nil || n <= MostKept {
		return err
	}
	if g.v2 { // Linux 5.19; EAGAIN: the kernel reclaimed less than asked
		err = g.write(Memory, "memory.reclaim", strconv.FormatInt(n, 10))
		if errors.Is(err, unix.EAGAIN) {
			err = nil
		}
	} else { // force_empty does not tell how much memory remains
		err = g.write(Memory, "memory.force_empty", "0")
	}
	if err != nil {
		return err
	}
	if n, err = g.charged(); err == nil && n > MostKept {
		err = unix.EBUSY
	}
	return err
}

// clean prepares a used group for the next lease.
func (g *Group) clean() pool.Verdict {
	empty, err := g.empty()
	if err != nil {
		return pool.Spoilt
	}
	if !empty {
		return pool.InUse
	}
	if g.limits.MemoryBytes == 0 { // unknown, and so is the order of writes for the next limit
		return pool.Spoilt
	}
	s, err := g.count()
	if err == nil {
		err = g.discharge()
	}
	if err == nil && !g.v2 {
		err = g.write(Memory, "memory.max_usage_in_bytes", "0")
	}
	if err == nil {
		err = g.forgive()
	}
	if err == nil && g.limits.CPUMillis > 0 {
		// The time that the last lease used up must not throttle the start of the next, since
		// the spawner waits for that start.
		err = g.setCPU(g.limits.CPUMillis)
	}
	if err != nil {
		return pool.Spoilt
	}
	g.before.oomKills, g.before.cpu = s.OOMKills, s.CPU
	return pool.Ready
}

func (g *Group) close() {
	for _, f := range g.procs {
		_ = f.Close()
	}
	g.procs = nil
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range []**os.File{&g.events, &g.sockets} {
		if *f != nil {
			_ = (*f).Close()
			*f = nil
		}
	}
}
