"""FRE's fork server for Python (docs/fork-server.md): the bootstrap with
FRE_FORK=1. It imports the handler once; every FORK frame of the engine's makes a
child in new namespaces, which becomes an instance of its own.

The process holds CAP_SYS_ADMIN in a user namespace of its own: without it Linux
makes no namespaces. Its children drop it before they see an event.
"""

import _signal as signal
import os
import sys
from _socket import CMSG_SPACE, SCM_RIGHTS, SOL_SOCKET, socket
from ctypes import PyDLL, byref, c_int, get_errno

import _fre
import _fre.coroutine  # what the children need is loaded once
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
    """Goes on in a child, which is process 2 of a pid namespace of its own; the
    first process of the sandbox stays behind and ends as the child ends.

    Of its own, because setns brings a process back only into a namespace that
    its user namespace owns. Not process 1, because each of the forks to come is
    that: libraries notice a fork by a changed process id (OpenSSL draws new
    random state then)."""
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
    """The file descriptors of the next FORK frame; None when no more will come."""
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
    """Makes children until the engine wants no more. Returns in a child, once the
    engine has made it a sandbox of its own; the server itself never returns."""
    carried = forkable.State()
    _fre.send_ready(1, load_us, carried.unfit)
    channel = socket(fileno=_fre.fd)
    own = os.open(PROC_PIDNS, os.O_RDONLY)
    # The kernel reaps: nobody here asks how a child has ended.
    reaping = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import gc

    gc.collect()
    gc.freeze()  # a collection would write to, and so copy, what is shared
    libc.fflush(None)  # or each child prints what the module has left in C's buffers
    while True:
        fds = receive(channel)
        if fds is None:
            os._exit(0)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = -1
        try:
            check(libc.unshare(NEWPID))  # of the children alone
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
    """Enters the namespaces of a new sandbox, waits until the engine has furnished
    it, and gives up what a fork server has."""
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
    check(libc.unshare(NEWCGROUP))  # of the cgroup it is in by now
    header = (c_int * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    check(libc.capset(byref(header), byref((c_int * 6)())))
    reseed()


def reseed():
    """Random numbers of one's own, where the modules do not see to it (random and
    OpenSSL do)."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
