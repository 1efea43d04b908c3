"""The exceptions that outdo raises on purpose, and similar names for their messages.

Each exception has a message for the user; the command line prints it without a traceback and exits with the class's
`exit_status`. Any other exception is a defect of outdo and shows its traceback.
"""

from collections.abc import Sequence


class OutdoError(Exception):
    """An error that the user can correct."""

    exit_status = 1


class UserError(OutdoError, ValueError):
    """The user's input is wrong. All mistakes are reported at once, before any model is loaded.

    `problems` has one sentence for each, which names the file, the row or the key, and what was expected.
    """

    exit_status = 2

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.problems = tuple(mistakes)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type["UserError"], tuple[Sequence[str]]]:
        """Return what makes an equal error in another process."""
        return type(self), (self.problems,)


class RewardError(OutdoError):
    """Too many rewards failed; the message shows the first failing completion."""


class CheckpointError(OutdoError):
    """A checkpoint is damaged, missing, or belongs to another run."""


class DiskFullError(CheckpointError):
    """The disk has no space for a checkpoint; earlier checkpoints are unchanged."""


class RunFolderError(OutdoError):
    """Another process uses the run folder, or the folder does not contain what is needed."""


class NonFiniteError(OutdoError):
    """Losses or gradients were not finite in several consecutive updates; no such update changed the weights."""


class NonFiniteWeightsError(OutdoError):
    """The weights of the model, or the logits that it computes, are not finite; such weights are not saved."""


class MachineError(OutdoError):
    """A process, a connection or a device has failed: the same command may succeed when it is run again."""

    exit_status = 75  # EX_TEMPFAIL of sysexits.h


class WorkerError(MachineError):
    """A worker process ended, or failed with an error that has no class of its own."""


class EngineError(MachineError):
    """An engine returned something that is not a completion of the request."""


class DeliveryError(EngineError):
    """An engine does not have the weights of the policy after they were delivered to it."""

    exit_status = OutdoError.exit_status  # it would not have them the next time either


class EngineLostError(EngineError):
    """An engine has ended, hangs or fails; if it is started again, the same request may succeed."""


class ModelError(OutdoError, ValueError):
    """A model folder or tokenizer cannot be used; the message tells why, and what is expected."""

    exit_status = 2


def did_you_mean(wrong: str, known: Sequence[str]) -> str:
    """Return `"; did you mean X?"` for the name in `known` that is most similar to `wrong`, or an empty string."""
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
