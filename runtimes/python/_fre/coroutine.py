"""Handlers' coroutines and asynchronous generators: one event loop runs them all."""

import _fre

loop = None  # asyncio's, made for the first coroutine


def run(awaitable):
    """Returns what awaitable gives."""
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
    """The generator that gives what the asynchronous one gives."""
    try:
        while True:
            yield run(generator.__anext__())
    except StopAsyncIteration:
        pass
    finally:
        if hasattr(generator, "aclose"):
            run(generator.aclose())
