"""Writing behind the back of the next step: one thread, one record at a time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from outdo.utils.errors import RunFolderError


class BackgroundWriter:
    """Does what it is given while its owner goes on. Leaving its `with` waits for what is under way."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "record")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown()

    def begin(self, write: Callable[[], None]) -> None:
        """Do `write` from now on; `refused` has been asked about what was begun before."""
        assert self._under_way is None
        self._under_way = self._thread.submit(write)

    def wait(self) -> RunFolderError | None:
        """Wait for what was begun, and say why the disk refused it, if it did; any other error is raised."""
        under_way, self._under_way = self._under_way, None
        try:
            if under_way:
                under_way.result()
        except RunFolderError as error:
            return error
        return None
