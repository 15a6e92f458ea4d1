/* The protocol between the engine and the spawner; wire.go is its other half
 * and TestWireLayout compares the two. One SOCK_SEQPACKET packet is one
 * message, in the machine's own byte order.
 *
 *   engine                                   spawner
 *     |   <------------------------- HELLO      |  set up, or FAILED
 *     |   START + fds ---------------------->   |
 *     |   <------------ STARTED + pidfd         |  or FAILED{step, errno}
 *     |                 ...                     |
 *     |   KILL ----------------------------->   |  where no pidfd came through
 *     |   <------------------------ EXITED      |
 *     |   (end of file) -------------------->   |  exits: the kernel kills all
 *
 * A shell is a sandbox made ahead, stopped before its last steps. It has a
 * control socket from the engine of its own, and a pipe for its reports:
 *
 *   engine                          spawner    shell
 *     |   PARK + fds -----------------> |        |  with fd_root: attached, else bare
 *     |   <---------- STARTED + pidfd   |  ----> |
 *     |   <------------------------------ PARKED |  or FAILED{step, errno}
 *     |                 ...                      |
 *     |   RUN + fds ---------------------------> |  what PARK did not have
 *     |   <---- (TRACED or FAILED{step, errno},) |
 *     |   <--------------------------------- end |  which comes with execve
 *
 * A shell that dies before it has read RUN leaves it unread, which resets the
 * socket: nothing of the function has run.
 */
#ifndef FRE_WIRE_H
#define FRE_WIRE_H

#include <stdint.h>

#define FRE_WIRE_VERSION 1

#define FRE_MAX_PAYLOAD (4 << 20)  /* bytes of strings; Linux takes no more at execve */
#define FRE_MAX_INLINE (64 << 10)  /* beyond it the strings travel in a memfd */
#define FRE_MAX_STRINGS 65536
#define FRE_MAX_FDS 250            /* SCM_MAX_FD is 253 */
#define FRE_MAX_GROUPS 16

/* What a shell has room for; a start with more goes by the spawner. */
#define FRE_MAX_SHELL_PAYLOAD (16 << 10)
#define FRE_MAX_SHELL_STRINGS 1024

/* fds 0 to 4 are taken in the spawner, so that none it receives lies below. */
#define FRE_SOCKET_FD 3

/* At its start the spawner reads the system call filters from here: a count, then
 * for each the number of its instructions, all uint32_t, and its instructions
 * (struct sock_filter, 8 bytes each). */
#define FRE_FILTERS_FD 4
#define FRE_MAX_FILTERS 8

/* Later the same number is Landlock's ruleset, or taken by nothing of use. */
#define FRE_RULESET_FD FRE_FILTERS_FD

enum fre_kind {
	FRE_START = 0x01,
	FRE_PARK = 0x02,
	FRE_RUN = 0x03,
	FRE_KILL = 0x10, /* the first 16 bytes of a START; not answered */
	FRE_HELLO = 0x81,
	FRE_STARTED = 0x82,
	FRE_FAILED = 0x83,
	FRE_EXITED = 0x84,
	FRE_PARKED = 0x85,
	FRE_TRACED = 0x86, /* a struct fre_trace; asked for by FRE_TRACE */
};

enum fre_flag {
	FRE_CGROUP2 = 1 << 0, /* fd_cgroup is a cgroup v2 directory to be born in */
	FRE_PIN = 1 << 1,     /* begin on one CPU: the engine widens it afterwards */
	FRE_TRACE = 1 << 2,   /* tell when each step was done */
	FRE_FORKS = 1 << 3,   /* a fork server: keeps CAP_SYS_ADMIN of its user namespace */
	FRE_TTY = 1 << 4,     /* fd_stdin is a terminal, which becomes the controlling one */
	FRE_PROC_FILES = 1 << 5, /* some mounts cover entries of /proc: see narrow() */
	/* For tests, which show by it what a defence is worth. */
	FRE_WITHOUT_LANDLOCK = 1 << 16,
	FRE_WITHOUT_CAPABILITIES = 1 << 17, /* those of its own user namespace are kept */
	FRE_WITHOUT_NO_NEW_PRIVS = 1 << 18, /* goes with no Landlock and no filter */
	FRE_WITHOUT_PROC_SUBSET = 1 << 19,
	FRE_WITHOUT_KEYRING = 1 << 20,
};

/* What was being done when a start failed. */
enum fre_step {
	FRE_STEP_NONE,
	FRE_STEP_SETUP,
	FRE_STEP_MESSAGE,
	FRE_STEP_CLONE,
	FRE_STEP_CGROUP,
	FRE_STEP_NETNS,
	FRE_STEP_ROOT,
	FRE_STEP_PROC,
	FRE_STEP_MOUNT, /* detail: index of the mount */
	FRE_STEP_HOSTNAME,
	FRE_STEP_SESSION,
	FRE_STEP_USERNS,
	FRE_STEP_IDS,
	FRE_STEP_CAPABILITIES,
	FRE_STEP_LANDLOCK,
	FRE_STEP_SECCOMP,
	FRE_STEP_FDS,
	FRE_STEP_RLIMIT,
	FRE_STEP_DIR,
	FRE_STEP_EXEC,
	FRE_STEPS,
};

/* START, PARK and RUN. The fd_ fields index the fds that came with the packet, -1
 * for none; fd_cgroup and fd_mount are the first of `cgroups` and `mounts` in a
 * row. The strings follow, each ended by NUL, in this order: argc arguments, envc
 * environment strings, working directory, host name, `mounts` targets. */
struct fre_start {
	uint16_t version;
	uint16_t kind;
	uint32_t payload; /* bytes of strings */
	uint64_t id;
	uint32_t flags;
	uint32_t argc;
	uint32_t envc;
	uint32_t mounts;
	uint32_t uid;
	uint32_t gid;
	uint64_t nofile;
	int16_t fd_payload; /* memfd with the strings, instead of inline */
	int16_t fd_root;
	int16_t fd_userns;
	int16_t fd_netns;
	int16_t fd_stdin;
	int16_t fd_stdout;
	int16_t fd_stderr;
	int16_t fd_channel;
	int16_t fd_cgroup;
	int16_t cgroups;
	int16_t fd_mount;
	int16_t fd_control; /* PARK: the shell's own socket, SOCK_SEQPACKET */
	int16_t fd_reports; /* PARK: the pipe it writes to */
	int16_t filter;     /* index of the system call filter, -1 for none */
	uint16_t ngroups;   /* of groups */
	uint16_t reserved;
	uint64_t capabilities; /* those that uid 0 keeps over its user namespace, by bit */
	uint32_t groups[FRE_MAX_GROUPS]; /* supplementary */
};

/* All that a spawner or shell says but TRACED. STARTED carries the pidfd. */
struct fre_report {
	uint16_t version;
	uint16_t kind;
	uint32_t pid; /* in the spawner's pid namespace */
	uint64_t id;
	uint32_t step; /* FAILED */
	int32_t error; /* FAILED: errno */
	uint32_t detail; /* FAILED; HELLO: Landlock's ABI, 0 without */
	int32_t code;    /* EXITED: status, -1 if ended by a signal */
	int32_t signal;  /* EXITED: 0 if it exited */
	uint32_t reserved;
	uint64_t cpu_us; /* EXITED: of the processes that were waited for */
	uint64_t max_rss_kb;
};

/* TRACED: when each step of this start had been done, in nanoseconds of
 * CLOCK_MONOTONIC; 0 for those that it did not have. [FRE_STEP_EXEC] is when
 * execve was called. */
struct fre_trace {
	uint16_t version;
	uint16_t kind;
	uint32_t reserved;
	uint64_t id;
	uint64_t done[FRE_STEPS];
};

#endif
