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

// The controllers that a sandbox's limits need.
const (
	CPU     Controller = "cpu"     // CPU time per period
	CPUAcct Controller = "cpuacct" // CPU time used; part of cpu on V2
	Memory  Controller = "memory"
	Pids    Controller = "pids"
)

// controllers is the order in which the pool makes and joins groups.
var controllers = []Controller{CPU, CPUAcct, Memory, Pids}

// Version is the way in which a host lays out its controllers.
type Version int

// The layouts. A hybrid host counts as V1: its unified hierarchy has no controller that FRE
// uses.
const (
	V1 Version = 1
	V2 Version = 2
)

// Layout says where the host mounts its controllers.
type Layout struct {
	Version Version
	// Mounts maps each controller found to its mount point. On V1, controllers mounted together
	// (cpu,cpuacct) share a mount point; on V2 all controllers do.
	Mounts map[Controller]string
	// Own is the engine's own group below the unified mount; "/" is the root.
	Own string
	// Swap reports whether the kernel accounts for swap, so that a memory limit includes swap.
	Swap bool
}

// Missing lists the controllers that the host lacks.
func (l Layout) Missing() []Controller {
	var missing []Controller
	for _, c := range controllers {
		if _, ok := l.Mounts[c]; !ok {
			missing = append(missing, c)
		}
	}
	return missing
}

// Detect reads the host's layout from /proc/self/mountinfo, from the files of the hierarchies
// and from /proc/self/cgroup (cgroups(7)).
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
		err := layout.unify(unified)
		return layout, err
	}
	if memory, ok := layout.Mounts[Memory]; ok {
		_, err := os.Stat(filepath.Join(memory, "memory.memsw.limit_in_bytes"))
		layout.Swap = err == nil
	}
	return layout, nil
}

// unify completes the layout of a host whose only hierarchy is unified.
func (l *Layout) unify(unified string) error {
	l.Version = V2
	have, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(have)) {
		switch c := Controller(name); c {
		case CPU, Memory, Pids:
			l.Mounts[c] = unified
		case CPUAcct: // V1 only
		}
	}
	l.Mounts[CPUAcct] = unified // cpu.stat counts without a controller
	// The root has no memory.swap.max to check. Without swap accounting every group lacks
	// the file, and set tolerates that.
	l.Swap = true
	return nil
}

// parseMountinfo finds the cgroup mounts in text of the format of proc_pid_mountinfo(5). A
// mount of a hierarchy's subdirectory (a bind mount in a container) counts like any other.
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

// unescape decodes the octal escapes of mountinfo, such as \040.
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

// parseOwn finds the unified group ("0::/path") in the text of /proc/self/cgroup.
func parseOwn(s string) string {
	for line := range strings.Lines(s) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return "/"
}

// base returns the directory below which the pool makes its parent group on V2. The first
// choice is the engine's own group, if systemd has delegated the group to the engine
// (Delegate=yes of systemd.resource-control(5)). The second choice is the parent of that group,
// if delegated: evacuate, or DelegateSubgroup= of systemd.exec(5), moves the engine into a
// subgroup. The last choice is the root. Groups in between belong to another manager, such as a
// user's.
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

// delegated reports whether systemd has marked dir as delegated.
func delegated(dir string) bool {
	for _, attr := range []string{"trusted.delegate", "user.delegate"} {
		var value [1]byte
		if n, err := unix.Getxattr(dir, attr, value[:]); err == nil && n == 1 && value[0] == '1' {
			return true
		}
	}
	return false
}

// Bound is the lowest limit of one resource among the groups above a pool's group.
type Bound struct {
	Most int64 // bytes, thousandths of a CPU, or processes
	File string
}

// Above returns the limits that a group of the pool cannot exceed because an ancestor has them,
// as far as the mount shows the ancestors. On V2 the CPU limit of an ancestor is no bound: the
// kernel accepts a higher quota below, while V1 refuses.
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

// least returns the lowest limit among dir and the groups above dir, up to top.
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

// readBound returns a limit, in thousandths for the CPU; 0 means unlimited.
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

// enable turns the controllers on for the children of dir. A group with processes cannot have
// such children (cgroups(7), "no internal processes"). So if dir is the engine's own group,
// enable moves the processes of dir to a subgroup.
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

// writeFile writes one value in one write, as the kernel's files require, and never creates a
// file. The kernel abandons a reclaim at any signal, and Go preempts threads by signals: then
// writeFile tries again. Like readFile, writeFile avoids package os, which tries to poll these
// files and so makes ten system calls instead of three.
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

// readFile reads a small file in one read.
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
