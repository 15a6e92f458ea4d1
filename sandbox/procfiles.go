package sandbox

import (
	"bytes"
	"crypto/rand"
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

	"github.com/fre-engine/fre/internal/linux"
)

// procFiles are the files in /proc, besides the processes, of sandboxes with Spec.ProcFiles.
// Tools such as free, top, ps and df read the files. The engine writes the files: they show the
// sandbox's limits, and of the host only facts that any process can learn from the processor,
// uname(2) or clock_gettime(2).
//
//	Dir/proc                  a ramfs; sandboxes get read-only mounts of single files
//	  mounts net              links, as in the kernel's /proc
//	  filesystems loadavg uptime version sys/…
//	  cpus/N/cpuinfo stat     for sandboxes with time for N CPUs
//	  memory/RANDOM/meminfo   for one sandbox
type procFiles struct {
	dir  string
	log  *slog.Logger
	boot time.Time // boot time of the host

	mu     sync.Mutex
	closed bool
	stale  bool        // the latest refresh failed
	timer  *time.Timer // triggers refreshes while views exist
	views  map[*procView]bool
	cpus   map[int64]*os.File // the file stat for each number of CPUs
	uptime *os.File
}

// procView is one sandbox's own part of the files.
type procView struct {
	usage memoryUsage

	mu      sync.Mutex
	meminfo *os.File // nil after the end
}

// memoryUsage returns the memory limit of a sandbox and the bytes in use, cached files included.
type memoryUsage func() (limit, used, cached int64, err error)

// refreshEvery is the interval between updates of times and memory. Each sandbox adds
// refreshEach.
const (
	refreshEvery = time.Second
	refreshEach  = 5 * time.Millisecond
)

// procDir returns the mount point of the files in the host's directory.
func procDir(dir string) string { return filepath.Join(dir, "proc") }

// uuidFile is the kernel's own file: each read gives a new random number.
const uuidFile = "/proc/sys/kernel/random/uuid"

// openProcFiles mounts the files on dir, which openProcFiles creates.
func openProcFiles(dir string, log *slog.Logger) (*procFiles, error) {
	p := &procFiles{dir: dir, log: log, views: map[*procView]bool{}, cpus: map[int64]*os.File{}}
	p.boot = time.Now().Add(-linux.Boottime())
	p.timer = time.AfterFunc(refreshEvery, p.look)
	p.timer.Stop()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	fd, err := newMount("ramfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, [2]string{"mode", "0755"})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	err = errors.Join(os.Symlink("self/mounts", filepath.Join(dir, "mounts")), os.Symlink("self/net", filepath.Join(dir, "net")))
	for name, text := range fixedFiles() {
		err = errors.Join(err, p.write(name, text))
	}
	if err != nil {
		return nil, err
	}
	p.uptime, err = p.create("uptime")
	return p, err
}

// fixedFiles returns the content of the files that never change, by name.
func fixedFiles() map[string]string {
	var uts unix.Utsname
	_ = unix.Uname(&uts) // fails only for an invalid buffer
	system, release, version := unix.ByteSliceToString(uts.Sysname[:]), unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Version[:])
	files := map[string]string{
		"filesystems":            "nodev\tproc\nnodev\ttmpfs\nnodev\tramfs\nnodev\toverlay\n",
		"loadavg":                "0.00 0.00 0.00 0/0 0\n",
		"version":                fmt.Sprintf("%s version %s (fre) %s\n", system, release, version),
		"sys/kernel/ostype":      system + "\n",
		"sys/kernel/osrelease":   release + "\n",
		"sys/kernel/version":     version + "\n",
		"sys/kernel/random/uuid": "",
	}
	for _, name := range []string{"kernel/pid_max", "kernel/cap_last_cap", "kernel/ngroups_max", "vm/overcommit_memory", "vm/max_map_count"} {
		if text, err := os.ReadFile("/proc/sys/" + name); err == nil {
			files["sys/"+name] = string(text)
		}
	}
	return files
}

// create makes a file below the directory, readable by all users whatever the umask.
func (p *procFiles) create(name string) (*os.File, error) {
	at := p.dir
	parts := strings.Split(name, "/")
	for _, part := range parts[:len(parts)-1] {
		at = filepath.Join(at, part)
		err := os.Mkdir(at, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err = errors.Join(err, os.Chmod(at, 0o755)); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(filepath.Join(p.dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o444)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(0o444); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (p *procFiles) write(name, text string) error {
	f, err := p.create(name)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// add returns the view of a new sandbox and detached mounts of its files, in the order of
// attachment. memoryBytes is the limit at the start. The caller removes the view and closes the
// mounts.
func (p *procFiles) add(usage memoryUsage, memoryBytes, cpus int64) (v *procView, mounts []Mount, trees []int, err error) {
	own := filepath.Join("memory", rand.Text()) // random, so that the name tells other sandboxes nothing
	v = &procView{usage: usage}
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("make files of /proc: %w", err)
		for _, fd := range trees {
			unix.Close(fd)
		}
		p.remove(v)
		v, trees = nil, nil
	}()
	if v.meminfo, err = p.create(filepath.Join(own, "meminfo")); err != nil {
		return v, nil, trees, err
	}
	if _, err = v.meminfo.Write(meminfo(memoryBytes, 0, 0)); err != nil {
		return v, nil, trees, err
	}
	class, err := p.enter(v, cpus)
	if err != nil {
		return v, nil, trees, err
	}
	for _, m := range [][2]string{
		{"mounts", "/proc/mounts"},
		{"net", "/proc/net"},
		{"filesystems", "/proc/filesystems"},
		{"loadavg", "/proc/loadavg"},
		{"uptime", "/proc/uptime"},
		{"version", "/proc/version"},
		{"sys", "/proc/sys"},
		{"", uuidFile},
		{filepath.Join(class, "cpuinfo"), "/proc/cpuinfo"},
		{filepath.Join(class, "stat"), "/proc/stat"},
		{filepath.Join(own, "meminfo"), "/proc/meminfo"},
	} {
		source := uuidFile
		if m[0] != "" {
			source = filepath.Join(p.dir, m[0])
		}
		fd, err := cloneTree(source, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return v, nil, trees, err
		}
		trees, mounts = append(trees, fd), append(mounts, Mount{Target: m[1]})
	}
	return v, mounts, trees, nil
}

// enter adds v to the views to refresh, and returns the directory of the files for its CPUs.
func (p *procFiles) enter(v *procView, cpus int64) (string, error) {
	class := filepath.Join("cpus", strconv.FormatInt(cpus, 10))
	p.mu.Lock()
	defer p.mu.Unlock()
	known := len(p.cpus)
	if p.cpus[cpus] == nil {
		text, err := os.ReadFile("/proc/cpuinfo")
		if err == nil {
			err = p.write(filepath.Join(class, "cpuinfo"), cpuinfo(text, cpus))
		}
		if err != nil {
			return "", err
		}
		if p.cpus[cpus], err = p.create(filepath.Join(class, "stat")); err != nil {
			return "", err
		}
	}
	if len(p.views) == 0 || len(p.cpus) != known { // no recent refresh
		if err := p.refreshLocked(); err != nil {
			return "", err
		}
	}
	if p.views[v] = true; len(p.views) == 1 && !p.closed {
		p.timer.Reset(refreshEvery)
	}
	return class, nil
}

// remove ends a view.
func (p *procFiles) remove(v *procView) {
	p.mu.Lock()
	delete(p.views, v)
	p.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.meminfo != nil {
		_ = v.meminfo.Close()
		_ = os.RemoveAll(filepath.Dir(v.meminfo.Name()))
		v.meminfo = nil
	}
}

// look refreshes all files, and runs again later while views exist.
func (p *procFiles) look() {
	p.mu.Lock()
	views := make([]*procView, 0, len(p.views))
	for v := range p.views {
		views = append(views, v)
	}
	var err error
	if !p.closed {
		err = p.refreshLocked()
	}
	p.mu.Unlock()
	for _, v := range views {
		err = errors.Join(err, v.refresh())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !p.stale {
		p.log.Error("files of sandboxes in /proc are not kept up to date", "dir", p.dir, "error", err)
	}
	if p.stale = err != nil; len(p.views) > 0 && !p.closed {
		p.timer.Reset(refreshEvery + time.Duration(len(p.views))*refreshEach)
	}
}

// refreshLocked writes the times. No file becomes shorter.
func (p *procFiles) refreshLocked() error {
	up := linux.Boottime()
	_, err := p.uptime.WriteAt(fmt.Appendf(nil, "%.2f 0.00\n", up.Seconds()), 0)
	for cpus, file := range p.cpus {
		_, e := file.WriteAt(cpuTimes(cpus, up, p.boot), 0)
		err = errors.Join(err, e)
	}
	return err
}

// refresh writes the sandbox's memory usage.
func (v *procView) refresh() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.meminfo == nil {
		return nil
	}
	limit, used, cached, err := v.usage()
	if err == nil {
		_, err = v.meminfo.WriteAt(meminfo(limit, used, cached), 0)
	}
	return err
}

func (p *procFiles) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.timer.Stop()
	err := p.uptime.Close()
	for _, file := range p.cpus {
		err = errors.Join(err, file.Close())
	}
	return err
}

// meminfo returns /proc/meminfo (proc_meminfo(5)) for a memory limit and the bytes in use,
// cached files included. The length is always the same.
func meminfo(limit, used, cached int64) []byte {
	used = min(used, limit)
	cached = min(cached, used)
	var b bytes.Buffer
	for _, line := range []struct {
		name  string
		bytes int64
	}{
		{"MemTotal", limit},
		{"MemFree", limit - used},
		{"MemAvailable", limit - used + cached},
		{"Buffers", 0},
		{"Cached", cached},
		{"SwapCached", 0},
		{"Active", used - cached},
		{"Inactive", cached},
		{"SwapTotal", 0},
		{"SwapFree", 0},
		{"Dirty", 0},
		{"Writeback", 0},
		{"AnonPages", used - cached},
		{"Mapped", 0},
		{"Shmem", 0},
		{"Slab", 0},
		{"SReclaimable", 0},
		{"SUnreclaim", 0},
	} {
		fmt.Fprintf(&b, "%-16s%14d kB\n", line.name+":", line.bytes>>10)
	}
	return b.Bytes()
}

// cpuTimes returns /proc/stat (proc_stat(5)) for CPUs that have been idle since boot, in
// hundredths of seconds. Tools divide a process's CPU time by the growth of these numbers.
func cpuTimes(cpus int64, up time.Duration, boot time.Time) []byte {
	idle := int64(up / (10 * time.Millisecond))
	b := fmt.Appendf(nil, "cpu  0 0 0 %d 0 0 0 0 0 0\n", idle*cpus)
	for i := range cpus {
		b = fmt.Appendf(b, "cpu%d 0 0 0 %d 0 0 0 0 0 0\n", i, idle)
	}
	return fmt.Appendf(b, "intr 0\nctxt 0\nbtime %d\nprocesses 0\nprocs_running 1\nprocs_blocked 0\n", boot.Unix())
}

// cpuFields are the fields of /proc/cpuinfo that describe the processor, on x86 and ARM. The
// clock rate is absent, because the rate depends on the host's load.
var cpuFields = []string{
	"vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags", "bogomips", "clflush size",
	"cache_alignment", "address sizes", "BogoMIPS", "Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
}

// cpuinfo returns /proc/cpuinfo for a number of processors like the host's first processor.
func cpuinfo(host []byte, cpus int64) string {
	first, _, _ := strings.Cut(string(host), "\n\n")
	var kind strings.Builder
	for line := range strings.Lines(first) {
		name, _, _ := strings.Cut(line, ":")
		if slices.Contains(cpuFields, strings.TrimSpace(name)) {
			kind.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	var b strings.Builder
	for i := range cpus {
		fmt.Fprintf(&b, "processor\t: %d\n%sphysical id\t: 0\nsiblings\t: %d\ncore id\t\t: %d\ncpu cores\t: %d\n\n", i, kind.String(), cpus, i, cpus)
	}
	return b.String()
}
