"""Runs all coroutines and asynchronous generators of handlers in one event loop."""

import _fre

loop = None  # asyncio event loop, made for the first coroutine


def run(awaitable):
    """Runs awaitable and returns its result."""
    global loop
    import asyncio

    _fre.give_way()

    async def wait():
        return await awaitable

    if loop is None:
        with _fre.sending:
            if loop is None:
                made = asyncio.new_event_loop()
                if _fre.threaded:
                    import threading

                    threading.Thread(target=made.run_forever, daemon=True).start()
                else:
                    asyncio.set_event_loop(made)
                loop = made
    if _fre.threaded:
        return asyncio.run_coroutine_threadsafe(wait(), loop).result()
    return loop.run_until_complete(wait())


def iterate(generator):
    """Yields the values of an asynchronous generator."""
    try:
        while True:
            yield run(generator.__anext__())
    except StopAsyncIteration:
        pass
    finally:
        if hasattr(generator, "aclose"):
            run(generator.aclose())
