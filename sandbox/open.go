package sandbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/netns"
)

// startsPerCPU bounds the concurrent starts for each CPU; further starts wait. Measured: 256
// attached starts at once on two CPUs, median/slowest in ms, medians of three times six bursts
// of bench/start. 1 for each CPU: 138/254, 2: 159/288, 4: 166/309, 16: 165/301, unlimited:
// 185/289. Not 1, because a single start that waits for a disk would then idle half the
// machine.
const startsPerCPU = 2

// Open removes the leftovers of a crashed engine with the same Dir, mounts the shared /dev
// below Dir in the caller's mount namespace (see [Isolate]), starts the spawners and fills the
// pools. Open needs root.
func Open(cfg Config) (host *Host, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	h := &Host{
		cfg: cfg, log: cfg.Log, own: ranges{first: cfg.OwnBase},
		ids: map[string]*Sandbox{}, layers: layers{dir: layersDir(cfg.Dir)},
		wayOut: wayOut{cfg: cfg.Egress, resolvConf: filepath.Join(cfg.Dir, "resolv.conf")},
		slots:  make([]slot, cfg.Spawners), startWithin: startWithin,
	}
	h.wayOut.cfg.Busy = h.Busy
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

// sizePools sets the default sizes of the pools. If memory or process ids do not suffice,
// sizePools reduces the sizes and logs a warning.
func (cfg *Config) sizePools(memory, pids int64) {
	cut := func(what string, want, least int) int {
		most := max(roomFor(want, memory, pids), least)
		if most < want {
			cfg.Log.Warn("fewer are kept ready than configured: the host has no room for more", "what", what, "configured", want, "at_most", most,
				"memory_bytes", memory, "process_ids", pids)
		}
		return most
	}
	if cfg.PoolSize == 0 {
		cfg.PoolSize = 16
	}
	cfg.PoolSize = cut("cgroups and network namespaces", cfg.PoolSize, 1)
	if cfg.Parked == 0 {
		cfg.Parked = 4 * cfg.PoolSize
	}
	cfg.Parked = cut("parked sandboxes", max(cfg.Parked, 0), 0)
}

// roomFor reduces a number of ready objects, each at most as large as a parked sandbox, to the
// room of the host: a twentieth of the memory, an eighth of the process ids.
func roomFor(want int, memory, pids int64) int {
	return int(min(int64(want), memory/20/parkedBytes, pids/8))
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
	h.tenants = tenants{program: h.program, users: map[string]*userns{}}
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

// openDevices makes a separate mount of dev. A file opened there shows no path of the host in
// the /proc/self/fd of a sandbox.
func openDevices(dev string) (*os.File, error) {
	tree, err := cloneTree(dev, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(tree), "devices"), nil
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
	err = errors.Join(err, h.wayOut.close())
	h.tenants.close()
	for _, f := range []*os.File{h.program, h.filters, h.devices} {
		_ = f.Close()
	}
	if h.proc != nil {
		err = errors.Join(err, h.proc.close())
	}
	return errors.Join(err, removeMounts(devDir(h.cfg.Dir)), removeMounts(procDir(h.cfg.Dir)), removeMounts(h.layers.dir))
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
