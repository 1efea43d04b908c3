"""The rule that decides whether an answer is right. It applies in training, evaluation, `outdo check` and model cards.

The first of these that applies:

1. the reward that `eval.right` names: an answer is right if that reward returned True, or a number of 1 or more;
2. the only matcher among the rewards (`MATCHERS`, `BY_TASK`), if there is exactly one: also right from 1 on;
3. the only reward beside `NO_VERDICT`, if it returns True or False: a number is no verdict.

Otherwise right is not defined. The weights of the rewards play no part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outdo.rewards.types import RewardOutput, Status
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.outcome import RIGHT

MATCHERS = frozenset({"exact", "last_number", "math", "multiple_choice", "code"})
"""The built-in rewards that compare an answer with the reference, or test it by the reference."""

BY_TASK = frozenset({"reasoning_gym"})
"""The built-in rewards that compare an answer with the reference by rules of its task: 1 is the full score."""

NO_VERDICT = frozenset({"format", "overlong", "judge", "reward_model"})
"""The built-in rewards that do not tell whether an answer is right."""

UNDEFINED = "right is not defined: mean rewards are shown instead"


@dataclass(frozen=True, slots=True)
class RightRule:
    """The reward whose verdict on an answer counts."""

    reward: str | None  # its name; None: right is not defined
    reason: str  # one sentence for the user
    by_value: bool = False  # whether a number of 1 or more is a verdict too

    def of(self, output: RewardOutput) -> bool | None:
        """Return the verdict of the deciding reward's output; None if it gave none."""
        if output.status is not Status.ok:
            return None
        return output.value >= RIGHT if self.by_value else output.right


def right_rule(names: Sequence[str], chosen: str | None = None) -> RightRule:
    """Return the rule for rewards of these names; `chosen` is the setting `eval.right`.

    Raises:
        UserError: no reward is called `chosen`; the message has the nearest name.
    """
    if chosen is not None:
        if chosen not in names:
            hint = did_you_mean(chosen, names)
            raise UserError([f"no reward is called {chosen!r}{hint}; expected {' or '.join(names)}"])
        return RightRule(chosen, f"an answer is right if {chosen} is 1 or more (eval.right)", by_value=True)
    matchers = [name for name in names if name in MATCHERS | BY_TASK]
    if len(matchers) == 1:
        reason = f"an answer is right if {matchers[0]} accepts it (the only matcher)"
        return RightRule(matchers[0], reason, by_value=True)  # a share of passed tests is no verdict below 1
    candidates = [name for name in names if name not in NO_VERDICT]
    if matchers or len(candidates) > 1:
        return RightRule(None, f"{UNDEFINED}; eval.right = NAME chooses one of {', '.join(candidates)}")
    if not candidates:
        return RightRule(None, f"{UNDEFINED}; add a reward that compares answers, with weight 0 to only watch it")
    name = candidates[0]
    return RightRule(name, f"an answer is right if {name} returns True (the only reward that can tell)")
