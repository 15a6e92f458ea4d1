"""Answers in files (FD in docs/protocol.md): the engine gets a descriptor and makes the
kernel send the file's content."""

import os
from _socket import SCM_RIGHTS, SOL_SOCKET, getdefaulttimeout, setdefaulttimeout, socket
from fcntl import fcntl
from stat import S_ISREG

import _fre

FD = 0x20
ADD_SEALS, SEALS = 1033, 0xF  # F_ADD_SEALS of fcntl(2): no more seals, shrinking, growing, writing

channel = None
last = None  # the last Memfd made of an immutable body
kept = None  # the Memfd that the engine keeps open as number 1


class Memfd:
    """A sealed file in memory. body: the immutable body of the file, or None."""

    __slots__ = ("fd", "body", "length")

    def __init__(self, body, view):
        self.fd = -1
        self.body, self.length = body, len(view)
        self.fd = os.memfd_create("answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        while view:
            view = view[os.write(self.fd, view) :]
        fcntl(self.fd, ADD_SEALS, SEALS)

    def __del__(self, close=os.close):  # os may be gone at the process's end
        if self.fd >= 0:
            close(self.fd)


def most():
    """Returns the most bytes for a file, which takes memory until the client has read all."""
    try:
        return int(os.environ["FRE_MEMORY_BYTES"]) // 32
    except (KeyError, ValueError):
        return 4 << 20


def answer(call, head, meta, body, view):
    """Answers with view, the bytes of body, in a file. Called for a body longer than FIRST
    or the same object as before: an immutable body may already have a file. Returns False
    if the answer was not sent: the body is too long, or no file can be made or sent."""
    global last
    made = kept if kept and kept.body is body else last
    if made is None or made.body is not body:
        if len(view) > most():
            return False
        last = made = None  # free the old file's memory before the next file needs memory
        try:
            made = Memfd(body if type(body) in (bytes, str) else None, view)
        except OSError:  # no memory, too many files
            return False
        if made.body is not None:
            last = made
        if len(view) > _fre.FIRST:
            return send(call, head, meta, made.fd, 0, made.length)
    return send_again(call, head, meta, made)


def send_again(call, head, meta, made):
    """Sends a repeated answer. If the engine keeps files, the engine keeps this file as
    number 1, and later frames have only the number. Returns False as send does."""
    global kept
    if not os.environ.get("FRE_KEPT_FILES"):
        return send(call, head, meta, made.fd, 0, made.length)
    payload = head + meta + b'{"offset":0,"length":%d,"kept":1}' % made.length
    with _fre.sending:  # the number must not change its file until the frame is sent
        if kept is made:
            _fre.send_small(frame_of(FD, call, 0, payload))
            return True
        if not pass_on(FD, call, made.fd, payload):
            return False
        kept = made
        return True


def of_file(file):
    """Returns (descriptor, offset, length) of the unread rest of a file that a handler
    returned; None if the file is not a regular file or has no rest."""
    try:
        if hasattr(file, "flush") and file.writable():
            file.flush()
        fd = file.fileno()
        status = os.fstat(fd)
        offset = file.tell()
    except (OSError, ValueError):
        return None
    if not S_ISREG(status.st_mode) or status.st_size <= offset:  # files of /proc have size 0
        return None
    return fd, offset, status.st_size - offset


def send(call, head, meta, fd, offset, length):
    """Sends the answer. Returns False if the kernel carries too many files."""
    return give(FD, call, fd, head + meta + b'{"offset":%d,"length":%d}' % (offset, length))


def frame_of(kind, call, fds, payload):
    return b"".join((len(payload).to_bytes(4, "little"), bytes((kind, 0, fds, 0)), call.id.to_bytes(8, "little"), payload))


def give(kind, call, fd, payload):
    """Sends a frame together with a descriptor. Returns False, with no frame sent, if the
    kernel carries too many."""
    with _fre.sending:
        return pass_on(kind, call, fd, payload)


def pass_on(kind, call, fd, payload):
    """As give, but the caller holds _fre.sending. Sends held-back frames first."""
    global channel
    if channel is None:
        timeout = getdefaulttimeout()
        setdefaulttimeout(None)  # the channel must block, whatever default the function set
        try:
            channel = socket(fileno=_fre.fd)
        finally:
            setdefaulttimeout(timeout)
    if _fre.held:
        _fre.write([_fre.held], len(_fre.held))
    frame = frame_of(kind, call, 1, payload)
    try:
        sent = channel.sendmsg([frame], [(SOL_SOCKET, SCM_RIGHTS, fd.to_bytes(4, "little"))])
    except (BrokenPipeError, ConnectionResetError):
        _fre.hung_up()
    except OSError:  # ETOOMANYREFS: no byte was sent
        return False
    if sent < len(frame):
        _fre.write([frame[sent:]], len(frame) - sent)
    return True
