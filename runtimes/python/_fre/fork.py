"""FRE's fork server for Python (docs/fork-server.md): the bootstrap with
FRE_FORK=1. The server imports the handler once. For every FORK frame of the engine
the server makes a child in new namespaces, which becomes an instance.

The server holds CAP_SYS_ADMIN over its own user namespace, because Linux demands
the capability for new namespaces. Children drop it before they see an event.
"""

import _signal as signal
import os
import sys
from _socket import CMSG_SPACE, SCM_RIGHTS, SOL_SOCKET, socket
from ctypes import PyDLL, byref, c_int, get_errno

import _fre
import _fre.coroutine  # load once the modules that children need
import _fre.files
import _fre.limits
import _fre.stream
import _fre.threads
from _fre import forkable

FORK, FORKED, GO = 0x0D, 0x0E, 0x0F

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
PROC_PIDNS = "/proc/self/ns/pid"

libc = PyDLL(None, use_errno=True)


def check(result):
    if result != 0:
        e = get_errno()
        raise OSError(e, os.strerror(e))


def leave_first():
    """Continues in a child, which is process 2 of a new pid namespace. The sandbox's
    first process stays behind and exits as the child does.

    The namespace is new, because setns(2) can bring a process back only into a pid
    namespace that the process's user namespace owns. The server is not process 1,
    because every later fork is process 1: libraries notice a fork by a changed process
    id (OpenSSL then draws new random state)."""
    check(libc.unshare(NEWPID))
    if os.fork() == 0:
        os.close(_fre.fd)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            signal.pause()
    pid = os.fork()
    if pid == 0:
        return
    os.close(_fre.fd)
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def receive(channel):
    """Returns the file descriptors of the next FORK frame, or None at STOP or the end."""
    head, messages, _, _ = channel.recvmsg(16, CMSG_SPACE(4 * 4))
    fds = []
    for level, kind, data in messages:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds += [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data) - 3, 4)]
    if not head or len(head) == 16 and head[4] == _fre.STOP:
        return None
    if len(head) != 16 or head[4] != FORK or head[6] != len(fds) or not 3 <= len(fds) <= 4:
        _fre.die("no FORK")
    return fds


def serve(load_us):
    """Makes children until the engine sends STOP or hangs up. Returns only in a child,
    once the engine has made the child a sandbox; the server never returns."""
    carried = forkable.State()
    _fre.send_ready(1, load_us, carried.unfit)
    channel = socket(fileno=_fre.fd)
    own = os.open(PROC_PIDNS, os.O_RDONLY)
    # The kernel reaps: the server does not need its children's exit status.
    reaping = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import gc

    gc.collect()
    gc.freeze()  # a collection would write to shared pages, and so copy them
    libc.fflush(None)  # or each child would print the module's output left in C's buffers
    while True:
        fds = receive(channel)
        if fds is None:
            os._exit(0)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = -1
        try:
            check(libc.unshare(NEWPID))  # for children only
            try:
                pid = os.fork()
            finally:
                if pid != 0:
                    check(libc.setns(own, NEWPID))
        except OSError as e:
            sys.stderr.write("fre: no fork: %s\n" % e)
        if pid == 0:
            channel.detach()
            os.close(own)
            if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
                signal.signal(signal.SIGCHLD, reaping)
            be_born(*fds)
            carried.restore()
            return
        for fd in fds:
            os.close(fd)


def be_born(channel, out, err, network=-1):
    """Enters the namespaces of a new sandbox, waits until the engine has furnished the
    sandbox (GO), and drops the fork server's capability."""
    _fre.fd = 3
    os.dup2(channel, _fre.fd, inheritable=False)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in (channel, out, err):
        os.close(fd)
    os.setsid()
    check(libc.unshare(NEWNS | NEWIPC | NEWUTS | (NEWNET if network < 0 else 0)))
    if network >= 0:
        check(libc.setns(network, NEWNET))
        os.close(network)
    _fre.send(FORKED, 0, 0)
    head = bytearray(16)
    if not _fre.read_into(memoryview(head)):
        _fre.hung_up()
    if head != bytes((0, 0, 0, 0, GO)) + bytes(11):
        _fre.die("no GO")
    check(libc.unshare(NEWCGROUP))  # rooted at the cgroup that the engine has put the child into
    header = (c_int * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    check(libc.capset(byref(header), byref((c_int * 6)())))
    reseed()


def reseed():
    """Reseeds numpy.random, so that each child has its own random numbers. random and
    OpenSSL reseed by themselves."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
