/* The protocol between the engine and the spawner. wire.go is the engine's half;
 * TestWireLayout compares the two. One SOCK_SEQPACKET packet is one message, in
 * the machine's byte order.
 *
 *   engine                                   spawner
 *     |   <------------------------- HELLO      |  set up, or FAILED
 *     |   START + fds ---------------------->   |
 *     |   <------------ STARTED + pidfd         |  or FAILED{step, errno}
 *     |                 ...                     |
 *     |   KILL ----------------------------->   |  if the pidfd was lost
 *     |   <------------------------ EXITED      |
 *     |   (end of file) -------------------->   |  exits: the kernel kills all
 *
 * A parked sandbox is made ahead of its function and stops before its last steps.
 * The engine gives each a control socket and a pipe for reports:
 *
 *   engine                          spawner   sandbox
 *     |   PARK + fds -----------------> |        |  with fd_root: attached, else bare
 *     |   <---------- STARTED + pidfd   |  ----> |
 *     |   <------------------------------ PARKED |  or FAILED{step, errno}
 *     |                 ...                      |
 *     |   RUN + fds ---------------------------> |  the rest of a START
 *     |   <---- (TRACED or FAILED{step, errno},) |
 *     |   <--------------------------------- end |  of the pipe, by execve
 *
 * If a parked sandbox dies before reading RUN, the unread packet resets the
 * socket. The engine then knows that no code of the function has run.
 */
#ifndef FRE_WIRE_H
#define FRE_WIRE_H

#include <stdint.h>

#define FRE_WIRE_VERSION 1

#define FRE_MAX_PAYLOAD (4 << 20)  /* bytes of strings; the most that Linux accepts at execve */
#define FRE_MAX_INLINE (64 << 10)  /* longer strings travel in a memfd */
#define FRE_MAX_STRINGS 65536
#define FRE_MAX_FDS 250            /* SCM_MAX_FD is 253 */
#define FRE_MAX_GROUPS 16

/* The room of a parked sandbox. A larger start uses START instead. */
#define FRE_MAX_PARKED_PAYLOAD (16 << 10)
#define FRE_MAX_PARKED_STRINGS 1024

/* The spawner keeps fds 0 to 4 in use, so every fd that it receives is 5 or more. */
#define FRE_SOCKET_FD 3

/* At its start the spawner reads the system call filters from this fd: the number
 * of filters; then for each filter the number of instructions and the instructions
 * (struct sock_filter, 8 bytes each). The numbers are uint32_t. */
#define FRE_FILTERS_FD 4
#define FRE_MAX_FILTERS 8

/* Afterwards the same fd is Landlock's ruleset, or a placeholder (a copy of fd 0). */
#define FRE_RULESET_FD FRE_FILTERS_FD

enum fre_kind {
	FRE_START = 0x01,
	FRE_PARK = 0x02,
	FRE_RUN = 0x03,
	FRE_KILL = 0x10, /* the first 16 bytes of a START; no answer */
	FRE_HELLO = 0x81,
	FRE_STARTED = 0x82,
	FRE_FAILED = 0x83,
	FRE_EXITED = 0x84,
	FRE_PARKED = 0x85,
	FRE_TRACED = 0x86, /* a struct fre_trace; sent if FRE_TRACE is set */
};

enum fre_flag {
	FRE_CGROUP2 = 1 << 0, /* fd_cgroup is a cgroup v2 directory: CLONE_INTO_CGROUP */
	FRE_PIN = 1 << 1,     /* begin on one CPU; the engine lifts the limit later */
	FRE_TRACE = 1 << 2,   /* report the time of each step */
	FRE_FORKS = 1 << 3,   /* a fork server: keeps CAP_SYS_ADMIN of its user namespace */
	FRE_TTY = 1 << 4,     /* fd_stdin is a terminal and becomes the controlling terminal */
	FRE_PROC_FILES = 1 << 5, /* some mounts cover entries of /proc: see narrow() */
	/* For tests, which show the worth of a defence by starts without the defence. */
	FRE_WITHOUT_LANDLOCK = 1 << 16,
	FRE_WITHOUT_CAPABILITIES = 1 << 17, /* keep those of the user namespace */
	FRE_WITHOUT_NO_NEW_PRIVS = 1 << 18, /* needs WITHOUT_LANDLOCK and no filter */
	FRE_WITHOUT_PROC_SUBSET = 1 << 19,
	FRE_WITHOUT_KEYRING = 1 << 20,
};

/* The step at which a start failed. */
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

/* START, PARK and RUN. The fd_ fields are indexes into the fds of the packet, -1 for
 * absent. fd_cgroup and fd_mount are the first of `cgroups` and `mounts` consecutive
 * fds. After the struct come NUL-terminated strings in this order: argc arguments,
 * envc environment strings, working directory, host name, `mounts` targets. */
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
	int16_t fd_control; /* PARK: the sandbox's control socket, SOCK_SEQPACKET */
	int16_t fd_reports; /* PARK: the pipe for the sandbox's reports */
	int16_t filter;     /* index of the system call filter, -1 for no filter */
	uint16_t ngroups;   /* length of groups */
	uint16_t reserved;
	uint64_t capabilities; /* bit mask that uid 0 keeps over its user namespace */
	uint32_t groups[FRE_MAX_GROUPS]; /* supplementary */
};

/* Every report except TRACED. STARTED carries the pidfd. */
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
	uint64_t cpu_us; /* EXITED: user and system time, with awaited descendants */
	uint64_t max_rss_kb;
};

/* TRACED: the time at the end of each step, in nanoseconds of CLOCK_MONOTONIC; 0
 * for a step that the start does not have. done[FRE_STEP_EXEC] is the time of the
 * call of execve. */
struct fre_trace {
	uint16_t version;
	uint16_t kind;
	uint32_t reserved;
	uint64_t id;
	uint64_t done[FRE_STEPS];
};

#endif
