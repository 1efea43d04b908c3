"""Write records in a background thread while the next step runs, one record at a time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from outdo.utils.errors import RunFolderError


class BackgroundWriter:
    """Runs one function at a time in a background thread. Leaving its `with` block waits for it.

    `lost` is then the error of a call that nobody has waited for, because another error ended the block.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "record")
        self._pending: Future[None] | None = None
        self.lost: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown()
        pending, self._pending = self._pending, None
        self.lost = pending.exception() if pending else None

    def begin(self, write: Callable[[], None]) -> None:
        """Start `write` in the background. Call `wait` first if an earlier `write` was started."""
        assert self._pending is None
        self._pending = self._thread.submit(write)

    @property
    def is_busy(self) -> bool:
        """Whether a call was started that nobody has waited for."""
        return self._pending is not None

    def wait(self) -> RunFolderError | None:
        """Wait for the running call. Return its RunFolderError, if it raised one; raise any other error."""
        pending, self._pending = self._pending, None
        try:
            if pending:
                pending.result()
        except RunFolderError as error:
            return error
        return None
