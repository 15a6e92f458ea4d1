/* fre-spawner: the small static program that forks every sandbox.
 *
 *   fre-spawner spawn    runs the spawner: pid 1 of a new pid namespace, an empty
 *                        read-only root, one socket (fd 3) to the engine. The
 *                        spawner ends with the socket, all sandboxes with the spawner.
 *   fre-spawner hold [N] makes a user namespace that allows N namespaces of each
 *                        other kind, and waits for end of file on its input.
 *   fre-spawner probe    prints which system calls the kernel has.
 *   fre-spawner cost G   prints the time of parts of a start, in nanoseconds
 *                        (cost.c). The files of cgroups are open from fd 3 on; G is
 *                        the way to join: tasks (two cgroups), into (one), none.
 *   fre-spawner exit     ends at once.
 *   fre-spawner layout   prints the numbers of wire.h for the test of wire.go.
 *
 * The program has one thread; the spawner allocates no heap memory. See wire.h and
 * docs/starts.md.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spawner.h"

/* Writes a limit of the new user namespace (namespaces(7)); the host keeps its own. */
static int limit(const char *path, const char *value)
{
	size_t size = strlen(value);
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, value, size) != (ssize_t)size)
		return -1;
	return close(fd);
}

/* hold keeps a user namespace alive until the engine has written its id maps and
 * opened it. Returns 0 or the errno of the failure. The namespace allows no nested
 * user namespace: in one, a function would have every capability and could reach most
 * of the kernel. Unless NULL, namespaces is the limit for each other kind. */
static int hold(const char *namespaces)
{
	static const char *const kinds[] = {
		"/proc/sys/user/max_mnt_namespaces", "/proc/sys/user/max_pid_namespaces",
		"/proc/sys/user/max_net_namespaces", "/proc/sys/user/max_ipc_namespaces",
		"/proc/sys/user/max_uts_namespaces", "/proc/sys/user/max_cgroup_namespaces",
	};
	char c = '1';

	if (unshare(CLONE_NEWUSER) != 0 || limit("/proc/sys/user/max_user_namespaces", "0") != 0)
		return errno;
	for (size_t i = 0; namespaces != NULL && i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (limit(kinds[i], namespaces) != 0)
			return errno;
	if (write(1, &c, 1) != 1)
		return errno;
	while (read(0, &c, 1) > 0)
		;
	return 0;
}

/* probe tests system calls that Go has no function for. A kernel that has clone3
 * answers a size of 0 with EINVAL. */
static int probe(void)
{
	uint32_t action = SECCOMP_RET_KILL_PROCESS;

	printf("clone3 %d\n", syscall(SYS_clone3, NULL, 0) < 0 && errno == EINVAL);
	printf("seccomp %d\n", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0);
	printf("landlock %d\n", landlock_abi());
	printf("io_uring %d\n", syscall(SYS_io_uring_setup, 0, NULL) < 0 && errno != ENOSYS && errno != EPERM);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "spawn") == 0)
		return spawn();
	if ((argc == 2 || argc == 3) && strcmp(argv[1], "hold") == 0)
		return hold(argv[2]);
	if (argc == 2 && strcmp(argv[1], "probe") == 0)
		return probe();
	if (argc == 3 && strcmp(argv[1], "cost") == 0)
		return cost(argv[2]);
	if (argc == 2 && strcmp(argv[1], "exit") == 0)
		return 0;
	if (argc == 2 && strcmp(argv[1], "layout") == 0)
		return layout();
	return 2;
}
