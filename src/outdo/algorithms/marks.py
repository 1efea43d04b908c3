"""Marks: what is true of a method, on the function that computes it.

`make methods` writes the facts of all marked functions, with what their code says already, to
`outdo/config/methods.toml`. The check of a recipe reads them there, because it does not import torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class ObjectiveMark:
    """What is stated of an objective. The values by default are what is assumed of a user's own."""

    published_with: str = "group_standardised"  # the advantage that a recipe gets unless it names one
    also_published_with: Sequence[str] = ()  # further advantages
    lowest_loss_0: bool = False  # its loss is 0 at its minimum, as the optimiser `polyak` requires


@dataclass(frozen=True, kw_only=True)
class ObjectiveFacts(ObjectiveMark):
    """What is known of an objective without building it: its mark, and what it says itself once it is built."""

    code: str = ""  # "package.module:name"
    is_composed: bool = True  # of pieces that a recipe can replace
    has_ratio: bool = True  # it corrects for changes of the policy since it sampled
    from_engine: bool = False  # its ratio is πθ / π_rollout, as with `bypass`
    from_teacher: bool = False  # it has a divergence from the teachers


@dataclass(frozen=True, kw_only=True)
class AdvantageMark:
    """What is stated of an advantage. The values by default are what is assumed of a user's own."""

    reads_rewards: bool = True
    compares_group: bool = False  # an answer with the others of its group, which has to have two at least
    subtracts_baseline: bool = False  # from whole answers: the KL can be subtracted from their tokens afterwards
    scaled_in_group: bool = False  # as large where the rewards of a group hardly differ as where they differ much
    loses_turn_rewards: bool = False  # it uses the rewards of whole episodes, and refuses those of single turns
    not_with_kl_in_reward: str = ""  # why it does not work if the KL is subtracted from the reward


@dataclass(frozen=True, kw_only=True)
class AdvantageFacts(AdvantageMark):
    """What is known of an advantage without importing it: its mark, and what it requires."""

    code: str = ""  # "package.module:name"
    requires: Sequence[str] = ()  # the requirements of `outdo.algorithms.requirements` that it has with any options
    requires_unless: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by the option that removes them
    cannot_be_asked: str = ""  # why it is unknown, when a group is sampled, which advantages it will get

    def requires_with(self, options: Mapping[str, Any]) -> set[str]:
        """Return the requirements that it has with these options."""
        further = (names for option, names in self.requires_unless.items() if options.get(option) is None)
        return {*self.requires, *(name for names in further for name in names)}


def objective(*, name: str = "", **facts: Any) -> Callable[[Function], Function]:
    """Mark a function as an objective that recipes can name: `@objective(published_with="gae")`.

    Its name in recipes is `name`, or else that of the function; `facts` are fields of `ObjectiveMark`.
    """
    return _marked(name, ObjectiveMark(**facts))


def advantage(**facts: Any) -> Callable[[Function], Function]:
    """Mark a function as an advantage that recipes can name: `@advantage(compares_group=True)`.

    Its name in recipes is that of the function; `facts` are fields of `AdvantageMark`.
    """
    return _marked("", AdvantageMark(**facts))


def _marked(name: str, mark: ObjectiveMark | AdvantageMark) -> Callable[[Function], Function]:
    def attach(function: Function) -> Function:
        function.mark = mark  # type: ignore[attr-defined]
        function.name_in_recipes = name or function.__name__  # type: ignore[attr-defined]
        return function

    return attach
