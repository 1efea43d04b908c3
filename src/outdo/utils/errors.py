"""The errors outdo raises on purpose.

Each carries one message written for the person at the keyboard; the command line prints it without a traceback and
leaves with the class's `exit_status`. Anything else that escapes is a defect of outdo and shows its traceback.
"""

import difflib
from collections.abc import Sequence


class OutdoError(Exception):
    """Something went wrong that the user can act upon."""

    exit_status = 1


class UserError(OutdoError, ValueError):
    """What the user gave is wrong: every mistake found, reported at once, before any model is loaded.

    `mistakes` holds one sentence each, naming the file, the row or the key and what was expected.
    """

    exit_status = 2

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.problems = tuple(mistakes)
        super().__init__("\n".join(self.problems))


class RewardError(OutdoError):
    """Too many rewards failed; the message shows the first failing completion."""


class CheckpointError(OutdoError):
    """A checkpoint is damaged, missing, or belongs to another run."""


class DiskFullError(CheckpointError):
    """There is no room for a checkpoint; those saved before are untouched."""


class RunFolderError(OutdoError):
    """The run folder is in use by another process, or does not hold what was asked of it."""


class NonFiniteError(OutdoError):
    """Losses or gradients were not finite several updates in a row; no such update touched the weights."""


class WorkerError(OutdoError):
    """A process that shares the work ended, or failed in a way that it could not say better."""


class EngineError(OutdoError):
    """An engine returned something that is not a completion of its request."""


class ModelError(OutdoError, ValueError):
    """A model folder or tokenizer that cannot be used; the message says why and what would do."""

    exit_status = 2


def did_you_mean(wrong: str, known: Sequence[str]) -> str:
    """`"; did you mean X?"` for the nearest of `known`, or an empty string when none is near."""
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
