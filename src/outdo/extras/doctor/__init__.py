"""Turn a run's metrics into sentences that say what to do: `outdo doctor RUN`.

Each rule checks one condition over ranges of steps. A rule reports nothing if the metric that it needs is missing, so
that it also works for runs of other libraries. A run that goes well gets no warning: single steps jump, so a condition
has to last for several steps (`RunMetrics.lasting`), and a change has to be larger than the noise
(`significant_change`). `benchmarks/sick_runs.py` counts how often the first finding is right, and the false alarms.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outdo.extras.doctor import answers, hacks, outcome, policy, reading, rewards, teachers, tokens, tools
from outdo.extras.doctor.causes import CAUSES, LEVELS, causes_first
from outdo.extras.doctor.method import drops_groups, reward_change
from outdo.extras.doctor.series import Finding, Level, Metrics, RunMetrics, is_number

__all__ = ["CAUSES", "LEVELS", "RULES", "Finding", "Level", "diagnose"]

Rule = Callable[[RunMetrics], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    rewards.failed_rewards,
    rewards.constant_reward,
    rewards.random_reward,
    rewards.reward_against_right,
    rewards.reward_follows_length,
    rewards.reward_against_length,
    hacks.watched_reward_fell,
    reading.stopped_reading,
    hacks.repeats_itself,
    hacks.gain_without_right,
    hacks.left_language,
    hacks.fewer_words,
    outcome.memorised,
    teachers.teacher_no_better,
    teachers.repeats_the_hint,
    teachers.learns_the_opening,
    tools.no_calls,
    tools.calls_not_read,
    tools.calls_fail,
    tools.turns_at_limit,
    answers.identical_answers,
    answers.truncation,
    answers.too_easy,
    answers.too_hard,
    answers.no_signal,
    answers.nothing_trained,
    answers.groups_missing,
    policy.engine_mismatch,
    policy.stale_answers,
    policy.critic_worse_than_mean,
    policy.reward_outweighed,
    policy.refused_updates,
    tokens.steps_too_small,
    tokens.steps_too_large,
    policy.kl_explosion,
    policy.entropy_explosion,
    policy.entropy_collapse,
    answers.shorter_answers,
    answers.longer_not_better,
    teachers.closer_not_better,
    outcome.accuracy_fell,
    outcome.answers_got_worse,
    outcome.reward_fell,
    policy.slow_replica,
    policy.slow_steps,
    outcome.held_out_rose,
    outcome.reward_rose,
    tokens.moved_as_intended,
)
"""In causal order: the reward, questions and answers, the update, the policy, the result."""

OF_THE_GROUPS = (
    "completions/",
    "frac_",
    "reads/",
    "reads_ratio/",
    "reward_",
    "rewards/",
    "teacher/",
    "tools/",
    "transfer/",
)
"""How the names of metrics begin that are measured on the answers of the step."""


def diagnose(metrics: Sequence[Metrics], *, recipe: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return the findings of all rules: causes first, each with its symptoms (`causes_first`).

    `metrics` are lines as in `metrics.jsonl`; `with_initial_evaluation` of `outdo.run.folder.run_files` adds the
    evaluation before the first step.
    """
    lines = sorted((line for line in metrics if is_number(line.get("step"))), key=lambda line: line["step"])
    run = RunMetrics(lines, recipe or {})
    findings = [replace(finding, rule=rule.__name__) for rule in RULES for finding in rule(run)]
    findings = [_of_kept_groups(finding) for finding in findings] if drops_groups(run) else findings
    start = min((line["step"] for line in lines if line["step"] > 0), default=0)
    return causes_first(findings, start=start, gained=(reward_change(run) or 0.0) > 0)


def _of_kept_groups(finding: Finding) -> Finding:
    """Return a finding that says of which answers it speaks, where dynamic sampling chose those of a step."""
    if not finding.metric.startswith(OF_THE_GROUPS):
        return finding
    return replace(finding, text=f"{finding.text.removesuffix('.')}, in the groups that dynamic sampling kept.")
