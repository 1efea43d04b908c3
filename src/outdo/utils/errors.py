"""The errors outdo raises on purpose.

Each carries one message written for the person at the keyboard; the command line prints it without a traceback and
leaves with the class's `exit_status`. Anything else that escapes is a defect of outdo and shows its traceback.
"""

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
    """Return `"; did you mean X?"` for the name in `known` that is most similar to `wrong`; empty if none is similar."""
    name = nearest(wrong, known)
    return f"; did you mean {name}?" if name else ""


def nearest(wrong: str, known: Sequence[str]) -> str | None:
    """Return the name in `known` that is most similar to `wrong`, or None if none is similar.

    Similar is a name that takes edits at no more than 40 % of the characters of the longer name, and, if there is no
    such name, one that begins with `wrong` (three characters or more). Of equally similar names the first counts.
    """
    best, fewest = None, None
    for name in known:
        allowed = int(0.4 * max(len(wrong), len(name))) if fewest is None else fewest - 1
        edits = _edits(wrong, name, allowed)
        if edits is not None:
            best, fewest = name, edits
    if best is None and len(wrong) >= 3:
        best = next((name for name in known if name.startswith(wrong)), None)
    return best


def _edits(first: str, second: str, allowed: int) -> int | None:
    """Return the Damerau-Levenshtein distance, or None if it is more than `allowed`.

    An edit inserts, deletes or replaces a character, or swaps two neighbours ("gpro" is one edit from "grpo").
    """
    if abs(len(first) - len(second)) > allowed:
        return None
    before, row = [], list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        two_before, before, row = before, row, [i]
        for j, b in enumerate(second, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                edits = min(edits, two_before[j - 2] + 1)
            row.append(edits)
        if min(row) > allowed and min(before) > allowed:
            return None
    return row[-1] if row[-1] <= allowed else None
