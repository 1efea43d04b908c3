"""What the recipe of a run says about its method. The recipe of another library is not known."""

from typing import Any

from outdo.config.names import DEFAULT_ADVANTAGE, GROUP_RELATIVE
from outdo.extras.doctor.series import RunMetrics


def objective(run: RunMetrics) -> Any:
    """Return the name of the run's objective, or None if its recipe is not known."""
    return run.setting("train.objective.name", run.setting("train.objective"))


def compares_answers(run: RunMetrics) -> bool:
    """Return whether a group whose rewards are all equal teaches nothing, as far as is known.

    With most advantages it does not. Others, such as those of a critic, learn from a single answer; and the rewards of
    groups of one answer are always "all equal". `remax` compares even that one with a greedy answer.
    """
    advantage = run.setting("train.advantage.name", run.setting("train.advantage"))
    if advantage is None and objective(run) is not None:
        advantage = DEFAULT_ADVANTAGE.get(str(objective(run)), "group_standardised")
    if advantage == "remax":
        return True
    if _one_answer_per_group(run):
        return False
    return advantage is None or advantage in GROUP_RELATIVE or ":" in str(advantage)


def _one_answer_per_group(run: RunMetrics) -> bool:
    scored, groups = (sum(run.span(metric).values) for metric in ("num_scored", "num_groups"))
    return run.setting("train.group_size") == 1 or 0 < scored <= groups
