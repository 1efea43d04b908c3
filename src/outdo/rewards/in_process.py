"""Call a reward function in this process."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from threading import Lock
from typing import Any

from outdo.rewards.base import Reward
from outdo.rewards.failures import output_of_error
from outdo.rewards.right import verdicts_of_function
from outdo.rewards.signatures import score_all, wrap_function
from outdo.rewards.types import RewardInput, RewardOutput
from outdo.utils.errors import UserError


class InProcessReward(Reward):
    """A Python function as a reward, called in this process.

    An exception of the function makes its completion failed. Nothing protects this process from a function that hangs,
    crashes the interpreter, fills the memory, or changes objects of others: write `"file.py:name"` instead, and the
    function runs in a worker process.

    `options` are arguments that are the same for every completion.

    Raises:
        UserError: the function has none of the accepted signatures, or does not take the options.
    """

    def __init__(
        self, function: Callable[..., Any], name: str | None = None, *, options: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name or metric_name(function)
        self.source = "" if name else str(getattr(function, "__module__", "")).rpartition(".")[2]
        self._function = wrap_function(function, self.name, options=options)
        self.verdicts = verdicts_of_function(self.name)
        self._lock = Lock()

    @property
    def has_numbers(self) -> bool:
        """Whether the function has returned a number so far."""
        return self.verdicts.has_numbers

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion. A batch on which the function raises is repeated one completion at a time."""
        with self._lock:
            outputs = score_all([self._call], inputs, self.name, in_one_call=self._function.scores_batches)
        return self.verdicts.settled(outputs)

    def close(self) -> None:
        """Stop the event loop if the function is asynchronous."""
        if "loop" in vars(self._function):
            self._function.loop.close()

    def _call(self, inputs: Sequence[RewardInput], deadline: float) -> list[RewardOutput] | RewardOutput:
        try:
            return self._function.score(inputs)
        except (Exception, SystemExit) as error:
            return output_of_error(error, self.name)


RewardLike = Reward | Callable[..., Any]
"""A reward, or a plain function such as `score(completion, answer)`."""


def as_reward(reward: RewardLike) -> Reward:
    """Return a reward as it is, and a plain function as `load_reward` takes it.

    Raises `UserError` for what only `load_reward` takes, whose processes the caller would have to close; where
    `InProcessReward` does; and for an object that takes a list of `RewardInput` and is not a `Reward`.
    """
    if isinstance(reward, str | Mapping | Sequence):
        raise UserError(
            [f"expected a reward or a function, found {reward!r}: outdo.load_reward(...) makes a reward of it"]
        )
    if isinstance(reward, Reward):
        return reward
    try:
        return InProcessReward(reward)
    except UserError as error:
        if not callable(reward) or "inputs" not in signature(reward).parameters:
            raise
        inherit = f"to score a list of RewardInput, {type(reward).__name__} has to inherit from outdo.rewards.Reward"
        raise UserError([*error.problems, inherit]) from None


def metric_name(function: Any) -> str:
    """Return the name of a function in messages and metrics."""
    wrapped = getattr(function, "func", function)  # functools.partial
    name = getattr(wrapped, "__name__", type(wrapped).__name__)
    return "reward" if name == "<lambda>" else name
