"""Handles several events at once: FRE_CONCURRENCY above 1.

One thread at a time has the turn to read the channel. If the handler was quick last
time, the thread keeps the turn and handles the event itself: waking another thread
would cost more. Otherwise the thread gives the turn away first:

    quick   read handle read handle ...
    slow    read|handle
                |read|handle ...

If the handler is slow against this expectation, the watch takes the turn away.

Answers to quick events that were read together go out together. So an answer may wait for
the watch: for some milliseconds, or as long as a handler keeps the interpreter's lock. The
answer is lost if a handler ends the process meanwhile. Both happen only after the handler
was quick.
"""

from _thread import get_ident
from time import monotonic_ns

import _fre

QUICK = 100_000  # nanoseconds; a faster handler is not worth waking another thread
MOST_WAIT = 500_000  # nanoseconds; a frame waits no longer while quick events are handled
MOST_HELD = 48 << 10  # bytes; most that held-back frames may have
TICK = 0.002  # seconds between two looks of the watch
QUIET = 50  # the watch sleeps after so many looks without an event


def serve(handler, count):
    """Runs count + 1 threads that take turns: one reads while count events are handled.
    The calling thread is the watch: it stays free for signal handlers and ends the process
    in good order."""
    import threading
    from _queue import Empty, SimpleQueue

    turn = threading.Lock()
    kept = []  # number of the event whose thread has kept the turn; its removal takes the turn
    wake = SimpleQueue()  # wakes the watch; True ends the watch
    begun = 0  # events whose thread has kept the turn
    quick, watched = True, False
    holder = 0  # the thread that has kept the turn
    since = 0  # time of the oldest held-back frame, now or last time; 0: the frames waited too long
    passes = failures = 0  # passes: the next frames must not wait; failures: back-off

    def timed(event, context):
        nonlocal quick
        since = monotonic_ns()
        try:
            return handler(event, context)
        finally:
            quick = monotonic_ns() - since < QUICK

    def give_way():
        if take_turn():
            _fre.flush()  # the next read of the channel may be far off

    def take_turn():
        """Gives away the turn that a thread has kept. Returns False if no thread has. The
        next reader sends the held-back frames."""
        try:
            kept.pop()
        except IndexError:
            return False
        turn.release()
        return True

    def may_wait():
        """Reports whether a frame may wait: the handler is quick, the next frame has been read
        already, and the thread still has the turn. Together, such answers cost the engine
        less."""
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
        """Returns the next call, or None at the end."""
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
                    _fre.flush()  # the answer may be held back while the watch took the turn
                if _fre.stopping and not _fre.calls:
                    break
            _fre.flush()  # the last answer may have waited for a frame that was STOP
            wake.put(True)
        except BaseException as e:  # such as MemoryError: all may depend on this thread
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
        elif kept:  # the turn, since the last look
            quick = False
            if _fre.held:
                since, failures = 0, min(2 * failures + 1, 1023)
                passes = failures
            take_turn()
        else:
            quiet += 1
            if quiet == QUIET:
                quiet, watched = 0, False
                watched = begun != last  # an event that began just now did not wake the watch
