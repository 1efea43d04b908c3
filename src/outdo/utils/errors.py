"""The exceptions that outdo raises on purpose, and similar names for their messages.

Each exception has a message for the user; the command line prints it without a traceback and exits with the class's
`exit_status`. Any other exception is a defect of outdo and shows its traceback.
"""

from collections.abc import Sequence
from difflib import get_close_matches


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


class QuestionError(ModelError):
    """One question cannot become a prompt, whatever is true of the others."""


def did_you_mean(wrong: str, known: Sequence[str]) -> str:
    """Return `"; did you mean X?"` for the name in `known` that is most similar to `wrong`, or an empty string."""
    name = nearest(wrong, known)
    return f"; did you mean {name}?" if name else ""


def nearest(wrong: str, known: Sequence[str]) -> str | None:
    """Return the name in `known` that is most similar to `wrong`, or None if none is similar.

    Most similar is a name of the same letters in another order ("gpro" is "grpo"), then what `difflib` finds, then a
    name that begins with `wrong` (three characters or more).
    """
    swapped = [name for name in known if sorted(name) == sorted(wrong)]
    longer = [name for name in known if len(wrong) >= 3 and name.startswith(wrong)]
    return next(iter([*swapped, *get_close_matches(wrong, known, n=1), *longer]), None)
