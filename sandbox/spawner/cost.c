/* cost measures the kernel's time for the parts of a start, in nanoseconds: medians,
 * and a mean for system calls. In C, because the overhead of Go would be larger than the
 * time measured. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spawner.h"
#include "syscall.h"

#define FIRST_GROUP_FD 3
#define PROCESSES 31
#define ROUND_TRIPS 301
#define SYSCALLS 20000

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int order(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return (x > y) - (x < y);
}

static long long median(long long *samples, size_t n)
{
	qsort(samples, n, sizeof(*samples), order);
	return samples[n / 2];
}

/* Waits for a child. Returns 0, EIO unless the child exited with 0, or an errno. */
static int reap(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return errno;
	return status == 0 ? 0 : EIO;
}

static int by_exec(const int *fds, int n)
{
	char *argv[] = {"fre-spawner", "exit", NULL}, *envp[] = {NULL};
	pid_t pid = vfork();

	(void)fds, (void)n;
	if (pid == 0) {
		execve("/proc/self/exe", argv, envp);
		_exit(127);
	}
	return pid < 0 ? errno : reap(pid);
}

/* Makes a process that exits at once. The process copies the caller's page tables, but
 * the caller is so small that the cost does not show. */
static int by_clone3(uint64_t flags, int group)
{
	struct clone_args args = {.flags = flags | CLONE_VFORK, .exit_signal = SIGCHLD, .cgroup = (uint64_t)group};
	long pid = sys(SYS_clone3, &args, sizeof(args));

	if (pid == 0)
		for (;;)
			sys(SYS_exit_group, 0);
	return pid < 0 ? (int)-pid : reap((pid_t)pid);
}

static int by_userns(const int *fds, int n)
{
	(void)fds, (void)n;
	return by_clone3(CLONE_NEWUSER, 0);
}

/* Moves the process into the other cgroup, because joining the current one costs no
 * time. The first half of fds belongs to one cgroup, the second half to the other. */
static int by_tasks(const int *fds, int n)
{
	static int other;

	for (int i = 0; i < n / 2; i++)
		if (write(fds[other * (n / 2) + i], "0", 1) != 1)
			return errno;
	other = !other;
	return 0;
}

static int by_into(const int *fds, int n)
{
	(void)n;
	return by_clone3(CLONE_INTO_CGROUP, fds[0]);
}

/* Prints the median time of a call of act, or -errno. */
static void processes(const char *name, int (*act)(const int *, int), const int *fds, int n)
{
	long long samples[PROCESSES];

	for (size_t i = 0; i < PROCESSES; i++) {
		long long begin = now();
		int error = act(fds, n);

		if (error != 0) {
			printf("%s %d\n", name, -error);
			return;
		}
		samples[i] = now() - begin;
	}
	printf("%s %lld\n", name, median(samples, PROCESSES));
}

static void calls(void)
{
	long long begin = now();

	for (int i = 0; i < SYSCALLS; i++)
		sys(SYS_getppid);
	printf("syscall %lld\n", (now() - begin) / SYSCALLS);
}

/* Pins the caller to the nth of its allowed CPUs, counted from 0. Returns 0 if the
 * caller has fewer CPUs. */
static int keep_to(int nth)
{
	cpu_set_t may, one;

	if (sched_getaffinity(0, sizeof(may), &may) != 0)
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &may) || nth-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		return sched_setaffinity(0, sizeof(one), &one) == 0;
	}
	return 0;
}

/* Times a byte's way to a process and back. The process runs on a second CPU, if any. */
static void round_trips(void)
{
	long long samples[ROUND_TRIPS];
	int there[2], back[2];
	cpu_set_t before;
	char c = 0;

	if (sched_getaffinity(0, sizeof(before), &before) != 0 || pipe2(there, O_CLOEXEC) != 0 ||
	    pipe2(back, O_CLOEXEC) != 0) {
		printf("pipe %d\n", -errno);
		return;
	}
	pid_t pid = fork();
	if (pid == 0) {
		close(there[1]);
		keep_to(1);
		while (read(there[0], &c, 1) == 1 && write(back[1], &c, 1) == 1)
			;
		_exit(0);
	}
	close(there[0]);
	close(back[1]);
	keep_to(0);
	int error = pid < 0 ? errno : 0;
	for (size_t i = 0; i < ROUND_TRIPS && error == 0; i++) {
		long long begin = now();

		if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1)
			error = EPIPE;
		samples[i] = now() - begin;
	}
	close(there[1]);
	close(back[0]);
	if (pid > 0)
		reap(pid);
	sched_setaffinity(0, sizeof(before), &before);
	if (error != 0)
		printf("pipe %d\n", -error);
	else
		printf("pipe %lld\n", median(samples, ROUND_TRIPS));
}

int cost(const char *groups)
{
	int fds[16], n = 0;

	for (; n < 16 && fcntl(FIRST_GROUP_FD + n, F_GETFD) >= 0; n++)
		fds[n] = FIRST_GROUP_FD + n;
	calls();
	processes("exec", by_exec, NULL, 0);
	processes("userns", by_userns, NULL, 0);
	if (strcmp(groups, "tasks") == 0)
		processes("join", by_tasks, fds, n);
	else if (strcmp(groups, "into") == 0)
		processes("join", by_into, fds, n);
	round_trips();
	return fflush(stdout) == 0 ? 0 : errno;
}
