/* One sandbox: clone3, then every step inside the child up to execve.
 *
 * The child shares the spawner's memory (CLONE_VM|CLONE_VFORK): no page table
 * is copied, the spawner waits until execve, and a failure is a plain store to
 * memory. It runs on a stack of its own, for clone3 returns twice. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shell.h"

#ifndef __x86_64__
#error "fre-shell knows how to call clone3 with a stack on x86-64 only"
#endif

static struct {
	const struct start *s;
	struct failure failed;
} job;

static char stack[64 << 10] __attribute__((aligned(16)));

/* Leaves the child; the spawner reads job.failed once execve or exit has woken
 * it. */
static _Noreturn void fail(uint32_t step, uint32_t detail)
{
	job.failed = (struct failure){.step = step, .detail = detail, .error = errno};
	syscall(SYS_exit_group, 127);
	__builtin_unreachable();
}

/* Puts the detached mount over target. No symbolic link is followed: the tree
 * it lies in belongs to a tenant. */
static int attach(int mount, const char *target)
{
	struct open_how how = {
		.flags = O_PATH | O_CLOEXEC,
		.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, target, &how, sizeof(how));
	if (fd < 0)
		return -1;
	return (int)syscall(SYS_move_mount, mount, "", fd, "",
			    MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

/* Makes the sandbox's own /proc: of pids alone, so that nothing of the host's
 * kernel (sysctl, keys, interrupts) is there to be read. */
static int proc(uint32_t flags)
{
	int fs = (int)syscall(SYS_fsopen, "proc", FSOPEN_CLOEXEC);
	if (fs < 0 ||
	    (!(flags & FRE_WITHOUT_PROC_SUBSET) &&
	     syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "subset", "pid", 0) != 0) ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
		return -1;
	int mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
				 MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	if (mount < 0)
		return -1;
	return attach(mount, "/proc");
}

__attribute__((used)) _Noreturn void sandbox_child(void)
{
	const struct start *s = job.s;
	const struct fre_start *h = s->h;
	const int *fds = s->fds;
	sigset_t none;

	if (!(h->flags & FRE_CGROUP2))
		for (int i = 0; i < h->cgroups; i++)
			if (write(fds[h->fd_cgroup + i], "0", 1) != 1)
				fail(FRE_STEP_CGROUP, (uint32_t)i);
	if (unshare(CLONE_NEWCGROUP) != 0)
		fail(FRE_STEP_CGROUP, (uint32_t)h->cgroups);
	if (h->fd_netns >= 0 && setns(fds[h->fd_netns], CLONE_NEWNET) != 0)
		fail(FRE_STEP_NETNS, 0);

	/* Beneath lies the spawner's empty root: there is nothing to unmount. */
	int root = fds[h->fd_root];
	if (syscall(SYS_move_mount, root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) != 0 ||
	    fchdir(root) != 0 || chroot(".") != 0)
		fail(FRE_STEP_ROOT, 0);
	if (proc(h->flags) != 0)
		fail(FRE_STEP_PROC, 0);
	for (uint32_t i = 0; i < h->mounts; i++)
		if (attach(fds[h->fd_mount + (int)i], s->targets[i]) != 0)
			fail(FRE_STEP_MOUNT, i);

	if (sethostname(s->hostname, strlen(s->hostname)) != 0)
		fail(FRE_STEP_HOSTNAME, 0);
	/* The key ring is joined as root: a tenant's uid has a quota of 200 keys.
	 * A kernel built without keys has none to leak. */
	if (setsid() < 0 ||
	    (!(h->flags & FRE_WITHOUT_KEYRING) &&
	     syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS))
		fail(FRE_STEP_SESSION, 0);

	if (setns(fds[h->fd_userns], CLONE_NEWUSER) != 0)
		fail(FRE_STEP_USERNS, 0);
	/* Raw calls: glibc's would tell the other threads, of which it sees none. */
	if (syscall(SYS_setgroups, 0, NULL) != 0 ||
	    syscall(SYS_setresgid, h->gid, h->gid, h->gid) != 0 ||
	    syscall(SYS_setresuid, h->uid, h->uid, h->uid) != 0)
		fail(FRE_STEP_IDS, 0);
	/* What follows is allowed by the filter too. */
	uint32_t step = confine(h->flags, h->filter);
	if (step != FRE_STEP_NONE)
		fail(step, 0);

	if (dup2(fds[h->fd_stdin], 0) < 0 || dup2(fds[h->fd_stdout], 1) < 0 ||
	    dup2(fds[h->fd_stderr], 2) < 0)
		fail(FRE_STEP_FDS, 0);
	if (h->fd_channel >= 0 && dup2(fds[h->fd_channel], 3) < 0)
		fail(FRE_STEP_FDS, 3);
	if (syscall(SYS_close_range, h->fd_channel >= 0 ? 4 : 3, ~0U, 0) != 0)
		fail(FRE_STEP_FDS, 4);
	/* Last of the limits' doings: fds above it could not be placed any more. */
	struct rlimit nofile = {.rlim_cur = h->nofile, .rlim_max = h->nofile};
	if (setrlimit(RLIMIT_NOFILE, &nofile) != 0)
		fail(FRE_STEP_RLIMIT, 0);

	/* After close_range: /proc/self/fd/N leads nowhere by now. */
	if (chdir(s->dir) != 0)
		fail(FRE_STEP_DIR, 0);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execve(s->argv[0], s->argv, s->envp);
	fail(FRE_STEP_EXEC, 0);
}

/* clone3 for a child that begins in sandbox_child on args->stack. */
static long clone_child(struct clone_args *args)
{
	long ret;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "call sandbox_child\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(ret)
			 : "a"(SYS_clone3), "D"(args), "S"(sizeof(*args))
			 : "rcx", "r11", "memory");
	return ret;
}

pid_t sandbox_start(const struct start *s, int *pidfd, struct failure *f)
{
	struct clone_args args = {
		.flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_NEWNS | CLONE_NEWPID |
			 CLONE_NEWIPC | CLONE_NEWUTS,
		.pidfd = (uint64_t)(uintptr_t)pidfd,
		.exit_signal = SIGCHLD,
		.stack = (uint64_t)(uintptr_t)stack,
		.stack_size = sizeof(stack),
	};

	if (s->h->flags & FRE_CGROUP2) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)s->fds[s->h->fd_cgroup];
	}
	job.s = s;
	job.failed.step = FRE_STEP_NONE;
	long pid = clone_child(&args);
	if (pid < 0) {
		*f = (struct failure){.step = FRE_STEP_CLONE, .error = (int)-pid};
		return -1;
	}
	if (job.failed.step != FRE_STEP_NONE) {
		*f = job.failed;
		while (waitpid((pid_t)pid, NULL, 0) < 0 && errno == EINTR)
			;
		close(*pidfd);
		return -1;
	}
	return (pid_t)pid;
}
