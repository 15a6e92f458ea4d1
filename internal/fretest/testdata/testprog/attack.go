package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attack makes the named attempts, all forbidden to functions, and prints the result of each:
// "done" if the attempt succeeded, else the error that stopped the attempt.
func attack(names []string) error {
	for _, name := range names {
		try := attacks[name]
		if try == nil {
			return fmt.Errorf("unknown attack %q", name)
		}
		fmt.Println(name + ": " + outcome(try()))
	}
	return nil
}

// outcome returns "done", the name of err's errno, or err's text.
func outcome(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// reached returns nil if err is one of the errors in nonsense: the call reached the kernel's check
// of its invalid arguments, and nothing stopped the call before.
func reached(err error, nonsense ...error) error {
	if slices.ContainsFunc(nonsense, func(e error) bool { return errors.Is(err, e) }) {
		return nil
	}
	return err
}

// call makes a system call with numbers as arguments. call retries after EINTR, because Go's
// scheduler sends signals.
func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	for {
		_, _, errno := syscall.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// open opens a file for writing but writes nothing.
func open(name string) error {
	fd, err := unix.Open(name, unix.O_WRONLY, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// read reads the beginning of a file.
func read(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Read(fd, make([]byte, 64))
	return err
}

// cloned starts a child in new namespaces.
func cloned(flags uintptr) func() error {
	return func() error {
		return child(&syscall.SysProcAttr{Cloneflags: flags})
	}
}

// child runs this program to its end. A plain container may have no /dev/null.
func child(attr *syscall.SysProcAttr) error {
	cmd := exec.Command("/proc/self/exe", "exit", "0")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, attr
	return cmd.Run()
}

// mounted mounts a file system on /tmp.
func mounted(kind string) func() error {
	return func() error {
		err := unix.Mount("none", "/tmp", kind, 0, "")
		if err == nil {
			err = unix.Unmount("/tmp", unix.MNT_DETACH)
		}
		return err
	}
}

// socket makes a socket of a family.
func socket(family, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

// attacks holds single attempts. Even a successful attempt changes nothing outside the namespaces
// of the process.
var attacks = map[string]func() error{
	// Namespaces.
	"unshare user":          func() error { return child(&syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWUSER}) },
	"unshare mount":         func() error { return unix.Unshare(unix.CLONE_NEWNS) },
	"clone user":            cloned(syscall.CLONE_NEWUSER),
	"clone user and mount":  cloned(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS),
	"clone mount":           cloned(syscall.CLONE_NEWNS),
	"clone pid":             cloned(syscall.CLONE_NEWPID),
	"clone network":         cloned(syscall.CLONE_NEWNET),
	"clone user and cgroup": cloned(syscall.CLONE_NEWUSER | syscall.CLONE_NEWCGROUP),
	"clone3":                func() error { return reached(call(unix.SYS_CLONE3, 0, 0), unix.EINVAL) },
	"setns": func() error {
		fd, err := unix.Open("/proc/self/ns/uts", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, unix.CLONE_NEWUTS)
	},

	// Mounts.
	"mount cgroup":  mounted("cgroup"),
	"mount cgroup2": mounted("cgroup2"),
	"mount proc":    mounted("proc"),
	"mount tmpfs":   mounted("tmpfs"),
	"bind":          func() error { return unix.Mount("/bin", "/tmp", "", unix.MS_BIND, "") },
	"unmount /proc": func() error { return unix.Unmount("/proc", unix.MNT_DETACH) },
	"remount root":  func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
	"fsopen":        func() error { return closed(unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)) },
	"open_tree":     func() error { return closed(unix.OpenTree(unix.AT_FDCWD, "/bin", unix.OPEN_TREE_CLONE)) },
	"mount_setattr": func() error {
		return unix.MountSetattr(unix.AT_FDCWD, "/tmp", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NOSUID})
	},
	"pivot_root": func() error { return reached(unix.PivotRoot("/none", "/none"), unix.ENOENT) },
	"chroot":     func() error { return unix.Chroot("/") },
	"device":     func() error { return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))) },
	"file handle": func() error {
		_, err := unix.OpenByHandleAt(unix.AT_FDCWD, unix.NewFileHandle(1, make([]byte, 8)), 0)
		return reached(err, unix.ESTALE, unix.EINVAL, unix.EOPNOTSUPP)
	},

	// Identity and priority.
	"host name":      func() error { return unix.Sethostname([]byte("x")) },
	"root":           func() error { return unix.Setresuid(0, 0, 0) },
	"groups":         func() error { return unix.Setgroups([]int{0}) },
	"raise priority": func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -1) },
	"real-time priority": func() error {
		return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	},
	"spare from the oom killer": func() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("-1"), 0) },
	"regain capabilities": func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
		return unix.Capset(&header, &data[0])
	},

	// The kernel's interfaces, called with invalid arguments: a call that passes the permission
	// check fails with EFAULT or EINVAL.
	"bpf":              func() error { return reached(call(unix.SYS_BPF, 1<<20, 0, 0), unix.EINVAL, unix.EFAULT) },
	"perf_event_open":  func() error { return reached(call(unix.SYS_PERF_EVENT_OPEN), unix.EFAULT) },
	"io_uring":         func() error { return reached(call(unix.SYS_IO_URING_SETUP, 1, 0), unix.EFAULT) },
	"userfaultfd":      func() error { return closed(raw(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1)) },
	"keyctl":           func() error { return second(unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)) },
	"add_key":          func() error { return second(unix.AddKey("user", "x", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)) },
	"request_key":      func() error { return reached(second(unix.RequestKey("user", "x", "", 0)), unix.ENOKEY) },
	"ptrace":           ptrace,
	"process_vm_readv": func() error { return reached(call(unix.SYS_PROCESS_VM_READV, 1), unix.EFAULT) },
	"kexec":            func() error { return reached(call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 1<<8), unix.EINVAL) },
	"kernel module":    func() error { return reached(call(unix.SYS_INIT_MODULE), unix.EFAULT, unix.ENOEXEC) },
	"reboot":           func() error { return reached(call(unix.SYS_REBOOT), unix.EINVAL) },
	"swapon":           func() error { return reached(call(unix.SYS_SWAPON), unix.EFAULT) },
	"accounting":       func() error { return reached(unix.Acct("/none"), unix.ENOENT) },
	"kernel log":       func() error { return second(unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)) },
	"quotactl": func() error {
		return reached(call(unix.SYS_QUOTACTL, 1<<30), unix.EINVAL, unix.ENODEV, unix.ENOTBLK, unix.EFAULT)
	},
	"clock": func() error {
		_, err := unix.Adjtimex(&unix.Timex{Modes: 0x4000}) // ADJ_TICK, with the invalid value 0
		return reached(err, unix.EINVAL)
	},
	"personality":       func() error { return call(unix.SYS_PERSONALITY, 0x0400000) }, // READ_IMPLIES_EXEC
	"fanotify":          func() error { return closed(unix.FanotifyInit(unix.FAN_CLASS_CONTENT, 0)) },
	"name_to_handle_at": func() error { return reached(call(unix.SYS_NAME_TO_HANDLE_AT), unix.EFAULT) },
	"open kernel port":  func() error { return open("/dev/port") },
	"terminal input": func() error {
		return reached(call(unix.SYS_IOCTL, 0, unix.TIOCSTI), unix.ENOTTY, unix.EFAULT, unix.EIO)
	},
	"line discipline": func() error { return reached(call(unix.SYS_IOCTL, 0, unix.TIOCSETD), unix.ENOTTY, unix.EFAULT) },
	"console":         func() error { return call(unix.SYS_IOCTL, 0, unix.TIOCCONS) },

	// Files.
	"own program": func() error { return reached(open("/proc/self/exe"), unix.ETXTBSY) },
	"null's mode": func() error { return unix.Fchmod(0, 0o600) },
	"terminal":    func() error { return open("/dev/tty") },

	// The host's /proc and /sys.
	"sysctl":         func() error { return open("/proc/sys/kernel/core_pattern") },
	"sysrq":          func() error { return open("/proc/sysrq-trigger") },
	"kernel memory":  func() error { return read("/proc/kcore") },
	"keys":           func() error { return read("/proc/keys") },
	"key users":      func() error { return read("/proc/key-users") },
	"cmdline":        func() error { return read("/proc/cmdline") },
	"symbols":        func() error { return read("/proc/kallsyms") },
	"modules":        func() error { return read("/proc/modules") },
	"interrupts":     func() error { return read("/proc/interrupts") },
	"partitions":     func() error { return read("/proc/partitions") },
	"host's cpuinfo": func() error { return read("/proc/cpuinfo") },
	"sysfs":          func() error { return read("/sys/kernel/notes") },

	// Sockets of families that network namespaces do not isolate, or that functions do not need.
	"vsock":  socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
	"packet": socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
	"raw":    socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
	"alg":    socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
	"xfrm":   socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM),
	"audit":  socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT),
	"xdp":    socket(unix.AF_XDP, unix.SOCK_RAW, 0),
	"tipc":   socket(unix.AF_TIPC, unix.SOCK_STREAM, 0),

	// The root file system; /bin/own belongs to the tenant.
	"write":        func() error { return open("/bin/own") },
	"create":       func() error { return closed(unix.Open("/bin/new", unix.O_CREAT|unix.O_WRONLY, 0o644)) },
	"truncate":     func() error { return unix.Truncate("/bin/own", 0) },
	"chmod":        func() error { return unix.Chmod("/bin/own", 0o777) },
	"touch":        func() error { return unix.UtimesNano("/bin/own", make([]unix.Timespec, 2)) },
	"set xattr":    func() error { return unix.Setxattr("/bin/own", "user.x", []byte("x"), 0) },
	"remove":       func() error { return unix.Unlink("/bin/own") },
	"rename":       func() error { return moved("/bin/own", "/bin/renamed") },
	"rename out":   func() error { return moved("/bin/own", "/work/renamed") },
	"link":         func() error { return unix.Link("/bin/own", "/bin/linked") },
	"link out":     func() error { return unix.Link("/bin/own", "/work/linked") },
	"link open fd": linkOpen,
	"write map":    writeMap,

	// Files with a meaning for overlayfs, execve or quotas.
	"whiteout":          func() error { return unix.Mknod("/bin/whiteout", unix.S_IFCHR, 0) },
	"opaque":            func() error { return unix.Setxattr("/bin", "trusted.overlay.opaque", []byte("y"), 0) },
	"redirect":          func() error { return unix.Setxattr("/bin", "trusted.overlay.redirect", []byte("/etc"), 0) },
	"file capabilities": func() error { return unix.Setxattr("/bin/own", "security.capability", fileCapabilities, 0) },
	"immutable":         immutable,
	"open device":       func() error { return read("/bin/device") },
	"port":              func() error { return listened(":1") },
}

// fileCapabilities is an effective struct vfs_cap_data of revision 2 with CAP_SYS_ADMIN.
var fileCapabilities = []byte{1, 0, 0, 2, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// immutable sets the immutable flag of a file in the root, and clears the flag again.
func immutable() error {
	const flag = 0x10 // FS_IMMUTABLE_FL
	fd, err := unix.Open("/bin/own", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags|flag)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags)
	}
	return err
}

// listened listens at an address and closes the listener.
func listened(address string) error {
	l, err := net.Listen("tcp", address)
	if err == nil {
		err = l.Close()
	}
	return err
}

// closed closes the fd of a successful attempt.
func closed(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// moved renames a file, and undoes a successful rename.
func moved(from, to string) error {
	err := unix.Rename(from, to)
	if err == nil {
		err = unix.Rename(to, from)
	}
	return err
}

func second[T any](_ T, err error) error { return err }

// raw makes a system call that returns an fd.
func raw(number, arg uintptr) (int, error) {
	fd, _, errno := syscall.RawSyscall(number, arg, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// ptrace attaches to a child process.
func ptrace() error {
	cmd := exec.Command("/proc/self/exe", "stubborn")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	err := unix.PtraceAttach(cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return err
}

// linkOpen links an open file of the root to a name in /work.
func linkOpen() error {
	fd, err := unix.Open("/bin/own", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, "/work/stolen", unix.AT_SYMLINK_FOLLOW)
}

// writeMap reopens a file of the root for writing through /proc.
func writeMap() error {
	fd, err := unix.Open("/bin/own", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// bare turns the directory root into a plain container's surroundings, inside the namespaces of the
// process: a root directory, a whole /proc and a /tmp. Then bare runs a command as root with every
// capability. The result shows the effect of an attack without FRE's defences.
func bare(root string, args []string) error {
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(root, root, "", unix.MS_BIND, ""),
		unix.Chdir(root),
		unix.PivotRoot(".", "."),
		unix.Unmount(".", unix.MNT_DETACH),
		unix.Mount("none", "/proc", "proc", 0, ""),
		unix.Mount("none", "/tmp", "tmpfs", 0, ""),
	); err != nil {
		return fmt.Errorf("make root %s: %w", root, err)
	}
	return run(args[0], args[1:])
}

// watch looks repeatedly at every visible process and at the open files of process 1, until its
// input ends. Then watch prints every process and file beyond its own.
func watch() error {
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		close(ended)
	}()
	saw := map[string]bool{}
	first, err := os.Readlink("/proc/1/exe")
	if err != nil {
		return err
	}
	looks := 0
	for {
		select {
		case <-ended:
			fmt.Println("saw", len(saw), "in several looks:", looks > 1)
			for what := range saw {
				fmt.Println(what)
			}
			return nil
		default:
		}
		looks++
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, e := range entries {
			if name := e.Name(); name[0] >= '0' && name[0] <= '9' && name != "1" {
				if len(saw) == 0 {
					fmt.Println("sees another")
				}
				exe, _ := os.Readlink("/proc/" + name + "/exe")
				saw["process "+name+" "+exe] = true
			}
		}
		if exe, err := os.Readlink("/proc/1/exe"); err != nil || exe != first {
			saw["first process "+exe] = true
		}
		fds, err := filepath.Glob("/proc/1/fd/*")
		if err != nil {
			return err
		}
		for _, fd := range fds {
			target, _ := os.Readlink(fd)
			if strings.HasPrefix(target, "/") && target != "/proc" && target != "/null" || strings.Contains(target, "memfd") {
				saw["file "+target] = true
			}
		}
	}
}

// through opens the host's /proc/sys/kernel relative to the directory at fd 3, and prints "out" on
// success.
func through() error {
	fd, err := unix.Openat(3, strings.Repeat("../", 64)+"proc/sys/kernel", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		fmt.Println("out")
		unix.Close(fd)
	}
	return err
}

// euid prints the effective uid after execve, and the capabilities.
func euid() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	fmt.Printf("euid %d caps %08x%08x\n", os.Geteuid(), data[1].Effective, data[0].Effective)
	return nil
}

// copies forks n waiting processes, or as many as the limits allow. With n below 0 every child
// forks too, without end. The children do not exec: an exec each would be a different kind of bomb.
func copies(n int) error {
	// A child has one thread and no scheduler: make system calls only.
	const clone, wait = unix.SYS_CLONE, unix.SYS_PPOLL
	made := 0
	for made != n {
		pid, _, errno := syscall.RawSyscall6(clone, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		switch {
		case errno != 0 && n >= 0:
			fmt.Println("ready", made)
			forever()
		case errno == 0 && pid == 0 && n >= 0:
			for {
				_, _, _ = syscall.RawSyscall6(wait, 0, 0, 0, 0, 0, 0)
			}
		}
		made++
	}
	fmt.Println("ready", made)
	forever()
	return nil
}

// connect connects to a server and closes the connection.
func connect(network, address string) error {
	conn, err := net.DialTimeout(network, address, 10*time.Second)
	if err == nil {
		err = conn.Close()
	}
	return err
}

// listen listens at an address and prints the result of connecting to that address.
func listen(network, address string) error {
	if _, err := net.Listen(network, address); err != nil {
		return err
	}
	fmt.Println("reached myself:", outcome(connect(network, address)))
	forever()
	return nil
}

// get sends a request to a Unix socket and prints the response.
func get(socket, path string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	fmt.Println("connected")
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: fre\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, conn)
	return err
}
