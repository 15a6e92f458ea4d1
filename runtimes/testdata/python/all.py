import os
import subprocess
import sys
import threading
import time


def echo(event, context):
    return 201, {"X-Path": event.path, "x-many": ["a", "b"]}, event.body


def describe(event, context):
    return {
        "method": event.method,
        "path": event.path,
        "query": event.query,
        "header": event.headers["X-Twice"],
        "text": event.text,
        "function": context.function,
        "id": context.id,
        "tenant": context.tenant,
        "deadline": context.deadline,
        "left": context.remaining() > 0,
    }


def text(event, context):
    return "grüße"


def data(event, context):
    return b"\x00\xff"


LARGE = b"0123456789abcdef" * (1 << 16)


def large(event, context):
    return LARGE


def large_text(event, context):
    return "ü" * (512 << 10)


def opened(event, context):
    f = open("/tmp/fre-test-%d" % os.getpid(), "w+b")
    os.unlink(f.name)
    f.write(b"skipped" + LARGE)
    f.seek(7)
    return 203, {"content-type": "x/y"}, f


def opened_pipe(event, context):
    r, w = os.pipe()
    os.write(w, b"from a pipe")
    os.close(w)
    return open(r, "rb")


def surrogate_text(event, context):
    return "a\ud800b\udcffc"


def surrogate_json(event, context):
    return {"a\ud800": "ü\udcff"}


def surrogate_header(event, context):
    return 200, {"x-a": "a\ud800b"}, "ok"


def surrogate_stream(event, context):
    yield "a\ud800b"


def surrogate_raises(event, context):
    context.logger.info("a\ud800b")
    raise ValueError("half a\ud800b")


class Odd(ValueError):
    """An exception that only its own module can make."""

    def __init__(self, one, two):
        super().__init__(one)


class Unreadable(dict):
    def items(self):
        raise Odd("odd", 2)


def odd_json(event, context):
    return Unreadable(a=1)


def square(n):
    return n * n


def processes(event, context):
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    out = []
    for method in ("fork", "spawn", "forkserver"):
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            out.append(pool.submit(square, 3).result())
    return out


def nothing(event, context):
    return None


def array(event, context):
    return [1, "two", None]


def json_in(event, context):
    return {"sum": sum(event.json())}


def raises(event, context):
    raise ValueError("no such thing")


def raises_cause(event, context):
    try:
        raises(event, context)
    except ValueError:
        raise RuntimeError("outer")


def unserialisable(event, context):
    return {"x": object()}


def wrong_type(event, context):
    return object()


def bad_status(event, context):
    return 99, {}, ""


def bad_header(event, context):
    return 200, {"a": "b\r\nc: d"}, ""


def many_headers(event, context):
    return 200, [("a", "b")] * 300, ""


def big_headers(event, context):
    return 200, {"a": "b" * (300 << 10)}, ""


def stream(event, context):
    for i in range(5):
        yield "part %d\n" % i


def stream_status(event, context):
    return 202, {"content-type": "text/x"}, (b"x" * 100_000 for _ in range(30))


def stream_nothing(event, context):
    return iter(())


def stream_raises(event, context):
    yield "begun"
    raise ValueError("in the middle")


def stream_raises_first(event, context):
    raise ValueError("at first")
    yield


def stream_wrong(event, context):
    yield "begun"
    yield 7


def endless(event, context):
    while True:
        yield b"x" * 10_000


async def asynchronous(event, context):
    import asyncio

    await asyncio.sleep(0)
    return "async"


async def asynchronous_stream(event, context):
    import asyncio

    for i in range(3):
        await asyncio.sleep(0)
        yield "%d" % i


def logs(event, context):
    context.logger.debug("d")
    context.logger.info("i %d", 7)
    context.logger.warning("w")
    context.logger.error("e")
    return "ok"


def prints(event, context):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    return "ok"


def children(event, context):
    out = subprocess.run(
        ["/bin/sh", "-c", "readlink /proc/self/fd/3 || echo none"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=False,
    ).stdout
    return out


barrier = threading.Barrier(8)
two = threading.Barrier(2)


def concurrent(event, context):
    barrier.wait(600)  # returns once eight events run at once
    return event.body


def meets(event, context):
    """Waits for a second event, if its body says so."""
    if event.body == b"wait":
        two.wait(600)
    return event.body


def recursion(event, context):
    return recursion(event, context)


def memory(event, context):
    raise MemoryError()


def leaves(event, context):
    sys.exit(3)


def dies(event, context):
    os._exit(3)


def waits(event, context):
    context.logger.info("waiting")
    time.sleep(3600)


not_callable = 7


def surroundings(event, context):
    return {
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "path": [p for p in sys.path if "python3" not in p],
        "hour": time.localtime(0).tm_hour,
        "child": subprocess.run(["/usr/bin/env"], capture_output=True, text=True).stdout,
    }


def calls(event, context):
    """Returns the answer of another function to the body, or the code of the error."""
    path = event.raw_query or "/p?q=1"
    try:
        a = context.call(event.path[1:], event.body, method="PUT", path=path, headers={"x-a": "1"})
    except context.CallError as e:
        return "%s %s" % (type(e).__name__, e.code)
    except ValueError as e:
        return str(e)
    return a.status, {"x-b": a.headers["X-B"]}, a.body


async def acalls(event, context):
    import asyncio

    answers = await asyncio.gather(*(context.acall("f", event.body + b"%d" % i) for i in range(3)))
    return b" ".join(a.body for a in answers)


def calls_left(event, context):
    """Answers while one of its threads still calls."""
    import threading

    import _fre.calling

    def run():
        try:
            context.call("waits")
        except context.CallError:
            pass

    threading.Thread(target=run, daemon=True).start()
    while not _fre.calling.under_way:
        pass
    return "left"


def calls_stream(event, context):
    """Streams while threads of the handler call."""
    import threading

    def run():
        for _ in range(50):
            try:
                context.call("f", b"x" * 100_000)
            except context.CallError:  # the event is over
                return

    for _ in range(3):
        threading.Thread(target=run, daemon=True).start()
    for _ in range(64):
        yield b"z" * 65536
