"""Several events at once: FRE_CONCURRENCY above 1.

One thread at a time has the turn to read the channel. Where the handler was quick
last time, it handles the event that it has read itself and keeps the turn: that costs
less than to wake another thread. Else it gives the turn away first:

    quick   read handle read handle ...
    slow    read|handle
                |read|handle ...

A handler that is expected to be quick and is not loses the turn to the watch.

The answers to quick events that were read together go out together. One may have to wait
for the watch, which is for some milliseconds, or for as long as a handler keeps the
interpreter's lock; and it is lost if a handler ends the process meanwhile. Both takes a
handler that was quick just before.
"""

from _thread import get_ident
from time import monotonic_ns

import _fre

QUICK = 100_000  # nanoseconds: a handler that takes less is not worth another thread
MOST_WAIT = 500_000  # nanoseconds that a frame waits while quick events are handled
MOST_HELD = 48 << 10  # bytes of frames that wait
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
    holder = 0  # the thread that has kept the turn
    since = 0  # when the first of the frames that wait, or have, came; 0: they waited too long
    passes = failures = 0  # frames that are not to wait, after how many that have waited too long

    def timed(event, context):
        nonlocal quick
        since = monotonic_ns()
        try:
            return handler(event, context)
        finally:
            quick = monotonic_ns() - since < QUICK

    def give_way():
        if take_turn():
            _fre.flush()  # it may be long until the channel is read

    def take_turn():
        """Gives the turn away, for the thread that has kept it. Whoever reads next sends
        what has waited."""
        try:
            kept.pop()
        except IndexError:
            return False
        turn.release()
        return True

    def may_wait():
        """Where another event has been read, and its thread has the turn still: the answers
        to quick events cost the engine less together."""
        nonlocal since, passes, failures
        ahead = _fre.ahead
        if not (quick and kept and holder == get_ident() and len(ahead) >= 16 + int.from_bytes(ahead[:4], "little")):
            return False
        if passes:
            passes -= 1
            return False
        now = monotonic_ns()
        if not _fre.held:
            if since:
                failures = 0
            since = now
            return True
        return now - since < MOST_WAIT and len(_fre.held) < MOST_HELD

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
        nonlocal begun, watched, holder
        begun, holder = begun + 1, get_ident()
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
                    _fre.flush()  # if this was to wait just when the turn was taken
                if _fre.stopping and not _fre.calls:
                    break
            _fre.flush()  # STOP may have been ahead
            wake.put(True)
        except BaseException as e:  # MemoryError: without this thread nothing might go on
            _fre.die(repr(e))

    _fre.sending, _fre.condition, _fre.threaded, _fre.give_way = threading.Lock(), threading.Condition, True, give_way
    _fre.may_wait = may_wait
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
            if _fre.held:
                since, failures = 0, min(2 * failures + 1, 1023)
                passes = failures
            take_turn()
        else:
            quiet += 1
            if quiet == QUIET:
                quiet, watched = 0, False
                watched = begun != last  # one has begun that did not wake the watch
