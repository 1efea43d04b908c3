"""What the recipe and the metrics of a run say about its method. The recipe of another library is not known."""

from collections.abc import Mapping
from typing import Any

from outdo.config.methods import facts_of_advantage, facts_of_objective
from outdo.config.names import BUILTIN_ENGINE
from outdo.extras.doctor.series import RunMetrics, Span, significant_change
from outdo.utils.outcome import EVALUATIONS
from outdo.utils.reward_names import weights_by_name

CLIPPED = ("grpo", "grpo_clip", "ppo", "dr_grpo", "dapo", "bnpo", "reinforce_pp")
"""Objectives that clip the ratio of a token: with several passes, some tokens should be clipped."""

SEQUENCE = ("gspo", "gspo_token", "luspo", "rloo_clip")
"""Objectives that clip whole answers: their bounds say little about one token."""

IN_PARTS = ("gdpo", "turn_to_go", "turn_centred")
"""Advantages that compare parts of the reward or rewards of turns: groups with equal sums may teach something."""

BY_TOKEN = ("tree", "optimal_token", "remax", "gae", "reinforce_pp")
"""Advantages that compare rewards per token where an environment gives some, and else the rewards of answers."""


# --------------------------------------------------------------------------------------------------------- the method


def objective(run: RunMetrics) -> Any:
    """Return the name of the run's objective, or None if its recipe is not known."""
    return run.setting("train.objective.name", run.setting("train.objective"))


def option(run: RunMetrics, name: str) -> Any:
    """Return an option of the objective that the recipe sets, or None; of a piece with options, its name."""
    value = run.setting(f"train.objective.{name}")
    return value.get("name", value) if isinstance(value, Mapping) else value


def advantage(run: RunMetrics) -> str | None:
    """Return the name of the run's advantage, or None if its recipe is not known."""
    name = run.setting("train.advantage.name", run.setting("train.advantage"))
    if name is None and objective(run) is not None:
        name = facts_of_objective(str(objective(run))).published_with
    return None if name is None else str(name)


def compares_whole_answers(run: RunMetrics) -> bool:
    """Return whether the objective takes the ratio of an answer, whose bounds say little about one token."""
    level = option(run, "level")
    return objective(run) in SEQUENCE if level is None else level != "token"


def clips_tokens(run: RunMetrics) -> bool:
    """Return whether the objective is known to clip the ratio of each token."""
    surrogate = option(run, "surrogate")
    clips = objective(run) in CLIPPED if surrogate is None else surrogate == "clip"
    return clips and not compares_whole_answers(run)


def is_composed(run: RunMetrics) -> bool:
    """Return whether the objective has options such as `beta`, an entropy bonus and a batch transform."""
    return facts_of_objective(str(objective(run))).is_composed


def corrects(run: RunMetrics) -> bool:
    """Return whether the objective weights tokens for the difference between engine and trainer, or starts from it."""
    correction = option(run, "correction")
    other = run.setting("engine.name", run.setting("engine", BUILTIN_ENGINE)) != BUILTIN_ENGINE
    other = other or bool(run.setting("train.max_staleness"))
    by_default = correction is None and other and objective(run) is not None and is_composed(run)
    starts_there = bool(option(run, "bypass")) or str(objective(run)).startswith("prime_rl")
    return by_default or correction not in (None, "none") or starts_there


def is_distilled(run: RunMetrics) -> bool:
    """Return whether the policy moves towards a teacher, and no reward is used."""
    return not facts_of_advantage(str(advantage(run))).reads_rewards


def reads_verdicts(run: RunMetrics) -> bool:
    """Return whether the advantage reads which answers are right in place of the rewards."""
    facts = facts_of_advantage(str(advantage(run)))
    options = {option: run.setting(f"train.advantage.{option}") for option in facts.requires_unless}
    return "right" in facts.requires_with(options)


def has_reward(run: RunMetrics, name: str) -> bool:
    """Return whether the recipe has a reward of this name."""
    return name in weights_by_name(run.setting("rewards"))


def closer_to_the_start(run: RunMetrics) -> str:
    """Return the setting that keeps the policy closer to the starting one."""
    return "train.objective.beta" if is_composed(run) else "train.kl_in_reward"


# ------------------------------------------------------------------------------------------------- rewards and verdicts


def drops_groups(run: RunMetrics) -> bool:
    """Return whether dynamic sampling chose the groups in training: their rewards stay near the middle by selection."""
    return bool(run.span("dynamic_sampling/dropped").values or run.setting("train.dynamic_sampling"))


def of_all_sampled(run: RunMetrics, metric: str) -> str:
    """Return the name of a mean over all sampled answers: with dynamic sampling that of the step is of chosen ones."""
    return f"dynamic_sampling/{metric}" if drops_groups(run) else metric


def reward_ends(run: RunMetrics) -> tuple[Span, Span] | None:
    """Return the first and the last mean rewards of the policy; None if they are not known."""
    return run.first_and_last(of_all_sampled(run, "reward"))


def reward_change(run: RunMetrics) -> float | None:
    """Return how much the mean reward of the policy changed, 0 if that can be chance; None if it is not known.

    Where training does not tell, as in a short run that learns in its first steps, held-out answers may.
    """
    ends = reward_ends(run)
    in_training = None if ends is None else significant_change(*ends)
    return in_training or _held_out_change(run) or in_training


def _held_out_change(run: RunMetrics) -> float | None:
    """Return how much the mean reward of held-out answers changed, if their 95 % intervals do not overlap."""
    for kind in EVALUATIONS:
        mean, low, high = (run.span(f"eval/{kind}_reward{end}").values for end in ("", "_low", "_high"))
        if len(mean) == len(low) == len(high) > 1 and (low[-1] > high[0] or high[-1] < low[0]):
            return mean[-1] - mean[0]
    return None


def reward_did_not_rise(run: RunMetrics) -> str:
    """Return the end of a sentence that says so, or nothing where it is not known."""
    change = reward_change(run)
    return "" if change is None or change > 0 else ", and the reward did not rise"


def is_trained_on_rewards(run: RunMetrics) -> bool:
    """Return whether the policy learns from the sum of the rewards, as far as is known.

    Verdicts, parts that are standardised by themselves, and a teacher are something else.
    """
    return not reads_verdicts(run) and advantage(run) != "gdpo" and not is_distilled(run)


# -------------------------------------------------------------------------------------------- groups that teach nothing


def without_signal(run: RunMetrics) -> str:
    """Return the metric that says which share of the groups teaches nothing; empty if none does.

    A KL in the reward makes advantages of its own. So with it, and in runs without `frac_zero_advantage`, groups with
    equal rewards count, if the advantage compares those.
    """
    if run.span("frac_zero_advantage").values and not run.setting("train.kl_in_reward"):
        return "frac_zero_advantage"
    return "frac_reward_zero_std" if sums_decide(run) else ""


def share_without_signal(run: RunMetrics, over: Span, *, unknown: float) -> float:
    """Return the share of the groups that teach nothing over some steps; 0 if no metric says so."""
    metric = without_signal(run)
    return run.mean(metric, over, unknown=unknown) if metric else 0.0


def sums_decide(run: RunMetrics) -> bool:
    """Return whether a group whose summed rewards are all equal teaches nothing, as far as is known.

    With most advantages it does not. Others, such as those of a critic, learn from a single answer; and the rewards of
    groups of one answer are always "all equal". `remax` compares even that one with a greedy answer.
    """
    name = advantage(run)
    if name in IN_PARTS or reads_verdicts(run) or (name in BY_TOKEN and run.setting("environment")):
        return False
    if name == "remax":
        return True
    if _one_answer_per_group(run):
        return False
    return name is None or facts_of_advantage(name).compares_group or ":" in name


def replaced_by_dynamic_sampling(run: RunMetrics) -> str:
    """Return the advice to let dynamic sampling replace groups that teach nothing, where it can be followed."""
    can = not drops_groups(run) and not facts_of_advantage(str(advantage(run))).cannot_be_asked
    return ", or let train.dynamic_sampling replace them" if can else ""


def _one_answer_per_group(run: RunMetrics) -> bool:
    scored, groups = (sum(run.span(metric).values) for metric in ("num_scored", "num_groups"))
    return run.setting("train.group_size") == 1 or 0 < scored <= groups
