"""For what share of their time the threads of this process wait for a processor that others have.

Linux counts for each thread how long it computed, and how long it was ready to compute and had no processor:
`/proc/self/task/*/schedstat`, in nanoseconds. Nothing is known elsewhere. Other programs make threads wait, and so do
more threads than processors.
"""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

THREADS = Path("/proc/self/task")


class Counts(NamedTuple):
    """Nanoseconds of a thread since it began."""

    computed: int
    waited: int


class ProcessorWait:
    """Measures the share from one call to the next. Threads that end in between are left out."""

    def __init__(self) -> None:
        self._before = _counts()

    def share(self) -> float | None:
        """Return waited / (computed + waited) of all threads since the last call; None if nothing is known."""
        before, now = self._before, _counts()
        self._before = now
        return _share(before, now)


def share_so_far() -> float | None:
    """Return waited / (computed + waited) of the threads of this process since they began; None if nothing is known."""
    return _share({}, _counts())


def _share(before: dict[str, Counts], now: dict[str, Counts]) -> float | None:
    none = Counts(0, 0)
    computed = sum(counts.computed - before.get(thread, none).computed for thread, counts in now.items())
    waited = sum(counts.waited - before.get(thread, none).waited for thread, counts in now.items())
    return waited / (computed + waited) if computed + waited > 0 else None


def _counts() -> dict[str, Counts]:
    """Return the counts of each thread that lives, by its number."""
    counts: dict[str, Counts] = {}
    for thread in THREADS.iterdir() if THREADS.exists() else ():
        with suppress(OSError):  # a thread may end at any moment, and a kernel may count nothing
            computed, waited, _ = (thread / "schedstat").read_text().split()
            counts[thread.name] = Counts(int(computed), int(waited))
    return counts
