"""Several events at once: FRE_CONCURRENCY above 1."""

import _fre


def serve(handler, count):
    """A thread reads the channel, count threads handle events, this one waits:
    it stays free for signal handlers, and ends the process in good order."""
    import threading
    from _queue import SimpleQueue

    _fre.sending, _fre.condition, _fre.threaded = threading.Lock(), threading.Condition, True
    queue, finished = SimpleQueue(), threading.Event()

    def work():
        while True:
            _fre.handle(handler, queue.get())
            if _fre.stopping and not _fre.calls:
                finished.set()

    def read():
        try:
            while not (_fre.stopping and not _fre.calls):
                frame = _fre.read_frame()
                if frame is None:
                    break
                call = _fre.take_frame(frame)
                if call:
                    queue.put(call)
            finished.set()
        except BaseException as e:  # MemoryError: without this thread nothing would go on
            _fre.die(repr(e))

    for target in [work] * count + [read]:
        threading.Thread(target=target, daemon=True).start()
    finished.wait()
