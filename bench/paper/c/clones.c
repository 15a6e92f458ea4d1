/*
 * clones: what namespaces cost when many processes are made at once.
 *
 * usage: clones FLAGS N
 *
 * FLAGS is the sum of CLONE_NEW* flags. N threads wait at a barrier and then
 * clone one process each; for each process one line on standard output: the
 * nanoseconds from the barrier's opening to the process's first instruction.
 *
 * The processes share this program's memory (CLONE_VM): no page table is
 * copied, what is left is the namespaces. They all live until the last runs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX = 8192, STACK = 16384 };

struct slot {
	pthread_t thread;
	_Atomic int64_t ran; /* CLOCK_MONOTONIC of the first instruction, 0: not yet */
	pid_t pid;
	int err;
	_Alignas(16) char stack[STACK];
};

static pthread_barrier_t ready, go;
static _Atomic int over; /* the processes wait for it to be 1 */
static int flags;

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* process runs on the memory of all others: system calls, nothing of libc's. */
static int process(void *arg)
{
	struct slot *s = arg;

	atomic_store(&s->ran, now());
	while (!atomic_load(&over))
		syscall(SYS_futex, &over, FUTEX_WAIT, 0, NULL, NULL, 0);
	syscall(SYS_exit, 0);
	return 0;
}

static void *maker(void *arg)
{
	struct slot *s = arg;

	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&go);
	s->pid = clone(process, s->stack + STACK, CLONE_VM | SIGCHLD | flags, s);
	if (s->pid < 0)
		s->err = errno;
	return NULL;
}

int main(int argc, char **argv)
{
	static struct slot slots[MAX];
	pthread_attr_t attr;
	int n, bad = 0;

	if (argc != 3 || (n = atoi(argv[2])) < 1 || n > MAX) {
		fprintf(stderr, "usage: clones FLAGS N\n");
		return 2;
	}
	flags = atoi(argv[1]);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	pthread_barrier_init(&ready, NULL, (unsigned)n + 1);
	pthread_barrier_init(&go, NULL, (unsigned)n + 1);
	for (int i = 0; i < n; i++) {
		int err = pthread_create(&slots[i].thread, &attr, maker, &slots[i]);
		if (err) {
			fprintf(stderr, "thread %d: %s\n", i, strerror(err));
			return 1;
		}
	}
	pthread_barrier_wait(&ready);
	usleep(20000); /* they are on their way to the second barrier */
	int64_t begin = now();
	pthread_barrier_wait(&go);
	for (int i = 0; i < n; i++)
		pthread_join(slots[i].thread, NULL);
	for (int i = 0; i < n; i++)
		while (!slots[i].err && !atomic_load(&slots[i].ran))
			usleep(500);
	atomic_store(&over, 1);
	syscall(SYS_futex, &over, FUTEX_WAKE, n, NULL, NULL, 0);
	for (int i = 0; i < n; i++) {
		if (slots[i].err) {
			fprintf(stderr, "clone: %s\n", strerror(slots[i].err));
			bad = 1;
			continue;
		}
		waitpid(slots[i].pid, NULL, 0);
		printf("%lld\n", (long long)(slots[i].ran - begin));
	}
	return bad;
}
