/* Parses messages. Only the engine sends messages, but users write the strings
 * inside: start_parse checks every length and index. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "spawner.h"
#include "syscall.h"

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

static int read_payload(int fd, char *to, size_t size)
{
	for (size_t n = 0; n < size;) {
		long r = sys(SYS_pread64, fd, to + n, size - n, n);
		if (r == -EINTR)
			continue;
		if (r < 0)
			return (int)-r;
		if (r == 0)
			return EBADMSG;
		n += (size_t)r;
	}
	return 0;
}

/* Reports whether the fds required by the message's kind are present and all indexes
 * of optional fds are valid. */
static int complete(const struct fre_start *h, int nfds)
{
	int attaches = h->kind == FRE_START || h->fd_root >= 0;
	int executes = h->kind != FRE_PARK;

	if (attaches && (!present(h->fd_root, nfds) || !present(h->fd_userns, nfds)))
		return 0;
	if (executes && (h->argc == 0 || !present(h->fd_stdin, nfds) ||
			 !present(h->fd_stdout, nfds) || !present(h->fd_stderr, nfds)))
		return 0;
	if (executes ? h->fd_control != -1 || h->fd_reports != -1
		     : !present(h->fd_control, nfds) || !present(h->fd_reports, nfds))
		return 0;
	/* furnish() takes the terminal: the message must attach the root and have fd_stdin. */
	if (h->flags & FRE_TTY && (!executes || !attaches))
		return 0;
	if (h->ngroups > FRE_MAX_GROUPS)
		return 0;
	return filter_known(h->filter) && optional(h->fd_root, nfds) && optional(h->fd_userns, nfds) &&
	       optional(h->fd_stdin, nfds) && optional(h->fd_stdout, nfds) &&
	       optional(h->fd_stderr, nfds) && optional(h->fd_channel, nfds) &&
	       optional(h->fd_netns, nfds) && optional(h->fd_payload, nfds) && h->cgroups >= 0 &&
	       run(h->fd_cgroup, (uint32_t)h->cgroups, nfds) && run(h->fd_mount, h->mounts, nfds) &&
	       !(h->flags & FRE_CGROUP2 && h->cgroups != 1);
}

int start_parse(struct start *s, uint16_t kind, char *packet, size_t len, const int *fds, int nfds,
		const struct room *room)
{
	const struct fre_start *h = (const struct fre_start *)packet;
	char *p, *end;

	if (len < sizeof(*h) || h->version != FRE_WIRE_VERSION || h->kind != kind || nfds > FRE_MAX_FDS)
		return EBADMSG;
	if (h->argc > room->strings || h->envc > room->strings || h->mounts > FRE_MAX_FDS ||
	    h->argc + h->envc + h->mounts + 2 > room->strings)
		return E2BIG;
	if (!complete(h, nfds))
		return EBADMSG;

	if (h->fd_payload >= 0) {
		if (len != sizeof(*h))
			return EBADMSG;
		if (h->payload > room->payload_size)
			return E2BIG;
		int error = read_payload(fds[h->fd_payload], room->payload, h->payload);
		if (error != 0)
			return error;
		p = room->payload;
	} else {
		if (len != sizeof(*h) + h->payload)
			return EBADMSG;
		p = packet + sizeof(*h);
	}

	/* Add the NULLs that end argv and envp: the message does not carry them. */
	uint32_t total = h->argc + h->envc + 2 + h->mounts;
	char **q = room->pointers;
	end = p + h->payload;
	for (uint32_t i = 0; i < total; i++) {
		char *nul = memchr(p, 0, (size_t)(end - p));
		if (nul == NULL)
			return EBADMSG;
		if (i == h->argc)
			*q++ = NULL;
		if (i == h->argc + h->envc)
			*q++ = NULL;
		*q++ = p;
		p = nul + 1;
	}
	if (p != end)
		return EBADMSG;

	s->h = *h;
	s->argv = room->pointers;
	s->envp = s->argv + h->argc + 1;
	s->dir = s->envp[h->envc + 1];
	s->hostname = s->envp[h->envc + 2];
	s->targets = s->envp + h->envc + 3;
	memcpy(s->fds, fds, (size_t)nfds * sizeof(int));
	s->nfds = nfds;
	return 0;
}
