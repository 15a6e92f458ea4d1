"""ASGI applications (asgi.readthedocs.io/en/latest/specs) and Knative's functions, which
are ASGI applications too: one event loop takes events and sends answers."""

import asyncio
import os
import sys
from _thread import get_ident

import _fre
from _fre import DATA, ERROR, FIRST, MORE, RESPONSE
from _fre.awslambda import OWN, client_address
from _fre.wsgi import unquote

VERSION = {"version": "3.0", "spec_version": "2.4"}


class Changed:
    """The condition of a call in the only thread: _fre.wake notifies of window and cancellation."""

    __slots__ = ("event",)

    def __init__(self):
        self.event = asyncio.Event()

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass

    def notify(self):
        self.event.set()

    async def wait(self):
        self.event.clear()
        await self.event.wait()


class Context(_fre.Context):
    """The context of a request: scope["fre"]["context"]."""

    __slots__ = ()
    woken = set()  # futures of the loop; each waits for the answer of a call
    reader = 0  # id of the loop's thread, the only reader of the channel

    def call(self, *args, **options):
        """As in every context, but for threads only. Raises RuntimeError in the loop's thread."""
        if get_ident() == Context.reader:
            raise RuntimeError("call() would block the event loop: await acall(), or use call() in a thread")
        return super().call(*args, **options)

    async def acall(self, name, body=b"", *, method="POST", path="/", headers=None):
        """As call, for coroutines. Needs no thread in FRE's event loop."""
        if get_ident() != Context.reader:  # called in another event loop
            return await super().acall(name, body, method=method, path=path, headers=headers)
        import _fre.calling

        calling = _fre.calling
        calling.loop = Context.wake
        exchange = calling.begin(self._id, name, body, method, path, headers)
        try:
            while True:
                done = next(exchange)
                while not done():
                    future = asyncio.get_running_loop().create_future()
                    Context.woken.add(future)
                    try:
                        await future
                    finally:
                        Context.woken.discard(future)
        except StopIteration as e:
            return e.value
        finally:
            exchange.close()

    @staticmethod
    def wake():
        for future in Context.woken:
            if not future.done():
                future.set_result(None)


def text(path):
    """Decodes an escaped path for a scope."""
    return unquote(path).encode("latin-1").decode("utf-8", "replace")


class Exchange:
    """One request to the application: scope, receive and send."""

    def __init__(self, call, state, mounted):
        self.call = call
        meta = call.meta
        headers = meta.get("headers") or []
        host = address = scheme = mount = ""
        pairs = []
        for name, value in headers:
            name = name.lower()
            if name == "host":
                host = value
            elif name == "x-forwarded-for":
                address = value
            elif name == "x-forwarded-proto":
                scheme = value
            elif name == "x-forwarded-prefix" and mounted:
                mount = value
            pairs.append((name.encode("latin-1", "replace"), value.encode("utf-8", "surrogateescape")))
        scheme = "https" if scheme == "https" else "http"
        name, _, port = host.partition(":") if host[:1] != "[" else (host, "", "")
        address = client_address(address)
        path = mount + meta.get("path", "")  # the whole path, as in uvicorn
        self.scope = {
            "type": "http",
            "asgi": VERSION,
            "http_version": "1.1",
            "method": meta.get("method", ""),
            "scheme": scheme,
            "path": text(path),
            "raw_path": path.encode("utf-8", "surrogateescape"),
            "query_string": meta.get("query", "").encode("utf-8", "surrogateescape"),
            "root_path": text(mount),
            "headers": pairs,
            "client": (address, 0) if address else None,
            "server": (name or "localhost", int(port) if port.isdecimal() else 443 if scheme == "https" else 80),
            "state": state.copy(),
            "fre": {"id": meta.get("id", ""), "function": meta.get("function", ""), "tenant": meta.get("tenant", ""), "deadline": meta.get("deadline_ms", 0) / 1000, "context": Context(call.id, meta)},
        }
        self.head = None  # http.response.start: status and headers
        self.begun = self.over = False
        self.taken = False

    async def receive(self):
        call = self.call
        if not self.taken:
            self.taken = True
            parts, call.parts = call.parts, None
            return {"type": "http.request", "body": bytes(parts[0]) if len(parts) == 1 else b"".join(parts), "more_body": False}
        while not (self.over or call.cancelled):
            await call.changed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        kind = message["type"]
        if self.over or self.call.cancelled:
            return  # no client waits
        if kind == "http.response.start":
            if self.head or self.begun:
                raise RuntimeError("the application sent http.response.start twice")
            self.head = message
        elif kind == "http.response.body":
            if not self.head and not self.begun:
                raise RuntimeError("the application sent a body before http.response.start")
            await self.send_body(message.get("body", b""), message.get("more_body", False))
        else:
            raise ValueError("the application sent %r, unknown in HTTP" % kind)

    async def send_body(self, body, more):
        call = self.call
        view = memoryview(body).cast("B")
        if not self.begun:
            self.begun = True
            head, meta = self.encode_head()
            if not more and len(view) > FIRST and os.environ.get("FRE_FILES"):
                from _fre import files

                if files.answer(call, head, meta, body, view):
                    self.finish()
                    return
            first, view = view[:FIRST], view[FIRST:]
            flags = MORE if more or view else 0
            _fre.send(RESPONSE, flags, call.id, head, meta, first)
            if not flags:
                self.finish()
                return
        while view:
            while call.window <= 0 and not call.cancelled:
                await call.changed.wait()
            if call.cancelled:
                return
            n = min(call.window, len(view), _fre.FULL_WINDOW)
            call.window -= n
            _fre.send(DATA, MORE, call.id, view[:n])
            view = view[n:]
        if not more:
            _fre.send(DATA, 0, call.id)
            self.finish()

    def encode_head(self):
        status = self.head["status"]
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError("status %r is not a number from 200 to 599" % (status,))
        headers = [(bytes(n).decode("latin-1"), bytes(v).decode("utf-8", "surrogateescape")) for n, v in self.head.get("headers", ())]
        headers = _fre.encode_headers([h for h in headers if h[0].lower() not in OWN])
        meta = '{"status":%d,"headers":[%s]}' % (status, ",".join(["[%s,%s]" % (_fre.quote(n), _fre.quote(v)) for n, v in headers]))
        if len(meta) > _fre.MAX_META:
            raise ValueError("%d bytes of headers, at most %d" % (len(meta), _fre.MAX_META))
        return len(meta).to_bytes(4, "little"), meta.encode()

    def finish(self):
        """Ends the event. The application may go on with other work."""
        self.over = True
        _fre.calls.pop(self.call.id, None)
        self.call.changed.notify()

    def fail(self, e):
        if not self.over:
            _fre.send_failure(ERROR, self.call.id, e)
            self.finish()

    def cancel(self):
        if not self.over:
            _fre.send(ERROR, 0, self.call.id, _fre.encode({"type": "Cancelled", "message": "the client has gone", "stack": ""}))
            self.finish()


class Application:
    mounted = True  # scopes have a root_path, the prefix of the function at the gateway

    def __init__(self, app):
        self.app = app
        self.state = {}
        self.exchanges = {}  # by id of the call
        self.tasks = set()
        self.loop = None

    def serve(self, ready):
        loop = self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        _fre.condition, _fre.threaded, Context.reader = Changed, True, get_ident()
        try:
            loop.run_until_complete(self.start())
        except BaseException as e:
            _fre.send_failure(_fre.FAILED, 0, e)
            sys.exit(1)
        ready()
        loop.add_reader(_fre.fd, self.readable)
        loop.run_forever()
        loop.remove_reader(_fre.fd)
        loop.run_until_complete(self.stop())

    def readable(self):
        while True:
            frame = _fre.read_frame()
            if frame is None:
                _fre.hung_up()
            call = _fre.take_frame(frame)
            if call:
                x = self.exchanges[call.id] = Exchange(call, self.state, self.mounted)
                task = self.loop.create_task(self.answer(x))
                self.tasks.add(task)  # the loop has weak references to tasks only
                task.add_done_callback(self.tasks.discard)
            elif frame[0] == _fre.CANCEL and frame[2] in _fre.calls:
                # A call whose request is incomplete has no exchange yet.
                x = self.exchanges.get(frame[2]) or Exchange(_fre.calls[frame[2]], {}, False)
                x.cancel()
            if not _fre.ahead:
                break
        self.stop_if_idle()

    def stop_if_idle(self):
        if _fre.stopping and not _fre.calls:
            self.loop.stop()

    async def answer(self, x):
        try:
            await self.handle(x)
            if not x.over and not x.call.cancelled:
                raise RuntimeError("the application returned before its answer was whole")
        except Exception as e:
            x.fail(e)
        except BaseException as e:  # SystemExit, KeyboardInterrupt too end only the event
            if isinstance(e, SystemExit):
                e.args = ("the application called sys.exit(%s)" % (e.code if e.code is not None else ""),)
            x.fail(e)
        self.exchanges.pop(x.call.id, None)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:  # the application closed them
            pass
        self.stop_if_idle()

    async def handle(self, x):
        await self.app(x.scope, x.receive, x.send)

    # --- Lifespan ---

    async def start(self):
        """Sends lifespan.startup. Raises RuntimeError if the application's startup failed."""
        self.messages = asyncio.Queue()
        self.replies = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        self.life = self.loop.create_task(self.app(scope, self.messages.get, self.replies.put))
        reply = await self.ask("startup")
        if reply and reply["type"] == "lifespan.startup.failed":
            raise RuntimeError("the application did not start: %s" % reply.get("message", ""))

    async def ask(self, what):
        """Sends lifespan.what. Returns the reply, or None if the application has no lifespan."""
        await self.messages.put({"type": "lifespan." + what})
        reply = self.loop.create_task(self.replies.get())
        await asyncio.wait((reply, self.life), return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        reply.cancel()
        e = None if self.life.cancelled() else self.life.exception()
        if isinstance(e, (SystemExit, KeyboardInterrupt)):
            raise e
        return None

    async def stop(self):
        if not self.life.done():
            await self.ask("shutdown")


class Knative(Application):
    """A Knative function: the object that new() returns, or handle itself."""

    mounted = False  # a Knative function has no routes: its path is the event's

    def __init__(self, target, name):
        made = target if name.endswith(".handle") else target()
        super().__init__(made if made is target else getattr(made, "handle", None))
        if self.app is None:
            raise AttributeError("the result of %s has no method handle" % name)
        self.function = made

    async def handle(self, x):
        path = x.scope["path"]
        if path == "/health/liveness":
            await self.health(x, "alive")
        elif path == "/health/readiness":
            await self.health(x, "ready")
        else:
            await self.app(x.scope, x.receive, x.send)

    async def health(self, x, what):
        well, message = await self.call(what) if hasattr(self.function, what) else True, "OK"
        if isinstance(well, tuple):
            well, message = well
        await x.send({"type": "http.response.start", "status": 200 if well else 500, "headers": [(b"content-type", b"text/plain")]})
        await x.send({"type": "http.response.body", "body": str(message).encode()})

    async def call(self, what, *args):
        result = getattr(self.function, what)(*args)
        return await result if hasattr(type(result), "__await__") else result

    async def start(self):
        if hasattr(self.function, "start"):
            await self.call("start", os.environ.copy())

    async def stop(self):
        if hasattr(self.function, "stop"):
            await self.call("stop")
