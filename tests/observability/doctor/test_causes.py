"""Causes come first, with their symptoms beneath them, and advice does not contradict itself."""

import re

import pytest
from doctor_cases import FIRES, GRPO, jumping, merged, roots, steps

from outdo.observability.doctor import CAUSES, RULES, diagnose
from outdo.observability.doctor.series import RunMetrics


def test_every_cause_is_a_rule() -> None:
    names = {rule.__name__ for rule in RULES}
    assert {*CAUSES, *(cause for causes in CAUSES.values() for cause in causes)} <= names
    assert not [rule for rule, causes in CAUSES.items() if rule in causes]


@pytest.mark.parametrize("first", FIRES)
def test_every_finding_is_printed_once_and_every_symptom_has_a_cause(first: str) -> None:
    for second in FIRES:
        lines = merged(FIRES[first][0], FIRES[second][0])
        found, run = diagnose(lines, recipe=GRPO), RunMetrics(lines, GRPO)
        assert sorted(each.rule for each in found) == sorted(rule.__name__ for rule in RULES for _ in rule(run))
        assert {each.cause for each in found} <= {"", *(each.rule for each in found if not each.cause)}


def test_causes_come_before_their_symptoms_and_only_causes_have_advice() -> None:
    sick = merged(
        steps((20, {"reward_length_correlation": -1.0, "reward": jumping(0.3, 0.31)})),
        steps((8, {}), (12, {"completions/empty_ratio": 0.96, "frac_all_wrong": 1.0, "frac_reward_zero_std": 0.9})),
    )
    found = diagnose(sick)
    assert [(each.rule, each.cause) for each in found] == [
        ("reward_follows_length", ""),
        ("too_hard", "reward_follows_length"),
        ("empty_answers", "reward_follows_length"),
    ]
    assert [bool(each.advice) for each in found] == [True, False, False]


def test_what_was_there_before_a_finding_is_not_its_symptom() -> None:
    truncated = steps((30, {"completions/clipped_ratio": 0.5}))
    assert roots(merged(truncated, steps((20, {}), (10, {"step_kl": 2.0})))) == ["truncation", "steps_too_large"]
    later = steps((10, {"completions/clipped_ratio": 0.0}), (20, {"completions/clipped_ratio": 0.5}))
    assert roots(merged(later, steps((30, {"step_kl": 2.0})))) == ["steps_too_large"]


def test_a_later_rule_explains_only_what_was_seen_after_it() -> None:
    truncated = steps((30, {"completions/clipped_ratio": 0.5}))
    assert roots(merged(truncated, steps((2, {}), (28, {"step_kl": 2.0})))) == ["truncation", "steps_too_large"]


def test_of_findings_that_explain_each_other_the_first_in_causal_order_is_the_cause() -> None:
    both = merged(steps((20, {"entropy": [0.1, *[1.0] * 19]})), steps((3, {}), (17, {"kl": 2.0})))
    assert roots(both) == ["kl_explosion"]


@pytest.mark.parametrize("first", ["steps_too_small", "steps_too_large", "clip_never_acts", "overshooting"])
def test_no_run_is_advised_to_raise_and_to_lower_the_learning_rate(first: str) -> None:
    pairs = [(first, second) for second in FIRES] + [(second, first) for second in FIRES]
    for lines in (merged(FIRES[a][0], FIRES[b][0]) for a, b in pairs):
        advice = " ".join(each.advice for each in diagnose(lines, recipe=GRPO))
        assert not ("Raise optim.lr" in advice and re.search("lower (optim.lr|the learning rate)", advice, re.I)), (
            advice
        )


def test_steps_that_hardly_move_a_token_are_not_also_reported_as_too_large() -> None:
    """At a learning rate of 1e-7 what moves is noise, and half of it moves against its push."""
    noise = {"moved_not": 0.8, "attained": jumping(-0.3, -0.06), "moved_wrong_way": 0.6, "overshoot": 0.3}
    assert roots(steps((20, noise))) == ["steps_too_small"]


def test_a_condition_that_returns_is_one_finding() -> None:
    lines = steps(*[(8, {"kl": 2.0}), (8, {"kl": 0.1})] * 600)
    (found,) = diagnose(lines)
    assert (found.first, found.last, found.spells) == (1, 9592, 600)
    assert found.steps == "steps 1 to 9,592, 600 times"


def test_a_gap_of_two_steps_does_not_end_a_range_and_one_of_three_does() -> None:
    high, low = {"completions/clipped_ratio": 0.9}, {"completions/clipped_ratio": 0.0}
    assert [each.spells for each in diagnose(steps((5, high), (2, low), (5, high)))] == [1]
    assert [each.spells for each in diagnose(steps((5, high), (3, low), (5, high)))] == [2]
