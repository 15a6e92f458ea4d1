"""Calls of other functions (CALL in docs/protocol.md).

If several threads handle events, a thread that waits for an answer lets another thread
read the channel. Otherwise the waiting thread reads; if several threads of one handler
wait, one of them reads for all. An event loop that reads (asgi) is notified by loop.
"""

import os
import threading

import _fre

CALL, CALL_FILE = 0x30, 0x31

changed = threading.Condition()  # guards the variables below and the fields of Sent
under_way = {}  # number -> Sent
number = _fre.FIRST_CALL - 1
loop = None  # if set, called in the event loop's thread when a call may have progressed
issuing = threading.Lock()  # locked before changed and _fre.sending; keeps numbers sent in order
GAPS = _fre.CONTROL | {" ", "\t"}  # characters that would end a request's target


class Answer:
    """The answer of a called function. body: bytes; headers: look-ups ignore case."""

    __slots__ = ("status", "headers", "body")

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode()

    def json(self):
        import json

        return json.loads(self.body)


class Sent:
    """A call under way."""

    __slots__ = ("id", "event", "meta", "parts", "taken", "window", "over", "error")

    def __init__(self, event):
        self.id, self.event = 0, event
        self.meta, self.parts = None, []
        self.taken = 0  # bytes of DATA since the last grant
        self.window = _fre.FULL_WINDOW
        self.over = False
        self.error = None


def take(kind, flags, id, payload):
    """Acts on a frame about a call. Only the reader of the channel calls take."""
    grant = 0
    with changed:
        sent = under_way.get(id)
        if sent is None:  # the caller gave up
            return
        if kind == _fre.RESPONSE:
            n = int.from_bytes(payload[:4], "little")
            if len(payload) < 4 or n > len(payload) - 4:
                _fre.die("RESPONSE")
            sent.meta = _fre.decode(payload[4 : 4 + n])
            sent.parts.append(payload[4 + n :])
            sent.over = not flags
        elif kind == _fre.DATA:
            sent.parts.append(payload)
            sent.over = not flags
            sent.taken += len(payload)
            if flags and sent.taken >= _fre.GRANT:
                grant, sent.taken = sent.taken, 0
        elif kind == _fre.ERROR:
            failure = _fre.decode(payload)
            sent.error = _fre.CallError(failure.get("type", ""), failure.get("message", ""))
            sent.over = True
        elif kind == _fre.WINDOW and len(payload) == 4:
            sent.window += int.from_bytes(payload, "little")
        else:
            _fre.die("frame kind 0x%02x about a call" % kind)
        if sent.over:
            del under_way[id]
        notify()
    if grant:
        _fre.send(_fre.WINDOW, 0, id, grant.to_bytes(4, "little"))


def notify():
    """Makes waiting callers check again. The caller of notify holds changed."""
    changed.notify_all()
    if loop:
        loop()


def cancelled(event):
    """Cancels the calls of a cancelled event."""
    with changed:
        for sent in under_way.values():
            if sent.event == event and sent.error is None:
                sent.error = _fre.Cancelled("the client has gone")
        notify()


def settle(event):
    """Called after an event's answer. If one thread handles events, waits until the engine
    has ended the event's calls: then no other thread of the handler reads the channel."""
    if _fre.threaded:
        return
    with issuing, changed:
        left = [sent for sent in under_way.values() if sent.event == event]
    for sent in left:
        wait(lambda sent=sent: sent.over)


def wait(done):
    """Waits until done() is true. Reads the channel unless another thread does."""
    if _fre.threaded:
        with changed:
            while not done():
                changed.wait()
        return
    with changed:
        while not done():
            if not _fre.reading.acquire(False):
                changed.wait()
                continue
            changed.release()
            try:
                frame = _fre.read_frame()
                if frame is None:
                    _fre.hung_up()
                other = _fre.take_frame(frame)
                if other:
                    _fre.waiting.append(other)
            finally:
                changed.acquire()
                _fre.reading.release()
                changed.notify_all()


def wake():
    """Makes waiting callers check again, after another thread has read a frame."""
    with changed:
        changed.notify_all()


def call(event, *what):
    exchange = begin(event, *what)
    try:
        while True:
            wait(next(exchange))
    except StopIteration as e:
        return e.value
    finally:
        exchange.close()


def begin(event, name, body, method, path, headers):
    """Makes a call, as a generator: yields functions that must return true before the call
    can go on, and returns the Answer. Raises CallError or Cancelled if no answer comes."""
    global number
    if not os.environ.get("FRE_CALLS"):
        raise _fre.CallError("not_possible", "the engine does not allow calls")
    path, _, query = path.partition("?")
    quote = _fre.quote
    plain, kind = _fre.encode_body(body)
    if plain is None:
        raise TypeError("the body of a call is str, bytes, dict or list, not %.100r" % (body,))
    headers = _fre.encode_headers(headers)
    if len(plain) and not any(n.lower() == "content-type" for n, _ in headers):
        headers.append(("content-type", kind))
    if not method or not _fre.TOKEN.issuperset(method) or not path.startswith("/") or not GAPS.isdisjoint(path + query):
        raise ValueError("method %r or path %r cannot stand in a request" % (method, path))
    meta = '{"of":%d,"function":%s,"method":%s,"path":%s,"query":%s,"headers":[%s]}' % (
        event,
        quote(name),
        quote(method),
        quote(path),
        quote(query),
        ",".join(["[%s,%s]" % (quote(n), quote(v)) for n, v in headers]),
    )
    meta = meta.encode()
    if len(meta) > _fre.MAX_META:
        raise ValueError("%d bytes of headers, at most %d" % (len(meta), _fre.MAX_META))
    view = memoryview(plain).cast("B")
    head = len(meta).to_bytes(4, "little") + meta
    _fre.give_way()
    sent = Sent(event)
    with issuing:
        if event not in _fre.calls:
            raise _fre.CallError("cancelled", "the calling event is over")
        with changed:
            number += 1
            sent.id = number
            under_way[sent.id] = sent
        rest = send(sent, head, view)
    try:
        while rest:
            yield lambda: sent.window > 0 or sent.over or sent.error is not None
            if sent.over or sent.error is not None:
                break
            with changed:
                n = min(sent.window, len(rest), _fre.FULL_WINDOW)
                sent.window -= n
            _fre.send(_fre.DATA, _fre.MORE if n < len(rest) else 0, sent.id, rest[:n])
            rest = rest[n:]
        yield lambda: sent.over or sent.error is not None
    except BaseException:
        give_up(sent)
        raise
    if sent.error is not None:
        give_up(sent)
        raise sent.error
    parts = sent.parts
    data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
    return Answer(sent.meta.get("status", 0), _fre.Headers(sent.meta.get("headers") or []), data)


def send(sent, head, view):
    """Sends CALL or CALLFILE. Returns the rest of the body, to be sent as DATA."""
    if len(view) > _fre.FIRST and os.environ.get("FRE_FILES"):
        from _fre import files

        if len(view) <= files.most():
            try:
                made = files.Memfd(None, view)
            except OSError:  # no memory, too many files
                made = None
            if made and files.give(CALL_FILE, sent, made.fd, head + b'{"offset":0,"length":%d}' % made.length):
                return None
    rest = view[_fre.FIRST :]
    _fre.send(CALL, _fre.MORE if rest else 0, sent.id, head, view[: _fre.FIRST])
    return rest


def give_up(sent):
    """Forgets the call, and cancels the call at the engine unless it is over."""
    with changed:
        if under_way.pop(sent.id, None) is None:
            return
    _fre.send(_fre.CANCEL, 0, sent.id)


async def acall(event, *what):
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, call, event, *what)
