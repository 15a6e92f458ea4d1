"""The state of a process that fork(2) does not copy to children, or shares with them. A
fork of a fork server must equal a process that has just imported the module itself.
State restores the parts that can be restored. For any other part State names the
reason, and the engine does not fork the module.

fork(2) copies the following correctly: umask, signal mask and handlers, nice,
scheduling, I/O priority, affinity, resource limits, dumpable, environment. In a
sandbox without a fork server the module's import sets them just the same.
"""

import _signal as signal
import os
import stat
from ctypes import PyDLL, byref, c_int, c_void_p
from fcntl import F_GETFL, fcntl

CLOCK_MONOTONIC = 1
# prctl(2) attributes that a child does not inherit: (get, set).
PDEATHSIG, CHILD_SUBREAPER = (2, 1), (37, 36)

libc = PyDLL(None, use_errno=True)


class State:
    """Made after the module's import. unfit: the reason why the module cannot be forked,
    or ""."""

    def __init__(self):
        self.devices = [(0, "/dev/null", os.O_RDWR, True)]  # fd, path, flags, inheritable
        self.attributes = []  # arguments of prctl(2)
        self.directory = None
        checks = (tasks, signals, timers, memory, self.see_directory, self.see_files, self.see_attributes)
        self.unfit = next(filter(None, (check() for check in checks)), "")

    def restore(self):
        """Runs in a child whose own /proc and /tmp cover the server's. Enters the working
        directory and opens devices anew by their paths, to release the server's. Raises
        OSError for a path that no longer exists."""
        os.chdir(self.directory)
        for fd, path, flags, inheritable in self.devices:
            # fork(2) shares the open file, with flags, locks and owner: open anew.
            own = os.open(path, flags)
            os.dup2(own, fd, inheritable)
            os.close(own)
        for option, value in self.attributes:
            libc.prctl(option, value, 0, 0, 0)

    def see_directory(self):
        try:
            self.directory = os.getcwd()
        except OSError:
            return "the module's working directory was removed at import"
        if self.directory.startswith("/proc/"):
            return "the module's working directory after import is %s, a process's directory" % self.directory
        if os.listdir("/tmp"):
            return "the module left files in /tmp at import"

    def see_files(self):
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            try:
                path = os.readlink("/proc/self/fd/" + name)
                with open("/proc/self/fdinfo/" + name) as info:
                    locked = any(line.startswith("lock:") for line in info)
            except FileNotFoundError:  # the descriptor of the listing
                continue
            if locked:
                return "the module holds a lock on %s after import" % path
            if fd in (1, 2, 3):  # each child gets its own
                continue
            status = os.fstat(fd)
            device = stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == 1  # null, zero, full, random, urandom
            if fd == 0:
                if not device:
                    return "the module made %s its standard input" % path
            elif not device or not path.startswith("/dev/"):
                # Children would share a file's position and confuse a socket's peer.
                return "the module keeps %s open after import" % path
            else:
                self.devices.append((fd, path, fcntl(fd, F_GETFL), os.get_inheritable(fd)))

    def see_attributes(self):
        if os.sched_getscheduler(0) & os.SCHED_RESET_ON_FORK:
            return "the module asked for a scheduling policy at import that no child inherits (SCHED_RESET_ON_FORK)"
        for get, put in (PDEATHSIG, CHILD_SUBREAPER):
            value = c_int()
            if libc.prctl(get, byref(value), 0, 0, 0) == 0 and value.value:
                self.attributes.append((put, value.value))


def tasks():
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        return "the module started %d threads at import" % threads
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "the module started a process at import"
    except ChildProcessError:
        return ""


def signals():
    if signal.sigpending():
        return "a signal is pending after import, and no child inherits pending signals"
    if signal.getsignal(signal.SIGCHLD) is None:  # the server could not restore the handler
        return "the module handles SIGCHLD by a function outside Python"


def timers():
    """Looks for timers, because a child inherits no timer."""
    if any(signal.getitimer(kind)[0] for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)):
        return "the module set a timer at import"
    # Linux numbers a process's timers from 0: a higher number shows an earlier timer.
    timer = c_void_p()
    if libc.timer_create(CLOCK_MONOTONIC, None, byref(timer)) == 0:
        libc.timer_delete(timer)
        if timer.value:
            return "the module made a timer at import"


def memory():
    """Looks for flags of proc_pid_smaps(5): memory that may be shared (ms) and may be
    written (mw), is locked (lo) or is not copied to a child (dc)."""
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if not line.startswith("VmFlags:"):
                continue
            flags = set(line.split()[1:])
            if {"ms", "mw"} <= flags:
                return "the module created shared memory at import"
            if flags & {"lo", "dc"}:
                return "the module locked memory at import, or excludes memory from fork"
