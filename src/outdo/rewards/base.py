"""`Reward`, the base class of everything that scores completions: all that outdo asks of a reward stands here."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outdo.rewards.types import RewardInput, RewardOutput

if TYPE_CHECKING:
    from outdo.types import Group


class Reward:
    """Scores completions. A subclass has to write `__call__` alone, and should set `name`.

    The attributes describe the reward. The methods stand in the order in which a run calls them, and do nothing here.
    """

    name: str = "reward"
    """The name of its value in `RewardOutput.parts`, and of its metrics."""

    source: str = ""
    """The file or module that defines it, without its folder; it tells rewards of the same name apart."""

    is_paid: bool = False
    """Whether its calls cost money: `outdo check` then makes few of them."""

    is_divided: bool = False
    """Whether it is a model of which this process holds only a part. All processes of a run then call it together; any
    other reward is called by the first one alone."""

    labels: "Reward | None" = None
    """The true values by which it learns between the steps, and which the policy never sees. `None`: it does not learn,
    and a run calls neither `after_step` nor `state`."""

    @property
    def has_numbers(self) -> bool:
        """Whether a function that tells right from wrong has returned a number too: see `outdo.rewards.right`."""
        return False

    @property
    def sandboxes(self) -> Sequence[str]:
        """What runs the programs in completions: one description for each part of the reward that runs some."""
        return ()

    def start(self) -> Sequence[str]:
        """Start the processes that a cluster places, when everything else of the run has reserved its place there.

        Return a line for each that says where it is.
        """
        return ()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""

    def __call__(self, inputs: Sequence[RewardInput], /) -> list[RewardOutput]:
        """Score completions: one output for each, in the same order. A completion that fails raises no exception."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__(inputs)")

    def metrics(self) -> Mapping[str, float]:
        """Return what was measured since the last call. A run puts the name of the reward before each name."""
        return {}

    def after_step(self, step: int, groups: "Sequence[Group]") -> Mapping[str, float]:
        """Learn from the groups of a step; return metrics of it under their full names."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold. Raises `NonFiniteWeightsError` if a weight is not finite."""
        return {}

    def close(self) -> None:
        """Release processes and threads. A closed reward is not used again."""
