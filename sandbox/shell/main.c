/* fre-shell: the small static program from which every sandbox is born.
 *
 *   fre-shell spawn    the spawner: pid 1 of a pid namespace of its own, an
 *                      empty read-only root, one socket (fd 3) to the engine.
 *                      It ends with the socket, and all sandboxes with it.
 *   fre-shell hold     makes a user namespace and waits for its input to end.
 *   fre-shell layout   prints wire.h's numbers for the test of wire.go.
 *
 * One thread; nothing is allocated. See wire.h and ARCHITECTURE.md.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "shell.h"

/* hold keeps a user namespace alive until the engine has written its maps and
 * opened it. */
static int hold(void)
{
	char c = '1';

	if (unshare(CLONE_NEWUSER) != 0)
		return 1;
	if (write(1, &c, 1) != 1)
		return 1;
	while (read(0, &c, 1) > 0)
		;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "spawn") == 0)
		return spawn();
	if (argc == 2 && strcmp(argv[1], "hold") == 0)
		return hold();
	if (argc == 2 && strcmp(argv[1], "layout") == 0)
		return layout();
	return 2;
}
