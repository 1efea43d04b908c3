"""Progress on a terminal of what takes longer than a moment: imports, loading a model, sampling, exporting."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS = 0.2
"""Between two looks at what is done."""

Count = Callable[[], tuple[int, int]]
"""Returns how much is done, and how much there is."""


@contextmanager
def progress(what: str, count: Count | None = None, *, console: Console | None = None) -> Iterator[None]:
    """Show while a `with` block runs how much of its work is done, and the time left; without `count` only the time.

    It is written to stderr if that is a terminal, and nowhere else. Nothing of it remains after the block.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    counted = () if count is None else (MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    columns = (TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), *counted)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        with followed(count, lambda done, total: bar.update(task, completed=done, total=total or None)):
            yield


def importing() -> AbstractContextManager[None]:
    """Show on a terminal while a `with` block imports modules that load torch and transformers, for seconds."""
    return progress("importing torch and transformers")


@contextmanager
def followed(count: Count | None, show: Callable[[int, int], None]) -> Iterator[None]:
    """Show again and again while a `with` block runs what `count` returns."""
    ended = Event()

    def follow() -> None:
        while count is not None and not ended.wait(SECONDS):
            show(*count())

    follower = Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()
