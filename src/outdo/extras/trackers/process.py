"""The process of a tracker, as the trainer sees it: its start, its requests, and its end.

The clients of trackers wait when an interpreter ends: with a server that does not answer, wandb keeps it alive for a
minute. A thread of the trainer could not be ended either. So each tracker has a process, which can be killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.extras.trackers.base import FOLDER, file_stem
from outdo.storage import atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSettings:
    """A tracker of a recipe."""

    name: str  # in the recipe
    spec: str  # where its code is
    options: Mapping[str, Any]
    completions: int  # rows of the table of completions of a step; 0: no table
    deadline: float  # seconds that it may take after the end of the run


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request: what went wrong, if anything, and what the user should read."""

    error: str | None
    said: tuple[str, ...] = ()


class TrackerProcess:
    """A process that runs one tracker. Every request waits for its reply; `kill` ends the wait from another thread.

    `after` is the last step before those that will be logged.

    Raises: OSError if it cannot be started.
    """

    def __init__(self, tracker: TrackerSettings, folder: Path, *, after: int) -> None:
        atomic.make_folder(folder / FOLDER)
        self.log_file = folder / FOLDER / f"{file_stem(tracker.name)}.log"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outdo.extras.trackers.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C reaches the run alone
            )
        self._setup = {
            "tracker": tracker.spec,
            "name": tracker.name,
            "options": dict(tracker.options),
            "folder": str(folder.resolve()),
            "after": after,
            "deadline": int(tracker.deadline) + 1,
        }

    def open(self) -> Reply:
        """Open the tracker."""
        return self._request(self._setup)

    def log(self, entry: Mapping[str, Any]) -> Reply:
        """Log a step: `step`, `metrics` and `completions`."""
        return self._request(entry)

    def end(self) -> Reply:
        """End the tracker's run in order, with the page if there is one."""
        return self._request("end")

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill the process, and close what connected it."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # a request that it did not read
                if pipe:
                    pipe.close()

    def _request(self, content: Any) -> Reply:
        assert self._process.stdin, "a pipe"
        assert self._process.stdout, "a pipe"
        try:
            self._process.stdin.write(json.dumps(atomic.finite(content)).encode() + b"\n")
            self._process.stdin.flush()
            reply = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            return Reply(f"its process has ended; see {self.log_file}")
        return Reply(reply["error"], tuple(reply["said"]))
