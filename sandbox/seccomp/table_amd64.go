package seccomp

import (
	"maps"

	"golang.org/x/sys/unix"
)

const arch = unix.AUDIT_ARCH_X86_64

// x32 is the bit that marks a call of the x32 ABI, which has the same architecture.
const x32 = 1 << 30

// allowed lists the numbers of the calls without further checks. They are the calls that the
// default profile of moby (Docker) allows without any capability, except ptrace and its kin,
// modify_ldt, file handles, and calls that no longer exist.
var allowed = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_OPEN, unix.SYS_CLOSE, unix.SYS_STAT, unix.SYS_FSTAT, unix.SYS_LSTAT,
	unix.SYS_POLL, unix.SYS_LSEEK, unix.SYS_MMAP, unix.SYS_MPROTECT, unix.SYS_MUNMAP, unix.SYS_BRK,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_PREAD64, unix.SYS_PWRITE64,
	unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_ACCESS, unix.SYS_PIPE, unix.SYS_SELECT, unix.SYS_SCHED_YIELD,
	unix.SYS_MREMAP, unix.SYS_MSYNC, unix.SYS_MINCORE, unix.SYS_MADVISE, unix.SYS_SHMGET, unix.SYS_SHMAT,
	unix.SYS_SHMCTL, unix.SYS_DUP, unix.SYS_DUP2, unix.SYS_PAUSE, unix.SYS_NANOSLEEP, unix.SYS_GETITIMER,
	unix.SYS_ALARM, unix.SYS_SETITIMER, unix.SYS_GETPID, unix.SYS_SENDFILE, unix.SYS_CONNECT, unix.SYS_ACCEPT,
	unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SHUTDOWN, unix.SYS_BIND,
	unix.SYS_LISTEN, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT,
	unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_EXECVE, unix.SYS_EXIT, unix.SYS_WAIT4, unix.SYS_KILL,
	unix.SYS_UNAME, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMCTL, unix.SYS_SHMDT, unix.SYS_MSGGET,
	unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_FLOCK, unix.SYS_FSYNC,
	unix.SYS_FDATASYNC, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_GETDENTS, unix.SYS_GETCWD,
	unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_RENAME, unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_CREAT,
	unix.SYS_LINK, unix.SYS_UNLINK, unix.SYS_SYMLINK, unix.SYS_READLINK, unix.SYS_CHMOD, unix.SYS_FCHMOD,
	unix.SYS_CHOWN, unix.SYS_FCHOWN, unix.SYS_LCHOWN, unix.SYS_UMASK, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRLIMIT,
	unix.SYS_GETRUSAGE, unix.SYS_SYSINFO, unix.SYS_TIMES, unix.SYS_GETUID, unix.SYS_GETGID, unix.SYS_SETUID,
	unix.SYS_SETGID, unix.SYS_GETEUID, unix.SYS_GETEGID, unix.SYS_SETPGID, unix.SYS_GETPPID, unix.SYS_GETPGRP,
	unix.SYS_SETSID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_GETGROUPS, unix.SYS_SETGROUPS,
	unix.SYS_SETRESUID, unix.SYS_GETRESUID, unix.SYS_SETRESGID, unix.SYS_GETRESGID, unix.SYS_GETPGID,
	unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_GETSID, unix.SYS_CAPGET, unix.SYS_CAPSET,
	unix.SYS_RT_SIGPENDING, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_SIGSUSPEND,
	unix.SYS_SIGALTSTACK, unix.SYS_UTIME, unix.SYS_MKNOD, unix.SYS_STATFS, unix.SYS_FSTATFS,
	unix.SYS_GETPRIORITY, unix.SYS_SETPRIORITY, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_GETPARAM,
	unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_GET_PRIORITY_MAX,
	unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_SCHED_RR_GET_INTERVAL, unix.SYS_MLOCK, unix.SYS_MUNLOCK,
	unix.SYS_MLOCKALL, unix.SYS_MUNLOCKALL, unix.SYS_PRCTL, unix.SYS_ARCH_PRCTL, unix.SYS_ADJTIMEX,
	unix.SYS_SETRLIMIT, unix.SYS_SYNC, unix.SYS_GETTID, unix.SYS_READAHEAD, unix.SYS_SETXATTR,
	unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR,
	unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLISTXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR,
	unix.SYS_FREMOVEXATTR, unix.SYS_TKILL, unix.SYS_TIME, unix.SYS_FUTEX, unix.SYS_SCHED_SETAFFINITY,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_IO_SETUP, unix.SYS_IO_DESTROY, unix.SYS_IO_GETEVENTS,
	unix.SYS_IO_SUBMIT, unix.SYS_IO_CANCEL, unix.SYS_EPOLL_CREATE, unix.SYS_REMAP_FILE_PAGES,
	unix.SYS_GETDENTS64, unix.SYS_SET_TID_ADDRESS, unix.SYS_RESTART_SYSCALL, unix.SYS_SEMTIMEDOP,
	unix.SYS_FADVISE64, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_GETTIME,
	unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_DELETE, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES,
	unix.SYS_CLOCK_NANOSLEEP, unix.SYS_EXIT_GROUP, unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_CTL, unix.SYS_TGKILL,
	unix.SYS_UTIMES, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_MQ_TIMEDSEND, unix.SYS_MQ_TIMEDRECEIVE,
	unix.SYS_MQ_NOTIFY, unix.SYS_MQ_GETSETATTR, unix.SYS_WAITID, unix.SYS_IOPRIO_SET, unix.SYS_IOPRIO_GET,
	unix.SYS_INOTIFY_INIT, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH, unix.SYS_OPENAT,
	unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_FCHOWNAT, unix.SYS_FUTIMESAT, unix.SYS_NEWFSTATAT,
	unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_READLINKAT,
	unix.SYS_FCHMODAT, unix.SYS_FACCESSAT, unix.SYS_PSELECT6, unix.SYS_PPOLL, unix.SYS_SET_ROBUST_LIST,
	unix.SYS_GET_ROBUST_LIST, unix.SYS_SPLICE, unix.SYS_TEE, unix.SYS_SYNC_FILE_RANGE, unix.SYS_VMSPLICE,
	unix.SYS_UTIMENSAT, unix.SYS_EPOLL_PWAIT, unix.SYS_SIGNALFD, unix.SYS_TIMERFD_CREATE, unix.SYS_EVENTFD,
	unix.SYS_FALLOCATE, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME, unix.SYS_ACCEPT4,
	unix.SYS_SIGNALFD4, unix.SYS_EVENTFD2, unix.SYS_EPOLL_CREATE1, unix.SYS_DUP3, unix.SYS_PIPE2,
	unix.SYS_INOTIFY_INIT1, unix.SYS_PREADV, unix.SYS_PWRITEV, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_RECVMMSG,
	unix.SYS_PRLIMIT64, unix.SYS_CLOCK_ADJTIME, unix.SYS_SYNCFS, unix.SYS_SENDMMSG, unix.SYS_GETCPU,
	unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_GETATTR, unix.SYS_RENAMEAT2, unix.SYS_SECCOMP, unix.SYS_GETRANDOM,
	unix.SYS_MEMFD_CREATE, unix.SYS_EXECVEAT, unix.SYS_MEMBARRIER, unix.SYS_MLOCK2, unix.SYS_COPY_FILE_RANGE,
	unix.SYS_PREADV2, unix.SYS_PWRITEV2, unix.SYS_PKEY_MPROTECT, unix.SYS_PKEY_ALLOC, unix.SYS_PKEY_FREE,
	unix.SYS_STATX, unix.SYS_IO_PGETEVENTS, unix.SYS_RSEQ, unix.SYS_URETPROBE, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_PIDFD_OPEN, unix.SYS_CLOSE_RANGE, unix.SYS_OPENAT2, unix.SYS_FACCESSAT2, unix.SYS_EPOLL_PWAIT2,
	unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE, unix.SYS_LANDLOCK_RESTRICT_SELF,
	unix.SYS_MEMFD_SECRET, unix.SYS_PROCESS_MRELEASE, unix.SYS_FUTEX_WAITV, unix.SYS_CACHESTAT,
	unix.SYS_FCHMODAT2, unix.SYS_MAP_SHADOW_STACK, unix.SYS_FUTEX_WAKE, unix.SYS_FUTEX_WAIT,
	unix.SYS_FUTEX_REQUEUE, unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT, unix.SYS_MSEAL, unix.SYS_SETXATTRAT,
	unix.SYS_GETXATTRAT, unix.SYS_LISTXATTRAT, unix.SYS_REMOVEXATTRAT,
}

// refused lists existing calls that functions may not make (EPERM): calls for namespaces,
// mounts, other processes' memory, keys, io_uring, bpf, the machine itself. A call in no list
// is unknown (ENOSYS), so that a program falls back as on an older kernel.
var refused = []uint32{
	unix.SYS_PTRACE, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_MODIFY_LDT, unix.SYS_PIVOT_ROOT,
	unix.SYS_CHROOT, unix.SYS_ACCT, unix.SYS_SETTIMEOFDAY, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_SWAPON,
	unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_IOPL,
	unix.SYS_IOPERM, unix.SYS_INIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_QUOTACTL, unix.SYS_CLOCK_SETTIME,
	unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_GET_MEMPOLICY, unix.SYS_KEXEC_LOAD, unix.SYS_ADD_KEY,
	unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_MIGRATE_PAGES, unix.SYS_UNSHARE, unix.SYS_MOVE_PAGES,
	unix.SYS_PERF_EVENT_OPEN, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_SETNS, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
	unix.SYS_KCMP, unix.SYS_FINIT_MODULE, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_BPF, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_OPEN_TREE,
	unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_PIDFD_GETFD, unix.SYS_PROCESS_MADVISE, unix.SYS_MOUNT_SETATTR, unix.SYS_QUOTACTL_FD,
	unix.SYS_SET_MEMPOLICY_HOME_NODE,
}

// namespaces are the clone(2) flags that make a namespace. CLONE_NEWTIME is a flag of clone3
// alone: in clone its bit is part of the exit signal.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// sockets allows some address families. Internet sockets may have only the protocols that every
// kernel has built in, so that no socket makes the kernel load the module of a rarer protocol.
var sockets = rule{
	cases: []clause{
		{when: []test{{arg: 0, values: []uint32{unix.AF_UNIX}}}, then: allow},
		{when: []test{
			{arg: 0, values: []uint32{unix.AF_INET, unix.AF_INET6}},
			{arg: 2, values: []uint32{
				0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, unix.IPPROTO_MPTCP,
			}},
		}, then: allow},
		{when: []test{{arg: 0, values: []uint32{unix.AF_INET, unix.AF_INET6}}}, then: fail(unix.EPROTONOSUPPORT)},
		{when: []test{
			{arg: 0, values: []uint32{unix.AF_NETLINK}},
			{arg: 2, values: []uint32{unix.NETLINK_ROUTE}},
		}, then: allow},
	},
	otherwise: fail(unix.EAFNOSUPPORT),
}

// checked holds the calls whose verdict depends on their arguments.
var checked = map[uint32]rule{
	unix.SYS_SOCKET:     sockets,
	unix.SYS_SOCKETPAIR: sockets,
	unix.SYS_CLONE: {
		cases:     []clause{{when: []test{{arg: 0, mask: namespaces, values: []uint32{0}}}, then: allow}},
		otherwise: fail(unix.EPERM),
	},
	// The flags of clone3 lie in memory, which no filter can read. libc falls back to clone.
	unix.SYS_CLONE3: {otherwise: fail(unix.ENOSYS)},
	// Allowed are Linux, Linux of 32 bits, either with an old release's name (UNAME26), and
	// 0xffffffff, which queries the current value.
	unix.SYS_PERSONALITY: {
		cases: []clause{{when: []test{{arg: 0, values: []uint32{
			0, linux32, uname26, uname26 | linux32, 0xffffffff,
		}}}, then: allow}},
		otherwise: fail(unix.EPERM),
	},
	// TIOCSTI and TIOCLINUX can fake input of the person at the terminal. TIOCSETD gives a
	// terminal to a line discipline, whose module the kernel loads (CVE-2017-2636,
	// CVE-2023-6546).
	unix.SYS_IOCTL: {
		cases:     []clause{{when: []test{{arg: 1, values: []uint32{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD}}}, then: fail(unix.EPERM)}},
		otherwise: allow,
	},
	// Refuse locks of open file descriptions, as a kernel before 3.15 does: no process owns
	// such locks, so the watch could not find their owner (cgroup/locks.go).
	unix.SYS_FCNTL: {
		cases:     []clause{{when: []test{{arg: 1, values: []uint32{unix.F_OFD_SETLK, unix.F_OFD_SETLKW}}}, then: fail(unix.EINVAL)}},
		otherwise: allow,
	},
}

// Flags of personality(2). PER_LINUX is 0.
const (
	linux32 = 0x8     // PER_LINUX32
	uname26 = 0x20000 // UNAME26
)

// forking holds the additional rights of a fork server: to make the namespaces of a new
// sandbox, in three steps around fork(2), and to return to its own namespaces for the next.
// User namespaces are excluded, since the fork server would have every capability inside.
var forking = map[uint32]rule{
	unix.SYS_UNSHARE: {
		cases: []clause{{when: []test{
			{arg: 0, high: true, values: []uint32{0}},
			{arg: 0, values: []uint32{
				unix.CLONE_NEWPID, forkMost, forkMost | unix.CLONE_NEWNET, unix.CLONE_NEWCGROUP,
			}},
		}, then: allow}},
		otherwise: fail(unix.EPERM),
	},
	unix.SYS_SETNS: {
		cases:     []clause{{when: []test{{arg: 1, values: []uint32{unix.CLONE_NEWPID, unix.CLONE_NEWNET}}}, then: allow}},
		otherwise: fail(unix.EPERM),
	},
}

const forkMost = unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// rules returns the table of p.
func (p Policy) rules() (map[uint32]rule, error) {
	all := map[uint32]rule{}
	for _, nr := range allowed {
		all[nr] = rule{otherwise: allow}
	}
	for _, nr := range refused {
		all[nr] = rule{otherwise: fail(unix.EPERM)}
	}
	maps.Copy(all, checked)
	if p == ForkServer {
		maps.Copy(all, forking)
	}
	return all, nil
}
