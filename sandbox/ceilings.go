package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/sandbox/cgroup"
)

// manySandboxes is the number of sandboxes that a host should have room for. For a lower
// ceiling fre doctor suggests a line of configuration.
const manySandboxes = 1000

// ceiling is a bound of the kernel that all sandboxes share.
type ceiling struct {
	id, name string
	setting  string // in the notation of sysctl(8)
	field    int    // index, if the setting has several numbers
	each     int64  // share of a busy sandbox
	unit     string
	effect   string // effect of reaching the ceiling
}

// The shares are those of an ordinary function at work, not its limits: few functions reach
// their limits at the same time.
var ceilings = []ceiling{
	{"pid_max", "process ids", "kernel.pid_max", 0, 32, "process ids", "no process can start, on the host neither"},
	{"threads_max", "threads", "kernel.threads-max", 0, 32, "threads", "no process can start, on the host neither"},
	{"file_max", "open files", "fs.file-max", 0, 256, "open files", "no file can be opened, by programs of the host neither"},
	{"tcp_mem", "memory of TCP's sockets", "net.ipv4.tcp_mem", 2, 128, "pages", "connections of all sandboxes and of the host stall"},
	{"udp_mem", "memory of UDP's sockets", "net.ipv4.udp_mem", 2, 64, "pages", "all datagrams are dropped, including DNS answers"},
	// The kernel also counts these for root, who makes the user namespaces (ucounts).
	{"inotify_instances", "inotify instances", "fs.inotify.max_user_instances", 0, 1, "instances", "functions that watch files, and triggers on /work, fail"},
	{"inotify_watches", "inotify watches", "fs.inotify.max_user_watches", 0, 64, "watches", "functions that watch files, and triggers on /work, fail"},
}

// check reports how many sandboxes a value of the ceiling has room for.
func (c *ceiling) check(value int64) Check {
	room := value / c.each
	out := Check{
		ID: c.id, Name: c.name, OK: room >= manySandboxes, Optional: true,
		Found:  fmt.Sprintf("%s = %d: room for %d sandboxes of %d %s each", c.setting, value, room, c.each, c.unit),
		Effect: c.effect,
	}
	if value > 1<<50 { // practically unlimited
		out.Found = c.setting + " sets no bound"
	}
	if !out.OK {
		out.Next = fmt.Sprintf("write into /etc/sysctl.d/60-fre.conf, then run sysctl --system: %s = %s", c.setting, c.settingOf(manySandboxes*c.each))
	}
	return out
}

// settingOf returns the value of the setting that gives want.
func (c *ceiling) settingOf(want int64) string {
	if c.field == 2 { // low, pressure, high
		return fmt.Sprintf("%d %d %d", want/2, want*3/4, want)
	}
	return strconv.FormatInt(want, 10)
}

// read returns the kernel's value.
func (c *ceiling) read() (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(c.setting, ".", "/")))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) <= c.field {
		return 0, fmt.Errorf("%s: %q", c.setting, text)
	}
	return strconv.ParseInt(fields[c.field], 10, 64)
}

// probeCeilings reports how many sandboxes the kernel's shared bounds have room for.
func probeCeilings() []Check {
	var checks []Check
	for i := range ceilings {
		c := &ceilings[i]
		value, err := c.read()
		switch {
		case errors.Is(err, fs.ErrNotExist): // the kernel lacks the setting
		case err != nil:
			checks = append(checks, Check{ID: c.id, Name: c.name, Optional: true, Found: err.Error(), Effect: c.effect})
		default:
			checks = append(checks, c.check(value))
		}
	}
	return append(checks, probeGroupAbove(), probeLoop())
}

// probeGroupAbove checks the limits of processes in the cgroups above the engine's cgroup, such
// as TasksMax of a systemd slice.
func probeGroupAbove() Check {
	each := ceilings[0].each
	c := Check{
		ID: "tasks_max", Name: "processes in the engine's cgroup", OK: true, Optional: true, Found: "no bound",
		Effect: "no sandbox can be started, though the host has room",
	}
	layout, err := cgroup.Detect()
	if err == nil {
		var above map[cgroup.Controller]cgroup.Bound
		if above, err = layout.Above(); err == nil {
			if b, ok := above[cgroup.Pids]; ok {
				room := b.Most / each
				c.OK = room >= manySandboxes
				c.Found = fmt.Sprintf("%s = %d: room for %d sandboxes of %d processes each", b.File, b.Most, room, each)
				if !c.OK {
					c.Next = "write into the engine's service, below [Service]: TasksMax=infinity"
				}
			}
		}
	}
	if err != nil {
		c.OK, c.Found = false, err.Error()
	}
	return c
}

// probeLoop reports the limit of loop devices. Each directory with a limit takes a loop device
// if the file system has no project quotas.
func probeLoop() Check {
	c := Check{
		ID: "loop", Name: "loop devices", OK: true, Optional: true, Found: "created on demand",
		Does:   "without project quotas, each limited /work or container uses a loop device",
		Effect: "no further /work or container with a limit can be mounted",
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		c.OK, c.Found, c.Next = false, err.Error(), "write the line loop into /etc/modules-load.d/fre.conf, and run modprobe loop"
		return c
	}
	// 0 means no bound. Kernels since 6.5 make more devices than max_loop.
	text, err := os.ReadFile("/sys/module/loop/parameters/max_loop")
	if most, perr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && perr == nil && most > 0 {
		c.Found = fmt.Sprintf("max_loop = %d at first, more on demand", most)
	}
	return c
}
