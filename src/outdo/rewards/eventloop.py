"""One event loop for asynchronous rewards, kept between calls: a client that one call opened works in the next."""

import asyncio
import threading
import weakref
from collections.abc import Awaitable
from typing import Any


class EventLoop:
    """An event loop on a daemon thread of its own, so that it also works inside a notebook's running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="outdo rewards")
        self._thread.start()
        self.close = weakref.finalize(self, _stop, self._loop, self._thread)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for `awaitable` and return its result; what it raises is raised here."""
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop).result()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except SystemExit as leaving:  # would end the loop's thread, and leave the caller waiting for ever
        raise RuntimeError(f"sys.exit({leaving})") from leaving


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=1.0)
    if not thread.is_alive():  # else a call blocks the loop; the daemon thread ends with the process
        loop.close()
