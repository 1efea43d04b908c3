"""The program that sends a run to one tracker. It reads the steps from the run folder.

It gets a JSON object on stdin, whose end is the end of the run, or of the process that has started it. Each line that
it prints is a JSON list of a `Word` and a text. What the tracker's client prints goes to stderr, which is a file in the
run folder.
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any, Literal

from outdo.extras.trackers.base import TrackedRun, lock_file
from outdo.extras.trackers.steps import steps_of
from outdo.utils.imports import resolve
from outdo.utils.secrets import redact
from outdo.utils.text import one_line

Word = Literal["said", "opens", "sent", "lost", "refused", "failed", "ended"]
"""What the program tells, with a text if the table says so. `LAST` has the words after which it ends.

| word | what it tells | text |
|---|---|---|
| `said` | a line for the user | the line |
| `opens` | the tracker is opened next | |
| `sent` | a step was delivered | |
| `lost` | a step was not delivered | why |
| `refused` | the tracker was not opened | why |
| `failed` | the tracker has failed after that | why |
| `ended` | the tracker has got the end of the run | |
"""

LAST: tuple[Word, ...] = ("refused", "failed", "ended")

FAILURES = (Exception, SystemExit)
"""What a client or a function of the user may raise."""

POLL = 0.5
"""Seconds between two looks at the run folder."""


def main() -> None:
    """Send what stdin describes, and end at once: what clients do when an interpreter ends may take a minute."""
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    setup, ended, progress = json.loads(stdin.readline()), Event(), Event()
    deadline = setup["deadline"]

    def tell(word: Word, text: str = "") -> None:
        if word != "said":
            progress.set()
        with contextlib.suppress(OSError):  # nobody reads any more
            print(json.dumps([word, one_line(redact(text))]), file=stdout, flush=True)

    def fail(why: str) -> None:
        tell("failed", why)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # with the processes that the client has started

    def wait_for_the_end() -> None:
        stdin.read()
        ended.set()
        Timer(deadline, fail, [f"it did not end within {deadline:g} s"]).start()

    def wait_for_progress() -> None:
        progress.wait()  # until no other process serves the tracker
        while progress.wait(deadline):
            progress.clear()
        fail(f"nothing was delivered for {deadline:g} s")

    Thread(target=wait_for_the_end, daemon=True).start()
    if not setup["follow"]:
        Thread(target=wait_for_progress, daemon=True).start()
    send(setup, lambda: setup["follow"] and not ended.wait(POLL), tell)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def send(setup: Mapping[str, Any], active: Callable[[], bool], tell: Callable[..., None]) -> None:
    """Send a run to one tracker until the run is no longer `active`, and `tell` what becomes of it."""
    run = TrackedRun(
        Path(setup["folder"]), setup["name"], setup["after"], setup["anew"], lambda line: tell("said", line)
    )
    word: Word = "refused"
    try:
        _lock(run)
        tell("opens")
        with resolve(setup["spec"])(run, **setup["options"]) as log:
            word = "failed"
            for step in steps_of(
                run.folder, setup["completions"], after=run.after, evaluated=setup["evaluated"], active=active
            ):
                try:
                    log(*step)
                    tell("sent")
                except FAILURES as error:
                    tell("lost", f"{type(error).__name__}: {error}")
        tell("ended")
    except FAILURES as error:
        tell(word, f"{type(error).__name__}: {error}")


def _lock(run: TrackedRun) -> None:
    """Wait for the process that serves the tracker, such as that of a run that was killed; let later ones wait.

    The lock is held until this process ends: nothing closes its descriptor.
    """
    lock = os.open(lock_file(run.folder, run.tracker), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        run.say(f"{run.tracker}: waiting until another process that sends this run to it has ended")
        fcntl.flock(lock, fcntl.LOCK_EX)


if __name__ == "__main__":
    main()
