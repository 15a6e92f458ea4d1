/* What the files of fre-shell know of each other. */
#ifndef FRE_SHELL_H
#define FRE_SHELL_H

#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

/* A START message, checked and taken apart. */
struct start {
	const struct fre_start *h;
	char **argv; /* ended by NULL, as envp is */
	char **envp;
	char *dir;
	char *hostname;
	char **targets;
	int *fds;
	int nfds;
};

/* Where and why a start failed. */
struct failure {
	uint32_t step; /* enum fre_step */
	uint32_t detail;
	int error;
};

/* start_parse checks a packet and fills s; -1 with errno EBADMSG, E2BIG or
 * what reading the payload said. */
int start_parse(struct start *s, char *packet, size_t len, int *fds, int nfds);

/* sandbox_start returns the pid and sets *pidfd, or -1 and fills f. */
pid_t sandbox_start(const struct start *s, int *pidfd, struct failure *f);

/* filters_read takes in the system call filters and closes FRE_FILTERS_FD;
 * filter_known says whether a START may name one. */
int filters_read(void);
int filter_known(int16_t filter);

/* landlock_open makes what sandboxes take on, where the kernel has it;
 * landlock_abi is 0 where it has no Landlock. */
int landlock_open(void);
int landlock_abi(void);

/* confine restricts the calling process by capabilities, Landlock and filter. It
 * returns the step that failed, with errno, or FRE_STEP_NONE. */
uint32_t confine(uint32_t flags, int16_t filter);

int spawn(void);
int layout(void);

#endif
