package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Controller is one of the kernel's resource controllers.
type Controller string

// The controllers a sandbox's limits need.
const (
	CPU     Controller = "cpu"     // cpu time per period
	CPUAcct Controller = "cpuacct" // cpu time used; part of cpu on v2
	Memory  Controller = "memory"
	Pids    Controller = "pids"
)

// controllers is the order in which groups are made and joined.
var controllers = []Controller{CPU, CPUAcct, Memory, Pids}

// Version says how a host lays its controllers out.
type Version int

// The layouts. A hybrid host, whose unified hierarchy has no controller FRE
// uses, counts as V1.
const (
	V1 Version = 1
	V2 Version = 2
)

// Layout says where the host's controllers are mounted.
type Layout struct {
	Version Version
	// Mounts has the mount point of each controller found. On V1 two that are
	// mounted together (cpu,cpuacct) share one; on V2 all have the same.
	Mounts map[Controller]string
	// Own is the engine's own group below the unified mount, "/" at its root.
	Own string
	// Swap says whether swap is accounted, so that a memory limit includes it.
	Swap bool
}

// Missing lists the controllers the host does not offer.
func (l Layout) Missing() []Controller {
	var missing []Controller
	for _, c := range controllers {
		if _, ok := l.Mounts[c]; !ok {
			missing = append(missing, c)
		}
	}
	return missing
}

// Detect reads the host's layout from /proc/self/mountinfo, the hierarchies'
// own files and /proc/self/cgroup (cgroups(7)).
func Detect() (Layout, error) {
	mountinfo, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, err
	}
	defer mountinfo.Close()
	layout, unified, err := parseMountinfo(mountinfo)
	if err != nil {
		return Layout{}, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Layout{}, err
	}
	layout.Own = parseOwn(string(own))

	if unified != "" && len(layout.Mounts) == 0 {
		layout.Version = V2
		have, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
		if err != nil {
			return Layout{}, err
		}
		for name := range strings.FieldsSeq(string(have)) {
			switch c := Controller(name); c {
			case CPU, Memory, Pids:
				layout.Mounts[c] = unified
			case CPUAcct: // v1 only
			}
		}
		layout.Mounts[CPUAcct] = unified // cpu.stat counts without a controller
		// The root has no memory.swap.max to look at; without swap accounting
		// the file is missing from every group, which set tolerates.
		layout.Swap = true
		return layout, nil
	}
	if memory, ok := layout.Mounts[Memory]; ok {
		_, err := os.Stat(filepath.Join(memory, "memory.memsw.limit_in_bytes"))
		layout.Swap = err == nil
	}
	return layout, nil
}

// parseMountinfo finds the cgroup mounts in the format of
// proc_pid_mountinfo(5). A hierarchy mounted from below its root (a bind into a
// container) is used like any other.
func parseMountinfo(r io.Reader) (layout Layout, unified string, err error) {
	layout = Layout{Version: V1, Mounts: map[Controller]string{}, Own: "/"}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(super) < 3 {
			continue
		}
		point := unescape(fields[4])
		switch super[0] {
		case "cgroup2":
			if unified == "" {
				unified = point
			}
		case "cgroup":
			options := strings.Split(super[2], ",")
			for _, c := range controllers {
				if _, seen := layout.Mounts[c]; !seen && slices.Contains(options, string(c)) {
					layout.Mounts[c] = point
				}
			}
		}
	}
	return layout, unified, lines.Err()
}

// unescape undoes mountinfo's \040 notation.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseOwn finds the unified group ("0::/path") in /proc/self/cgroup.
func parseOwn(s string) string {
	for line := range strings.Lines(s) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return "/"
}

// base returns the directory below which the pool makes its parent group on
// V2. The engine's own group is used when it was delegated to us
// (Delegate=yes of systemd.resource-control(5)), or the one above, where evacuate or
// DelegateSubgroup= of systemd.exec(5) has put the engine into a group of its own; the
// top otherwise. Not what lies higher up: that is another manager's, as a user's.
func (l Layout) base() string {
	top := l.Mounts[CPUAcct]
	own := filepath.Join(top, l.Own)
	for _, dir := range []string{own, filepath.Dir(own)} {
		if len(dir) >= len(top) && delegated(dir) {
			return dir
		}
	}
	return top
}

// delegated says whether systemd has marked dir as its user's to divide.
func delegated(dir string) bool {
	for _, attr := range []string{"trusted.delegate", "user.delegate"} {
		var value [1]byte
		if n, err := unix.Getxattr(dir, attr, value[:]); err == nil && n == 1 && value[0] == '1' {
			return true
		}
	}
	return false
}

// Bound is the least that the groups above a pool's allow of something.
type Bound struct {
	Most int64 // bytes, thousandths of a CPU, or processes
	File string
}

// Above reads what no group of a pool can go beyond, since its ancestors cannot,
// as far as their mount shows them. On V2 an ancestor's CPU time is no bound:
// the kernel takes less than was asked for, where V1 refuses.
func (l Layout) Above() (map[Controller]Bound, error) {
	names := map[Controller]string{Memory: "memory.limit_in_bytes", Pids: "pids.max", CPU: "cpu.cfs_quota_us"}
	if l.Version == V2 {
		names = map[Controller]string{Memory: "memory.max", Pids: "pids.max"}
	}
	above := map[Controller]Bound{}
	for c, name := range names {
		top, ok := l.Mounts[c]
		if !ok {
			continue
		}
		dir := top
		if l.Version == V2 {
			dir = l.base()
		}
		b, err := least(dir, top, name)
		if err != nil {
			return nil, err
		}
		if b.Most > 0 {
			above[c] = b
		}
	}
	return above, nil
}

// least reads a limit of dir and the groups above it, up to top.
func least(dir, top, name string) (Bound, error) {
	var b Bound
	for ; ; dir = filepath.Dir(dir) {
		most, err := readBound(dir, name)
		if err != nil {
			return b, err
		}
		if most > 0 && (b.Most == 0 || most < b.Most) {
			b = Bound{most, filepath.Join(dir, name)}
		}
		if len(dir) <= len(top) {
			return b, nil
		}
	}
}

// readBound reads a limit, in thousandths where it is the CPU's; 0 where there is
// none.
func readBound(dir, name string) (int64, error) {
	text, err := readFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) { // the root has no limits
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	value := strings.TrimSpace(string(text))
	if value == "max" || value == "-1" {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s of cgroup %s: %w", name, dir, err)
	}
	if name == "cpu.cfs_quota_us" {
		per, err := readInt(filepath.Join(dir, "cpu.cfs_period_us"))
		if err != nil {
			return 0, err
		}
		n = n * 1000 / max(per, 1)
	}
	return n, nil
}

// enable turns the controllers on for the children of dir. A group with
// processes cannot have such children (cgroups(7), "no internal processes"), so
// when it is the engine's own they move to a group beside.
func enable(dir string, want []Controller) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	on := strings.Fields(string(have))
	for _, c := range want {
		if c == CPUAcct || slices.Contains(on, string(c)) {
			continue
		}
		err := writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+string(c))
		if errors.Is(err, unix.EBUSY) {
			if err = evacuate(dir); err == nil {
				err = writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+string(c))
			}
		}
		if err != nil {
			return fmt.Errorf("enable controller %s: %w", c, err)
		}
	}
	return nil
}

func evacuate(dir string) error {
	leaf := filepath.Join(dir, "engine")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for pid := range strings.FieldsSeq(string(procs)) {
		err := writeFile(filepath.Join(leaf, "cgroup.procs"), pid)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// writeFile writes one value in one write, as the kernel's files want it, and
// never creates. The kernel gives up a reclaim for any signal, such as those by which
// Go preempts its threads: then it is asked again. Like readFile it goes past package
// os, which tries to poll these files and so makes ten system calls of three.
func writeFile(path, value string) error {
	fd, err := open(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	for {
		if _, err = unix.Write(fd, []byte(value)); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Close(fd)
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// readFile reads a small file whole, in one read.
func readFile(path string) ([]byte, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	_ = unix.Close(fd)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return buf[:n], nil
}

func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}
