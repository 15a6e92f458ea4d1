/* What the files of fre-shell know of each other. */
#ifndef FRE_SHELL_H
#define FRE_SHELL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

/* A START, PARK or RUN message, checked and taken apart. What argv and envp do
 * not have in PARK is empty. */
struct start {
	struct fre_start h;
	char **argv; /* ended by NULL, as envp is */
	char **envp;
	char *dir;
	char *hostname;
	char **targets;
	int fds[FRE_MAX_FDS];
	int nfds;
};

/* Where and why a start failed. */
struct failure {
	uint32_t step; /* enum fre_step */
	uint32_t detail;
	int error;
};

/* Where a message's strings go: nothing is allocated. */
struct room {
	char *payload;
	size_t payload_size;
	char **pointers; /* `strings` and the two NULLs */
	size_t strings;
};

/* start_parse checks a packet of this kind and fills s, whose strings then lie
 * in the packet or in room. 0, or EBADMSG, E2BIG or what reading the payload
 * said. It is called in shells too, which must not touch errno. */
int start_parse(struct start *s, uint16_t kind, char *packet, size_t len, const int *fds, int nfds,
		const struct room *room);

/* sandbox_start does a START and returns once it has executed; sandbox_park
 * begins a PARK, which its shell ends. Both return the pid and set *pidfd, or -1
 * and fill f. sandbox_start fills trace where it was asked for. */
pid_t sandbox_start(char *packet, size_t len, const int *fds, int nfds, int *pidfd, struct failure *f,
		    struct fre_trace *trace);
pid_t sandbox_park(const char *packet, size_t len, const int *fds, int nfds, int *pidfd, struct failure *f);

/* filters_read takes in the system call filters and closes FRE_FILTERS_FD;
 * filter_known says whether a START may name one. */
int filters_read(void);
int filter_known(int16_t filter);

/* landlock_open makes what sandboxes take on, at FRE_RULESET_FD, where the kernel
 * has it; landlock_abi is 0 where it has no Landlock. */
int landlock_open(void);
int landlock_abi(void);

/* confine restricts the calling process by capabilities, of which it keeps those
 * named, Landlock and filter. It returns 0, or -errno and the step that failed. */
long confine(uint32_t flags, uint64_t capabilities, int16_t filter, uint32_t *step);

int spawn(void);
int layout(void);
int cost(const char *groups);

#endif
