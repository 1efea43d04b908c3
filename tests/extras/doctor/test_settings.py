"""No sentence of the doctor is false whatever the settings of a run: each rule in each setting that could make it so.

Every rule is run on the series about which it reports something, in a run with each of the settings. What it says there
is what it says without them, except for the cells of `DIFFERENT`.
"""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from doctor_cases import FIRES, GRPO, found_by, roots, steps

from outdo.extras.doctor import RULES, diagnose


def kept_groups(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a run with dynamic sampling, whose policy becomes better and better: all kept groups teach."""
    means = {"dynamic_sampling/reward": 0.1, "dynamic_sampling/right": 0.1}
    count = len(lines)
    made = [{name: value + 0.8 * n / count for name, value in means.items()} for n in range(count)]
    return [
        line | more | {"dynamic_sampling/dropped": 3.0, "frac_zero_advantage": 0.0}
        for line, more in zip(lines, made, strict=True)
    ]


def with_metrics(**metrics: float) -> Any:
    return lambda lines: [line | metrics for line in lines]


def unchanged(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return lines


teaching = with_metrics(frac_zero_advantage=0.0)
SETTINGS: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    "dynamic sampling": ({"train": {"objective": "grpo", "dynamic_sampling": 2}}, kept_groups),
    "another level": ({"train": {"objective": {"name": "dapo", "level": "sequence"}}}, unchanged),
    "another surrogate": ({"train": {"objective": {"name": "grpo", "surrogate": "unclipped"}}}, unchanged),
    "bypass": (
        {"train": {"objective": {"name": "ppo", "bypass": True}, "advantage": "group_centred", "passes": 1}},
        unchanged,
    ),
    "another engine": ({"engine": {"name": "vllm"}}, unchanged),
    "older weights": ({"train": {"objective": "grpo", "max_staleness": 2}}, with_metrics(**{"staleness/max": 2.0})),
    "KL in the reward": ({"train": {"objective": "grpo", "kl_in_reward": {"name": "k1", "beta": 0.1}}}, teaching),
    "an environment": ({"environment": {"name": "mine.py:Game"}}, unchanged),
    "rewards of turns": (
        {"train": {"objective": "grpo", "advantage": "turn_to_go"}, "environment": {"name": "mine.py:Game"}},
        teaching,
    ),
    "parts": ({"train": {"objective": "grpo", "advantage": "gdpo"}}, teaching),
    "an adapter": ({"train": {"objective": "grpo", "adapter": {"name": "lora", "rank": 8}}}, unchanged),
    "several passes": ({"train": {"objective": "grpo", "passes": 4}}, unchanged),
    "one answer": ({"train": {"objective": "grpo", "advantage": "reward", "group_size": 1}}, teaching),
    "a critic": ({"train": {"objective": "ppo", "critic": "model"}}, teaching),
    "rejection": ({"train": {"objective": "rejection"}}, teaching),
    "verdicts": ({"train": {"objective": "grpo", "advantage": "pass_at_k"}}, teaching),
    "a teacher": ({"train": {"objective": "distillation"}, "teachers": "teacher"}, teaching),
    "targets": ({"train": {"objective": "target"}}, unchanged),
}
SILENT = None
EQUAL_GROUPS = dict.fromkeys(
    ["dynamic sampling", "rewards of turns", "parts", "one answer", "a critic", "rejection", "verdicts", "a teacher"]
)
"""Settings in which groups with equal rewards may teach something, or none is kept."""

OTHER_THAN_REWARDS = dict.fromkeys(["parts", "rejection", "verdicts", "a teacher"])
"""Settings in which the policy does not learn from the sum of the rewards."""

RISING = {"dynamic sampling": SILENT}
"""For rules about a reward that did not rise: over all sampled answers, it does in that setting."""

EPISODES, WITH_TURNS = ("an environment", "rewards of turns"), r"\(of an episode\) and environment.turn_tokens"
NO_CLIP_HIGH = r"alike\. (Add an entropy bonus|Lower optim.lr), or sample at temperature 1"
WITHOUT_CLIP = ("another level", "another surrogate", "rejection", "a teacher", "targets")
IN_REWARD = {"targets": r"a KL term \(train.kl_in_reward\)"}

DIFFERENT: Mapping[str, Mapping[str, str | None]] = {
    "failed_rewards": {},
    "constant_reward": OTHER_THAN_REWARDS | {"rewards of turns": SILENT},
    "random_reward": {},
    "reward_against_right": OTHER_THAN_REWARDS,
    "reward_follows_length": OTHER_THAN_REWARDS,
    "reward_against_length": OTHER_THAN_REWARDS,
    "watched_reward_fell": {"dynamic sampling": SILENT},
    "stopped_reading": IN_REWARD,
    "repeats_itself": {},
    "gain_without_right": {"dynamic sampling": SILENT},
    "left_language": IN_REWARD | {"a teacher": SILENT},
    "fewer_words": IN_REWARD,
    "memorised": {"dynamic sampling": SILENT},
    "teacher_no_better": {},
    "repeats_the_hint": {},
    "learns_the_opening": RISING,
    "no_calls": {},
    "calls_not_read": {},
    "calls_fail": {},
    "turns_at_limit": {},
    "identical_answers": EQUAL_GROUPS,
    "truncation": dict.fromkeys(EPISODES, WITH_TURNS),
    "too_easy": EQUAL_GROUPS,
    "too_hard": EQUAL_GROUPS,
    "no_signal": EQUAL_GROUPS,
    "nothing_trained": {
        "dynamic sampling": "dynamic sampling found no group that teaches anything",
        "rejection": "no answer was good enough",
    },
    "groups_missing": {},
    "engine_mismatch": {
        "bypass": "The objective takes it into account",
        "another engine": "The objective takes it into account",
        "older weights": SILENT,
    },
    "stale_answers": {},
    "critic_worse_than_mean": {},
    "reward_outweighed": RISING,
    "refused_updates": {},
    "steps_too_small": RISING,
    "steps_too_large": {},
    "kl_explosion": {
        "KL in the reward": "Raise train.kl_in_reward.beta",
        "a teacher": r"reference\. Lower optim.lr\.$",
    },
    "entropy_explosion": {},
    "entropy_collapse": dict.fromkeys(WITHOUT_CLIP, NO_CLIP_HIGH),
    "shorter_answers": {"dynamic sampling": SILENT},
    "longer_not_better": {"dynamic sampling": SILENT, "another level": "Add the reward overlong or read the longest"},
    "closer_not_better": {"dynamic sampling": SILENT},
    "accuracy_fell": {"dynamic sampling": "while the training reward rose from 0.155 to 0.809"},
    "answers_got_worse": {"dynamic sampling": SILENT},
    "reward_fell": {"dynamic sampling": SILENT},
    "slow_replica": {},
    "slow_steps": {},
    "held_out_rose": {},
    "reward_rose": {"dynamic sampling": "the mean reward rose from 0.17 .* to 0.81"},
    "moved_as_intended": {},
}
"""What a rule says in a setting if not what it says without it: a pattern of the sentence, or nothing at all."""


def told(rule: str, setting: str | None) -> str | None:
    lines, _ = FIRES[rule]
    changed, see = SETTINGS[setting] if setting else ({}, unchanged)
    found = found_by(rule, see(lines), GRPO | changed)
    return " | ".join(f"{each.text} {each.advice}" for each in found) or None


def test_every_rule_has_an_entry() -> None:
    assert list(DIFFERENT) == [rule.__name__ for rule in RULES]
    assert {setting for cells in DIFFERENT.values() for setting in cells} <= set(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", DIFFERENT)
def test_a_rule_says_nothing_false_in_a_setting(rule: str, setting: str) -> None:
    usual, said = told(rule, None), told(rule, setting)
    expected = DIFFERENT[rule].get(setting, usual)
    if setting not in DIFFERENT[rule] or expected is None:
        assert said == expected
    else:
        assert said != usual
        assert re.search(expected, said or ""), said


# ------------------------------------------------------------------------------------------------ the groups of a step


def with_rise(*metrics: tuple[str, float, float], **constant: float) -> list[dict[str, Any]]:
    """Forty steps with dynamic sampling in which metrics rise or fall evenly."""
    values = {name: [first + (last - first) * n / 39 for n in range(40)] for name, first, last in metrics}
    return steps((40, {**constant, **values, "dynamic_sampling/dropped": 3.0, "frac_zero_advantage": 0.0}))


KEPT = {"reward": 0.5, "right": 0.45}
BETTER = ("dynamic_sampling/reward", 0.1, 0.9)


@pytest.mark.parametrize(
    "symptom",
    [("regularisation", 0.5, 0.7), ("completions/mean_length", 50.0, 200.0)],
)
def test_a_reward_that_rose_over_all_sampled_groups_is_not_said_not_to_have_risen(symptom: Any) -> None:
    assert found_texts(with_rise(BETTER, symptom, **KEPT)) == ["reward_rose"]


def found_texts(lines: list[dict[str, Any]]) -> list[str]:
    return [each.rule for each in diagnose(lines, recipe=GRPO)]


def test_the_mean_reward_of_kept_groups_decides_nothing() -> None:
    worse = ("dynamic_sampling/reward", 0.9, 0.1)
    assert found_texts(with_rise(worse, ("reward", 0.4, 0.6))) == ["reward_fell"]
    assert found_texts(with_rise(BETTER, ("reward", 0.6, 0.4))) == ["reward_rose"]


def test_the_right_answers_of_kept_groups_decide_nothing() -> None:
    part = ("rewards/format/mean", 0.2, 0.9)
    of_all = ("dynamic_sampling/rewards/format/mean", 0.2, 0.9)
    lines = with_rise(BETTER, ("reward", 0.5, 0.7), part, of_all, right=0.45)
    assert found_texts(lines) == ["reward_rose"]
    never = with_rise(BETTER, of_all, **{"dynamic_sampling/right": 0.1})
    more = [line | {"dynamic_sampling/rewards/exact/mean": 0.1} for line in never]
    assert found_texts(more) == ["gain_without_right", "reward_rose"]
    shorter = ("completions/mean_length", 100.0, 10.0)
    assert found_texts(with_rise(BETTER, shorter, ("dynamic_sampling/right", 0.1, 0.9), **KEPT)) == ["reward_rose"]


def test_a_share_of_the_kept_groups_is_called_one() -> None:
    (found,) = diagnose(with_rise(**{"completions/clipped_ratio": 0.5}), recipe=GRPO)
    assert found.text == "50% of the answers are truncated, in the groups that dynamic sampling kept."


# ------------------------------------------------------------------------------------------------------- other settings


def test_a_reward_that_is_not_known_to_have_stayed_is_not_said_to_have() -> None:
    (short,) = found_by("reward_outweighed", steps((9, {"regularisation": 0.7})))
    assert short.text == "70% of the push on tokens comes from the KL from the reference."
    (known,) = found_by("reward_outweighed", steps((20, {"regularisation": 0.7, "reward": 0.5})))
    assert known.text.endswith("the KL from the reference, and the reward did not rise.")


def test_answers_with_two_rewards_are_not_said_to_have_the_mean_of_both() -> None:
    """A collapsed policy, whose steps hold all of the data: two of four questions are always right."""
    half = {
        "reward": 0.5,
        "reward_std": 0.5,
        "frac_reward_zero_std": 1.0,
        "frac_zero_advantage": 1.0,
    }
    assert found_texts(steps((10, half))) == ["no_signal"]


def test_large_rewards_that_differ_little_are_not_one_reward() -> None:
    close = {"reward": 5000.002, "reward_std": 0.002, "frac_reward_zero_std": 0.0, "frac_zero_advantage": 0.0}
    assert found_texts(steps((10, close))) == []


def test_rewards_of_turns_and_parts_may_teach_although_their_sums_are_equal() -> None:
    """An environment pays one turn of two, each episode 1 in all; or of two parts one falls as the other rises."""
    equal = {"reward": 1.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}
    for name in ("turn_to_go", "turn_centred", "gdpo"):
        recipe = {"train": {"objective": "grpo", "advantage": name}}
        assert diagnose(steps((6, equal | {"frac_zero_advantage": 0.0})), recipe=recipe) == []
        assert diagnose(steps((6, equal)), recipe=recipe) == []  # a run of an older version
        rules = [each.rule for each in diagnose(steps((6, equal | {"frac_zero_advantage": 1.0})), recipe=recipe)]
        assert rules == ["constant_reward", "no_signal"]


@pytest.mark.parametrize(("last_length", "found"), [(0.1, ["gain_without_right"]), (0.9, [])])
def test_a_part_with_a_negative_weight_is_earned_by_less_of_it(last_length: float, found: list[str]) -> None:
    recipe = GRPO | {"rewards": ["exact", {"name": "mine.py:length", "weight": -1}]}
    ends = ({"reward": 0.1, "rewards/length/mean": 0.5}, {"reward": 0.5, "rewards/length/mean": last_length})
    lines = steps(*((20, end | {"right": 0.1, "rewards/exact/mean": 0.1}) for end in ends))
    assert roots(lines, recipe) == found


@pytest.mark.parametrize(("advantage", "found"), [("pass_at_k", 0), ("group_centred", 1)])
def test_a_reward_whose_verdicts_are_trained_on_is_not_only_watched(advantage: str, found: int) -> None:
    recipe = GRPO | {"train": {"objective": "grpo", "advantage": advantage}, "eval": {"right": "topic"}}
    assert len(found_by("watched_reward_fell", FIRES["watched_reward_fell"][0], recipe)) == found


def test_harder_questions_are_no_worse_policy() -> None:
    lines, _ = FIRES["answers_got_worse"]
    levels = [line | {"data/level": float(n > 8)} for n, line in enumerate(lines)]
    for see, recipe in ((levels, GRPO), (lines, GRPO | {"data": {"shuffle": False}})):
        (found,) = found_by("answers_got_worse", see, recipe)
        assert found.text.endswith("the questions have become harder, or the policy worse.")


def test_nothing_is_blamed_on_missing_rewards_that_was_left_out_for_another_reason() -> None:
    nothing = {"passes/done": 0.0, "num_scored": 8.0, "completions/clipped_ratio": 1.0}
    for changed, recipe, words in (
        ({}, {"train": {"objective": "rejection"}}, "no answer was good enough"),
        ({}, {"train": {"objective": "grpo", "mask_truncated": True}}, "every answer is truncated"),
        ({"num_scored": 0.0}, GRPO, "no answer has a reward"),
        ({"num_scored": 0.0, "dynamic_sampling/dropped": 8.0}, GRPO, "no group that teaches anything"),
        ({}, GRPO, "no token was left to train on"),
    ):
        (found,) = found_by("nothing_trained", steps((5, nothing | changed)), recipe)
        assert words in found.text


def test_an_adaptive_bonus_that_reaches_its_target_is_no_broken_policy() -> None:
    bonus = {"start": 0.01, "target": 0.5}
    recipe = {"train": {"objective": {"name": "grpo", "entropy_bonus": bonus}}}
    assert found_by("entropy_explosion", steps((20, {"entropy": 0.1}), (20, {"entropy": 0.55})), recipe) == []
    (found,) = found_by("entropy_explosion", steps((20, {"entropy": 0.1}), (20, {"entropy": 2.0})), recipe)
    assert "adaptive entropy bonus (target 0.5 nats)" in found.text


def test_advice_that_is_followed_already_is_not_given() -> None:
    recipe = GRPO | {"rewards": ["exact", {"name": "overlong", "cache": 9}], "train": {"mask_truncated": True}}
    (found,) = found_by("truncation", FIRES["truncation"][0], recipe)
    assert found.advice == "Raise sampling.max_tokens = 64."
    easy = found_by("too_easy", FIRES["too_easy"][0], {"train": {"objective": "grpo", "advantage": "optimal_token"}})
    assert [each.advice for each in easy if "dynamic_sampling" in each.advice] == []
