/* Starts one sandbox: clone3, then every step inside the child up to execve.
 *
 * The child shares the spawner's memory (CLONE_VM): the kernel copies no page table,
 * and the child reports a failure by a plain store. The child has its own stack,
 * because clone3 returns twice, and leaves errno alone (syscall.h).
 *
 * With START the spawner waits until execve (CLONE_VFORK). With PARK the spawner
 * continues, and the child becomes a parked sandbox: it stops before the first step
 * that PARK does not describe and waits for RUN on its control socket. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/keyctl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spawner.h"
#include "syscall.h"

/* The fds of a parked sandbox. At execve and at exit Linux releases fds from last to
 * first: when the reports end, the control socket has already ended. */
enum { REPORTS_FD = FRE_RULESET_FD + 1, CONTROL_FD, PROC_FD };

/* The working memory of one child. */
struct slot {
	/* Not 0 while a parked sandbox uses the slot. The kernel clears tid when the
	 * child executes or exits (CLONE_CHILD_CLEARTID). */
	volatile pid_t tid;
	int parked; /* CONTROL_FD and REPORTS_FD are in place */
	int proc;   /* mount of the sandbox's /proc */
	struct start s;
	struct failure failed;
	struct fre_trace trace;
};

/* The slots of parked sandboxes. The memory never returns to the kernel, and only used
 * slots take pages: three for each parked sandbox. */
#define MAX_PARKED 8192
#define CHILD_STACK (16 << 10)

static struct parked_slot {
	struct slot slot;
	char *pointers[FRE_MAX_PARKED_STRINGS + 2];
	char packet[sizeof(struct fre_start) + FRE_MAX_PARKED_PAYLOAD + 1] __attribute__((aligned(16)));
	char stack[CHILD_STACK] __attribute__((aligned(16)));
} *parked_slots;

/* The memory of START, for one start at a time. */
static struct slot waited;
static char stack[CHILD_STACK] __attribute__((aligned(16)));
static char payload[FRE_MAX_PAYLOAD];
static char *pointers[FRE_MAX_STRINGS + 2];

static void report(const struct slot *slot, uint32_t kind)
{
	struct fre_report r = {.version = FRE_WIRE_VERSION,
			       .kind = (uint16_t)kind,
			       .id = slot->s.h.id,
			       .step = slot->failed.step,
			       .error = slot->failed.error,
			       .detail = slot->failed.detail};
	sys(SYS_write, REPORTS_FD, &r, sizeof(r));
}

/* Ends the child. The exit wakes the spawner, which reads slot->failed. A parked
 * sandbox reports the failure to the engine. */
static _Noreturn void fail(struct slot *slot, uint32_t step, uint32_t detail, long error)
{
	slot->failed = (struct failure){.step = step, .detail = detail, .error = (int)-error};
	if (slot->parked)
		report(slot, FRE_FAILED);
	for (;;)
		sys(SYS_exit_group, 127);
}

/* Ends the child unless the system call succeeded. */
static void must(struct slot *slot, uint32_t step, uint32_t detail, long ret)
{
	if (ret < 0)
		fail(slot, step, detail, ret);
}

static void done(struct slot *slot, uint32_t step)
{
	struct timespec now;

	if (!(slot->s.h.flags & FRE_TRACE))
		return;
	sys(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	slot->trace.done[step] = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Attaches the detached mount to target. Follows no symbolic link, because the tree
 * around target belongs to a tenant. With O_NOFOLLOW in flags, target itself may be a
 * symbolic link; the mount covers the link. */
static long attach(int mount, const char *target, uint64_t flags)
{
	struct open_how how = {
		.flags = O_PATH | O_CLOEXEC | flags,
		.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	long fd = sys(SYS_openat2, AT_FDCWD, target, &how, sizeof(how));
	if (fd < 0)
		return fd;
	return sys(SYS_move_mount, mount, "", fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

/* Makes the sandbox's /proc and returns the detached mount. /proc has pids alone, so
 * the function cannot read the host kernel's state (sysctl, keys, interrupts). With
 * FRE_PROC_FILES, /proc is whole until narrow(). */
static long make_proc(uint32_t flags)
{
	long fs = sys(SYS_fsopen, "proc", FSOPEN_CLOEXEC);
	if (fs < 0)
		return fs;
	long ret = 0;
	if (!(flags & (FRE_WITHOUT_PROC_SUBSET | FRE_PROC_FILES)))
		ret = sys(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "subset", "pid", 0);
	if (ret == 0)
		ret = sys(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	if (ret == 0)
		ret = sys(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
			  MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	sys(SYS_close, fs);
	return ret;
}

/* Hides every entry of a whole /proc except pids and mount points. From here on the
 * kernel looks up no other name (proc_lookup in fs/proc/generic.c), not even one that
 * a module adds later. Mount points stay visible, because the dentry cache keeps
 * the name of an entry while a mount covers the entry. */
static long narrow(int proc)
{
	long fs = sys(SYS_fspick, proc, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
	if (fs < 0)
		return fs;
	long ret = sys(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "subset", "pid", 0);
	if (ret == 0)
		ret = sys(SYS_fsconfig, fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0);
	sys(SYS_close, fs);
	return ret;
}

/* The steps that do not depend on the function: cgroups, session, key ring, /proc. */
static void join(struct slot *slot)
{
	const struct start *s = &slot->s;

	if (!(s->h.flags & FRE_CGROUP2))
		for (int i = 0; i < s->h.cgroups; i++)
			must(slot, FRE_STEP_CGROUP, (uint32_t)i,
			     sys(SYS_write, s->fds[s->h.fd_cgroup + i], "0", 1));
	must(slot, FRE_STEP_CGROUP, (uint32_t)s->h.cgroups, sys(SYS_unshare, CLONE_NEWCGROUP));
	done(slot, FRE_STEP_CGROUP);

	/* Join the key ring as root: a tenant's uid has a quota of 200 keys. A kernel
	 * built without keys (ENOSYS) has no key to leak. */
	must(slot, FRE_STEP_SESSION, 0, sys(SYS_setsid));
	if (!(s->h.flags & FRE_WITHOUT_KEYRING)) {
		long ring = sys(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
		must(slot, FRE_STEP_SESSION, 1, ring == -ENOSYS ? 0 : ring);
	}
	done(slot, FRE_STEP_SESSION);

	slot->proc = (int)make_proc(s->h.flags);
	must(slot, FRE_STEP_PROC, 0, slot->proc);
	done(slot, FRE_STEP_PROC);
}

/* Joins the network namespace, attaches the root and every mount, sets terminal and
 * host name. Beneath the root lies the spawner's empty root: no unmount is needed. */
static void furnish(struct slot *slot)
{
	const struct start *s = &slot->s;
	int root = s->fds[s->h.fd_root];

	if (s->h.fd_netns >= 0)
		must(slot, FRE_STEP_NETNS, 0, sys(SYS_setns, s->fds[s->h.fd_netns], CLONE_NEWNET));
	done(slot, FRE_STEP_NETNS);
	must(slot, FRE_STEP_ROOT, 0, sys(SYS_move_mount, root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH));
	must(slot, FRE_STEP_ROOT, 1, sys(SYS_fchdir, root));
	must(slot, FRE_STEP_ROOT, 2, sys(SYS_chroot, "."));
	done(slot, FRE_STEP_ROOT);
	/* A bare parked sandbox made /proc before RUN asked for FRE_PROC_FILES. */
	if (slot->parked && s->h.flags & FRE_PROC_FILES) {
		sys(SYS_close, slot->proc);
		slot->proc = (int)make_proc(s->h.flags);
		must(slot, FRE_STEP_PROC, 0, slot->proc);
	}
	must(slot, FRE_STEP_PROC, 1, attach(slot->proc, "/proc", 0));
	for (uint32_t i = 0; i < s->h.mounts; i++) {
		uint64_t nofollow = strncmp(s->targets[i], "/proc/", 6) == 0 ? O_NOFOLLOW : 0;
		must(slot, FRE_STEP_MOUNT, i, attach(s->fds[s->h.fd_mount + (int)i], s->targets[i], nofollow));
	}
	if (s->h.flags & FRE_PROC_FILES && !(s->h.flags & FRE_WITHOUT_PROC_SUBSET))
		must(slot, FRE_STEP_PROC, 2, narrow(slot->proc));
	done(slot, FRE_STEP_MOUNT);
	/* TIOCSCTTY needs a session leader: join() made this process one. */
	if (s->h.flags & FRE_TTY)
		must(slot, FRE_STEP_SESSION, 2, sys(SYS_ioctl, s->fds[s->h.fd_stdin], TIOCSCTTY, 0));
	must(slot, FRE_STEP_HOSTNAME, 0, sys(SYS_sethostname, s->hostname, strlen(s->hostname)));
	done(slot, FRE_STEP_HOSTNAME);
}

/* Changes from root to a user of the tenant. The process keeps no capability, unless
 * the user is the root of an ordinary image or the sandbox is a fork server. */
static void become(struct slot *slot)
{
	const struct start *s = &slot->s;

	must(slot, FRE_STEP_USERNS, 0, sys(SYS_setns, s->fds[s->h.fd_userns], CLONE_NEWUSER));
	done(slot, FRE_STEP_USERNS);
	must(slot, FRE_STEP_IDS, 0, sys(SYS_setgroups, s->h.ngroups, s->h.groups));
	must(slot, FRE_STEP_IDS, 1, sys(SYS_setresgid, s->h.gid, s->h.gid, s->h.gid));
	must(slot, FRE_STEP_IDS, 2, sys(SYS_setresuid, s->h.uid, s->h.uid, s->h.uid));
	done(slot, FRE_STEP_IDS);
	/* The filter allows the system calls of all later steps. */
	uint32_t step = FRE_STEP_NONE;
	long ret = confine(s->h.flags, s->h.capabilities, s->h.filter, &step);
	must(slot, step, 0, ret);
	done(slot, FRE_STEP_SECCOMP);
}

/* Closes every fd except 0 to 4, the reports pipe, the control socket and, in a bare
 * parked sandbox, the mount of /proc. A bare one still needs Landlock's ruleset (4). 3
 * becomes a copy of 0: while 3 and 4 are in use, every fd of RUN is higher. */
static void keep_only_control(struct slot *slot)
{
	const struct start *s = &slot->s;
	int bare = s->h.fd_root < 0;
	int kept[] = {s->fds[s->h.fd_reports], s->fds[s->h.fd_control], slot->proc};
	int last = bare ? PROC_FD : CONTROL_FD;

	/* Move each fd aside first: an fd may occupy another's target number. Use the
	 * lowest free numbers, because the fd table never shrinks. */
	for (int i = 0; i <= last - REPORTS_FD; i++) {
		kept[i] = (int)sys(SYS_fcntl, kept[i], F_DUPFD_CLOEXEC, last + 1);
		must(slot, FRE_STEP_FDS, 0, kept[i]);
	}
	for (int fd = REPORTS_FD; fd <= last; fd++)
		must(slot, FRE_STEP_FDS, 1, sys(SYS_dup3, kept[fd - REPORTS_FD], fd, O_CLOEXEC));
	slot->parked = 1;
	slot->proc = PROC_FD;
	must(slot, FRE_STEP_FDS, 2, sys(SYS_dup2, 0, FRE_SOCKET_FD));
	must(slot, FRE_STEP_FDS, 3, sys(SYS_close_range, last + 1, ~0U, 0));
}

/* Reports PARKED and waits for RUN, which replaces slot->s. Only the engine holds the
 * other end of the socket. */
static void park(struct slot *slot)
{
	struct parked_slot *parked = (struct parked_slot *)slot;
	int fds[FRE_MAX_FDS], nfds = 0;
	union {
		char buf[CMSG_SPACE(sizeof(fds))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = parked->packet, .iov_len = sizeof(parked->packet)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.buf,
			     .msg_controllen = sizeof(control.buf)};
	struct room room = {.pointers = parked->pointers, .strings = FRE_MAX_PARKED_STRINGS};
	struct pollfd ready = {.fd = CONTROL_FD, .events = POLLIN};
	uint64_t id = slot->s.h.id;
	int bare = slot->s.h.fd_root < 0;
	long n;

	/* The change of ids may have made the memory, shared with the spawner, dumpable
	 * again (fs.suid_dumpable). */
	sys(SYS_prctl, PR_SET_DUMPABLE, 0);
	report(slot, FRE_PARKED);
	/* A blocking recvmsg that SIGKILL wakes would still take a RUN that has just
	 * arrived: the engine would count a function as started that never ran. A
	 * process killed in ppoll does not get as far as recvmsg. */
	do {
		sys(SYS_ppoll, &ready, 1, NULL, NULL, 0);
		n = sys(SYS_recvmsg, CONTROL_FD, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (n == -EINTR || n == -EAGAIN);
	if (n <= 0) /* the engine has closed the socket */
		fail(slot, FRE_STEP_NONE, 0, 0);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		nfds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), (size_t)nfds * sizeof(int));
	}
	if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		fail(slot, FRE_STEP_MESSAGE, 0, -EMSGSIZE);
	int error = start_parse(&slot->s, FRE_RUN, parked->packet, (size_t)n, fds, nfds, &room);
	if (error == 0 && (slot->s.h.id != id || bare != (slot->s.h.fd_root >= 0)))
		error = EBADMSG;
	must(slot, FRE_STEP_MESSAGE, 0, -error);
	slot->trace = (struct fre_trace){0};
	done(slot, FRE_STEP_MESSAGE);
}

/* Pins the process to its current CPU: a program that starts on several CPUs pays for
 * interrupts between them (TLB shoot-downs). */
static long pin(void)
{
	unsigned long cpus[16] = {0};
	unsigned cpu;
	long ret = sys(SYS_getcpu, &cpu, NULL, NULL);

	if (ret < 0 || cpu >= 8 * sizeof(cpus))
		return ret;
	cpus[cpu / 64] = 1UL << (cpu % 64);
	return sys(SYS_sched_setaffinity, 0, sizeof(cpus), cpus);
}

/* Executes a program whose name has no slash from the first directory of PATH that has
 * the program, as execvp(3) does. Returns -errno. noinline, because path would enlarge
 * the stack of every parked sandbox. */
static __attribute__((noinline)) long execute_from_path(const struct start *s)
{
	char path[PATH_MAX];
	size_t length = strlen(s->argv[0]);
	const char *dir = "/bin:/usr/bin";
	long error = -ENOENT;

	for (char **e = s->envp; *e != NULL; e++)
		if (strncmp(*e, "PATH=", 5) == 0) {
			dir = *e + 5;
			break;
		}
	while (dir != NULL) {
		size_t n = strcspn(dir, ":"), slash = n > 0; /* "" is the working directory */

		if (n + slash + length < sizeof(path)) {
			memcpy(path, dir, n);
			path[n] = '/';
			memcpy(path + n + slash, s->argv[0], length + 1);
			long ret = sys(SYS_execve, path, s->argv, s->envp);
			if (ret == -EACCES) /* not ours: a later directory may have one */
				error = ret;
			else if (ret != -ENOENT && ret != -ENOTDIR)
				return ret;
		}
		dir = dir[n] == ':' ? dir + n + 1 : NULL;
	}
	return error;
}

static _Noreturn void execute(struct slot *slot)
{
	const struct start *s = &slot->s;
	uint64_t none = 0;

	must(slot, FRE_STEP_FDS, 4, sys(SYS_dup2, s->fds[s->h.fd_stdin], 0));
	must(slot, FRE_STEP_FDS, 5, sys(SYS_dup2, s->fds[s->h.fd_stdout], 1));
	must(slot, FRE_STEP_FDS, 6, sys(SYS_dup2, s->fds[s->h.fd_stderr], 2));
	if (s->h.fd_channel >= 0)
		must(slot, FRE_STEP_FDS, 7, sys(SYS_dup2, s->fds[s->h.fd_channel], FRE_SOCKET_FD));
	else
		must(slot, FRE_STEP_FDS, 8, sys(SYS_close, FRE_SOCKET_FD));
	/* A parked sandbox keeps the reports pipe: its end tells the engine of execve. */
	must(slot, FRE_STEP_FDS, 9, sys(SYS_close, FRE_RULESET_FD));
	must(slot, FRE_STEP_FDS, 10, sys(SYS_close_range, slot->parked ? PROC_FD : REPORTS_FD, ~0U, 0));
	done(slot, FRE_STEP_FDS);
	/* After every dup2: no fd can be placed above the limit. */
	struct rlimit nofile = {.rlim_cur = s->h.nofile, .rlim_max = s->h.nofile};
	must(slot, FRE_STEP_RLIMIT, 0, sys(SYS_setrlimit, RLIMIT_NOFILE, &nofile));
	if (s->h.flags & FRE_PIN)
		must(slot, FRE_STEP_RLIMIT, 1, pin());
	done(slot, FRE_STEP_RLIMIT);

	/* After close_range: a path like /proc/self/fd/N now leads nowhere. */
	must(slot, FRE_STEP_DIR, 0, sys(SYS_chdir, s->dir));
	done(slot, FRE_STEP_DIR);
	must(slot, FRE_STEP_EXEC, 0, sys(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none)));
	done(slot, FRE_STEP_EXEC);
	if (slot->parked && s->h.flags & FRE_TRACE) {
		slot->trace.version = FRE_WIRE_VERSION;
		slot->trace.kind = FRE_TRACED;
		slot->trace.id = s->h.id;
		sys(SYS_write, REPORTS_FD, &slot->trace, sizeof(slot->trace));
	}
	fail(slot, FRE_STEP_EXEC, 0,
	     strchr(s->argv[0], '/') == NULL ? execute_from_path(s)
					     : sys(SYS_execve, s->argv[0], s->argv, s->envp));
}

__attribute__((used)) _Noreturn void sandbox_child(struct slot *slot)
{
	int parks = slot->s.h.kind == FRE_PARK, attached = slot->s.h.fd_root >= 0;

	done(slot, FRE_STEP_CLONE);
	join(slot);
	if (parks && !attached) {
		keep_only_control(slot);
		park(slot);
	}
	furnish(slot);
	become(slot);
	if (parks && attached) {
		keep_only_control(slot);
		park(slot);
	}
	execute(slot);
}

/* Calls clone3. The child begins in sandbox_child(slot) on args->stack. */
static long clone_child(struct clone_args *args, struct slot *slot)
{
	long ret;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %[slot], %%rdi\n\t"
			 "call sandbox_child\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(ret)
			 : "a"(SYS_clone3), "D"(args), "S"(sizeof(*args)), [slot] "r"(slot)
			 : "rcx", "r11", "memory");
	return ret;
}

static long clone_sandbox(struct slot *slot, uint64_t flags, char *stack_start, int *pidfd)
{
	struct clone_args args = {
		.flags = flags | CLONE_VM | CLONE_PIDFD | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC |
			 CLONE_NEWUTS,
		.pidfd = (uint64_t)(uintptr_t)pidfd,
		.child_tid = (uint64_t)(uintptr_t)&slot->tid,
		.exit_signal = SIGCHLD,
		.stack = (uint64_t)(uintptr_t)stack_start,
		.stack_size = CHILD_STACK,
	};

	if (slot->s.h.flags & FRE_CGROUP2) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)slot->s.fds[slot->s.h.fd_cgroup];
	}
	slot->parked = 0;
	slot->failed = (struct failure){0};
	slot->trace = (struct fre_trace){0};
	return clone_child(&args, slot);
}

pid_t sandbox_start(char *packet, size_t len, const int *fds, int nfds, int *pidfd, struct failure *f,
		    struct fre_trace *trace)
{
	static const struct room room = {.payload = payload,
					 .payload_size = sizeof(payload),
					 .pointers = pointers,
					 .strings = FRE_MAX_STRINGS};
	int error = start_parse(&waited.s, FRE_START, packet, len, fds, nfds, &room);
	if (error != 0) {
		*f = (struct failure){.step = FRE_STEP_MESSAGE, .error = error};
		return -1;
	}
	long pid = clone_sandbox(&waited, CLONE_VFORK, stack, pidfd);
	if (pid < 0) {
		*f = (struct failure){.step = FRE_STEP_CLONE, .error = (int)-pid};
		return -1;
	}
	if (waited.failed.step != FRE_STEP_NONE) {
		*f = waited.failed;
		while (waitpid((pid_t)pid, NULL, 0) < 0 && errno == EINTR)
			;
		close(*pidfd);
		return -1;
	}
	*trace = waited.trace;
	return (pid_t)pid;
}

/* Returns a slot that no child uses, or NULL if all are in use or memory is short. */
static struct parked_slot *free_slot(void)
{
	if (parked_slots == NULL) {
		void *p = mmap(NULL, MAX_PARKED * sizeof(*parked_slots), PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			return NULL;
		parked_slots = p;
	}
	/* Take the lowest slot: few pages are ever touched. */
	for (int i = 0; i < MAX_PARKED; i++)
		if (parked_slots[i].slot.tid == 0)
			return &parked_slots[i];
	return NULL;
}

pid_t sandbox_park(const char *packet, size_t len, const int *fds, int nfds, int *pidfd, struct failure *f)
{
	struct parked_slot *parked = free_slot();
	struct room room = {.strings = FRE_MAX_PARKED_STRINGS};
	int error = parked == NULL ? EAGAIN : len > sizeof(parked->packet) ? E2BIG : 0;

	if (error == 0) {
		memcpy(parked->packet, packet, len);
		room.pointers = parked->pointers;
		error = start_parse(&parked->slot.s, FRE_PARK, parked->packet, len, fds, nfds, &room);
	}
	if (error != 0) {
		*f = (struct failure){.step = FRE_STEP_MESSAGE, .error = error};
		return -1;
	}
	parked->slot.tid = 1;
	long pid = clone_sandbox(&parked->slot, CLONE_CHILD_CLEARTID, parked->stack, pidfd);
	if (pid < 0) {
		parked->slot.tid = 0;
		*f = (struct failure){.step = FRE_STEP_CLONE, .error = (int)-pid};
		return -1;
	}
	return (pid_t)pid;
}
