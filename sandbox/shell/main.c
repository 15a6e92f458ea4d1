/* fre-shell: the small static program from which every sandbox is born.
 *
 *   fre-shell spawn    the spawner: pid 1 of a pid namespace of its own, an
 *                      empty read-only root, one socket (fd 3) to the engine.
 *                      It ends with the socket, and all sandboxes with it.
 *   fre-shell hold     makes a user namespace and waits for its input to end.
 *   fre-shell probe    prints which calls of the kernel's are there.
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

/* hold keeps a user namespace alive until the engine has written its maps and
 * opened it; it exits with the errno of what failed. No namespace can be made below it: in one of its own a function
 * would have every capability, and with them most of the kernel before it. The
 * limit is the namespace's own (namespaces(7)), not the host's. */
static int hold(void)
{
	char c = '1';
	int fd;

	if (unshare(CLONE_NEWUSER) != 0)
		return errno;
	fd = open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "0", 1) != 1)
		return errno;
	close(fd);
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
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "spawn") == 0)
		return spawn();
	if (argc == 2 && strcmp(argv[1], "hold") == 0)
		return hold();
	if (argc == 2 && strcmp(argv[1], "probe") == 0)
		return probe();
	if (argc == 2 && strcmp(argv[1], "layout") == 0)
		return layout();
	return 2;
}
