"""Which finding explains which: causes first, and beneath each the symptoms that follow from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from outdo.extras.doctor.hacks import HACKS
from outdo.extras.doctor.series import MIN_STEPS, Finding, Level

LEVELS: tuple[Level, ...] = ("warning", "note", "good")
"""In the order in which findings are printed."""

NO_SPREAD = ("constant_reward", "identical_answers", "truncation", "too_hard", "too_easy")
BY_LENGTH = ("reward_follows_length", "reward_against_length")
WRONG_REWARD = ("constant_reward", "random_reward", "reward_against_right", *BY_LENGTH)
LARGE_STEPS = ("steps_too_large", "kl_explosion")
WRONG_STEPS = ("refused_updates", "engine_mismatch", "stale_answers", "critic_worse_than_mean", *LARGE_STEPS)
WRONG_TEACHER = ("teacher_no_better", "repeats_the_hint", "learns_the_opening")
BROKEN_POLICY = (*WRONG_REWARD, *WRONG_STEPS, "entropy_explosion", "entropy_collapse")
NO_EFFECT = ("steps_too_small", "reward_outweighed")

CAUSES: Mapping[str, Sequence[str]] = {
    "reward_follows_length": ("reward_against_right",),
    "reward_against_length": ("reward_against_right",),
    "watched_reward_fell": ("reward_against_right", *BY_LENGTH),
    "repeats_the_hint": ("teacher_no_better",),
    "learns_the_opening": ("teacher_no_better", "repeats_the_hint"),
    "turns_at_limit": ("calls_not_read", "calls_fail"),
    "stopped_reading": (*WRONG_STEPS, "entropy_explosion"),
    "truncation": (
        *("reward_follows_length", "steps_too_large", "entropy_explosion", "reward_against_right"),
        "repeats_the_hint",
    ),
    "identical_answers": (*WRONG_REWARD, *HACKS, "memorised", "entropy_collapse", "steps_too_large"),
    "memorised": WRONG_REWARD,
    "too_easy": (*WRONG_REWARD, *HACKS, "memorised", "identical_answers"),
    "too_hard": (
        *WRONG_REWARD,
        *LARGE_STEPS,
        "no_calls",
        "calls_not_read",
        "calls_fail",
        "truncation",
        "identical_answers",
    ),
    "no_signal": (*WRONG_REWARD, "memorised", *NO_SPREAD, "steps_too_large"),
    "nothing_trained": ("failed_rewards", *NO_SPREAD, "no_signal"),
    "groups_missing": (*NO_SPREAD, "no_signal"),
    "refused_updates": ("failed_rewards", "steps_too_large"),
    "steps_too_small": (*NO_SPREAD, "no_signal", "nothing_trained", "reward_outweighed", "refused_updates"),
    "reward_outweighed": NO_SPREAD,
    "kl_explosion": (*NO_EFFECT, *WRONG_REWARD, "steps_too_large", "entropy_explosion"),
    "entropy_explosion": (*NO_EFFECT, *WRONG_REWARD, "steps_too_large", "kl_explosion"),
    "entropy_collapse": (*NO_EFFECT, *WRONG_REWARD, "steps_too_large", "kl_explosion", *HACKS),
    "repeats_itself": ("stopped_reading", *WRONG_STEPS),
    "left_language": (*WRONG_REWARD, "stopped_reading", "repeats_itself", *WRONG_STEPS, "entropy_explosion"),
    "fewer_words": ("stopped_reading", "repeats_itself", "left_language", *WRONG_STEPS),
    "shorter_answers": ("stopped_reading", *(rule for rule in BROKEN_POLICY if rule != "reward_follows_length")),
    "longer_not_better": (
        *(rule for rule in BROKEN_POLICY if rule != "reward_against_length"),
        "repeats_the_hint",
    ),
    "closer_not_better": (*WRONG_TEACHER, *BROKEN_POLICY, "truncation"),
    "accuracy_fell": (*WRONG_TEACHER, *BROKEN_POLICY, *NO_EFFECT, "memorised", "truncation"),
    "answers_got_worse": (*WRONG_TEACHER, *BROKEN_POLICY, *NO_EFFECT, "truncation"),
    "reward_fell": (*WRONG_TEACHER, *BROKEN_POLICY, *NO_EFFECT, "truncation"),
    "held_out_rose": HACKS,
    "reward_rose": (*WRONG_REWARD, "memorised", "accuracy_fell", *HACKS),
    "slow_steps": ("slow_replica", "truncation"),
}
"""The rules that can explain a rule's finding, the likeliest first."""

ADVISES: Mapping[str, Mapping[str, Literal["raise", "lower"]]] = {
    "truncation": {"sampling.max_tokens": "raise"},
    "stale_answers": {"train.max_staleness": "lower", "optim.lr": "lower"},
    "groups_missing": {"train.dynamic_sampling": "raise"},
    "turns_at_limit": {"environment.turns": "raise"},
    "too_hard": {"train.group_size": "raise"},
    "steps_too_small": {"optim.lr": "raise", "train.passes": "raise"},
    "steps_too_large": {"optim.lr": "lower", "train.passes": "lower", "train.prompts": "raise"},
    "reward_outweighed": {"beta": "lower"},
    "kl_explosion": {"beta": "raise", "optim.lr": "lower"},
    "entropy_explosion": {"entropy_bonus": "lower", "optim.lr": "lower"},
    "entropy_collapse": {"entropy_bonus": "raise", "clip_high": "raise"},
    "accuracy_fell": {"optim.lr": "lower"},
    "answers_got_worse": {"optim.lr": "lower"},
    "reward_fell": {"optim.lr": "lower"},
}
"""The settings that a rule's advice raises or lowers, so that no report does both with one setting."""


def causes_first(findings: Sequence[Finding], *, start: int, gained: bool) -> list[Finding]:
    """Return the findings with their `cause`: warnings first, and every symptom, without its advice, after its cause.

    `findings` are in causal order, as the rules are; the run began with the step `start`, and its answers earned more
    in the end if it `gained`. Two causes can be far apart in a run, and their advice opposite: the second one then
    points to the first instead.
    """
    parents = {finding: _parent(finding, findings, start) for finding in findings}
    if gained:  # a broken policy reads nothing; one that earns more by it has found out how
        parents |= {finding: None for finding in findings if finding.rule == "stopped_reading"}
    roots = {finding: _root(finding, parents, findings) for finding in findings}
    causes = [finding for finding in findings if roots[finding] is finding]
    causes.sort(key=lambda finding: LEVELS.index(finding.level))
    ordered: list[Finding] = []
    for cause, printed in zip(causes, _without_contradictions(causes), strict=True):
        symptoms = (finding for finding in findings if roots[finding] is cause and finding is not cause)
        ordered += [printed, *(replace(finding, cause=cause.rule, advice="") for finding in symptoms)]
    return ordered


def _without_contradictions(causes: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the causes; one that would raise a setting that an earlier one lowers, or the opposite, without advice."""
    advised: dict[str, tuple[str, str]] = {}  # by setting: raise or lower, and the rule that advises it
    for cause in causes:
        wanted = ADVISES.get(cause.rule, {}) if cause.advice else {}
        against = {rule: setting for setting, (way, rule) in advised.items() if wanted.get(setting, way) != way}
        if against:
            rule, setting = next(iter(against.items()))
            yield replace(
                cause, advice=f"The advice above ({rule}) changes {setting}: follow it first, and look again."
            )
        else:
            advised |= {setting: (way, cause.rule) for setting, way in wanted.items() if setting not in advised}
            yield cause


def _parent(finding: Finding, findings: Sequence[Finding], start: int) -> Finding | None:
    """Return the likeliest warning that explains a finding: one that `CAUSES` lists, and that was seen before it.

    A cause may be seen up to `MIN_STEPS` later, because a condition has to last to be seen: if it comes first in causal
    order, or if the finding was not there at the start. Whether the questions were too hard for a policy that broke
    so early is not known.
    """
    earlier = findings.index(finding)
    may_follow = finding.first > start or finding.rule == "too_hard"
    for rule in CAUSES.get(finding.rule, ()):
        for order, cause in enumerate(findings):
            latest = finding.first + (MIN_STEPS if order < earlier or may_follow else -1)
            if cause.rule == rule and cause.level == "warning" and cause.first <= latest:
                return cause
    return None


def _root(finding: Finding, parents: Mapping[Finding, Finding | None], findings: Sequence[Finding]) -> Finding:
    """Return the finding at which the chain of causes ends; of findings that explain each other, the first one."""
    chain = [finding]
    while (parent := parents[chain[-1]]) is not None:
        if parent in chain:
            return min(chain[chain.index(parent) :], key=findings.index)
        chain.append(parent)
    return chain[-1]
