"""The rule that decides whether an answer is right. It applies in training, evaluation, `outdo check` and model cards.

The first of these that applies:

1. the reward that `eval.right` names: an answer is right if that reward returned True, or a number of 1 or more;
2. the only matcher among the rewards (`MATCHERS`, `BY_TASK`), if there is exactly one: also right from 1 on;
3. the only reward beside `NO_VERDICT`, if it returns True or False: right are True and, from such a function, a number
   of 1 or more (`Verdicts`). Numbers alone are no verdict.

Otherwise right is not defined. The weights of the rewards play no part. An answer for which the reward that decides
returned nothing has no verdict: it is neither right nor wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outdo.rewards.types import RewardOutput, Status
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.outcome import RIGHT

MATCHERS = frozenset({"exact", "last_number", "math", "multiple_choice", "code"})
"""The built-in rewards that compare an answer with the reference, or test it by the reference."""

BY_TASK = frozenset({"reasoning_gym"})
"""The built-in rewards that compare an answer with the reference by rules of its task: 1 is the full score."""

NO_VERDICT = frozenset({"format", "overlong", "judge", "reward_model"})
"""The built-in rewards that do not tell whether an answer is right."""

ONLY_ONE = "(the only reward that can tell)"

UNDEFINED = "right is not defined: mean rewards are shown instead"


@dataclass(frozen=True, slots=True)
class RightRule:
    """The reward whose verdict on an answer counts."""

    reward: str | None  # its name; None: right is not defined
    reason: str  # one sentence for the user
    by_value: bool = False  # whether a number of 1 or more is a verdict from the beginning


class Verdicts:
    """The verdicts of one reward function, as far as it gives any.

    By the third rule a function has to show that it does: by returning True or False. One function may do both, as
    where a check at its beginning returns False and its end returns a number. So from its first True or False on, a
    number is a verdict too: right from 1 on. Otherwise only its wrong answers would have a verdict. The order of the
    answers of one call does not matter.

    A run does not wait for the first True or False, which would come at another step after a resume: it looks at the
    answers that it always tries first, and decides (`decide`).
    """

    def __init__(self, rule: RightRule) -> None:
        self.rule = rule
        self.given: bool | None = False if rule.reward is None else True if rule.by_value else None
        """Whether the function gives verdicts; None: not known yet."""
        self.has_numbers = False  # whether it has returned a number

    @property
    def reason(self) -> str:
        """One sentence for the user: which answers are right."""
        if self.given and self.has_numbers and not self.rule.by_value:
            return f"an answer is right if {self.rule.reward} returns True, or a number of 1 or more {ONLY_ONE}"
        return self.rule.reason

    def decide(self) -> None:
        """Decide by the outputs so far: a function that has returned numbers alone gives no verdict from now on."""
        if self.given is None and self.has_numbers:
            self.given = False

    def note(self, outputs: Sequence[RewardOutput]) -> None:
        """Look at outputs of the function before they are asked for their verdicts."""
        kinds = {output.right is None for output in outputs if output.status is Status.ok}
        self.has_numbers = self.has_numbers or True in kinds
        if self.given is None and False in kinds:
            self.given = True

    def of(self, output: RewardOutput) -> bool | None:
        """Return the verdict of an output; None if it is none."""
        if output.status is not Status.ok or not self.given:
            return None
        return output.value >= RIGHT if self.rule.by_value or output.right is None else output.right

    def settled(self, outputs: Sequence[RewardOutput]) -> list[RewardOutput]:
        """Return the outputs of one call with their verdicts."""
        self.note(outputs)
        return [replace(output, right=self.of(output)) for output in outputs]


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
        reason = f"an answer is right if {matchers[0]} accepts it (the only reward that compares it with the reference)"
        return RightRule(matchers[0], reason, by_value=True)  # a share of passed tests is no verdict below 1
    candidates = [name for name in names if name not in NO_VERDICT]
    if matchers or len(candidates) > 1:
        return RightRule(None, f"{UNDEFINED}; eval.right = NAME chooses one of {', '.join(candidates)}")
    if not candidates:
        return RightRule(None, f"{UNDEFINED}; add a reward that compares answers, with weight 0 to only watch it")
    name = candidates[0]
    return RightRule(name, f"an answer is right if {name} returns True {ONLY_ONE}")


def verdicts_of_function(name: str) -> Verdicts:
    """Return the verdicts of a function that is called alone: those of True and False."""
    return Verdicts(RightRule(name, f"an answer is right if {name} returns True"))
