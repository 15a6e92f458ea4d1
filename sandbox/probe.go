package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/egress"
)

// Probe inspects the host and changes nothing. Probe needs no [Host]. Without root, Probe
// reports the missing root and all it can see.
func Probe() []Check {
	found, err := ask(nil, "probe")
	checks := []Check{probeRoot(), probeKernel(), probeClone3(found, err)}
	for _, call := range []struct {
		name string
		try  func() error
	}{
		// The arguments are invalid, so a supported call fails with an error other than ENOSYS
		// (or EPERM, a seccomp filter's answer).
		{"open_tree", func() error { _, err := unix.OpenTree(-1, "", 0); return err }},
		{"move_mount", func() error { return unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH) }},
		{"mount_setattr", func() error { return unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}) }},
		{"pidfd", func() error { return unix.PidfdSendSignal(-1, 0, nil, 0) }},
		{"close_range", func() error { return unix.CloseRange(2, 1, 0) }},
	} {
		checks = append(checks, probeCall(call.name, call.try()))
	}
	checks = append(checks, probeProc(), probeUserns(), probeAppArmor(), probeSeccomp(found, err), probeLandlock(found, err), probeForks())
	checks = append(append(checks, probeCgroups()...), probeEgress())
	checks = append(checks, probeCPUs(), probeMitigations(), probeTmpfs(), probeOverlay(), probeUring(found, err))
	return append(checks, probeCeilings()...)
}

// probeEgress tries the features that egress needs, in a temporary namespace.
func probeEgress() Check {
	c := Check{
		ID: "egress", Name: "egress", Optional: true,
		Effect: "templates with network: egress are refused",
		Next:   "use a kernel with nftables and veth",
	}
	if os.Geteuid() != 0 {
		c.Found, c.Next = "only root can test it", "run fre doctor as root"
		return c
	}
	if err := egress.TryKernel(); err != nil {
		c.Found = strings.ReplaceAll(err.Error(), "\n", "; ")
		return c
	}
	host := egress.ProbeHost()
	if err := host.Err(); err != nil {
		c.Found, c.Next = egress.ErrForwarding.Error(), host.Remedy()
		return c
	}
	c.OK = true
	var ways []string
	for family, forwards := range map[string]bool{"IPv4": host.V4, "IPv6": host.V6} {
		if forwards {
			ways = append(ways, family)
		}
	}
	slices.Sort(ways)
	c.Found = strings.Join(ways, " and ")
	if host.Interface != "" {
		c.Found += " by way of " + host.Interface
	}
	if len(host.Dropping) > 0 {
		c.Found += fmt.Sprintf("; %s drops forwarded packets unless told otherwise: "+
			"if functions reach nothing, accept packets from and to the interfaces fre-*", strings.Join(host.Dropping, ", "))
	}
	return c
}

func probeRoot() Check {
	return Check{
		ID: "root", Name: "root", OK: os.Geteuid() == 0,
		Found:  "uid " + strconv.Itoa(os.Geteuid()),
		Effect: "no sandbox can be started",
		Next:   "run the engine as root",
	}
}

// oldest is the first kernel with mount_setattr(2), the newest required call.
const oldest = "5.12"

func probeKernel() Check {
	c := Check{
		ID: "kernel", Name: "kernel",
		Effect: "no sandbox can be started",
		Next:   "boot Linux " + oldest + " or newer",
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		c.Found = err.Error()
		return c
	}
	c.Found = unix.ByteSliceToString(u.Release[:])
	c.OK = kernelAtLeast(c.Found, oldest)
	return c
}

// kernelAtLeast compares major and minor numbers.
func kernelAtLeast(release, least string) bool {
	var have, want [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &have[0], &have[1]); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(least, "%d.%d", &want[0], &want[1]); err != nil {
		return false
	}
	return have[0] > want[0] || have[0] == want[0] && have[1] >= want[1]
}

const allowCall = "boot Linux " + oldest + " or newer; inside a container, allow the call in the container's seccomp profile"

func probeCall(name string, err error) Check {
	c := Check{
		ID: name, Name: name, OK: !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM),
		Found:  "present",
		Effect: "no sandbox can be started",
		Next:   allowCall,
	}
	if !c.OK {
		c.Found = err.Error()
	}
	return c
}

func probeClone3(found asked, err error) Check {
	return found.check(Check{ID: "clone3", Name: "clone3", Effect: "no sandbox can be started", Next: allowCall}, err)
}

func probeSeccomp(found asked, err error) Check {
	return found.check(Check{
		ID: "seccomp", Name: "system call filter",
		Effect: "no sandbox can be started",
		Next:   "boot a kernel built with CONFIG_SECCOMP_FILTER",
	}, err)
}

func probeLandlock(found asked, err error) Check {
	c := found.check(Check{
		ID: "landlock", Name: "Landlock",
		Effect: "namespaces alone keep signals and abstract sockets inside; " +
			"processes with the host's network, for example build steps, can reach the host's abstract sockets",
		Next: "boot Linux 6.12 or newer, with landlock in CONFIG_LSM or in lsm= on the kernel's command line",
	}, err)
	if abi := found["landlock"]; abi >= landlockScopes {
		c.Found = fmt.Sprintf("ABI %d: signals and abstract sockets stay inside", abi)
	} else if abi > 0 {
		c.OK, c.Found = false, fmt.Sprintf("ABI %d, without scopes", abi)
	}
	return c
}

func probeProc() Check {
	c := Check{
		ID: "proc_subset", Name: "proc subset=pid", Found: "supported",
		Effect: "no sandbox can be started",
		Next:   "boot Linux 5.8 or newer",
	}
	fd, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err == nil {
		err = unix.FsconfigSetString(fd, "subset", "pid")
		unix.Close(fd)
	}
	c.OK = err == nil
	if err != nil {
		c.Found = err.Error()
	}
	return c
}

func probeUserns() Check {
	c := Check{
		ID: "userns", Name: "user namespaces",
		Effect: "no sandbox can be started",
		Next:   "set the sysctl user.max_user_namespaces to at least the number of tenants",
	}
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err != nil {
		c.Found = err.Error()
		return c
	}
	c.Found = "at most " + strings.TrimSpace(string(b))
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	c.OK = err == nil && n > 0
	if c.OK && os.Geteuid() == 0 {
		// A chroot or a container can forbid user namespaces despite the setting.
		if err := withUserns(func(*os.File) error { return nil }); err != nil {
			c.OK, c.Found = false, err.Error()
			c.Next = "run the engine outside of chroot and of restricted containers"
		}
	}
	return c
}

func probeAppArmor() Check {
	c := Check{
		ID: "apparmor", Name: "AppArmor", OK: true, Found: "no restriction of user namespaces",
		Effect: "only an engine without root is affected: FRE makes user namespaces as root",
		Next:   "nothing, while the engine runs as root",
	}
	b, err := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	if err == nil && strings.TrimSpace(string(b)) == "1" {
		c.OK = os.Geteuid() == 0
		c.Found = "unprivileged user namespaces are restricted"
	}
	return c
}

func probeForks() Check {
	c := Check{
		ID: "forks", Name: "fork servers", OK: true, Optional: true, Found: "can be had",
		Effect: "every instance of a Python function imports the handler",
		Next:   "run Linux 6.17 or newer",
	}
	if err := CanFork(); err != nil {
		c.OK, c.Found = false, err.Error()
	}
	return c
}

func probeCgroups() []Check {
	layout, err := cgroup.Detect()
	if err != nil {
		return []Check{{
			ID: "cgroups", Name: "cgroups", Found: err.Error(),
			Effect: "no limit can be enforced, so no sandbox is started",
			Next:   "mount cgroup2 on /sys/fs/cgroup",
		}}
	}
	how := "processes start in their cgroup, without a move"
	if layout.Version == cgroup.V1 {
		how = "a process joins by the file tasks: a write to cgroup.procs may take 10 ms"
	}
	checks := []Check{{ID: "cgroups", Name: "cgroups", OK: true, Found: fmt.Sprintf("version %d", layout.Version), Does: how + "; groups are made ahead"}}
	missing := layout.Missing()
	for _, c := range []struct {
		controller cgroup.Controller
		limit      string
	}{
		{cgroup.CPU, "a sandbox can use all CPUs"},
		{cgroup.CPUAcct, "CPU time counts only processes after wait(2)"},
		{cgroup.Memory, "a sandbox can use all memory"},
		{cgroup.Pids, "a fork bomb can use up the host's processes"},
	} {
		check := Check{
			ID: "cgroup_" + string(c.controller), Name: "cgroup " + string(c.controller), OK: true, Found: layout.Mounts[c.controller],
			Effect: "the engine refuses to start, unless the controller is configured as optional: then " + c.limit,
			Next:   "remove cgroup_disable=" + string(c.controller) + " from the kernel's command line",
		}
		for _, m := range missing {
			if m == c.controller {
				check.OK, check.Found = false, "missing"
			}
		}
		checks = append(checks, check)
	}
	swap := Check{
		ID: "swap", Name: "swap accounting", OK: layout.Swap || !hasSwap(), Found: "swap counts towards the memory limit",
		Effect: "a sandbox does not swap at its memory limit, but pages swapped out by the host do not count",
		Next:   "boot with swapaccount=1, or turn swap off",
	}
	if !layout.Swap {
		swap.Found = "not available"
		if swap.OK {
			swap.Found = "not available, and the host has no swap"
		}
	}
	return append(checks, swap)
}

func hasSwap() bool {
	b, err := os.ReadFile("/proc/swaps") // a heading, then one line for each
	return err != nil || strings.Count(string(b), "\n") > 1
}

func probeCPUs() Check {
	c := Check{
		ID: "cpus", Name: "CPUs", OK: true, Found: strconv.Itoa(runtime.NumCPU()),
		Does: "at most twice as many starts at a time; a program stays on one CPU during the start",
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				c.Found += " × " + strings.TrimSpace(model)
				break
			}
		}
	}
	return c
}

// probeMitigations reads the kernel's reports about the CPU's flaws
// (Documentation/ABI/testing/sysfs-devices-system-cpu).
func probeMitigations() Check {
	c := Check{
		ID: "mitigations", Name: "CPU flaws", OK: true, Optional: true,
		Does:   "nothing: the kernel's mitigations are part of the cost of each call and switch",
		Effect: "a function may read data of other functions or of the kernel left in the CPU",
		Next:   "update kernel and microcode, and do without mitigations=off; the files in /sys/devices/system/cpu/vulnerabilities say more",
	}
	const dir = "/sys/devices/system/cpu/vulnerabilities"
	entries, err := os.ReadDir(dir)
	if err != nil {
		c.OK, c.Found = false, err.Error()
		return c
	}
	var mitigated, vulnerable []string
	for _, e := range entries {
		b, err := os.ReadFile(dir + "/" + e.Name())
		switch says := string(b); {
		case err != nil:
			vulnerable = append(vulnerable, e.Name()+" (cannot be read)")
		case strings.HasPrefix(says, "Vulnerable"):
			vulnerable = append(vulnerable, e.Name())
		case strings.Contains(says, "Vulnerable"): // one of several variants
			vulnerable = append(vulnerable, e.Name()+" in part")
		case strings.HasPrefix(says, "Mitigation"):
			mitigated = append(mitigated, e.Name())
		}
	}
	c.Found = "no known vulnerability of the CPU"
	if len(mitigated) > 0 {
		c.Found = "mitigated: " + strings.Join(mitigated, ", ")
	}
	if len(vulnerable) > 0 {
		c.OK, c.Found = false, "vulnerable: "+strings.Join(vulnerable, ", ")+"; "+c.Found
	}
	return c
}

func probeTmpfs() Check {
	c := Check{
		ID: "tmpfs", Name: "tmpfs", OK: true, Found: "with sizes and numbers of files",
		Does:   "a sandbox's /tmp is a tmpfs: one statfs returns the size, for any number of files",
		Effect: "no sandbox can be started",
		Next:   "run the engine as root, on a kernel built with CONFIG_TMPFS",
	}
	fd, err := newTmp(1<<20, 16, 0)
	if err != nil {
		c.OK, c.Found = false, err.Error()
		return c
	}
	unix.Close(fd)
	return c
}

// probeOverlay reports the options with which the size of an overlay's upper layer, or of its
// difference from the lower layers, requires a walk through a layer.
func probeOverlay() Check {
	c := Check{
		ID: "overlay", Name: "overlay", OK: true, Optional: true,
		Does: "images are hard links, mounted without overlay; sizes come from statfs and quotas, never from a walk: " +
			"no option changes the cost of a list",
		Effect: "no root directory can be writable",
		Next:   "load the module overlay, or boot a kernel built with CONFIG_OVERLAY_FS",
	}
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC) // loads the module
	if err != nil {
		c.OK, c.Found = false, err.Error()
		return c
	}
	unix.Close(fd)
	var found []string
	for _, option := range []struct{ name, file string }{
		{"redirect_dir", "redirect_dir"}, {"metacopy", "metacopy"}, {"index", "index"}, {"xino", "xino_auto"},
	} {
		b, err := os.ReadFile("/sys/module/overlay/parameters/" + option.file)
		switch value := strings.TrimSpace(string(b)); {
		case err != nil:
			found = append(found, option.name+" unknown")
		case value == "Y":
			found = append(found, option.name+" on")
		default:
			found = append(found, option.name+" off")
		}
	}
	c.Found = strings.Join(found, ", ") + " (defaults of new mounts)"
	return c
}

func probeUring(found asked, err error) Check {
	return found.check(Check{
		ID: "io_uring", Name: "io_uring", Optional: true,
		Does:   "forbidden to functions, because it bypasses the system call filter; the engine uses ordinary calls",
		Effect: "nothing: FRE does not use io_uring",
	}, err)
}
