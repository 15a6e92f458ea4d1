/* The spawner's loop: reads messages, starts and kills sandboxes, sends reports. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawner.h"

#define MAX_LIVE 32768 /* sandboxes alive at the same time */

static struct {
	pid_t pid;
	uint64_t id;
} live[MAX_LIVE];
static int nlive;

static char packet[sizeof(struct fre_start) + FRE_MAX_INLINE + 1] __attribute__((aligned(16)));

/* Sends one packet, with fd unless negative. Blocks while the socket is full; exits if the
 * engine has ended. */
static void report_bytes(void *bytes, size_t size, int fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec iov = {.iov_base = bytes, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		msg.msg_control = control.buf;
		msg.msg_controllen = sizeof(control.buf);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	while (sendmsg(FRE_SOCKET_FD, &msg, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			_exit(0);
}

static void report(struct fre_report *r, int fd)
{
	r->version = FRE_WIRE_VERSION;
	report_bytes(r, sizeof(*r), fd);
}

static void report_failure(uint64_t id, uint32_t step, int error, uint32_t detail)
{
	struct fre_report r = {
		.kind = FRE_FAILED, .id = id, .step = step, .error = error, .detail = detail};
	report(&r, -1);
}

/* Reports whether the packet is a KILL, and carries out a KILL. The killed process is
 * pid 1 of the sandbox's pid namespace: the kernel kills the rest. */
static int killed(const char *p, size_t n)
{
	const struct fre_start *h = (const struct fre_start *)p;

	if (n != 16 || h->version != FRE_WIRE_VERSION || h->kind != FRE_KILL)
		return 0;
	for (int i = 0; i < nlive; i++)
		if (live[i].id == h->id)
			kill(live[i].pid, SIGKILL);
	return 1;
}

/* Handles one message; exits at end of file. */
static void serve(void)
{
	static int fds[FRE_MAX_FDS + 4];
	static union {
		char buf[CMSG_SPACE(sizeof(fds))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = packet, .iov_len = sizeof(packet)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.buf,
			     .msg_controllen = sizeof(control.buf)};
	int nfds = 0;

	ssize_t n = recvmsg(FRE_SOCKET_FD, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
		_exit(0);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		nfds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), (size_t)nfds * sizeof(int));
	}

	struct failure f = {.step = FRE_STEP_MESSAGE};
	struct fre_trace trace = {0};
	/* Every kind has the id in the first 16 bytes, so a refusal can name the start. */
	const struct fre_start *h = (const struct fre_start *)packet;
	uint64_t id = (size_t)n >= 16 ? h->id : 0;
	if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		f.error = EMSGSIZE;
		goto failed;
	}
	if (killed(packet, (size_t)n))
		goto done;
	if (nlive == MAX_LIVE) {
		f.error = EAGAIN;
		goto failed;
	}
	int pidfd = -1;
	pid_t pid;
	if ((size_t)n >= 16 && h->kind == FRE_PARK)
		pid = sandbox_park(packet, (size_t)n, fds, nfds, &pidfd, &f);
	else
		pid = sandbox_start(packet, (size_t)n, fds, nfds, &pidfd, &f, &trace);
	if (pid < 0)
		goto failed;
	live[nlive].pid = pid;
	live[nlive++].id = id;
	if (trace.done[FRE_STEP_EXEC] != 0) {
		trace.version = FRE_WIRE_VERSION;
		trace.kind = FRE_TRACED;
		trace.id = id;
		report_bytes(&trace, sizeof(trace), -1);
	}
	struct fre_report r = {.kind = FRE_STARTED, .id = id, .pid = (uint32_t)pid};
	report(&r, pidfd);
	close(pidfd);
	goto done;
failed:
	report_failure(id, f.step, f.error, f.detail);
done:
	for (int i = 0; i < nfds; i++)
		close(fds[i]);
}

static void reap(void)
{
	for (;;) {
		siginfo_t si = {0};
		struct rusage ru;
		if (syscall(SYS_waitid, P_ALL, 0, &si, WEXITED | WNOHANG, &ru) != 0 || si.si_pid == 0)
			return;
		struct fre_report r = {.kind = FRE_EXITED, .pid = (uint32_t)si.si_pid};
		int i = 0;
		while (i < nlive && live[i].pid != si.si_pid)
			i++;
		if (i == nlive)
			continue;
		r.id = live[i].id;
		live[i] = live[--nlive];
		if (si.si_code == CLD_EXITED) {
			r.code = si.si_status;
		} else {
			r.code = -1;
			r.signal = si.si_status;
		}
		r.cpu_us = (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000 +
			   (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec);
		r.max_rss_kb = (uint64_t)ru.ru_maxrss;
		report(&r, -1);
	}
}

static void cap_rlimit(int resource, rlim_t soft, rlim_t hard)
{
	struct rlimit r;

	if (getrlimit(resource, &r) != 0)
		return;
	if (r.rlim_max > hard)
		r.rlim_max = hard;
	r.rlim_cur = soft < r.rlim_max ? soft : r.rlim_max;
	setrlimit(resource, &r);
}

/* Raises the limit of open files to the kernel's maximum (fs.nr_open). Each start
 * lowers the limit for its sandbox but has no privilege left to raise it. Without
 * /proc or the privilege, the engine's limit stays. */
static void raise_nofile(void)
{
	char text[32] = {0};
	int fd = open("/proc/sys/fs/nr_open", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (read(fd, text, sizeof(text) - 1) > 0) {
		struct rlimit r = {.rlim_cur = strtoul(text, NULL, 10)};
		r.rlim_max = r.rlim_cur;
		setrlimit(RLIMIT_NOFILE, &r);
	}
	close(fd);
}

/* Undoes a negative oom_score_adj, a scheduling policy and a negative nice value that
 * the engine has from its service manager: functions must not inherit such favours.
 * Returns 0 on failure. */
static int ordinary_priority(void)
{
	struct sched_param none = {0};
	char sign = 0;
	int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	int ok = fd >= 0 && read(fd, &sign, 1) == 1 && (sign != '-' || pwrite(fd, "0", 1, 0) == 1);

	if (fd >= 0)
		close(fd);
	return ok && syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none) == 0 &&
	       (getpriority(PRIO_PROCESS, 0) >= 0 || setpriority(PRIO_PROCESS, 0, 0) == 0);
}

/* Replaces the host's file system by an empty read-only root. Returns -1 on failure. */
static int empty_root(void)
{
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("fre", "/proc", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  "size=4k,nr_inodes=4,mode=0555") != 0 ||
	    chdir("/proc") != 0)
		return -1;
	if (syscall(SYS_pivot_root, ".", ".") == 0) {
		if (umount2(".", MNT_DETACH) != 0)
			return -1;
	} else if (mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0) {
		/* pivot_root(2) cannot leave an initramfs: the initramfs stays beneath. */
		return -1;
	}
	return chdir("/");
}

int spawn(void)
{
	sigset_t chld;
	struct fre_report hello = {.kind = FRE_HELLO, .detail = (uint32_t)landlock_abi()};

	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	syscall(SYS_close_range, FRE_FILTERS_FD + 1, ~0U, 0);
	/* Sandboxes inherit the settings below. Ignored signals survive execve. */
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	umask(022);
	/* With a limit of 0 the kernel still pipes the core to a helper in core_pattern;
	 * with 1 the kernel calls no helper either (core(5)). */
	struct rlimit core = {.rlim_cur = 1, .rlim_max = 1};
	setrlimit(RLIMIT_CORE, &core);
	cap_rlimit(RLIMIT_STACK, 8 << 20, RLIM_INFINITY);
	/* mlock also pins pages of shared image files. The kernel charges a page to the
	 * first reader's cgroup, which could then not reclaim the page. 64 KiB is the
	 * kernel's default up to 5.15. */
	cap_rlimit(RLIMIT_MEMLOCK, 64 << 10, 64 << 10);
	cap_rlimit(RLIMIT_RTPRIO, 0, 0);
	cap_rlimit(RLIMIT_NICE, 0, 0);
	raise_nofile();
	setsid();

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	int sigfd = -1;
	if (getpid() != 1)
		errno = EPERM;
	else if (ordinary_priority() && filters_read() == 0 && landlock_open() >= 0 &&
		 sigprocmask(SIG_SETMASK, &chld, NULL) == 0 && empty_root() == 0)
		sigfd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	if (sigfd < 0) {
		report_failure(0, FRE_STEP_SETUP, errno, 0);
		return 1;
	}
	report(&hello, -1);

	struct pollfd p[2] = {{.fd = FRE_SOCKET_FD, .events = POLLIN}, {.fd = sigfd, .events = POLLIN}};
	for (;;) {
		if (poll(p, 2, -1) < 0)
			continue;
		if (p[1].revents) {
			struct signalfd_siginfo si;
			while (read(sigfd, &si, sizeof(si)) > 0)
				;
			reap();
		}
		if (p[0].revents)
			serve();
	}
}
