"""One function for many tests: the path says what to do."""

import hashlib
import os
import sys
import threading
import time

lock = threading.Lock()
inside = 0
barriers = {}


def echo(event, context):
    seen = {
        "X-Method": event.method,
        "X-Query": event.raw_query,
        "X-Sent": event.headers.get("X-Test", ""),
        "X-Function": context.function,
        "X-Tenant": context.tenant,
        "Content-Type": "application/octet-stream",
    }
    return 201, seen, event.body


def digest(event, context):
    return hashlib.sha256(event.body).hexdigest()


def large(event, context):
    return b"x" * int(event.body)


def stream(event, context):
    for i in range(10):
        yield f"piece {i}\n"


def fail(event, context):
    raise ValueError("no such luck")


def log(event, context):
    print("to stdout " + event.text, flush=True)
    print("to stderr " + event.text, file=sys.stderr)
    context.logger.warning("to the logger %s", event.text)
    return "logged"


def environ(event, context):
    return dict(os.environ)


def meet(event, context):
    """Answers once as many events as the body says are here together."""
    count = int(event.body)
    with lock:
        barrier = barriers.setdefault(count, threading.Barrier(count))
    barrier.wait(100)
    return "met"


def alone(event, context):
    """How many events were in this process together at most."""
    global inside
    with lock:
        inside += 1
        most = inside
    time.sleep(0.1)
    with lock:
        most = max(most, inside)
        inside -= 1
    return str(most)


def slow(event, context):
    time.sleep(float(event.body))
    return "done"


def held(event, context):
    """Answers once /work has the file that the body names."""
    while not os.path.exists("/work/" + event.text):
        time.sleep(0.01)
    return "done"


def write(event, context):
    with open("/work/note", "w") as f:
        f.write(event.text)
    return "written"


def read(event, context):
    try:
        with open("/work/note") as f:
            return f.read()
    except FileNotFoundError:
        return 404, {}, "nothing there"


def open_files(event, context):
    """What its file descriptors are when the kernel is asked without a new one."""
    found = {}
    for fd in range(256):
        try:
            found[str(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return found


def places(event, context):
    """Which directories a file can be made in."""
    made = []
    for place in ("/", "/usr", "/function", "/opt", "/etc", "/tmp", "/work", "/dev", "/proc"):
        try:
            with open(os.path.join(place, "probe"), "w"):
                made.append(place)
        except OSError:
            pass
    return made


def handle(event, context):
    return globals()[event.path.strip("/").replace("-", "_")](event, context)
