/*
 * spawn: starts a program by vfork+exec and says when it began to run.
 *
 * usage: spawn [-1] [-C ROOT] PROGRAM [ARG...]
 *
 * "{}" in an ARG becomes a number never reused; the program's root is ROOT. With
 * -1 the program keeps to the CPU on which it was made.
 *
 * Commands on standard input, one per line:
 *   seq N     N starts, one after the other
 *   burst N   N starts, as fast as they can be made
 * For each start one line on standard output: nanoseconds from the request to
 * the monotonic clock the program printed first, or "error TEXT". In a burst
 * the request is the moment the burst began. A line "end" closes the answer.
 *
 * C and not Go, because a static C parent is the least a parent can cost: the
 * figure is the floor that everything else is compared with.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BURST = 4096, MAX_ARGS = 64, MAX_OUTPUT = 256 };

struct start {
	pid_t pid;
	int out;           /* read end of the program's standard output */
	int64_t requested; /* CLOCK_MONOTONIC, nanoseconds */
};

extern char **environ;
static int dev_null;
static const char *root; /* NULL: as it is */
static int one_cpu;
static int serial;

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* launch starts one program. Returns 0 or an errno; then s is not to be read. */
static int launch(struct start *s, char *const argv[])
{
	char *args[MAX_ARGS + 1];
	char id[32];
	int fds[2], n;
	volatile int failed = 0; /* written by the child, which shares our memory */

	if (pipe2(fds, O_CLOEXEC) < 0)
		return errno;
	snprintf(id, sizeof id, "fre-bench-%d-%d", (int)getpid(), ++serial);
	for (n = 0; argv[n] && n < MAX_ARGS; n++)
		args[n] = strcmp(argv[n], "{}") == 0 ? id : argv[n];
	args[n] = NULL;

	s->requested = now();
	s->pid = vfork();
	if (s->pid == 0) {
		/* vfork shares memory, neither CPUs nor the root directory */
		cpu_set_t cpu;
		CPU_ZERO(&cpu);
		CPU_SET(sched_getcpu(), &cpu);
		if (dup2(dev_null, 0) < 0 || dup2(fds[1], 1) < 0 ||
		    (one_cpu && sched_setaffinity(0, sizeof cpu, &cpu) < 0) ||
		    (root && (chroot(root) < 0 || chdir("/") < 0)))
			failed = errno;
		else {
			execve(args[0], args, environ);
			failed = errno;
		}
		_exit(127);
	}
	int err = s->pid < 0 ? errno : failed;
	close(fds[1]);
	if (err) {
		close(fds[0]);
		if (s->pid > 0)
			waitpid(s->pid, NULL, 0);
		return err;
	}
	s->out = fds[0];
	return 0;
}

/* finish reads what the program printed, reaps it and prints one line. */
static void finish(struct start *s)
{
	char out[MAX_OUTPUT + 1];
	size_t have = 0;
	ssize_t n;
	int status;

	while ((n = read(s->out, out + have, MAX_OUTPUT - have)) != 0) {
		if (n < 0 && errno != EINTR)
			break;
		if (n > 0)
			have += (size_t)n;
		if (have == MAX_OUTPUT)
			break;
	}
	out[have] = 0;
	close(s->out);
	if (waitpid(s->pid, &status, 0) < 0) {
		printf("error waitpid: %s\n", strerror(errno));
		return;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		printf("error the program ended with status 0x%x\n", (unsigned)status);
		return;
	}
	char *end;
	errno = 0;
	int64_t clock = strtoll(out, &end, 10);
	if (errno || end == out || clock < s->requested) {
		printf("error the program printed no clock later than its start\n");
		return;
	}
	printf("%lld\n", (long long)(clock - s->requested));
}

int main(int argc, char **argv)
{
	static struct start starts[MAX_BURST];
	char line[64];
	int n;

	if (argc > 1 && strcmp(argv[1], "-1") == 0) {
		one_cpu = 1;
		argv++;
		argc--;
	}
	if (argc > 2 && strcmp(argv[1], "-C") == 0) {
		root = argv[2];
		argv += 2;
		argc -= 2;
	}
	if (argc < 2 || argc > MAX_ARGS) {
		fprintf(stderr, "usage: spawn [-1] [-C ROOT] PROGRAM [ARG...]\n");
		return 2;
	}
	dev_null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (dev_null < 0) {
		perror("/dev/null");
		return 1;
	}
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "seq %d", &n) == 1) {
			for (int i = 0; i < n; i++) {
				int err = launch(&starts[0], argv + 1);
				if (err)
					printf("error start: %s\n", strerror(err));
				else
					finish(&starts[0]);
			}
		} else if (sscanf(line, "burst %d", &n) == 1 && n > 0 && n <= MAX_BURST) {
			int64_t begin = now();
			int made = 0, err = 0;
			while (made < n && (err = launch(&starts[made], argv + 1)) == 0)
				made++;
			for (int i = 0; i < made; i++) {
				starts[i].requested = begin;
				finish(&starts[i]);
			}
			for (int i = made; i < n; i++)
				printf("error start: %s\n", strerror(err));
		} else {
			fprintf(stderr, "spawn: unknown command: %s", line);
			return 2;
		}
		printf("end\n");
		fflush(stdout);
	}
	return 0;
}
