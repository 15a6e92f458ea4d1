package security

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

const (
	seccomp      = sandbox.DefenceSeccomp
	capabilities = sandbox.DefenceCapabilities
)

// list returns attempts that all end alike.
func list(want string, off sandbox.Defence, names ...string) []try {
	var tries []try
	for _, name := range names {
		tries = append(tries, try{name, want, off})
	}
	return tries
}

// A function can neither make nor join a namespace, by any system call. In its own namespace a
// function would have every capability.
func TestNamespaces(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	kinds := []string{
		"unshare user", "unshare mount", "clone user", "clone user and mount", "clone user and cgroup",
		"clone mount", "clone pid", "clone network", "setns",
	}
	refused(t, h, root, nil, append(list("EPERM", 0, kinds...), try{"clone3", "ENOSYS", seccomp}))
	// Without the filter, the tenant's namespace still allows no nested user namespace.
	unfiltered := func(s *sandbox.Spec) { s.Without = seccomp }
	for name, how := range outcomes(attempt(t, h, root, unfiltered, kinds...)) {
		if want := map[bool]string{true: "ENOSPC", false: "EPERM"}[strings.Contains(name, "user")]; how != want {
			t.Errorf("%s without the filter: %q, want %q", name, how, want)
		}
	}
}

// A function cannot mount, move or unmount a file system, including a cgroup with its release_agent
// (CVE-2022-0492). Even without the filter and with all capabilities of its user namespace the
// attempts fail.
func TestMounts(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	names := []string{
		"mount cgroup2", "mount proc", "mount tmpfs", "bind", "remount root", "fsopen", "open_tree", "mount_setattr",
		"pivot_root", "device", "file handle", "unmount /proc",
	}
	refused(t, h, root, nil, append(list("EPERM", 0, names...), try{"chroot", "EPERM", seccomp | capabilities}))
	powerful := func(s *sandbox.Spec) { s.Without = seccomp | capabilities }
	for name, how := range outcomes(attempt(t, h, root, powerful, names...)) {
		if how != "EPERM" {
			t.Errorf("%s without filter, with capabilities: %q, want EPERM", name, how)
		}
	}
	for line := range strings.Lines(run(t, h, prog(root, "cat", "/proc/self/mountinfo"))) {
		if strings.Contains(line, " cgroup") {
			t.Errorf("a cgroup's file system is mounted: %s", line)
		}
	}
}

// attempt runs attempts in a sandbox.
func attempt(t testing.TB, h *sandbox.Host, root string, change func(*sandbox.Spec), names ...string) string {
	t.Helper()
	spec := prog(root, append([]string{"attack"}, names...)...)
	change(&spec)
	return run(t, h, spec)
}

// A function cannot gain privileges: no capabilities, groups, priorities, modules or clock.
func TestPrivileges(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	refused(t, h, root, nil, append(
		list("EPERM", 0, "host name", "clock", "real-time priority", "reboot", "kexec", "kernel module", "swapon", "accounting", "kernel log"),
		try{"root", "EPERM", capabilities},
		try{"groups", "EPERM", capabilities},
		try{"raise priority", "EACCES", 0},
		try{"spare from the oom killer", "EACCES", 0},
		try{"regain capabilities", "EPERM", capabilities}, // last, because the attempt drops all capabilities
	))
	refused(t, h, root, func(s *sandbox.Spec) { s.User.UID, s.User.GID = 0, 0 }, []try{
		{"device", "EPERM", 0},
		{"mount tmpfs", "EPERM", 0},
		{"groups", "EPERM", capabilities},
		{"chroot", "EPERM", seccomp | capabilities},
		{"regain capabilities", "EPERM", capabilities},
	})
}

// The root of an ordinary image gets no further than a function, despite its capabilities and
// writable root: the capabilities count only in a user namespace that owns only its own processes.
func TestContainerRoot(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	refused(t, h, root, container, slices.Concat(
		list("EPERM", 0,
			"unshare user", "unshare mount", "clone user", "clone user and mount", "clone mount", "clone pid", "clone network", "setns",
			"mount cgroup2", "mount proc", "mount tmpfs", "bind", "remount root", "fsopen", "open_tree", "mount_setattr",
			"pivot_root", "device", "file handle", "unmount /proc",
			"host name", "clock", "real-time priority", "reboot", "kexec", "kernel module", "swapon", "accounting", "kernel log",
			"quotactl", "fanotify"),
		list("EPERM", seccomp, "bpf", "io_uring", "userfaultfd", "keyctl", "ptrace", "process_vm_readv", "name_to_handle_at"),
		[]try{
			{"chroot", "EPERM", seccomp | capabilities},
			{"raise priority", "EACCES", 0},
			{"spare from the oom killer", "EACCES", 0},
			{"regain capabilities", "EPERM", capabilities}, // capabilities above the bounding set
		},
	))
	// The namespace allows no nested user namespace, even for root.
	unfiltered := func(s *sandbox.Spec) {
		container(s)
		s.Without = seccomp
	}
	for name, how := range outcomes(attempt(t, h, root, unfiltered, "unshare user", "clone user", "clone user and mount", "mount tmpfs", "bind", "device")) {
		if want := map[bool]string{true: "ENOSPC", false: "EPERM"}[strings.Contains(name, "user")]; how != want {
			t.Errorf("%s without the filter: %q, want %q", name, how, want)
		}
	}
}

// A function cannot use parts of the kernel that no function needs and that had many security
// faults.
func TestSystemCalls(t *testing.T) {
	h := openHost(t)
	refused(t, h, fretest.Rootfs(t), nil, append(
		list("EPERM", seccomp,
			"bpf", "perf_event_open", "io_uring", "userfaultfd", "keyctl", "add_key", "request_key", "ptrace",
			"process_vm_readv", "personality", "name_to_handle_at", "terminal input"),
		list("EPERM", 0, "quotactl", "fanotify")...,
	))
}

// A function cannot open sockets of AF_VSOCK, which reaches the host of a virtual machine past all
// namespaces, or of other families that no function needs.
func TestSocketFamilies(t *testing.T) {
	h := openHost(t)
	refused(t, h, fretest.Rootfs(t), nil, append(
		list("EAFNOSUPPORT", seccomp, "vsock", "alg", "tipc", "xfrm", "audit"),
		list("EAFNOSUPPORT", 0, "packet", "xdp")...,
	))
}

// A function can neither read nor set the host's kernel through /proc and /sys, even as its
// tenant's root.
func TestProc(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	tries := append(
		list("ENOENT", sandbox.DefenceProcSubset, "keys", "key users", "cmdline", "symbols", "modules", "interrupts", "partitions", "host's cpuinfo"),
		list("ENOENT", 0, "sysctl", "sysrq", "kernel memory", "sysfs")...,
	)
	for _, uid := range []uint32{0, 1000} {
		refused(t, h, root, func(s *sandbox.Spec) { s.User.UID = uid }, tries)
	}
}

// A sandbox with /proc files for ordinary tools shows only these files and its own processes. The
// files tell nothing about the host.
func TestProcFiles(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	files := func(s *sandbox.Spec) {
		container(s)
		s.ProcFiles = true
	}
	refused(t, h, root, files, append(
		list("ENOENT", sandbox.DefenceProcSubset, "keys", "key users", "cmdline", "symbols", "modules", "interrupts", "partitions"),
		list("ENOENT", 0, "sysctl", "sysrq", "kernel memory", "sysfs")...,
	))

	host, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "net", "self", "stat", "sys", "thread-self", "uptime", "version"}
	var commands, names []string
	for _, e := range host {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			commands, names = append(commands, "lstat /proc/"+e.Name()), append(names, e.Name())
		}
	}
	if len(names) < 2*len(allowed) {
		t.Fatalf("the host itself has but %q: the test proves nothing", names)
	}
	commands = append(commands, "ls /proc/sys", "cat /proc/loadavg /proc/meminfo /proc/stat /proc/uptime /proc/cpuinfo", "cat /proc/self/mountinfo")
	for _, memory := range []int64{8 << 20, 256 << 20} { // started by a spawner, and from a parked sandbox
		spec := prog(root)
		files(&spec)
		spec.Limits.MemoryBytes = memory
		answers := orders(t, h, spec, commands...)
		for i, name := range names {
			if found := !strings.Contains(answers[i], "no such file"); found != slices.Contains(allowed, name) {
				t.Errorf("/proc/%s with %d bytes: %q", name, memory, answers[i])
			}
		}
		rest := answers[len(names):]
		if got := strings.Fields(rest[0]); !slices.Equal(got, []string{"kernel", "vm"}) {
			t.Errorf("/proc/sys has %q", got)
		}
		var total unix.Sysinfo_t
		if err := unix.Sysinfo(&total); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(rest[1], "0.00 0.00 0.00 ") || strings.Contains(rest[1], fmt.Sprint(total.Totalram*uint64(total.Unit)>>10)) || strings.Contains(rest[1], "MHz") {
			t.Errorf("load, memory or clock of the host: %q", rest[1])
		}
		if strings.Contains(rest[2], "/fre-") || strings.Contains(rest[2], filepath.Dir(root)) {
			t.Errorf("paths of the host in %q", rest[2])
		}
	}
}

// A program with the set-uid bit or file capabilities runs as the user who starts the program. The
// mount's flag and the process's flag each suffice alone.
func TestSetuid(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	program := filepath.Join(root, "bin/prog")
	suid, capable := filepath.Join(root, "bin/suid"), filepath.Join(root, "bin/capable")
	copyFile(t, program, suid, 0o755)
	copyFile(t, program, capable, 0o755)
	if err := os.Chown(suid, int(tenant.HostBase), int(tenant.HostBase)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(suid, 0o755|os.ModeSetuid|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	// struct vfs_ns_cap_data, effective: CAP_SYS_ADMIN, for the tenant's root.
	caps := binary.LittleEndian.AppendUint32([]byte{1, 0, 0, 3, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, tenant.HostBase)
	if err := unix.Setxattr(capable, "security.capability", caps, 0); err != nil {
		t.Fatal(err)
	}
	const nothing = "euid 1000 caps 0000000000000000\n"
	const nosuid, noNewPrivs = sandbox.DefenceNoSuid, sandbox.DefenceNoNewPrivs
	for _, c := range []struct {
		program string
		without sandbox.Defence
		want    string
	}{
		{"/bin/suid", 0, nothing},
		{"/bin/suid", nosuid, nothing},
		{"/bin/suid", noNewPrivs, nothing},
		{"/bin/suid", nosuid | noNewPrivs, "euid 0 caps 0000000000000000\n"},
		{"/bin/capable", 0, nothing},
		{"/bin/capable", nosuid, ""}, // the bounding set lacks the file's capability
		{"/bin/capable", nosuid | noNewPrivs, ""},
		{"/bin/capable", nosuid | capabilities, "euid 1000 caps 0000000000200000\n"},
	} {
		spec := prog(root, "euid")
		spec.Args[0], spec.Without = c.program, c.without
		if c.want == "" {
			if s, err := h.Start(t.Context(), spec); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s without defences %b: %v, %v; want it refused", c.program, c.without, s, err)
			}
			continue
		}
		if got := run(t, h, spec); got != c.want {
			t.Errorf("%s without defences %b: %q, want %q", c.program, c.without, got, c.want)
		}
	}
}

// A sandbox cannot use the kernel's keys. Without the filter, keys of tenants and sessions are
// still separate.
func TestKeys(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	if got := run(t, h, prog(root, "addkey")); !strings.Contains(got, "not permitted") {
		t.Errorf("add a key: %q", got)
	}
	spec := prog(root, "addkey")
	spec.Without = seccomp
	_, _, id := startReady(t, h, spec)
	for _, c := range []struct {
		user sandbox.User
		want string
	}{
		{another, "permission denied"},
		{tenant, ""}, // the key exists and is open to its owner
	} {
		spec := prog(root, "readkey", id)
		spec.User, spec.Without = c.user, seccomp
		if got := run(t, h, spec); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("tenant %s reads tenant a's key: %q, want %q", c.user.Tenant, got, c.want)
		}
	}
	for without, same := range map[sandbox.Defence]bool{seccomp: false, seccomp | sandbox.DefenceKeyring: true} {
		spec := prog(root, "sessionkeys")
		spec.Without = without
		if first, second := run(t, h, spec), run(t, h, spec); (first == second) != same {
			t.Errorf("without defences %b: session key rings %q and %q, want the same: %v", without, first, second, same)
		}
	}
}

// A crash writes no core file and starts no helper of the host, even if the host pipes cores to a
// helper, which only a core limit of 1 prevents (core(5)).
func TestNoCore(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	called := "/tmp/core-helper-called"
	if os.Getenv("FRE_V2") != "" { // only on a machine of the test's own
		const pattern = "/proc/sys/kernel/core_pattern"
		before := content(t, pattern)
		if err := os.WriteFile(pattern, []byte("|/bin/busybox touch "+called), 0); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.WriteFile(pattern, before, 0); err != nil {
				t.Error(err)
			}
		}()
	}
	if out := run(t, h, prog(root, "core")); out != "core false\n" {
		t.Errorf("crash in a sandbox: %q", out)
	}
	if _, err := os.Stat(called); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the host's helper was called: %v", err)
	}
	if os.Getenv("FRE_V2") == "" {
		return
	}
	if out := bare(t, root, "core"); out != "core true\n" {
		t.Errorf("crash without a sandbox: %q: the test proves nothing", out)
	}
	if err := os.Remove(called); err != nil {
		t.Errorf("the helper after a crash without a sandbox: %v", err)
	}
}
