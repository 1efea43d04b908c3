"""Progress on a terminal of commands that load a model and sample many answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.builtin.engine import BuiltinEngine

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
        task, ended = bar.add_task(what, total=None), Event()
        follower = Thread(target=_follow, args=(bar, task, count, ended), daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


def answers_of(engine: Engine) -> Count | None:
    """Return what counts the finished answers of an engine; None if it cannot be asked while it samples."""
    return (lambda: engine.answered) if isinstance(engine, BuiltinEngine) else None


def _follow(bar: Progress, task: TaskID, count: Count | None, ended: Event) -> None:
    while count is not None and not ended.wait(SECONDS):
        done, total = count()
        bar.update(task, completed=done, total=total or None)
