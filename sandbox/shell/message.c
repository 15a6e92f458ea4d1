/* Taking a START message apart. It comes from the engine alone, but carries
 * strings a user wrote: every length and index is checked. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "shell.h"

static char payload[FRE_MAX_PAYLOAD];
static char *pointers[FRE_MAX_STRINGS + 2];

static int bad(int error)
{
	errno = error;
	return -1;
}

static int present(int16_t fd, int nfds)
{
	return fd >= 0 && fd < nfds;
}

static int optional(int16_t fd, int nfds)
{
	return fd == -1 || present(fd, nfds);
}

static int run(int16_t first, uint32_t count, int nfds)
{
	return count == 0 || (present(first, nfds) && count <= (uint32_t)(nfds - first));
}

static int read_payload(int fd, size_t size)
{
	for (size_t n = 0; n < size;) {
		ssize_t r = pread(fd, payload + n, size - n, (off_t)n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -1;
		if (r == 0)
			return bad(EBADMSG);
		n += (size_t)r;
	}
	return 0;
}

int start_parse(struct start *s, char *packet, size_t len, int *fds, int nfds)
{
	const struct fre_start *h = (const struct fre_start *)packet;
	char *p, *end;

	if (len < sizeof(*h) || h->version != FRE_WIRE_VERSION || h->kind != FRE_START)
		return bad(EBADMSG);
	if (h->payload > FRE_MAX_PAYLOAD)
		return bad(E2BIG);
	if (h->argc == 0 || h->argc > FRE_MAX_STRINGS || h->envc > FRE_MAX_STRINGS ||
	    h->mounts > FRE_MAX_FDS || h->cgroups < 0 ||
	    h->argc + h->envc + h->mounts + 2 > FRE_MAX_STRINGS)
		return bad(E2BIG);
	if (!present(h->fd_root, nfds) || !present(h->fd_userns, nfds) ||
	    !present(h->fd_stdin, nfds) || !present(h->fd_stdout, nfds) ||
	    !present(h->fd_stderr, nfds) || !optional(h->fd_channel, nfds) ||
	    !optional(h->fd_netns, nfds) || !optional(h->fd_payload, nfds) ||
	    !run(h->fd_cgroup, (uint32_t)h->cgroups, nfds) || !run(h->fd_mount, h->mounts, nfds) ||
	    (h->flags & FRE_CGROUP2 && h->cgroups != 1) || !filter_known(h->filter))
		return bad(EBADMSG);

	if (h->fd_payload >= 0) {
		if (len != sizeof(*h))
			return bad(EBADMSG);
		if (read_payload(fds[h->fd_payload], h->payload) != 0)
			return -1;
		p = payload;
	} else {
		if (len != sizeof(*h) + h->payload)
			return bad(EBADMSG);
		p = packet + sizeof(*h);
	}

	/* argv and envp each end with a NULL the message does not carry. */
	uint32_t total = h->argc + h->envc + 2 + h->mounts;
	char **q = pointers;
	end = p + h->payload;
	for (uint32_t i = 0; i < total; i++) {
		char *nul = memchr(p, 0, (size_t)(end - p));
		if (nul == NULL)
			return bad(EBADMSG);
		if (i == h->argc)
			*q++ = NULL;
		if (i == h->argc + h->envc)
			*q++ = NULL;
		*q++ = p;
		p = nul + 1;
	}
	if (p != end)
		return bad(EBADMSG);

	s->h = h;
	s->argv = pointers;
	s->envp = s->argv + h->argc + 1;
	s->dir = s->envp[h->envc + 1];
	s->hostname = s->envp[h->envc + 2];
	s->targets = s->envp + h->envc + 3;
	s->fds = fds;
	s->nfds = nfds;
	return 0;
}
