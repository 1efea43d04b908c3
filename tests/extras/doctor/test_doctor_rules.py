"""The doctor's rules: each one reports what it should report, and nothing on data that only comes close."""

import re
from typing import Any

import pytest
from doctor_cases import FIRES, GRPO, HEALTHY, NO_SIGNAL, SILENT, found_by, jumping, merged, roots, steps

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


def test_answers_that_were_truncated_only_in_the_beginning_are_a_note() -> None:
    """The policy has learnt to end them."""
    lines = steps((8, {"completions/clipped_ratio": 0.4}), (12, {"completions/clipped_ratio": 0.02}))
    (found,) = found_by("truncation", lines)
    assert (found.level, found.first, found.last) == ("note", 1, 8)
    assert found.text == "40% of the answers were truncated."


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


def test_truncated_answers_are_reported_in_a_run_of_three_steps() -> None:
    assert roots(steps((3, {"completions/clipped_ratio": 0.5}))) == ["truncation"]
    assert roots(steps((2, {"completions/clipped_ratio": 0.5}))) == []


def test_truncated_answers_of_an_episode_name_the_limit_of_its_turns_too() -> None:
    truncated, recipe = steps((3, {"completions/clipped_ratio": 0.5})), {"sampling": {"max_tokens": 64}}
    for environment, advice in (
        (None, "Raise sampling.max_tokens = 64, "),
        ({"name": "tools"}, "Raise sampling.max_tokens = 64 (of an episode) and environment.turn_tokens (of a turn), "),
    ):
        (found,) = found_by("truncation", truncated, recipe | {"environment": environment})
        assert found.advice.startswith(advice)


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


@pytest.mark.parametrize(("metric", "found"), [("eval/reads/mention _", 1), ("reads/mention _", 0)])
def test_a_word_that_was_read_a_little_is_judged_by_held_out_questions_alone(metric: str, found: int) -> None:
    read = steps((1, {metric: 4.1, "reads/mention _": 2.9}), (9, {}), (1, {metric: 0.1, "reads/mention _": 0.0}))
    rose = steps((11, {"reward": jumping(0.1, 0.9)}))
    assert len(found_by("stopped_reading", merged(read, rose))) == found


def test_a_kl_that_grows_tenfold_is_reported_before_it_is_large() -> None:
    growing = [0.0005] * 12 + [0.001 * 2.0**n for n in range(8)]
    (found,) = found_by("kl_explosion", steps((20, {"kl": growing})))
    assert "grew from" in found.text
    assert max(growing) < 0.5


def test_dense_rewards_are_judged_by_their_spread() -> None:
    """Without a definition of right there is no share of right answers, whatever the range of the reward."""
    dense = {"reward": [-7.0 + n / 10 for n in range(20)], "reward_std": 0.4, "frac_reward_zero_std": 0.0}
    assert roots(steps((20, dense))) == []
    assert roots(steps((20, dense | {"frac_reward_zero_std": 0.95}))) == ["no_signal"]


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


def test_a_reward_that_is_always_0_is_reported_as_too_hard_with_a_look_at_the_reward() -> None:
    never = {"reward": 0.0, "right": 0.0, "frac_all_wrong": 1.0, "frac_reward_zero_std": 1.0}
    (found,) = [each for each in diagnose(steps((9, never))) if not each.cause]
    assert found.rule == "too_hard"
    assert "no answer of the run was ever right" in found.text
    assert "outdo check" in found.advice


def test_questions_that_were_learnt_are_a_note_and_questions_that_always_were_too_easy_a_warning() -> None:
    learnt = steps((9, {"frac_all_right": 0.3}), (10, NO_SIGNAL | {"frac_all_right": 0.9}))
    easy = steps((19, NO_SIGNAL | {"frac_all_right": 0.9}))
    assert [each.level for lines in (learnt, easy) for each in found_by("too_easy", lines)] == ["note", "warning"]


def test_rewards_that_dynamic_sampling_selected_are_not_compared_with_held_out_ones() -> None:
    lines, _ = FIRES["memorised"]
    assert not found_by("memorised", merged(lines, steps((40, {"dynamic_sampling/reward": 0.5}))))


def test_a_reward_that_follows_length_downwards_is_reported_as_well() -> None:
    (found,) = found_by("reward_follows_length", steps((9, {"reward_length_correlation": -1.0})))
    assert "learns to answer shorter" in found.text


def two_parts(score: tuple[float, float], topic: tuple[float, float]) -> list[dict[str, Any]]:
    """A run whose rewards score and topic have these means in its first and in its second half."""
    halves = zip(score, topic, strict=True)
    return steps(*((20, {"rewards/score/mean": one, "rewards/topic/mean": other}) for one, other in halves))


def test_a_watched_reward_is_no_part_that_conflicts_with_others() -> None:
    """Its weight cannot be too low, and nothing is trained on it if it rises."""
    hack, lost = two_parts((0.1, 0.9), (0.9, 0.1)), two_parts((0.9, 0.1), (0.1, 0.9))
    assert roots(hack) == ["watched_reward_fell"]
    assert roots(lost) == []
    both_trained = GRPO | {"rewards": ["mine.py:score", "mine.py:topic"]}
    assert roots(hack, both_trained) == roots(lost, both_trained) == ["conflicting_reward_parts"]
    assert roots(hack, None) == ["conflicting_reward_parts"]  # of a run whose recipe is not known


def test_a_watched_reward_that_falls_with_the_trained_one_is_no_hack() -> None:
    assert roots(two_parts((0.9, 0.1), (0.9, 0.1))) == []
    assert roots(two_parts((0.5, 0.5), (0.9, 0.1))) == []


def test_rewards_of_one_name_are_told_apart() -> None:
    lines = [
        {"step": line["step"], "rewards/a.score/mean": line["rewards/score/mean"],
         "rewards/b.score/mean": line["rewards/topic/mean"]}
        for line in two_parts((0.1, 0.9), (0.9, 0.1))
    ]  # fmt: skip
    watched = GRPO | {"rewards": ["a.py:score", {"name": "b.py:score", "weight": 0.0}]}
    assert roots(lines, watched) == ["watched_reward_fell"]
    assert roots(lines, GRPO | {"rewards": [{"name": "a.py:score", "weight": 0}, "b.py:score"]}) == []


def test_the_standard_deviation_of_a_part_is_no_part() -> None:
    deviations = steps(
        (20, {"rewards/a/mean": 0.1, "rewards/a/std": 0.5}), (20, {"rewards/a/mean": 0.9, "rewards/a/std": 0.1})
    )
    assert roots(deviations) == []


def test_a_reward_that_rose_while_a_watched_one_fell_is_its_symptom() -> None:
    rose = steps((20, {"reward": jumping(0.1, 0.2)}), (20, {"reward": jumping(0.8, 0.9)}))
    findings = diagnose(merged(FIRES["watched_reward_fell"][0], rose), recipe=GRPO)
    assert [(each.rule, each.cause) for each in findings] == [
        ("watched_reward_fell", ""),
        ("reward_rose", "watched_reward_fell"),
    ]


def test_an_entropy_bonus_is_named_as_what_raises_the_entropy() -> None:
    recipe = {"train": {"objective": {"name": "grpo", "entropy_bonus": 1.0}}}
    (found,) = found_by("entropy_explosion", FIRES["entropy_explosion"][0], recipe)
    assert "an entropy bonus of 1.0" in found.text
    assert "optim.lr" not in found.advice


def test_an_improvement_that_may_be_chance_is_reported_as_uncertain() -> None:
    told = [{"sampled": value, "sampled_low": value - 0.1, "sampled_high": value + 0.1} for value in (0.5, 0.65)]
    ends = [{f"eval/{name}": value for name, value in each.items()} for each in told]
    (found,) = diagnose(steps((1, ends[0]), (5, {}), (1, ends[1])))
    assert "intervals overlap" in found.text


@pytest.mark.parametrize("rule", ["too_easy", "too_hard"])
def test_too_easy_or_too_hard_data_is_not_also_reported_as_no_signal(rule: str) -> None:
    assert found_by("no_signal", FIRES[rule][0]) == []


def test_a_policy_that_became_worse_is_not_reported_as_too_hard_data() -> None:
    lines, _ = FIRES["answers_got_worse"]
    assert found_by("too_hard", lines) == []


def test_accuracy_that_fell_with_the_reward_is_reported() -> None:
    tests = [{"step": 0, "eval/greedy": 0.3}, {"step": 9, "eval/greedy": 0.0, "reward": 0.0}]
    (found,) = found_by("accuracy_fell", tests)
    assert "fell from 30.0% (step 0) to 0.0%, and the reward did not rise" in found.text
    assert "export" not in found.advice  # step 0 is no checkpoint


STEPS_UNDO_EACH_OTHER = steps((9, {"attained": -0.1, "moved_wrong_way": 0.5, "learning_rate": 1e-3}))


def test_steps_that_undo_each_other_are_too_large() -> None:
    (found,) = found_by("steps_too_large", STEPS_UNDO_EACH_OTHER)
    assert "more probability moved against the pushes than with them" in found.text
    assert not found_by("steps_too_large", steps((12, {"attained": -2.9, "moved_wrong_way": 0.1})))  # few close bounds


@pytest.mark.parametrize("rule", ["overshooting", "clipped_too_much"])
def test_sequence_objectives_get_no_findings_about_bounds_of_tokens(rule: str) -> None:
    lines, _ = FIRES[rule]
    assert not found_by(rule, lines, {"train": {"objective": "gspo"}})
    assert not found_by("steps_too_large", STEPS_UNDO_EACH_OTHER, {"train": {"objective": "gspo"}})


def test_one_step_that_ruins_the_policy_is_too_large() -> None:
    """After it all rewards are equal, and no further step is measured."""
    (found,) = found_by("steps_too_large", steps((1, {"step_kl": 5.0}), (9, {})))
    assert (found.first, found.last) == (1, 1)
    assert not found_by("steps_too_large", steps((1, {"step_kl": 0.6}), (9, {})))


def test_training_answers_that_stay_while_held_out_answers_get_worse_are_learnt_by_heart() -> None:
    ends = [{"eval/sampled": mean, "eval/sampled_high": mean + 0.1} for mean in (0.5, 0.1)]
    trained = {"right": 0.75, "transfer/visits": 30.0}
    (found,) = found_by("memorised", steps((1, ends[0]), (20, trained), (1, ends[1])))
    assert "held-out questions from 50.0% to 10.0%" in found.text


def test_small_steps_that_help_are_not_too_small() -> None:
    lines = merged(FIRES["steps_too_small"][0], FIRES["reward_rose"][0])
    assert not found_by("steps_too_small", lines)


def test_pushes_of_the_reference_alone_are_not_reported_as_good() -> None:
    assert not found_by("moved_as_pushed", steps((9, {"moved_right_way": 0.9, "frac_reward_zero_std": 1.0})))


def test_clip_never_acts_is_not_reported_for_objectives_without_a_clip() -> None:
    lines, _ = FIRES["clip_never_acts"]
    assert found_by("clip_never_acts", lines, {"train": {"objective": "target"}}) == []
    assert found_by("clip_never_acts", lines, None) == []


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
