"""A deadline for a call that has none and may never return: of Ray, or of a file system on another machine."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """Return what `work` returns, or raise what it raises. It runs in a thread of its own.

    Raises: TimeoutError after `seconds`. The thread then goes on, and nobody waits for it, also not the end of this
    process.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=attempt, daemon=True, name="outdo deadline")
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no result after {seconds:g} s")
    return results[0]
