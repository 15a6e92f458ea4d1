"""FRE's Python bootstrap: loads the handler and speaks the channel protocol
(docs/protocol.md) on file descriptor 3.

Every cold start pays for every import, so this file defines and imports only the
parts that every cold start needs. Other modules, of this package or the standard
library, are imported at first use, or earlier by park and fork, which have time to
do so. A function may have modules of the same names: of FRE's, only _fre is a
top-level module.
"""

import os
import sys
from _json import encode_basestring_ascii as quote
from _json import make_scanner
from _thread import RLock, allocate_lock
import time

READY, FAILED, INVOKE, RESPONSE, DATA, ERROR, CANCEL, WINDOW, LOG, STOP, PARKED, LOAD = range(1, 13)
MORE = 1
MAX_PAYLOAD = 1 << 20
MAX_META = 256 << 10
MAX_HEADERS = 256
FULL_WINDOW = 256 << 10
SMALL = 4 << 10  # bytes; a payload up to this size is copied, so the frame can go out with the next
READ_AHEAD = 16 << 10  # bytes that one read of the channel asks for
GRANT = 128 << 10  # bytes of a body received before a WINDOW frame grants more
FIRST = 256 << 10  # bytes; most that RESPONSE carries of an answer's body
MUCH = 64 << 10  # bytes; size of a repeated answer worth a file, of a first piece worth a pipe
FIRST_CALL = 1 << 48  # number of a function's first call; lower numbers are events'
EXIT_PROTOCOL = 70  # EX_SOFTWARE of sysexits.h

TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
CONTROL = frozenset(map(chr, range(32))) - {"\t"} | {"\x7f"}


class Headers(dict):
    """Request headers by lower-case name; look-ups ignore case. The values of a repeated
    field are joined with ", "; all() returns the values as a list."""

    __slots__ = ("pairs",)

    def __init__(self, pairs):
        self.pairs = pairs
        for name, value in pairs:
            name = name.lower()
            self[name] = self[name] + ", " + value if name in self else value

    def __getitem__(self, name):
        return dict.__getitem__(self, name.lower())

    def __contains__(self, name):
        return dict.__contains__(self, name.lower())

    def get(self, name, default=None):
        return dict.get(self, name.lower(), default)

    def all(self, name):
        name = name.lower()
        return [v for n, v in self.pairs if n.lower() == name]


class Event:
    """One request. body: bytes; headers: Headers; method, path, raw_query: str;
    query: parameter name -> list of values; text: the body as UTF-8; json(): parsed."""

    __slots__ = ("body", "headers", "method", "path", "raw_query", "_query")

    def __init__(self, meta, body):
        self.body = body
        self.headers = Headers(meta.get("headers") or [])
        self.method = meta.get("method", "")
        self.path = meta.get("path", "")
        self.raw_query = meta.get("query", "")
        self._query = None

    @property
    def query(self):
        if self._query is None:
            q = self._query = {}
            for pair in self.raw_query.split("&"):
                name, _, value = pair.partition("=")
                if pair:
                    q.setdefault(unquote(name), []).append(unquote(value))
        return self._query

    @property
    def text(self):
        return self.body.decode()

    def json(self):
        import json

        return json.loads(self.body)


def unquote(s):
    first, *rest = s.replace("+", " ").encode().split(b"%")
    out = [first]
    for part in rest:
        try:
            out.append(bytes.fromhex(part[:2].decode()) + part[2:] if len(part) > 1 else b"%" + part)
        except ValueError:
            out.append(b"%" + part)
    return b"".join(out).decode("utf-8", "replace")


class Logger:
    """Writes lines with the event's id to the function's log: info("x is %d", x)."""

    __slots__ = ("_id",)

    def __init__(self, id):
        self._id = id

    def debug(self, message, *args):
        self._log("debug", message, args)

    def info(self, message, *args):
        self._log("info", message, args)

    def warning(self, message, *args):
        self._log("warning", message, args)

    def error(self, message, *args):
        self._log("error", message, args)

    def _log(self, level, message, args):
        message = str(message)
        if args:
            message %= args
        send(LOG, 0, self._id, encode({"level": level, "message": cut(message, MAX_META)}))


class Context:
    """The engine's facts about one event. deadline: seconds since 1970."""

    __slots__ = ("function", "id", "tenant", "deadline", "logger", "_id")

    def __init__(self, id, meta):
        self._id = id
        self.function = meta.get("function", "")
        self.id = meta.get("id", "")
        self.tenant = meta.get("tenant", "")
        self.deadline = meta.get("deadline_ms", 0) / 1000
        self.logger = Logger(id)

    def remaining(self):
        """Seconds until the deadline."""
        return self.deadline - time.time()

    def call(self, name, body=b"", *, method="POST", path="/", headers=None):
        """Sends an event to another function of the tenant, NAME or NAME@REVISION.
        Returns the answer: status, headers, body (bytes), text, json(). Raises CallError
        if no answer comes; the code gives the reason."""
        import _fre.calling

        return _fre.calling.call(self._id, name, body, method, path, headers)

    async def acall(self, name, body=b"", *, method="POST", path="/", headers=None):
        """As call, for coroutines."""
        import _fre.calling

        return await _fre.calling.acall(self._id, name, body, method, path, headers)


class Cancelled(Exception):
    pass


class CallError(Exception):
    """A call of another function got no answer. code: the reason, as a word for programs
    (docs/calls.md)."""

    def __init__(self, code, message):
        Exception.__init__(self, "%s: %s" % (code, message))
        self.code = code


Context.CallError = CallError


# --- The channel -----------------------------------------------------------


class Syntax:  # the options that _json.make_scanner reads
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


scan = make_scanner(Syntax)
fd = int(os.environ.get("FRE_CHANNEL", "3"))


# For several events at once, threads.serve or asgi replaces some of the following.
threaded = False
sending = RLock()  # held to send a frame; reentrant: a signal handler may send a frame meanwhile
condition = None  # makes Call.changed
reading = allocate_lock()  # held to read the channel if a handler's threads may read too
calling = None  # the module _fre.calling, set at the end of its import
held = b""  # frames held back, to go out with the next frame


def give_way():
    """Lets another thread read the channel, because the caller will be busy for a while."""


def may_wait():
    """Reports whether a small frame may wait for the next frame or the next read of the
    channel. The caller holds sending."""
    return False


def flush():
    """Sends the held-back frames."""
    with sending:
        if held:
            write([held], len(held))


def die(why):
    try:
        os.write(2, b"fre: the engine broke the channel protocol: %s\n" % why.encode())
    finally:
        os._exit(EXIT_PROTOCOL)


def hung_up():
    """Ends the process, because the engine has gone."""
    os._exit(0)


def read(most):
    """Returns up to most bytes of the channel, b"" at its end."""
    if held:
        flush()
    try:
        return os.read(fd, most)
    except ConnectionResetError:
        return b""


def read_into(view):
    """Fills view from the channel. Returns False at the end of the channel."""
    if held:
        flush()
    done = 0
    while done < len(view):
        try:
            n = os.readv(fd, [view[done:]])
        except ConnectionResetError:
            n = 0
        if n == 0:
            if done:
                die("the channel ended inside a frame")
            return False
        done += n
    return True


ahead = b""  # bytes read beyond the current frame


def read_frame():
    """Returns kind, flags, id and payload of the next frame, or None at the end.
    A small frame costs one system call."""
    global ahead
    data = ahead
    while len(data) < 16:
        # While parked, read no further than LOAD: park may execute a program that reads on.
        more = read(16 - len(data) if parked else READ_AHEAD)
        if not more:
            if data:
                die("the channel ended inside a frame")
            return None
        data = data + more if data else more
    size = int.from_bytes(data[:4], "little")
    kind, flags = data[4], data[5]
    if size > MAX_PAYLOAD:
        die("frame of %d bytes" % size)
    if kind not in (INVOKE, DATA, CANCEL, WINDOW, STOP) and not (parked and kind == LOAD) and not (kind in (RESPONSE, ERROR) and data[14]):
        die("frame kind 0x%02x" % kind)
    if data[6] or data[7] or flags & ~MORE or flags and kind not in (INVOKE, DATA, RESPONSE):
        die("flags or file descriptors of frame kind 0x%02x" % kind)
    id = int.from_bytes(data[8:16], "little")
    end = 16 + size
    if len(data) >= end:
        ahead = data[end:]
        return kind, flags, id, data[16:end]
    ahead = b""
    payload = bytearray(size)
    have = len(data) - 16
    payload[:have] = data[16:]
    if not read_into(memoryview(payload)[have:]):
        die("the channel ended inside a frame")
    return kind, flags, id, payload


def send(kind, flags, id, *parts):
    size = 0
    for p in parts:
        size += len(p)
    head = size.to_bytes(4, "little") + bytes((kind, flags, 0, 0)) + id.to_bytes(8, "little")
    if size <= SMALL and kind != LOG:
        with sending:
            send_small(b"".join((head, *parts)))
        return
    with sending:
        write([held, head, *parts], len(held) + 16 + size)


def send_small(frame):
    """Sends a frame at once or with the next frame. The caller holds sending."""
    global held
    frame = held + frame
    if may_wait():
        held = frame
    else:
        write([frame], len(frame))


def write(parts, left):
    """Writes all of parts, left bytes in total, and clears held, which the caller has put
    into parts. The caller holds sending."""
    global held
    held = b""
    try:
        n = os.writev(fd, parts)
        while n < left:
            left -= n
            while n >= len(parts[0]):
                n -= len(parts.pop(0))
            if n:
                parts[0] = memoryview(parts[0])[n:]
            n = os.writev(fd, parts)
    except (BrokenPipeError, ConnectionResetError):
        hung_up()


def encode(fields):
    """Returns a dict of strings as JSON."""
    return ("{%s}" % ",".join([quote(k) + ":" + quote(v) for k, v in fields.items()])).encode()


def decode(data):
    """Returns the dict in JSON from the engine; ends the process if the JSON is malformed."""
    try:
        text = data.decode()
        fields, end = scan(text, 0)
    # SystemError: json.decoder, which defines the scanner's error, is not loaded.
    except (ValueError, StopIteration, SystemError):
        die("metadata")
    if end != len(text) or type(fields) is not dict:
        die("metadata")
    return fields


def cut(text, limit):
    """Shortens text until its JSON is below limit bytes."""
    if len(text) * 6 < limit - 64:  # \\uXXXX
        return text
    n = len(text)
    while len(quote(text[:n])) > limit - 64:
        n //= 2
    return text[:n] + ("..." if n < len(text) else "")


def send_failure(kind, id, e):
    """Reports an exception of the user's code to the engine and on stderr."""
    name = "Exception"
    message = stack = ""
    try:
        t = type(e)
        name = t.__qualname__ if t.__module__ in ("builtins", __name__) else t.__module__ + "." + t.__qualname__
        try:
            message = str(e)
        except Exception:
            message = "(no text: __str__ failed)"
        tb = e.__traceback__
        while tb and (tb.tb_frame.f_code.co_filename.startswith(__path__[0]) or "importlib._bootstrap" in tb.tb_frame.f_code.co_filename):
            tb = tb.tb_next
        import traceback

        stack = "".join(traceback.format_exception(t, e, tb))
        sys.stderr.write(stack)
        sys.stderr.flush()
    except Exception:  # out of memory, stderr closed by the handler
        pass
    send(kind, 0, id, encode({"type": cut(name, 1024), "message": cut(message, 64 << 10), "stack": cut(stack, 128 << 10)}))


# --- Calls -----------------------------------------------------------------


class Call:
    """One invocation. The channel's reader fills the fields, a worker answers."""

    __slots__ = ("id", "meta", "parts", "taken", "window", "cancelled", "changed")

    def __init__(self, id, meta, body):
        self.id, self.meta, self.parts = id, meta, [body]
        self.taken = 0  # bytes of DATA since the last grant
        self.window = FULL_WINDOW  # bytes of the answer that the engine still accepts
        self.cancelled = False
        # Guards window and cancelled if several threads work.
        self.changed = condition() if condition else None


calls = {}  # id -> Call, from INVOKE to the last frame of the answer
stopping = False


def take_frame(frame):
    """Acts on one frame. Returns the call whose request is now complete, or None."""
    global stopping
    kind, flags, id, payload = frame
    if id >= FIRST_CALL:
        calling.take(kind, flags, id, payload)
        return None
    if kind == INVOKE:
        n = int.from_bytes(payload[:4], "little")
        if len(payload) < 4 or n > len(payload) - 4 or n > MAX_META or id in calls or id == 0:
            die("INVOKE")
        meta = decode(payload[4 : 4 + n])
        call = calls[id] = Call(id, meta, memoryview(payload)[4 + n :])
        if not flags:
            return call
    elif kind == STOP:
        stopping = True
    else:
        call = calls.get(id)
        if call is None:  # the frame crossed the end of the answer
            return None
        if kind == DATA:
            call.parts.append(payload)
            if not flags:
                return call
            call.taken += len(payload)
            if call.taken >= GRANT:
                send(WINDOW, 0, id, call.taken.to_bytes(4, "little"))
                call.taken = 0
        elif kind == CANCEL:
            wake(call, 0, True)
            if calling:
                calling.cancelled(id)
        else:
            if len(payload) != 4:
                die("WINDOW")
            wake(call, int.from_bytes(payload, "little"), False)
    return None


def wake(call, window, cancelled):
    if call.changed is None:
        call.window += window
        call.cancelled |= cancelled
        return
    with call.changed:
        call.window += window
        call.cancelled |= cancelled
        call.changed.notify()


waiting = []  # calls that the only thread read during another (stream.wait_window, calling.wait)


# --- Answers ---------------------------------------------------------------


def encode_headers(headers):
    """Returns a handler's headers as [(name, value)]. Raises ValueError if HTTP forbids one."""
    if headers is None:
        return []
    pairs = []
    for name, value in headers.items() if hasattr(headers, "items") else headers:
        for v in value if isinstance(value, (list, tuple)) else (value,):
            v = str(v)
            if not isinstance(name, str) or not name or not TOKEN.issuperset(name):
                raise ValueError("header name %r is not allowed in HTTP" % (name,))
            if not CONTROL.isdisjoint(v):
                raise ValueError("value of header %s has control characters: %r" % (name, v))
            pairs.append((name, v))
    if len(pairs) > MAX_HEADERS:
        raise ValueError("%d headers, at most %d" % (len(pairs), MAX_HEADERS))
    return pairs


def encode_body(body):
    """Returns (bytes, content type), or (None, None) unless body is a plain body."""
    if isinstance(body, str):
        return encode_text(body), "text/plain; charset=utf-8"
    if isinstance(body, (bytes, bytearray, memoryview)):
        return body, "application/octet-stream"
    if isinstance(body, (dict, list)):
        return encode_json(body, allow_nan=False), "application/json"
    return None, None


def encode_text(text):
    """Returns text as UTF-8. Surrogates of os.fsdecode become the bytes they stand for.
    If text has any other surrogate, pairs are joined, and every unpaired surrogate, which
    has no UTF-8, becomes U+FFFD, as in other languages."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def encode_json(value, **options):
    """Returns value's JSON as UTF-8; an unpaired surrogate is escaped. Every failure is a
    TypeError: an exception of the handler's own type cannot be raised with a new message,
    because its constructor is unknown."""
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, **options)
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeError("the handler's answer is no JSON: %s" % e) from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, **options).encode()


last = None  # the last answer of MUCH to FIRST bytes: a repetition goes into a file


def respond(call, result):
    global last
    status, headers = None, None
    if isinstance(result, tuple):
        if len(result) != 3:
            raise TypeError("the handler returned a tuple of %d, not (status, headers, body)" % len(result))
        status, headers, result = result
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError("status %r is not a number from 200 to 599" % (status,))
    headers = encode_headers(headers)
    rest = file = None
    if result is None:
        body, kind = b"", None
        status = status or 204
    else:
        body, kind = encode_body(result)
    if body is None and hasattr(result, "readinto") and os.environ.get("FRE_FILES"):
        from _fre import files

        file, kind = files.of_file(result), "application/octet-stream"
    if body is None and file is None:
        from _fre import stream

        body, kind, rest = stream.begin(result)
    if kind and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("content-type", kind))
    meta = '{"status":%d,"headers":[%s]}' % (
        status or 200,
        ",".join(["[%s,%s]" % (quote(n), quote(v)) for n, v in headers]),
    )
    meta = meta.encode()
    if len(meta) > MAX_META:
        raise ValueError("%d bytes of headers, at most %d" % (len(meta), MAX_META))
    head = len(meta).to_bytes(4, "little")
    if file is not None:
        from _fre import files, stream

        if files.send(call, head, meta, *file):
            result.close()
            return
        body, _, rest = stream.begin(result)
    view = memoryview(body).cast("B")
    if rest is None and len(view) >= MUCH:
        if (len(view) > FIRST or result is last) and os.environ.get("FRE_FILES"):
            from _fre import files

            if files.answer(call, head, meta, result, view):
                return
        last = result if len(view) <= FIRST and type(result) in (bytes, str) else None
    if rest is None and len(view) <= FIRST:
        send(RESPONSE, 0, call.id, head, meta, view)
        return
    from _fre import stream

    send(RESPONSE, MORE, call.id, head, meta, view[:FIRST])
    stream.finish(call, view[FIRST:], rest, len(view) >= MUCH)


def handle(handler, call):
    parts = call.parts
    body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
    call.parts = parts = None
    try:
        if call.cancelled:
            raise Cancelled("the client has gone")
        result = handler(Event(call.meta, body), Context(call.id, call.meta))
        body = None
        if hasattr(type(result), "__await__"):
            from _fre import coroutine

            result = coroutine.run(result)
        respond(call, result)
    except Cancelled as e:
        send(ERROR, 0, call.id, encode({"type": "Cancelled", "message": str(e), "stack": ""}))
    except BaseException as e:  # SystemExit, KeyboardInterrupt too end only the event
        if isinstance(e, SystemExit):
            e.args = ("the handler called sys.exit(%s)" % (e.code if e.code is not None else ""),)
        send_failure(ERROR, call.id, e)
    calls.pop(call.id, None)
    if calling:
        calling.settle(call.id)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # the handler closed stdout or stderr
        pass


# --- Life ------------------------------------------------------------------


def load(name):
    module, _, function = name.rpartition(".")
    if not module or not function:
        raise ValueError("handler %r is not module.function" % name)
    __import__(module)
    handler = getattr(sys.modules[module], function, None)
    if handler is None:
        raise AttributeError("module %r has no function %r" % (module, function))
    if not callable(handler):
        raise TypeError("%s is %s, not a function" % (name, type(handler).__qualname__))
    return handler


def forget_channel():
    global fd
    try:
        files = sys.modules.get("_fre.files")
        if files and files.channel:
            files.channel.detach()
        stream = sys.modules.get("_fre.stream")
        for end in stream.ends if stream else ():
            os.close(end)
        os.close(fd)
    except OSError:
        pass
    fd = -1  # a child that acts as the function fails at its first frame


def answer_for_sandbox():
    """Makes os report the sandbox's limits (docs/ordinary-software.md)."""

    def cpu_count():
        from _fre import limits

        return limits.cpu_count()

    def sysconf(name, /):
        from _fre import limits

        return limits.sysconf(name)

    os.cpu_count, os.sysconf = cpu_count, sysconf
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        os.process_cpu_count = cpu_count


parked = False  # waiting for LOAD


def send_ready(concurrency, load_us, unforkable=""):
    ready = '{"protocol":1,"runtime":"python %d.%d.%d","concurrency":%d,"load_us":%d,"unforkable":%s}'
    send(READY, 0, 0, (ready % (*sys.version_info[:3], concurrency, load_us, quote(unforkable))).encode())


def add_packages(directory="/opt/python"):
    """Processes the .pth files of packages, as the module site would; -S leaves site out."""
    try:
        names = os.listdir(directory)
    except OSError:  # no packages
        return
    if any(name.endswith(".pth") for name in names):
        import site

        site.addsitedir(directory)


def main(name=None):
    forks = os.environ.pop("FRE_FORK", "") == "1"
    if forks:
        from _fre import fork

        fork.leave_first()
    os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=forget_channel)
    del sys.path[0]  # the bootstrap's directory; /function and /opt/python come from PYTHONPATH
    answer_for_sandbox()
    if name is None:
        from _fre import park

        name = park.wait()
    del sys.argv[1:]
    sys.argv[0] = name
    sys.stdout.reconfigure(line_buffering=True)
    try:
        concurrency = max(1, int(os.environ.get("FRE_CONCURRENCY") or 1))
    except ValueError:
        concurrency = 1
    contract = os.environ.pop("FRE_CONTRACT", "")
    add_packages()
    began = time.monotonic_ns()
    try:
        if contract:
            from _fre import contracts

            handler = contracts.load(contract, name)
        else:
            handler = load(name)
    except BaseException as e:  # SystemExit at import too
        send_failure(FAILED, 0, e)
        sys.exit(1)
    load_us = (time.monotonic_ns() - began) // 1000
    if forks:
        fork.serve(load_us)
    if contract and hasattr(handler, "serve"):
        handler.serve(lambda: send_ready(concurrency, load_us))
        sys.stdout.flush()
        return
    send_ready(concurrency, load_us)
    if concurrency == 1:
        serve_single(handler)
    else:
        from _fre import threads

        threads.serve(handler, concurrency)
    sys.stdout.flush()


def serve_single(handler):
    while True:
        while waiting:
            handle(handler, waiting.pop(0))
        if stopping and not calls:
            return
        frame = read_frame()
        if frame is None:
            return
        call = take_frame(frame)
        if call:
            handle(handler, call)
