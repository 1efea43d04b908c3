"""An event loop beside the calling thread, which may have one of its own."""

import asyncio
import threading
import weakref
from collections.abc import Awaitable
from typing import Any


class EventLoop:
    """An event loop on a daemon thread of its own, so that it also works inside the running loop of a notebook."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="outdo event loop")
        self._thread.start()
        self.close = weakref.finalize(self, _stop, self._loop, self._thread)

    def run(self, awaitable: Awaitable[Any], *, timeout: float | None = None) -> Any:
        """Wait for `awaitable` and return its result; an exception of it is raised here.

        After `timeout` seconds it is cancelled, and `TimeoutError` is raised.
        """
        limited = asyncio.wait_for(_await(awaitable), timeout)
        return asyncio.run_coroutine_threadsafe(limited, self._loop).result()


async def _await(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:  # it would end the thread, and the caller would wait for ever
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=1.0)
    if not thread.is_alive():  # otherwise a call blocks the loop; the daemon thread ends with the process
        loop.close()
