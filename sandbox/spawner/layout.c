/* Prints wire.h as "name value", "struct size" and "struct.field offset size" lines. */
#include <stddef.h>
#include <stdio.h>

#include "spawner.h"

#define CONSTANT(name) printf(#name " %ld\n", (long)(name))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))
#define FIELD(type, field)                                                                 \
	printf(#type "." #field " %zu %zu\n", offsetof(struct type, field),                \
	       sizeof(((struct type *)0)->field))

int layout(void)
{
	CONSTANT(FRE_WIRE_VERSION);
	CONSTANT(FRE_MAX_PAYLOAD);
	CONSTANT(FRE_MAX_INLINE);
	CONSTANT(FRE_MAX_STRINGS);
	CONSTANT(FRE_MAX_FDS);
	CONSTANT(FRE_MAX_GROUPS);
	CONSTANT(FRE_MAX_PARKED_PAYLOAD);
	CONSTANT(FRE_MAX_PARKED_STRINGS);
	CONSTANT(FRE_FILTERS_FD);
	CONSTANT(FRE_MAX_FILTERS);
	CONSTANT(FRE_START);
	CONSTANT(FRE_PARK);
	CONSTANT(FRE_RUN);
	CONSTANT(FRE_KILL);
	CONSTANT(FRE_HELLO);
	CONSTANT(FRE_STARTED);
	CONSTANT(FRE_FAILED);
	CONSTANT(FRE_EXITED);
	CONSTANT(FRE_PARKED);
	CONSTANT(FRE_TRACED);
	CONSTANT(FRE_CGROUP2);
	CONSTANT(FRE_PIN);
	CONSTANT(FRE_TRACE);
	CONSTANT(FRE_FORKS);
	CONSTANT(FRE_TTY);
	CONSTANT(FRE_PROC_FILES);
	CONSTANT(FRE_WITHOUT_LANDLOCK);
	CONSTANT(FRE_WITHOUT_CAPABILITIES);
	CONSTANT(FRE_WITHOUT_NO_NEW_PRIVS);
	CONSTANT(FRE_WITHOUT_PROC_SUBSET);
	CONSTANT(FRE_WITHOUT_KEYRING);
	CONSTANT(FRE_STEP_SETUP);
	CONSTANT(FRE_STEP_MESSAGE);
	CONSTANT(FRE_STEP_CLONE);
	CONSTANT(FRE_STEP_CGROUP);
	CONSTANT(FRE_STEP_NETNS);
	CONSTANT(FRE_STEP_ROOT);
	CONSTANT(FRE_STEP_PROC);
	CONSTANT(FRE_STEP_MOUNT);
	CONSTANT(FRE_STEP_HOSTNAME);
	CONSTANT(FRE_STEP_SESSION);
	CONSTANT(FRE_STEP_USERNS);
	CONSTANT(FRE_STEP_IDS);
	CONSTANT(FRE_STEP_CAPABILITIES);
	CONSTANT(FRE_STEP_LANDLOCK);
	CONSTANT(FRE_STEP_SECCOMP);
	CONSTANT(FRE_STEP_FDS);
	CONSTANT(FRE_STEP_RLIMIT);
	CONSTANT(FRE_STEP_DIR);
	CONSTANT(FRE_STEP_EXEC);
	CONSTANT(FRE_STEPS);

	SIZE(fre_start);
	FIELD(fre_start, version);
	FIELD(fre_start, kind);
	FIELD(fre_start, payload);
	FIELD(fre_start, id);
	FIELD(fre_start, flags);
	FIELD(fre_start, argc);
	FIELD(fre_start, envc);
	FIELD(fre_start, mounts);
	FIELD(fre_start, uid);
	FIELD(fre_start, gid);
	FIELD(fre_start, nofile);
	FIELD(fre_start, fd_payload);
	FIELD(fre_start, fd_root);
	FIELD(fre_start, fd_userns);
	FIELD(fre_start, fd_netns);
	FIELD(fre_start, fd_stdin);
	FIELD(fre_start, fd_stdout);
	FIELD(fre_start, fd_stderr);
	FIELD(fre_start, fd_channel);
	FIELD(fre_start, fd_cgroup);
	FIELD(fre_start, cgroups);
	FIELD(fre_start, fd_mount);
	FIELD(fre_start, fd_control);
	FIELD(fre_start, fd_reports);
	FIELD(fre_start, filter);
	FIELD(fre_start, ngroups);
	FIELD(fre_start, reserved);
	FIELD(fre_start, capabilities);
	FIELD(fre_start, groups);

	SIZE(fre_report);
	FIELD(fre_report, version);
	FIELD(fre_report, kind);
	FIELD(fre_report, pid);
	FIELD(fre_report, id);
	FIELD(fre_report, step);
	FIELD(fre_report, error);
	FIELD(fre_report, detail);
	FIELD(fre_report, code);
	FIELD(fre_report, signal);
	FIELD(fre_report, reserved);
	FIELD(fre_report, cpu_us);
	FIELD(fre_report, max_rss_kb);

	SIZE(fre_trace);
	FIELD(fre_trace, version);
	FIELD(fre_trace, kind);
	FIELD(fre_trace, reserved);
	FIELD(fre_trace, id);
	FIELD(fre_trace, done);
	return 0;
}
