"""The program that sends a run to one tracker. It reads the steps from the run folder.

It gets a JSON object on stdin, whose end is the end of the run, or of the process that has started it. Each line that
it prints is a JSON list of a word and a text, see `outdo.extras.trackers.sending`. What the tracker's client prints
goes to stderr, which is a file in the run folder.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

from outdo.extras.trackers.base import TrackedRun
from outdo.extras.trackers.steps import steps_of
from outdo.utils.imports import resolve
from outdo.utils.secrets import redact
from outdo.utils.text import one_line

FAILURES = (Exception, SystemExit)
"""What a client or a function of the user may raise."""

POLL = 0.5
"""Seconds between two looks at the run folder."""


def main() -> None:
    """Send what stdin describes, and end at once: what clients do when an interpreter ends may take a minute."""
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    setup, ended = json.loads(stdin.readline()), Event()

    def tell(word: str, text: str = "") -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            print(json.dumps([word, one_line(redact(text))]), file=stdout, flush=True)

    def late() -> None:
        tell("failed", f"it did not end within {setup['deadline']:g} s")
        os.killpg(os.getpgrp(), signal.SIGKILL)  # with the processes that the client has started

    def wait_for_the_end() -> None:
        stdin.read()
        ended.set()
        Timer(setup["deadline"], late).start()

    Thread(target=wait_for_the_end, daemon=True).start()
    send(setup, lambda: setup["follow"] and not ended.wait(POLL), tell)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def send(setup: Mapping[str, Any], active: Callable[[], bool], tell: Callable[..., None]) -> None:
    """Send a run to one tracker until the run is no longer `active`, and `tell` what becomes of it."""
    run = TrackedRun(Path(setup["folder"]), setup["name"], setup["after"], lambda line: tell("said", line))
    word = "refused"
    try:
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
            signal.alarm(int(setup["deadline"]) + 1)  # for the end of a run that is not followed
        tell("ended")
    except FAILURES as error:
        tell(word, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
