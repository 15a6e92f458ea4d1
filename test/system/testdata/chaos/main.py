"""A function that does what functions must not: the path says which."""

import os
import signal


def well(event, context):
    return "well"


def hang(event, context):
    while True:
        pass


def ignore(event, context):
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        pass


def leave(event, context):
    os._exit(3)


def segfault(event, context):
    os.kill(os.getpid(), signal.SIGSEGV)
    os.abort()


def daemon(event, context):
    """Leaves a process that nobody waits for."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pause()
        os._exit(0)
    return "left one"


def fork(event, context):
    while True:
        try:
            os.fork()
        except OSError:
            pass


def memory(event, context):
    hoard = []
    while True:
        hoard.append(b"x" * (4 << 20))


def stdout(event, context):
    """Writes 1 GiB."""
    block = (b"x" * 1023 + b"\n") * 1024
    for _ in range(1024):
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(1, rest):]
    return "written"


def frame(event, context):
    os.write(3, b"\xff" * 64)
    signal.pause()


def tmp(event, context):
    with open("/tmp/fill", "wb") as f:
        while True:
            f.write(b"x" * (1 << 20))


def files(event, context):
    while True:
        os.open("/dev/null", os.O_RDONLY)


def forge(event, context):
    return 200, {"X-Fre-Id": "forged"}, "x"


def split(event, context):
    return 200, {"X-Split": "a\r\nSet-Cookie: b"}, "x"


def handle(event, context):
    return globals()[event.path.strip("/")](event, context)
