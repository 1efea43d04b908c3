"""Progress on a terminal of what takes longer than a moment: imports, loading a model, sampling, exporting."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from io import StringIO
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
from rich.table import Column

CURSOR = re.compile(r"\x1b\[\d*[A-K]")
"""Escape sequences with which tqdm moves the cursor and clears lines."""

SECONDS = 0.2
"""Between two looks at what is done."""

Count = Callable[[], tuple[int, int]]
"""Returns how much is done, and how much there is."""


@contextmanager
def progress(what: str, count: Count | None = None, *, console: Console | None = None) -> Iterator[None]:
    """Show while a `with` block runs how much of its work is done, and the time left; without `count` only the time.

    Bars of tqdm, as of a download from the Hub, are shown beside it. It is written to stderr if that is a terminal, and
    nowhere else. Nothing of it remains after the block.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    counted = () if count is None else (MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    columns = (TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), *counted, _Tqdm())
    with Progress(*columns, console=console, transient=True, redirect_stderr=False) as bar:
        task = bar.add_task(what, total=None, tqdm="")
        with (
            redirect_stderr(_Stderr(bar, task)),
            followed(count, lambda done, total: bar.update(task, completed=done, total=total or None)),
        ):
            yield


class _Tqdm(TextColumn):
    """The bar of tqdm that was drawn last, cut off at the end of the line."""

    def __init__(self) -> None:
        super().__init__("{task.fields[tqdm]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))


class _Stderr(StringIO):
    """Takes what libraries write to stderr: a bar of tqdm is shown beside a bar of rich, other lines above it."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        super().__init__()
        self._bar, self._task, self._stderr = bar, task, sys.stderr

    def isatty(self) -> bool:
        """Return True: some bars are drawn on a terminal only."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of stderr, which a library may hand to a process that it starts."""
        return self._stderr.fileno()

    def write(self, text: str) -> int:
        """Show the text."""
        shown = CURSOR.sub("", text).strip()
        if text.startswith("\r"):
            self._bar.update(self._task, tqdm=shown)
        elif shown:
            self._bar.console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
        return len(text)


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
