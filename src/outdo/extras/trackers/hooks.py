"""The user's own trackers: a Python function after each step, and a command at the end of a run."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outdo.extras.trackers.base import Completions, Log, TrackedRun
from outdo.utils.imports import resolve, signature_of

GIVEN = ("step", "metrics", "completions", "folder")
"""The parameters of a function that outdo fills."""


@contextmanager
def hook(run: TrackedRun, *, function: str, **options: Any) -> Iterator[Log]:
    """Call `file.py:name` after each step, with those of `GIVEN` that it has as parameters, and with the options."""
    called, signature = resolve(function), signature_of(function)
    wanted = GIVEN if signature.accepts_any else signature.parameters

    def log(step: int, metrics: Mapping[str, float], completions: Completions) -> None:
        filled = {"step": step, "metrics": metrics, "completions": completions, "folder": run.folder}
        called(**{name: value for name, value in filled.items() if name in wanted}, **options)

    yield log


@contextmanager
def on_end(run: TrackedRun, *, command: str) -> Iterator[Log]:
    """Run a command of the shell when the run has ended, with `OUTDO_RUN` and `OUTDO_STATE` in its environment.

    It also runs after a fault from which `--restarts` goes on: no process knows of this when the run ends.
    """
    yield lambda step, metrics, completions: None
    environment = os.environ | {"OUTDO_RUN": str(run.folder.resolve()), "OUTDO_STATE": str(run.state)}
    status = subprocess.run(command, shell=True, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
    if status:
        raise RuntimeError(f"the command ended with status {status}")
