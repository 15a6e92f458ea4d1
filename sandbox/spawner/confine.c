/* Restricts a sandbox's use of the kernel: capabilities, Landlock, system call filter.
 * Children inherit every restriction; a process cannot undo any. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "spawner.h"
#include "syscall.h"

/* From Landlock's ABI 6, which the headers of some distributions do not have yet. */
#define SCOPE_ABSTRACT_UNIX_SOCKET (1 << 0)
#define SCOPE_SIGNAL (1 << 1)
#define RULESET_VERSION (1 << 0)
struct ruleset {
	uint64_t fs;
	uint64_t net;
	uint64_t scoped;
};

static struct sock_fprog filters[FRE_MAX_FILTERS];
static int nfilters;
static int have_ruleset;

int filters_read(void)
{
	static uint32_t words[16 << 10];
	size_t size = 0, at = 1;
	ssize_t n;

	/* pread, because all spawners share the file and its position. */
	while ((n = pread(FRE_FILTERS_FD, (char *)words + size, sizeof(words) - size, (off_t)size)) > 0)
		size += (size_t)n;
	if (n < 0)
		return -1;
	close(FRE_FILTERS_FD);
	errno = EBADMSG;
	if (size < sizeof(uint32_t) || size % sizeof(uint32_t) != 0 || size == sizeof(words) ||
	    words[0] > FRE_MAX_FILTERS)
		return -1;
	size /= sizeof(uint32_t);
	for (uint32_t i = 0; i < words[0]; i++) {
		if (at == size || words[at] == 0 || words[at] > BPF_MAXINSNS)
			return -1;
		size_t len = words[at++];
		if (len * 2 > size - at)
			return -1;
		filters[i].len = (unsigned short)len;
		filters[i].filter = (struct sock_filter *)&words[at];
		at += len * 2;
	}
	if (at != size)
		return -1;
	nfilters = (int)words[0];
	return 0;
}

int filter_known(int16_t filter)
{
	return filter >= -1 && filter < nfilters;
}

/* A ruleset is a template: each sandbox that applies the ruleset is a separate domain.
 * Kernels before ABI 6 have rules for files and ports only. FRE does not use such rules:
 * mounts and the network namespace already restrict both, and ABI 1 would forbid
 * rename(2) across directories. */
int landlock_open(void)
{
	struct ruleset scopes = {.scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL};
	int abi = landlock_abi();

	if (abi < 6)
		return dup3(0, FRE_RULESET_FD, O_CLOEXEC);
	/* FRE_RULESET_FD is the lowest free fd. */
	have_ruleset = 1;
	return syscall(SYS_landlock_create_ruleset, &scopes, sizeof(scopes), 0) == FRE_RULESET_FD ? 0 : -1;
}

int landlock_abi(void)
{
	int abi = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, RULESET_VERSION);

	return abi < 0 ? 0 : abi;
}

/* Makes a capability survive execve (ambient set). Returns 0 or -errno. */
static long keep_capability(int cap)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[2];

	long ret = sys(SYS_capget, &header, sets);
	sets[cap / 32].inheritable |= 1u << cap % 32;
	if (ret == 0)
		ret = sys(SYS_capset, &header, sets);
	return ret == 0 ? sys(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap) : ret;
}

/* Drops every capability for good. Call after setns(CLONE_NEWUSER), which fills all
 * sets. The secure bits keep uid 0 from regaining capabilities at execve.
 *
 * A fork server keeps CAP_SYS_ADMIN, which Linux demands for new namespaces. The
 * capability holds over a user namespace of the fork server alone, and the filter
 * leaves no other use of the capability. */
static long drop_capabilities(int forks)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct kept[2] = {{0}};
	long ret;

	for (int cap = 0; cap < 64; cap++) {
		if (forks && cap == CAP_SYS_ADMIN)
			continue;
		ret = sys(SYS_prctl, PR_CAPBSET_DROP, cap);
		if (ret == -EINVAL && cap > 0)
			break; /* past the kernel's last capability */
		if (ret != 0)
			return ret;
	}
	if (forks) {
		ret = keep_capability(CAP_SYS_ADMIN);
		if (ret != 0)
			return ret;
		kept[0].effective = kept[0].permitted = kept[0].inheritable = 1u << CAP_SYS_ADMIN;
	}
	ret = sys(SYS_prctl, PR_SET_SECUREBITS,
		  SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
			  SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
			  SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED);
	if (ret != 0)
		return ret;
	return sys(SYS_capset, &header, kept);
}

/* Drops all capabilities except the mask, which uid 0 keeps over its user namespace as
 * in an ordinary container: execve gives root the bounding set, and a change to
 * another uid loses the capabilities. */
static long bound_capabilities(uint64_t mask)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct kept[2] = {{0}};

	for (int cap = 0; cap < 64; cap++) {
		if (mask & 1ull << cap)
			continue;
		long ret = sys(SYS_prctl, PR_CAPBSET_DROP, cap);
		if (ret == -EINVAL && cap > 0)
			break; /* past the kernel's last capability */
		if (ret != 0)
			return ret;
	}
	for (int i = 0; i < 2; i++)
		kept[i].effective = kept[i].permitted = (uint32_t)(mask >> 32 * i);
	return sys(SYS_capset, &header, kept);
}

/* Makes the capabilities over the tenant's user namespace survive execve. */
static long keep_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[2];

	long ret = sys(SYS_capget, &header, sets);
	for (int i = 0; i < 2; i++)
		sets[i].inheritable = sets[i].permitted;
	if (ret == 0)
		ret = sys(SYS_capset, &header, sets);
	for (int cap = 0; cap < 64 && ret == 0; cap++)
		if (sets[cap / 32].permitted & 1u << cap % 32)
			ret = sys(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap);
	return ret;
}

long confine(uint32_t flags, uint64_t capabilities, int16_t filter, uint32_t *step)
{
	long ret;

	*step = FRE_STEP_CAPABILITIES;
	if (flags & FRE_WITHOUT_CAPABILITIES)
		ret = keep_capabilities();
	else if (capabilities != 0)
		ret = bound_capabilities(capabilities);
	else
		ret = drop_capabilities(flags & FRE_FORKS);
	/* Without no_new_privs an unprivileged process can use neither Landlock nor seccomp. */
	if (ret == 0 && !(flags & FRE_WITHOUT_NO_NEW_PRIVS))
		ret = sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1);
	if (ret == 0 && !(flags & FRE_WITHOUT_LANDLOCK) && have_ruleset) {
		*step = FRE_STEP_LANDLOCK;
		ret = sys(SYS_landlock_restrict_self, FRE_RULESET_FD, 0);
	}
	if (ret == 0 && filter >= 0) {
		*step = FRE_STEP_SECCOMP;
		ret = sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filters[filter]);
	}
	return ret;
}
