"""A deadline for a call that has none and may never return: of Ray, or of a file system on another machine."""

from collections.abc import Callable
from threading import Event, Thread
from typing import TypeVar

Result = TypeVar("Result")


def within(seconds: float, work: Callable[[], Result], *, lasting: bool = False) -> Result:
    """Return what `work` returns, or raise what it raises. It runs in a thread of its own.

    With `lasting` that thread stays until this process ends, for work that starts processes which Linux ends together
    with the thread that has started them (PR_SET_PDEATHSIG).

    Raises: TimeoutError after `seconds`. The thread then goes on, and nobody waits for it, also not the end of this
    process.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    ended = Event()

    def attempt() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        ended.set()
        if lasting and results:
            Event().wait()

    thread = Thread(target=attempt, daemon=True, name="outdo lasting" if lasting else "outdo deadline")
    thread.start()
    if lasting:
        ended.wait(seconds)
    else:
        thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no result after {seconds:g} s")
    return results[0]
