"""Answers too long for RESPONSE: generators and large bodies follow as DATA, within the
window that the engine grants, or through a pipe."""

import os

import _fre
from _fre import coroutine


def begin(result):
    """Returns the first piece of the generator that a handler returned, its content type,
    and the generator for the rest, or None if the generator is empty. Waits for the first
    piece: an exception before it is a clean failure."""
    _fre.give_way()
    if hasattr(result, "readinto"):
        result = chunks(result)
    if hasattr(type(result), "__anext__"):
        result = coroutine.iterate(result)
    if not hasattr(type(result), "__next__"):
        raise TypeError(
            "the handler returned %.100r, not str, bytes, dict, list, None, (status, headers, body) or a generator"
            % (result,)
        )
    for piece in result:
        return *encode(piece), result
    return b"", "application/octet-stream", None


def chunks(file):
    """Yields the content of a binary file and closes the file."""
    with file:
        while True:
            piece = file.read(64 << 10)
            if not piece:
                return
            yield piece


def encode(piece):
    if isinstance(piece, (str, bytes, bytearray, memoryview)):
        return _fre.encode_body(piece)
    raise TypeError("the handler's generator gave %.100r, not str or bytes" % (piece,))


def finish(call, data, generator, much):
    """Sends data, the pieces of generator unless None, and the end. If much is true, uses a
    pipe where the engine takes pipes (FRE_FILES)."""
    _fre.give_way()
    out = None
    if much and os.environ.get("FRE_FILES"):
        try:
            out = Pipe(call)
        except OSError:  # too many files or pipes
            pass
    try:
        pieces(call, data, generator, out.send if out else send)
    finally:
        if out:
            os.close(out.fd)
    if out:
        _fre.send(PIPE, 0, call.id, out.total.to_bytes(8, "little"))
    else:
        _fre.send(_fre.DATA, 0, call.id)


def pieces(call, data, generator, send):
    send(call, data)
    if generator is not None:
        try:
            for piece in generator:
                piece, _ = encode(piece)
                if piece:
                    send(call, piece)
                elif call.cancelled:
                    raise _fre.Cancelled("the client has gone")
        finally:
            if hasattr(generator, "close"):
                generator.close()


PIPE = 0x22
SET_SIZE, SIZE = 1031, 1 << 20  # F_SETPIPE_SZ of fcntl(2); default limit for any user
ends = set()  # descriptors on the way to the engine; a child that is forked now closes its copies


class Pipe:
    """The rest of an answer in a pipe. The engine has the reading end."""

    def __init__(self, call):
        from fcntl import fcntl

        from _fre import files

        self.total = 0
        end, self.fd = os.pipe()
        ends.add(end)
        try:
            fcntl(self.fd, SET_SIZE, SIZE)  # a small pipe is slower than DATA
            if not files.give(PIPE, call, end, b""):
                raise OSError("too many files in transfer")
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            ends.discard(end)
            os.close(end)

    def send(self, call, data):
        view = memoryview(data).cast("B")
        while view:
            if call.cancelled:
                raise _fre.Cancelled("the client has gone")
            try:
                n = os.write(self.fd, view)
            except BrokenPipeError:
                raise _fre.Cancelled("the client has gone") from None
            self.total += n
            view = view[n:]


def send(call, data):
    view = memoryview(data).cast("B")
    while view:
        wait_window(call)
        if call.cancelled:
            raise _fre.Cancelled("the client has gone")
        n = min(call.window, len(view), _fre.FULL_WINDOW)
        if call.changed is None:
            call.window -= n
        else:
            with call.changed:
                call.window -= n
        _fre.send(_fre.DATA, _fre.MORE, call.id, view[:n])
        view = view[n:]


def wait_window(call):
    """Waits until call may send or is cancelled. If only one thread works, the thread
    reads the channel itself and leaves other calls in _fre.waiting."""
    if call.changed is not None:
        with call.changed:
            while call.window <= 0 and not call.cancelled:
                call.changed.wait()
        return
    import select

    poll = select.poll()
    poll.register(_fre.fd, select.POLLIN)
    while not call.cancelled and (call.window <= 0 or _fre.ahead or poll.poll(0)):
        if _fre.calling:  # a thread of the handler may be reading, for its own call
            _fre.calling.wait(lambda: call.cancelled or call.window > 0)
            return
        with _fre.reading:
            frame = _fre.read_frame()
            if frame is None:
                _fre.hung_up()
            other = _fre.take_frame(frame)
        if other:
            _fre.waiting.append(other)
        if _fre.calling:  # imported meanwhile
            _fre.calling.wake()
