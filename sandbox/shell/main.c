/* fre-shell: the small static program from which every sandbox is born.
 *
 *   fre-shell spawn    the spawner: pid 1 of a pid namespace of its own, an
 *                      empty read-only root, one socket (fd 3) to the engine.
 *                      It ends with the socket, and all sandboxes with it.
 *   fre-shell hold [N] makes a user namespace, in which N namespaces of each
 *                      other kind can be made, and waits for its input to end.
 *   fre-shell probe    prints which calls of the kernel's are there.
 *   fre-shell cost G   prints what the kernel takes for parts of a start, in
 *                      nanoseconds (cost.c). G is how the groups whose files are
 *                      open from fd 3 on are joined: tasks (two groups), into
 *                      (one), or none.
 *   fre-shell exit     ends at once.
 *   fre-shell layout   prints wire.h's numbers for the test of wire.go.
 *
 * One thread; nothing is allocated. See wire.h and ARCHITECTURE.md.
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

#include "shell.h"

/* Writes a limit of the user namespace's own (namespaces(7)), not of the host's. */
static int limit(const char *path, const char *value)
{
	size_t size = strlen(value);
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, value, size) != (ssize_t)size)
		return -1;
	return close(fd);
}

/* hold keeps a user namespace alive until the engine has written its maps and
 * opened it; it exits with the errno of what failed. No user namespace can be
 * made below it: in one of its own a function would have every capability, and
 * with them most of the kernel before it. Of each other kind as many can be as
 * the text says, where there is one. */
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

/* What Go has no call for. A clone3 of size 0 is refused with EINVAL by a kernel
 * that has the call. */
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
