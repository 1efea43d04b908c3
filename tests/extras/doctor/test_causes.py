"""Causes come first, with their symptoms beneath them, and advice does not contradict itself."""

import re
from random import Random
from typing import Any

import pytest
from doctor_cases import FIRES, GRPO, SAME, SILENT, STALE, found_by, jumping, merged, roots, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from outdo.extras.doctor import CAUSES, RULES, diagnose
from outdo.extras.doctor.causes import ADVISES
from outdo.extras.doctor.series import RunMetrics


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
        steps(
            (8, {"completions/mean_length": 40.0}),
            (12, {"completions/mean_length": 2.0, "frac_all_wrong": 1.0, "frac_reward_zero_std": 0.9}),
        ),
    )
    found = diagnose(sick)
    assert [(each.rule, each.cause) for each in found] == [
        ("reward_against_length", ""),
        ("too_hard", "reward_against_length"),
        ("shorter_answers", "reward_against_length"),
    ]
    assert [bool(each.advice) for each in found] == [True, False, False]


def test_a_reward_explains_truncation_only_if_it_pays_for_length() -> None:
    truncated = steps((20, {"completions/clipped_ratio": 0.5}))
    for correlation, found in (
        (0.99, ["reward_follows_length"]),
        (-0.99, ["reward_against_length", "truncation"]),
    ):
        assert roots(merged(truncated, steps((20, {"reward_length_correlation": correlation})))) == found


def test_a_constant_reward_is_the_cause_in_a_run_of_few_steps_too() -> None:
    lines = steps((3, SAME | {"completions/clipped_ratio": 0.5}))
    found = {each.rule: each.cause for each in diagnose(lines)}
    assert found == {"constant_reward": "", "no_signal": "constant_reward", "truncation": ""}


def test_what_was_there_before_a_finding_is_not_its_symptom() -> None:
    truncated = steps((30, {"completions/clipped_ratio": 0.5}))
    assert roots(merged(truncated, steps((20, {}), (10, {"step_kl": 2.0})))) == ["truncation", "steps_too_large"]
    later = steps((10, {"completions/clipped_ratio": 0.0}), (20, {"completions/clipped_ratio": 0.5}))
    assert roots(merged(later, steps((30, {"step_kl": 2.0})))) == ["steps_too_large"]


def test_what_begins_with_steps_that_are_too_large_is_their_symptom_although_it_was_seen_earlier() -> None:
    """With few measured tokens a step may not be seen to be large, and the answers of the next one are cut off."""
    large = steps((2, {"step_kl": 0.1}), (1, {"step_kl": 1.6}), (7, {}))
    at_once, from_start = (
        steps((n, {"completions/clipped_ratio": 0.0}), (10 - n, {"completions/clipped_ratio": 0.5})) for n in (1, 0)
    )
    assert roots(merged(at_once, large)) == ["steps_too_large"]
    assert roots(merged(from_start, large)) == ["truncation", "steps_too_large"]


def test_a_policy_that_broke_at_once_does_not_show_whether_questions_are_too_hard() -> None:
    wrong = {"frac_all_wrong": 0.9, "reward": 0.01, "frac_reward_zero_std": 0.9}
    for before, found in ((0, ["steps_too_large"]), (8, ["too_hard", "steps_too_large"])):
        large = steps((before, {"step_kl": 0.01}), (1, {"step_kl": 3.7}), (19 - before, {}))
        assert roots(merged(steps((20, wrong)), large)) == found


def test_a_broken_policy_reads_nothing_and_one_that_earns_more_has_found_out_how() -> None:
    read = steps((1, {"eval/reads/mean": 25.8}), (18, {}), (1, {"eval/reads/mean": 1.4}))
    read = merged(read, steps((7, {"step_kl": 2.0})))
    assert roots(merged(read, steps((20, {"reward": 0.0})))) == ["steps_too_large"]
    rising = steps((20, {"reward": sorted(jumping(0.1, 0.9))}))
    assert roots(merged(read, rising)) == ["stopped_reading", "steps_too_large"]


def settings_of(advice: str) -> set[tuple[str, str]]:
    """What a reader of the advice does: pairs of `raise` or `lower`, and a setting."""
    direct = {(way.lower(), name) for way, name in re.findall(r"\b(raise|lower) (?:the )?([\w.]*\w)", advice, re.I)}
    direct -= {("lower", "its")}  # the weight of a part of the reward: of no other rule
    for way, name in re.findall(r"\b(more|fewer|one) (passes|pass|questions per step|answers per question)", advice):
        direct.add(("raise" if way == "more" else "lower", name.replace("passes", "pass")))
    added = {("raise", "entropy")} if "add an entropy bonus" in advice else set()
    wider = {("raise", "clip_high")} if "wider bounds" in advice else set()
    return direct | added | wider


WORDS = {"train.passes": "pass", "train.prompts": "questions per step", "train.group_size": "answers per question"}
WORDS |= {"entropy_bonus": "entropy"}


def test_what_the_advice_raises_and_lowers_is_in_the_table() -> None:
    for rule, (lines, _) in FIRES.items():
        for recipe in (GRPO, {"train": {"objective": {"name": "grpo", "entropy_bonus": 0.1}}}):
            advised = settings_of(" ".join(each.advice for each in found_by(rule, lines, recipe)))
            table = {(way, WORDS.get(setting, setting)) for setting, way in ADVISES.get(rule, {}).items()}
            assert advised <= table, rule
    assert settings_of("Use fewer passes (train.passes), or raise beta; lower the entropy bonus.") == {
        ("lower", "pass"),
        ("raise", "beta"),
        ("lower", "entropy"),
    }


SEEN = [line for lines in (*(lines for lines, _ in FIRES.values()), *SILENT.values()) for line in lines]
LEVELS = {
    name: [line[name] for line in SEEN if name in line] for name in {name for line in SEEN for name in line} - {"step"}
}


def random_run(numbers: Random) -> list[dict[str, Any]]:
    """A run with some of the metrics that the rules read, at levels at which they report something or nothing."""
    lines: list[dict[str, Any]] = [{"step": n + 1} for n in range(numbers.choice([5, 20, 40, 60]))]
    for name in numbers.sample(sorted(LEVELS), numbers.randint(2, 18)):
        place = 0
        while place < len(lines):
            length, level = numbers.choice([1, 3, 6, 12, 30, 60]), numbers.choice(LEVELS[name])
            noise = numbers.choice([0.0, 0.0, 0.1])
            for line in lines[place : place + length]:
                line[name] = level * (1 + noise * numbers.uniform(-1, 1))
            place += length
    return lines


OBJECTIVES = [{"name": "grpo"}, {"name": "grpo", "entropy_bonus": 0.1}, {"name": "gspo"}]


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_no_report_raises_and_lowers_one_setting(seed: int, objective: dict[str, Any]) -> None:
    found = diagnose(random_run(Random(seed)), recipe={"train": {"objective": objective}})
    advised = settings_of(" ".join(each.advice for each in found))
    assert not {name for way, name in advised if way == "raise"} & {name for way, name in advised if way == "lower"}
    assert all(each.advice for each in found if not each.cause and each.level != "good")


def test_advice_that_contradicts_an_earlier_cause_points_to_it() -> None:
    stale = STALE | {"sampling/effective_sample_size": 0.7}
    lines = merged(steps((24, {"moved_not": 0.95}), (6, {"moved_not": 0.1})), steps((20, {}), (9, stale)))
    first, second = diagnose(lines, recipe=GRPO)
    assert (first.rule, second.rule) == ("stale_answers", "steps_too_small")
    assert second.advice == "The advice above (stale_answers) changes optim.lr: follow it first, and look again."


def test_a_condition_that_returns_is_one_finding() -> None:
    lines = steps(*[(8, {"kl": 2.0}), (8, {"kl": 0.1})] * 600)
    (found,) = diagnose(lines)
    assert (found.first, found.last, found.spells) == (1, 9592, 600)
    assert found.steps == "steps 1 to 9,592, 600 times"
