"""Several events at once: FRE_CONCURRENCY above 1.

One thread at a time has the turn to read the channel. Where the handler was quick
last time, it handles the event that it has read itself and keeps the turn: that costs
less than to wake another thread. Else it gives the turn away first:

    quick   read handle read handle ...
    slow    read|handle
                |read|handle ...

A handler that is expected to be quick and is not loses the turn to the watch.
"""

from time import monotonic_ns

import _fre

QUICK = 100_000  # nanoseconds: a handler that takes less is not worth another thread
TICK = 0.002  # seconds between two looks of the watch
QUIET = 50  # looks without an event after which it sleeps


def serve(handler, count):
    """count + 1 threads take turns, so that one can read while count events are
    handled. This one is the watch: it stays free for signal handlers, and ends the
    process in good order."""
    import threading
    from _queue import Empty, SimpleQueue

    turn = threading.Lock()
    kept = []  # the number of the event whose thread has kept the turn: who takes it out has the turn
    wake = SimpleQueue()  # of the watch; True ends it
    begun = 0  # events whose thread has kept the turn
    quick, watched = True, False

    def timed(event, context):
        nonlocal quick
        since = monotonic_ns()
        try:
            return handler(event, context)
        finally:
            quick = monotonic_ns() - since < QUICK

    def give_way():
        try:
            kept.pop()
        except IndexError:
            return
        turn.release()

    def read():
        """The next call; None when no other will come."""
        while not (_fre.stopping and not _fre.calls):
            frame = _fre.read_frame()
            if frame is None:
                break
            call = _fre.take_frame(frame)
            if call:
                return call
        return None

    def keep():
        nonlocal begun, watched
        begun += 1
        kept.append(begun)
        if not watched:
            watched = True
            wake.put(False)
        return begun

    def work():
        try:
            mine = False
            while True:
                if not mine:
                    turn.acquire()
                call = read()
                if call is None:
                    break
                number = 0
                if quick:
                    number = keep()
                else:
                    turn.release()
                _fre.handle(timed, call)
                call = None
                try:
                    kept.remove(number)
                    mine = True
                except ValueError:
                    mine = False
                if _fre.stopping and not _fre.calls:
                    break
            wake.put(True)
        except BaseException as e:  # MemoryError: without this thread nothing might go on
            _fre.die(repr(e))

    _fre.sending, _fre.condition, _fre.threaded, _fre.give_way = threading.Lock(), threading.Condition, True, give_way
    for _ in range(count + 1):
        threading.Thread(target=work, daemon=True).start()
    last = quiet = 0
    while True:
        try:
            if wake.get(True, TICK if watched else None):
                return
        except Empty:
            pass
        if begun != last:
            last, quiet = begun, 0
        elif kept:  # since the last look
            quick = False
            give_way()
        else:
            quiet += 1
            if quiet == QUIET:
                quiet, watched = 0, False
                watched = begun != last  # one has begun that did not wake the watch
