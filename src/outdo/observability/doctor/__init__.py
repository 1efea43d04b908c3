"""Turn a run's metrics into sentences that say what to do: `outdo doctor RUN`.

Each rule checks one condition over ranges of steps. A rule reports nothing if the metric that it needs is missing, so
that it also works for runs of other libraries. A run that goes well gets only good news: single steps jump, so a
condition has to last for several steps (`Run.lasting`), and a change has to be larger than the noise (`change`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outdo.observability.doctor import answers, outcome, policy, tokens
from outdo.observability.doctor.series import Finding, Level, Metrics, Run, is_number

__all__ = ["RULES", "Finding", "Level", "diagnose", "from_the_start"]

Rule = Callable[[Run], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    answers.too_easy,
    answers.too_hard,
    answers.no_signal,
    answers.nothing_trained,
    answers.refill_starved,
    answers.failed_rewards,
    answers.truncation,
    answers.longer_not_better,
    policy.entropy_collapse,
    policy.entropy_explosion,
    policy.kl_running_away,
    policy.refused_updates,
    policy.critic_misleads,
    tokens.not_moving,
    tokens.hardly_moving,
    tokens.moving_away,
    tokens.overshooting,
    tokens.spent_on_certain,
    tokens.out_of_reach,
    tokens.clipped_too_much,
    tokens.clip_never_acts,
    policy.engine_mismatch,
    outcome.not_followed,
    outcome.accuracy_fell,
    outcome.reward_fell,
    outcome.parts_against_each_other,
    policy.slower,
    outcome.reward_rose,
    outcome.held_out_rose,
    tokens.pushes_arrived,
)


def diagnose(metrics: Sequence[Metrics], *, recipe: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return what all rules find, sorted by first step. `metrics` are as in `metrics.jsonl`; see `from_the_start`."""
    lines = sorted((line for line in metrics if is_number(line.get("step"))), key=lambda line: line["step"])
    run = Run(lines, recipe or {})
    return sorted((found for rule in RULES for found in rule(run)), key=lambda found: (found.first, found.last))


def from_the_start(metrics: Sequence[Metrics], summary: Mapping[str, Any]) -> list[Metrics]:
    """Add the evaluation before the first step, which is only in `summary.json`, to the metrics as step 0."""
    before = {f"eval/{name}": value for name, value in summary.get("before", {}).items()}
    return [{"step": 0, **before}, *metrics] if before else [*metrics]
