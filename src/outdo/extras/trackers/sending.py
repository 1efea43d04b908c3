"""Send a run to its trackers, each by a process of its own: the program `outdo.extras.trackers.send`.

The clients of trackers wait when an interpreter ends: with a server that does not answer, wandb keeps it alive for a
minute. No thread could end them; a process can be killed.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from outdo.config.messages import to_toml
from outdo.config.names import TRACKERS
from outdo.config.recipe import Piece
from outdo.extras.trackers.base import COMMON, FOLDER, file_stem
from outdo.extras.trackers.send import LAST
from outdo.extras.trackers.steps import steps_of
from outdo.utils import atomic
from outdo.utils.errors import RunFolderError
from outdo.utils.secrets import redact
from outdo.utils.text import counted

AT_ONCE = 2.0
"""Seconds of waiting that need no line for the user."""

MARGIN = 60.0
"""Seconds after its deadline in which a process ends by itself; then it is killed."""


@contextmanager
def sending(
    run: Path,
    trackers: Sequence[Piece],
    say: Callable[[str], None],
    *,
    follow: bool,
    after: int = 0,
    evaluated: bool = True,
    anew: bool = False,
) -> Iterator[list[str]]:
    """Send what `steps_of` yields to trackers, all at the same time.

    Yield a list that in the end holds the names of the trackers that lack something; `say` gets a sentence for each.

    With `follow` the steps are sent while the `with` block runs. After the block this function waits for what is left,
    for each tracker as long as its deadline; after Ctrl-C it does not wait, and the trackers have the same time.
    Without `follow` it waits after the block until all steps are sent, and the deadline of a tracker counts from its
    last delivery. With `anew` each tracker begins another run, whose id replaces the one that is kept.

    Raises: RunFolderError if the folder of the trackers cannot be made.
    """
    try:
        atomic.make_folder(run / FOLDER)
    except OSError as error:
        raise RunFolderError(f"{run / FOLDER}: cannot be created: {error.strerror}") from error
    shared = {"after": after, "evaluated": evaluated, "follow": follow, "anew": anew}
    lost: list[str] = []
    senders: list[_Sender] = []
    waits = True
    try:
        for tracker in trackers:
            try:
                senders.append(_Sender(tracker, run, say, shared))
            except OSError as error:
                lost.append(tracker.name)
                say(f"{tracker.name}: does not track this run: its process cannot be started: {error}")
        yield lost
    except KeyboardInterrupt:
        waits = False
        raise
    finally:
        for sender in senders if follow else ():
            sender.end()
        for sender in senders if waits else ():
            sender.wait(limited=follow)
            if fault := sender.fault(sum(1 for _ in steps_of(run, 0, after=after, evaluated=evaluated))):
                lost.append(sender.tracker.name)
                say(fault)


class _Sender(Thread):
    """The process that sends a run to one tracker, and the thread that listens to it."""

    def __init__(self, tracker: Piece, run: Path, say: Callable[[str], None], shared: Mapping[str, Any]) -> None:
        super().__init__(name=f"tracker {tracker.name}", daemon=True)
        self.tracker = tracker
        self._folder = run
        self._say = say
        self._sent = 0
        self._word, self._reason = "", ""  # its last word, and the last reason that it gave
        self._log = run / FOLDER / f"{file_stem(tracker.name)}.log"
        common = {name: tracker.options.get(name, default) for name, default in COMMON.items()}
        self._deadline = common["deadline"]
        options = {name: value for name, value in tracker.options.items() if name not in COMMON}
        if tracker.name not in TRACKERS:
            options["function"] = tracker.name
        setup = {
            **shared,
            "folder": str(run.resolve()),
            "name": tracker.name,
            "spec": TRACKERS.get(tracker.name, "outdo.extras.trackers.hooks:hook"),
            "options": options,
            **common,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outdo.extras.trackers.send"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # so that Ctrl-C reaches the run alone
            )
        self.start()
        assert self._process.stdin, "a pipe"
        with contextlib.suppress(OSError):  # it has ended
            self._process.stdin.write(json.dumps(setup) + "\n")
            self._process.stdin.flush()

    def run(self) -> None:
        """Listen to the process until it has ended."""
        assert self._process.stdout, "a pipe"
        with self._process.stdout as lines:
            for line in lines:
                self._word, text = json.loads(line)
                match self._word:
                    case "sent":
                        self._sent += 1
                    case "said":
                        self._say(text)
                    case "refused":
                        self._say(f"{self.tracker.name}: does not track this run: {text}")
                self._reason = text if self._word != "said" and text else self._reason

    def end(self) -> None:
        """Tell the process that the run has ended, or that nobody waits for it: its deadline begins."""
        assert self._process.stdin, "a pipe"
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, *, limited: bool) -> None:
        """Wait for the end of the process, and kill what is left of it and of the processes that it started."""
        self.join(AT_ONCE if limited else None)
        if self.is_alive():
            self._say(f"{self.tracker.name}: waiting up to {self._deadline:g} s until it has everything")
            self.join(self._deadline + MARGIN)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.end()
        self.join()

    def fault(self, steps: int) -> str | None:
        """Return what of a run with so many steps did not arrive, and why; None if it has all of them, and the end."""
        missing = steps - self._sent
        if not missing and self._word == "ended":
            return None
        lacking = f"{missing} of {counted(steps, 'step')} {'was' if steps == 1 else 'were'}"
        what = lacking if missing else "the end of the run was"
        unknown = "it gave no reason" if self._word in LAST else "its process has ended"
        why = (self._reason if self._word in LAST else "") or f"{unknown}; see {self._log}"
        again = f"`outdo track {shlex.quote(str(self._folder))} --to {self._typed}` sends the whole run"
        return f"{self.tracker.name}: {what} not delivered: {why}; {again}"

    @property
    def _typed(self) -> str:
        """The tracker as it is typed: without its options the run would go to another project or server."""
        written = to_toml(self.tracker.model_dump()) if self.tracker.options else self.tracker.name
        return redact(shlex.quote(written))
