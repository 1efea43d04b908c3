"""Turn a run's metrics into sentences that say what to do: `outdo doctor RUN`.

Each rule checks one condition over ranges of steps. A rule reports nothing if the metric that it needs is missing, so
that it also works for runs of other libraries. A run that goes well gets only good news: single steps jump, so a
condition has to last for several steps (`RunMetrics.lasting_spans`), and a change has to be larger than the noise
(`significant_change`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outdo.observability.doctor import answers, outcome, policy, tokens
from outdo.observability.doctor.series import Finding, Level, Metrics, RunMetrics, is_number

__all__ = ["RULES", "Finding", "Level", "diagnose", "with_initial_evaluation"]

Rule = Callable[[RunMetrics], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    answers.too_easy,
    answers.too_hard,
    answers.no_signal,
    answers.nothing_trained,
    answers.groups_missing,
    answers.failed_rewards,
    answers.truncation,
    answers.longer_not_better,
    policy.entropy_collapse,
    policy.entropy_explosion,
    policy.kl_running_away,
    policy.refused_updates,
    policy.critic_worse_than_mean,
    tokens.not_moving,
    tokens.hardly_moving,
    tokens.moving_away,
    tokens.overshooting,
    tokens.spent_on_certain,
    tokens.out_of_reach,
    tokens.clipped_too_much,
    tokens.clip_never_acts,
    policy.engine_mismatch,
    outcome.no_transfer,
    outcome.accuracy_fell,
    outcome.reward_fell,
    outcome.conflicting_reward_parts,
    policy.slow_steps,
    outcome.reward_rose,
    outcome.held_out_accuracy_rose,
    tokens.moved_as_pushed,
)


def diagnose(metrics: Sequence[Metrics], *, recipe: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return the findings of all rules, sorted by first step.

    `metrics` are lines as in `metrics.jsonl`; `with_initial_evaluation` adds the evaluation before the first step.
    """
    lines = sorted((line for line in metrics if is_number(line.get("step"))), key=lambda line: line["step"])
    run = RunMetrics(lines, recipe or {})
    return sorted((found for rule in RULES for found in rule(run)), key=lambda found: (found.first, found.last))


def with_initial_evaluation(metrics: Sequence[Metrics], summary: Mapping[str, Any]) -> list[Metrics]:
    """Add the evaluation before the first step, which is only in `summary.json`, to the metrics as step 0."""
    before = {f"eval/{name}": value for name, value in summary.get("before", {}).items()}
    return [{"step": 0, **before}, *metrics] if before else [*metrics]
