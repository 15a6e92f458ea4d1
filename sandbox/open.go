package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

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
		shared: shared{
			log: cfg.Log, own: ranges{first: cfg.OwnBase}, startWithin: startWithin, ids: map[string]*Sandbox{},
		},
		cfg:      cfg,
		layers:   layers{dir: layersDir(cfg.Dir)},
		wayOut:   wayOut{cfg: cfg.Egress, resolvConf: filepath.Join(cfg.Dir, "resolv.conf")},
		spawners: spawners{slots: make([]slot, cfg.Spawners)},
	}
	h.wayOut.cfg.Busy, h.spawners.host = h.Busy, &h.shared
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
	h.parked = openParked(&h.shared, h.park, h.cfg.PoolSize, h.cfg.Parked)
	return h, nil
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
	h.tenants = tenants{program: h.program, users: map[string]*tenantUserns{}}
	h.spawners.program = h.program
	h.spawners.filters, err = newFilters()
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
	for i := range h.spawners.slots {
		s, err := h.spawners.pick(uint64(i))
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
	h.spawners.stop()
	h.ending.Wait()
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
	for _, f := range []*os.File{h.program, h.spawners.filters, h.devices} {
		_ = f.Close()
	}
	if h.proc != nil {
		err = errors.Join(err, h.proc.close())
	}
	return errors.Join(err, removeMounts(devDir(h.cfg.Dir)), removeMounts(procDir(h.cfg.Dir)), removeMounts(h.layers.dir))
}
