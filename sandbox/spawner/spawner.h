/* Declarations shared by the files of fre-spawner. */
#ifndef FRE_SPAWNER_H
#define FRE_SPAWNER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

/* A START, PARK or RUN message, checked and parsed. In PARK argv and envp may be
 * empty lists. */
struct start {
	struct fre_start h;
	char **argv; /* argv and envp end with NULL */
	char **envp;
	char *dir;
	char *hostname;
	char **targets;
	int fds[FRE_MAX_FDS];
	int nfds;
};

/* The failed step of a start and its errno. */
struct failure {
	uint32_t step; /* enum fre_step */
	uint32_t detail;
	int error;
};

/* Memory for the strings of a message: start_parse allocates none. */
struct room {
	char *payload;
	size_t payload_size;
	char **pointers; /* room for `strings` pointers and two NULLs */
	size_t strings;
};

/* start_parse checks a packet of the given kind and fills s. The strings of s point
 * into the packet or into room. Returns 0, EBADMSG, E2BIG, or the errno of reading
 * the payload. Leaves errno alone, because parked sandboxes call start_parse too. */
int start_parse(struct start *s, uint16_t kind, char *packet, size_t len, const int *fds, int nfds,
		const struct room *room);

/* sandbox_start carries out a START and returns after execve. sandbox_park begins a
 * PARK; the parked sandbox reports the end. Both return the pid and set *pidfd, which
 * the caller closes; on failure they return -1 and fill f. sandbox_start fills trace
 * if the message has FRE_TRACE. */
pid_t sandbox_start(char *packet, size_t len, const int *fds, int nfds, int *pidfd, struct failure *f,
		    struct fre_trace *trace);
pid_t sandbox_park(const char *packet, size_t len, const int *fds, int nfds, int *pidfd, struct failure *f);

/* filters_read reads the system call filters and closes FRE_FILTERS_FD. Returns 0, or
 * -1 and errno. filter_known reports whether a message may name the filter; -1, for
 * no filter, is known. */
int filters_read(void);
int filter_known(int16_t filter);

/* landlock_open creates the ruleset of all sandboxes at FRE_RULESET_FD, if the kernel
 * knows scopes. Returns a negative number and sets errno on failure. landlock_abi
 * returns Landlock's ABI version, 0 for a kernel without Landlock. */
int landlock_open(void);
int landlock_abi(void);

/* confine drops all capabilities except the given ones, then applies Landlock and the
 * filter to the calling process. Returns 0, or -errno and the failed step. */
long confine(uint32_t flags, uint64_t capabilities, int16_t filter, uint32_t *step);

int spawn(void);
int layout(void);
int cost(const char *groups);

#endif
