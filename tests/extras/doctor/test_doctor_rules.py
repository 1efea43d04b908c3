"""The doctor's rules: each one reports what it should report, and nothing on data that only comes close."""

import re
from random import Random
from typing import Any

import pytest
from doctor_cases import FIRES, GRPO, HEALTHY, SILENT, found_by, jumping, merged, roots, steps

from outdo.extras.doctor import RULES, diagnose
from outdo.run.folder.run_files import with_initial_evaluation


def test_every_rule_has_an_example_with_and_without_a_finding() -> None:
    assert {rule.__name__ for rule in RULES} == set(FIRES) == set(SILENT)


@pytest.mark.parametrize("rule", FIRES)
def test_a_rule_reports_the_expected_finding(rule: str) -> None:
    lines, words = FIRES[rule]
    (found,) = found_by(rule, lines)
    assert re.search(words, f"{found.text} {found.advice}"), found
    assert found.metric in {name for line in lines for name in line}
    assert 1 <= found.first <= found.last <= len(lines)
    assert bool(found.advice) == (found.level != "good")


@pytest.mark.parametrize("rule", SILENT)
def test_a_rule_reports_nothing_just_below_its_threshold(rule: str) -> None:
    assert found_by(rule, SILENT[rule]) == []


def test_a_healthy_run_gets_no_warning() -> None:
    findings = diagnose(HEALTHY, recipe=GRPO)
    assert {finding.level for finding in findings} == {"good"}
    before_and_after = (
        "93.8% (85.0% to 97.5%) of the greedy answers to held-out questions are right; "
        "at the start it was 26.6% (17.3% to 38.5%)."
    )
    assert any(before_and_after in finding.text for finding in findings)


def test_slow_steps_are_blamed_on_other_programs_where_threads_waited_for_a_processor() -> None:
    usual = {"tokens_per_second": 100.0, "seconds": 2.0, "seconds_without_processor": 0.1}
    slow = {"tokens_per_second": 20.0, "seconds": 10.0}
    for waited, words in ((6.0, "for 60% of the time they had no processor"), (0.5, "usual in this run are 100.")):
        lines = steps((12, usual), (6, slow | {"seconds_without_processor": waited}))
        (found,) = found_by("slow_steps", lines)
        assert words in found.text
        assert ("Other programs compute" in found.advice) == (waited == 6.0)


def test_a_policy_that_has_broken_down_is_not_said_to_have_stopped_reading() -> None:
    """Its reward fell: nothing was gained without the question. If it rose, large steps do not explain that away."""
    read = steps((1, {"reads/about a _ Use": 20.1}), (18, {}), (1, {"reads/about a _ Use": 0.3}))
    large = steps((7, {"step_kl": 0.3}))
    fell, rose = (steps((20, {"reward": sorted(jumping(0.1, 0.9), reverse=down)})) for down in (True, False))
    assert found_by("stopped_reading", merged(read, fell)) == []
    assert roots(merged(merged(read, rose), large))[0] == "stopped_reading"


def test_the_distance_of_one_step_is_no_growing_distance() -> None:
    quiet = [0.01 * (1 + n % 3) for n in range(20)]
    for far, found in (([0.8], 0), ([0.8, 0.3, 0.4], 1)):
        values = [*quiet[:12], *far, *quiet[12 + len(far) :]]
        assert len(found_by("kl_explosion", steps((20, {"kl": values})))) == found


@pytest.mark.parametrize(("spread", "found"), [(0.02, 1), (0.3, 0)])
def test_training_questions_have_to_gain_more_than_held_out_ones_beyond_chance(spread: float, found: int) -> None:
    """40 questions, six visits to each: 53 to 84 % in training, 57 to 71 % held out, of four steps each."""
    right = [mean + (spread if n % 2 else -spread) for n, mean in enumerate([0.53] * 10 + [0.84] * 10)]
    ends = [
        {"eval/sampled": share, "eval/sampled_high": share + 0.02, "transfer/visits": 4.0} for share in (0.57, 0.65)
    ]
    lines = steps((1, ends[0]), (18, {"transfer/visits": 4.0}), (1, ends[1]))
    assert len(found_by("memorised", merged(lines, steps((20, {"right": right}))))) == found


@pytest.mark.parametrize(("held_out", "found"), [((0.4, 0.9), 0), ((0.4, 0.5), 1), ((0.5, 0.1), 1)])
def test_one_huge_step_is_none_in_a_run_whose_answers_became_better(held_out: tuple[float, float], found: int) -> None:
    """As the first step of an adapter may be, in a run so short that training does not tell whether the reward rose."""
    ends = (
        {f"eval/greedy_reward{end}": mean + add for end, add in (("", 0.0), ("_low", -0.1), ("_high", 0.1))}
        for mean in held_out
    )
    first, last = ({"step": step} | line for step, line in zip((0, 8), ends, strict=True))
    lines = [first, *merged(steps((1, {"step_kl": 3.4}), (7, {})), [last])]
    assert len(found_by("steps_too_large", lines)) == found


STILL, MOVING = {"moved_not": 0.9, "step_kl": 1e-7}, {"moved_not": 0.1, "step_kl": 0.01}


@pytest.mark.parametrize("parts", [[(6, STILL), (54, MOVING)], [(54, MOVING), (6, STILL)]])
def test_a_warm_up_and_the_end_of_a_schedule_are_no_run_of_small_steps(parts: list[tuple[int, Any]]) -> None:
    assert roots(steps(*parts)) == []


def test_a_run_that_large_steps_ruined_is_not_told_to_take_larger_ones() -> None:
    """Even if most steps were small: before, in a warm-up, or after, when nothing was left to learn."""
    large = {"moved_not": 0.0, "step_kl": 5.0}
    assert roots(steps((6, STILL), (54, large))) == ["steps_too_large"]
    assert roots(steps((50, STILL), (8, large))) == ["steps_too_large"]


def test_dense_rewards_are_judged_by_their_spread() -> None:
    """Without a definition of right there is no share of right answers, whatever the range of the reward."""
    dense = {"reward": [-7.0 + n / 10 for n in range(20)], "reward_std": 0.4, "frac_reward_zero_std": 0.0}
    assert roots(steps((20, dense))) == []
    assert roots(steps((20, dense | {"frac_reward_zero_std": 0.95}))) == ["no_signal"]


OVER = {
    "no_calls": ({"tools/calls": 0.0}, {"tools/calls": 20.0}, "the policy did not call its tools."),
    "calls_not_read": ({"tools/unparsed_ratio": 0.9}, {"tools/unparsed_ratio": 0.0}, "90% .* could not be read"),
    "calls_fail": ({"tools/failed_ratio": 0.9}, {"tools/failed_ratio": 0.0}, "90% .* ended with an error"),
    "turns_at_limit": ({"completions/turns_ratio": 0.9}, {"completions/turns_ratio": 0.0}, "90% .* ended at the limit"),
    "identical_answers": (
        {"completions/identical_ratio": 1.0, "frac_reward_zero_std": 0.7},
        {"completions/identical_ratio": 0.1, "frac_reward_zero_std": 0.3},
        "100% of the further answers to a question repeated an earlier one",
    ),
    "truncation": ({"completions/clipped_ratio": 0.9}, {"completions/clipped_ratio": 0.0}, "90% .* were truncated"),
    "too_easy": (
        {"frac_all_right": 0.9, "frac_reward_zero_std": 0.9},
        {"frac_all_right": 0.2, "frac_reward_zero_std": 0.3},
        "90% of the groups were all right",
    ),
    "too_hard": (
        {"frac_all_wrong": 0.9, "frac_reward_zero_std": 0.9},
        {"frac_all_wrong": 0.1, "frac_reward_zero_std": 0.3},
        "90% of the groups were all wrong",
    ),
    "no_signal": ({"frac_reward_zero_std": 0.9}, {"frac_reward_zero_std": 0.3}, "90% .* all rewards were equal"),
    "critic_worse_than_mean": (
        {"value/explained_variance": -0.5},
        {"value/explained_variance": 0.6},
        "the critic explained -0.50 .* it was worse",
    ),
}


@pytest.mark.parametrize("rule", OVER)
def test_what_is_over_is_a_note_in_the_past_tense(rule: str) -> None:
    at_first, then, words = OVER[rule]
    (found,) = diagnose(steps((11, at_first), (89, then)), recipe=GRPO)
    assert (found.rule, found.level, found.first, found.last) == (rule, "note", 1, 11)
    assert re.search(words, found.text)
    (lasts,) = diagnose(steps((96, at_first), (4, then)), recipe=GRPO)  # too few steps to say that it is over
    assert lasts.level == "warning"
    (unknown,) = diagnose(steps((11, at_first), (89, {})), recipe=GRPO)  # as the share of failed calls without calls
    assert unknown.level == "warning"


def test_a_policy_that_became_worse_and_better_again_is_no_reason_to_start_again() -> None:
    bad, good = {"frac_all_wrong": 1.0}, {"frac_all_wrong": 0.2}
    (found,) = found_by("answers_got_worse", steps((9, good), (9, bad), (30, good)))
    assert (found.level, found.text) == ("note", "100% of the groups were all wrong; before it was 20%.")


def test_without_a_verdict_the_entropy_may_fall_while_the_reward_rises() -> None:
    certain = steps((20, {"entropy": 1.0}), (20, {"entropy": 0.05}))
    rising, level = ({"reward": [0.2 + slope * n for n in range(40)]} for slope in (0.02, 0.0))
    assert found_by("entropy_collapse", merged(certain, steps((40, rising)))) == []
    (found,) = found_by("entropy_collapse", merged(certain, steps((40, level))))
    assert found.text == "the entropy fell from 1 to 0.05 nats: the answers become alike."


@pytest.mark.parametrize(
    ("rule", "metric", "sign"),
    [
        ("reward_follows_length", "reward_length_correlation", 1.0),
        ("reward_against_length", "reward_length_correlation", -1.0),
    ],
)
def test_a_correlation_counts_only_with_enough_answers_behind_it(rule: str, metric: str, sign: float) -> None:
    """That of two answers is always 1 or -1: by chance it keeps its sign for five steps, but not for twenty."""
    pair, many = {"num_scored": 2.0, "num_groups": 1.0}, {"num_scored": 32.0, "num_groups": 4.0}
    numbers = Random(0)
    chance = steps((500, pair | {metric: [numbers.choice([1.0, -1.0]) for _ in range(500)]}))
    assert found_by(rule, chance) == []
    assert len(found_by(rule, steps((25, pair | {metric: sign})))) == 1
    assert len(found_by(rule, steps((6, many | {metric: sign})))) == 1


def test_episodes_without_a_turn_left_are_not_told_to_write_longer_answers() -> None:
    turns, tokens = "completions/turns_ratio", "completions/clipped_ratio"
    assert roots(steps((9, {turns: 0.4, tokens: 0.45}))) == []
    assert roots(steps((9, {turns: 0.9, tokens: 0.95}))) == ["turns_at_limit"]
    (found,) = diagnose(steps((9, {turns: 0.4, tokens: 0.7})), recipe=GRPO)
    assert found.text == "30% of the answers are truncated."
    assert "Raise sampling.max_tokens" in found.advice
    both = steps((9, {turns: 0.6, tokens: 1.0}))
    assert roots(both) == ["turns_at_limit", "truncation"]


EQUAL = {"frac_reward_zero_std": 1.0, "right": 0.2, "moved_as_intended": 0.9}
ALL_WRONG, ALL_RIGHT = EQUAL | {"frac_all_wrong": 0.8}, EQUAL | {"frac_all_right": 0.8}
IDENTICAL = EQUAL | {"completions/identical_ratio": 1.0}


@pytest.mark.parametrize("method", ["ppo", "reinforce", "reinforce_pp", "rejection"])
@pytest.mark.parametrize("line", [EQUAL, ALL_WRONG, ALL_RIGHT, IDENTICAL])
def test_a_group_with_equal_rewards_is_no_fault_of_an_advantage_that_does_not_compare(
    method: str, line: dict[str, float]
) -> None:
    lines = steps((9, line))
    assert len(roots(lines, {"train": {"objective": "grpo"}})) == 1
    assert roots(lines, {"train": {"objective": method, "group_size": 4}}) == []
    assert roots(lines, {"train": {"objective": {"name": "grpo"}, "advantage": {"name": "gae"}}}) == []
    assert len(roots(lines, {"train": {"objective": method, "advantage": "group_centred"}})) == 1
    assert [each.rule for each in diagnose(lines, recipe={"train": {"objective": method}})] == ["moved_as_intended"]


def test_groups_of_one_answer_are_not_blamed_for_equal_rewards() -> None:
    one = {"num_scored": 32.0, "num_groups": 32.0}
    assert roots(steps((9, ALL_WRONG | one)), None) == []
    assert roots(steps((9, ALL_WRONG)), {"train": {"advantage": "mine.py:own", "group_size": 1}}) == []
    with_baseline = {"train": {"objective": "remax", "group_size": 1}}  # its rewards equal that of the greedy answer
    assert roots(steps((9, EQUAL | one)), with_baseline) == ["no_signal"]


def test_a_reward_that_is_always_0_is_reported_whatever_the_advantage() -> None:
    never = EQUAL | {"reward": 0.0, "right": 0.0, "frac_all_wrong": 1.0}
    assert roots(steps((9, never)), {"train": {"objective": "ppo"}}) == ["too_hard"]


@pytest.mark.parametrize(("rewards", "found"), [((0.4, 0.5), 2), ((0.05, 0.07), 1)])
def test_a_mean_reward_is_reported_beside_the_share_right_unless_they_are_equal(
    rewards: tuple[float, float], found: int
) -> None:
    ends = [
        {"eval/greedy": right, "eval/greedy_reward": mean} for right, mean in zip((0.05, 0.07), rewards, strict=True)
    ]
    told = found_by("held_out_rose", steps((1, ends[0]), (5, {}), (1, ends[1])))
    assert [finding.metric for finding in told] == ["eval/greedy", "eval/greedy_reward"][:found]


def test_held_out_rewards_are_compared_where_right_is_not_defined() -> None:
    ends = [
        {"eval/greedy_reward": mean, "eval/greedy_reward_low": mean - 1, "eval/greedy_reward_high": mean + 1}
        for mean in (-5, 9)
    ]
    (rose,) = found_by("held_out_rose", steps((1, ends[0]), (5, {}), (1, ends[1])))
    assert (
        "the mean reward of the greedy answers to held-out questions is 9 (8 to 10); at the start it was -5"
        in rose.text
    )
    (fell,) = found_by("accuracy_fell", steps((1, ends[1]), (5, {}), (1, ends[0])))
    assert "fell from 9 (8 to 10) (step 1) to -5 (-6 to -4)" in fell.text
    equal = {"eval/greedy_reward": -0.8, "eval/greedy_reward_low": -0.8, "eval/greedy_reward_high": -0.8}
    (fell,) = found_by("accuracy_fell", steps((1, ends[1]), (5, {}), (1, equal)))
    assert "to -0.8 (no spread)" in fell.text


def test_a_held_out_mean_reward_that_fell_is_told_where_the_share_of_right_answers_did_not() -> None:
    """As the page does: its first sentence is then "The reward fell"."""
    right = {"eval/greedy": 0.2, "eval/greedy_low": 0.1, "eval/greedy_high": 0.3}
    name = "eval/greedy_reward"
    ends = [right | {name: mean, f"{name}_low": mean - 0.1, f"{name}_high": mean + 0.1} for mean in (0.8, 0.4)]
    (fell,) = found_by("accuracy_fell", steps((1, ends[0]), (5, {}), (1, ends[1])))
    assert fell.text.startswith("the held-out mean reward of the greedy answers fell from 0.8 (0.7 to 0.9) (step 1) to")
    assert fell.metric == "eval/greedy_reward"


def one_question(*rewards: float) -> list[dict[str, Any]]:
    """Evaluations on one question: the interval of their mean reward has no width."""
    ends = ("eval/greedy_reward", "eval/greedy_reward_low", "eval/greedy_reward_high")
    return steps(*((1, dict.fromkeys(ends, reward)) for reward in rewards))


def test_one_held_out_question_proves_nothing() -> None:
    assert found_by("accuracy_fell", one_question(0.91, 0.9)) == []
    assert found_by("accuracy_fell", one_question(9.0, -5.0)) == []
    (rose,) = found_by("held_out_rose", one_question(0.91, 0.92))
    assert rose.text.endswith("at the start it was 0.91 (no spread). No 95 % interval is known: it may be chance.")


def test_without_an_interval_a_share_is_compared_and_a_reward_of_any_scale_is_not() -> None:
    assert found_by("accuracy_fell", steps((1, {"eval/greedy_reward": 71.2}), (1, {"eval/greedy_reward": 71.0}))) == []
    assert len(found_by("accuracy_fell", steps((1, {"eval/greedy": 0.8}), (1, {"eval/greedy": 0.69})))) == 1
    assert found_by("accuracy_fell", steps((1, {"eval/greedy": 0.8}), (1, {"eval/greedy": 0.71}))) == []
    (rose,) = found_by("held_out_rose", steps((1, {"eval/greedy": 0.2}), (1, {"eval/greedy": 0.7})))
    assert "overlap" not in rose.text
    assert "No 95 % interval is known" in rose.text


def test_a_reward_that_is_always_0_is_reported_as_too_hard_with_a_look_at_the_reward() -> None:
    never = {"reward": 0.0, "right": 0.0, "frac_all_wrong": 1.0, "frac_reward_zero_std": 1.0}
    (found,) = [each for each in diagnose(steps((9, never))) if not each.cause]
    assert found.rule == "too_hard"
    assert "no answer of the run was ever right" in found.text
    assert "outdo check" in found.advice


def two_parts(score: tuple[float, float], topic: tuple[float, float]) -> list[dict[str, Any]]:
    """A run whose rewards score and topic have these means in its first and in its second half."""
    halves = zip(score, topic, strict=True)
    return steps(*((20, {"rewards/score/mean": one, "rewards/topic/mean": other}) for one, other in halves))


def test_only_a_reward_whose_weight_is_0_is_said_to_be_watched() -> None:
    hack, lost = two_parts((0.1, 0.9), (0.9, 0.1)), two_parts((0.9, 0.1), (0.1, 0.9))
    assert roots(hack) == ["watched_reward_fell"]
    assert roots(lost) == []
    both_trained = GRPO | {"rewards": ["mine.py:score", "mine.py:topic"]}
    assert roots(hack, both_trained) == roots(lost, both_trained) == []
    assert roots(hack, None) == []  # the recipe is not known


def test_values_that_are_not_numbers_are_ignored() -> None:
    lines = steps((9, {"kl": 2.0}))
    lines[3]["kl"] = None
    lines[4] |= {"kl": float("nan"), "reward": "much", "entropy": True}
    (found,) = diagnose([*lines, {"loss": 1.0}, {"step": "x"}])
    assert (found.first, found.last) == (1, 9)
    assert diagnose([]) == []
    assert diagnose(steps((9, {"kl": True}))) == []


def test_the_evaluation_before_the_first_step_is_step_0() -> None:
    lines = with_initial_evaluation(steps((5, {}), (1, {"eval/greedy": 0.9})), {"before": {"greedy": 0.1}})
    (found,) = diagnose(lines)
    assert (found.first, found.last) == (0, 6)
    assert with_initial_evaluation(lines, {}) == lines


# ------------------------------------------------------------------------------------------------------------ teachers


def test_a_teacher_that_likes_wrong_answers_is_a_warning_where_the_policy_learns_from_it_alone() -> None:
    lines = steps((12, {"teacher/right_minus_wrong": jumping(-0.8, -0.6, 12)}))
    alone = {"train": {"objective": "gkd"}}
    (found,) = found_by("teacher_no_better", lines, alone)
    assert found.level == "warning"
    assert "makes answers wrong" in found.text
    assert (found.first, found.last) == (1, 5)  # later the policy is like the teacher
    (beside,) = found_by("teacher_no_better", lines, {"train": {"objective": "grpo", "advantage": "mopd"}})
    assert beside.level == "note"


def test_a_few_steps_with_answers_to_compare_say_nothing_of_a_teacher() -> None:
    assert found_by("teacher_no_better", steps((4, {"teacher/right_minus_wrong": -0.5}), (9, {}))) == []


CLOSER = {"teacher/gap": [2.0 - 0.06 * n for n in range(30)]}


@pytest.mark.parametrize(
    ("earned", "level"),
    [
        ({"reward": jumping(0.44, 0.46, 30), "reward_std": 0.5}, "warning"),
        ({"reward": jumping(0.3, 0.6, 30), "reward_std": 0.5}, None),  # a rise may be there and not be seen
        ({"reward": [min(0.9, 0.1 + 0.05 * n) for n in range(30)], "reward_std": 0.3}, "note"),  # it rose before
        ({"reward": [0.1 + 0.02 * n for n in range(30)], "reward_std": 0.5}, None),
        ({"reward": 1.0, "reward_std": 0.0}, None),  # nothing is rewarded
        ({"reward": 1.0}, None),
        ({"right": 0.0, "reward": 1.0}, "warning"),
        ({"teacher/gap": [2.0] + [0.2 - 0.006 * n for n in range(29)], "right": 0.4}, None),  # it was near before
        ({}, None),
    ],
)
def test_a_distance_that_falls_without_a_gain_is_reported_where_a_gain_is_known(earned: Any, level: str | None) -> None:
    found = found_by("closer_not_better", steps((30, {**CLOSER, **earned})))
    assert [each.level for each in found] == ([level] if level else [])


def test_the_opening_is_not_blamed_where_the_reward_rose() -> None:
    gaps = {"teacher/opening_gap": [1.0] * 10 + [0.3] * 10, "teacher/later_gap": 0.5}
    assert len(found_by("learns_the_opening", steps((20, gaps)))) == 1
    rising = [0.1 + 0.04 * n for n in range(20)]
    assert found_by("learns_the_opening", steps((20, {**gaps, "reward": rising}))) == []
