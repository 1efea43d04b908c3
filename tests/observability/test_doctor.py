"""The doctor's rules: each one reports what it should report, and nothing on data that only comes close."""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outdo.cli.doctor import run_doctor
from outdo.observability.doctor import RULES, Finding, diagnose, with_initial_evaluation
from outdo.observability.doctor.series import RunMetrics
from outdo.storage.run_folder import read_metrics
from outdo.utils.errors import UserError

HEALTHY = read_metrics(Path(__file__).with_name("quickstart_metrics.jsonl"))
"""A real run: 30 steps of GRPO from the quickstart's warm model, the evaluation before it as step 0."""

Series = Mapping[str, float | list[float]]
GRPO = {"train": {"objective": {"name": "grpo"}}, "optim": {"clip_norm": 1.0}, "sampling": {"max_tokens": 64}}


def steps(*parts: tuple[int, Series]) -> list[dict[str, Any]]:
    """So many steps of each part; a list holds a value for each step."""
    lines: list[dict[str, Any]] = []
    for count, series in parts:
        for n in range(count):
            values = {name: value[n] if isinstance(value, list) else value for name, value in series.items()}
            lines.append({"step": len(lines) + 1, **values})
    return lines


def jumping(low: float, high: float, count: int = 20) -> list[float]:
    return [low if n % 2 else high for n in range(count)]


NO_SIGNAL = {"frac_reward_zero_std": 0.9}
FIRES: Mapping[str, tuple[list[dict[str, Any]], str]] = {
    "too_easy": (
        steps((9, {"frac_all_right": 0.3}), (10, NO_SIGNAL | {"frac_all_right": 0.81})),
        "steps 10 to 19: 81% of the groups are all right: the data is too easy.*data.select.*train.dynamic_sampling",
    ),
    "too_hard": (steps((10, NO_SIGNAL | {"frac_all_wrong": 0.9})), "90% .* all wrong: .* too hard.*data.select"),
    "no_signal": (
        steps((10, NO_SIGNAL | {"frac_all_right": 0.5, "frac_all_wrong": 0.4})),
        "in 90% .* the policy learns nothing",
    ),
    "nothing_trained": (
        steps((5, {"updates/done": 1.0}), (3, {"updates/done": 0.0})),
        "steps 6 to 8: nothing was trained",
    ),
    "groups_missing": (steps((6, {"refill/missing": 4.0})), r"4.0 groups per step were still missing"),
    "failed_rewards": (
        steps((3, {}), (1, {"verdicts/timed_out": 7.0})),
        r"step 4: 7 answers .*timed_out.*reward_limits.timeout",
    ),
    "truncation": (steps((8, {"completions/clipped_ratio": 0.5})), "50% of the answers are truncated.*max_tokens = 64"),
    "longer_not_better": (
        steps(
            (10, {"completions/mean_length": 50.0, "reward": 0.5}),
            (10, {"completions/mean_length": 150.0, "reward": 0.5}),
        ),
        "grew from 50 to 150 tokens, and the reward did not rise",
    ),
    "entropy_collapse": (steps((10, {"entropy": 1.0}), (10, {"entropy": 0.05, "right": 0.4})), "fell from 1 to 0.05"),
    "entropy_explosion": (steps((10, {"entropy": 0.3}), (10, {"entropy": 3.0})), "rose from 0.3 to 3 nats"),
    "kl_running_away": (steps((10, {"kl": 0.1}), (10, {"kl": 2.0})), "steps 11 to 20: .* 2 nats per token away"),
    "refused_updates": (
        steps((9, {"updates/refused": 0.0}), (1, {"updates/refused": 1.0})),
        "step 10: .* 1 of the steps",
    ),
    "critic_worse_than_mean": (steps((12, {"value/explained_variance": -0.4})), r"explains -0.40 of the variance"),
    "engine_mismatch": (steps((9, {"sampling/sampling_logp_difference/mean": 0.2})), "differ by 0.2 nats"),
    "slow_steps": (
        steps((20, {"tokens_per_second": 1000.0}), (6, {"tokens_per_second": 100.0})),
        "steps 21 to 26: 100 tokens",
    ),
    "not_moving": (
        steps((9, {"moved_not": 0.95, "learning_rate": 1e-8, "grad_norm": 50.0})),
        r"95% of what was pushed did not move.*learning rate 1e-08.*norm, 50, is clipped to 1 \(optim.clip_norm\)",
    ),
    "hardly_moving": (
        steps((9, {"attained": [0.0003] * 8 + [0.02], "learning_rate": 1e-6})),
        "in 8 of the 9 measured steps, tokens went less than 0.1% of the way.*learning rate 1e-06.*Raise optim.lr",
    ),
    "moving_away": (
        steps((9, {"attained": -0.1, "moved_wrong_way": 0.5, "learning_rate": 1e-3})),
        "more probability moved against the pushes.*50% .* wrong way.*learning rate 0.001.*Lower optim.lr",
    ),
    "overshooting": (steps((9, {"overshoot": 0.4})), "40% of the tokens went beyond"),
    "spent_on_certain": (steps((9, {"certain": 0.97})), "97% of the push goes to tokens that are already above 99 %"),
    "out_of_reach": (steps((9, {"unreachable": 0.95})), "for 95% .* beyond probability 1"),
    "clipped_too_much": (steps((9, {"clip_ratio/region_mean": 0.6})), "60% of the tokens are clipped"),
    "clip_never_acts": (
        steps((25, {"clip_ratio/region_mean": 0.0, "updates/done": 4.0})),
        "with 4 passes per step no token was clipped",
    ),
    "no_transfer": (steps((9, {"transfer/followed": 0.2, "transfer/prompts": 8.0})), "only 20% of 72 questions"),
    "accuracy_fell": (
        steps(
            (10, {"reward": 0.4}),
            (1, {"reward": 0.4, "eval/greedy": 0.6, "eval/greedy_low": 0.55, "eval/greedy_high": 0.65}),
            (10, {"reward": 0.9}),
            (1, {"reward": 0.9, "eval/greedy": 0.3, "eval/greedy_low": 0.25, "eval/greedy_high": 0.35}),
        ),
        r"fell from 60.0% \(55.0% to 65.0%\) to 30.0% .* reward rose from 0.4 to 0.9",
    ),
    "reward_fell": (
        steps((20, {"reward": jumping(0.6, 0.8)}), (20, {"reward": jumping(0.1, 0.3)})),
        r"fell from 0.7 \(the first 8 steps\) to 0.2 \(the last 8\)",
    ),
    "conflicting_reward_parts": (
        steps(
            (20, {"rewards/format/mean": jumping(0.1, 0.2), "rewards/exact/mean": jumping(0.5, 0.6)}),
            (20, {"rewards/format/mean": jumping(0.8, 0.9), "rewards/exact/mean": jumping(0.1, 0.2)}),
        ),
        "exact fell from 0.55 to 0.15 while format rose",
    ),
    "reward_rose": (
        steps((20, {"reward": jumping(0.1, 0.3)}), (20, {"reward": jumping(0.6, 0.8)})),
        r"rose from 0.2 \(the first 8 steps\) to 0.7 \(the last 8\)",
    ),
    "held_out_accuracy_rose": (
        steps((1, {"eval/sampled": 0.2}), (5, {}), (1, {"eval/sampled": 0.7})),
        "70.0% of the sampled answers to held-out questions are right; at the start it was 20.0%",
    ),
    "moved_as_pushed": (
        steps((9, {"moved_right_way": 0.93, "moved/tokens": 100.0})),
        r"93.0% of the pushed tokens moved as pushed, weighted by how far the pushes could move them "
        r"\(900 tokens were measured\)",
    ),
}
"""A series for every rule, and what is then said."""

SILENT: Mapping[str, list[dict[str, Any]]] = {
    "too_easy": steps((10, {"frac_all_right": 0.9, "frac_reward_zero_std": 0.1})),  # rewards differ all the same
    "too_hard": steps((10, {"frac_all_wrong": 1.0, "frac_reward_zero_std": 0.0})),  # a reward that never reaches 1
    "no_signal": steps((10, {"frac_reward_zero_std": 0.6})),
    "nothing_trained": steps((2, {"updates/done": 0.0}), (9, {"updates/done": 1.0})),
    "groups_missing": steps((9, {"refill/missing": 0.0})),
    "failed_rewards": steps((9, {"verdicts/not_applicable": 4.0})),
    "truncation": steps((4, {"completions/clipped_ratio": 0.9}), (9, {"completions/clipped_ratio": 0.0})),  # too short
    "longer_not_better": steps(
        (10, {"completions/mean_length": 50.0, "reward": 0.2}), (10, {"completions/mean_length": 150.0, "reward": 0.8})
    ),
    "entropy_collapse": steps((10, {"entropy": 1.0}), (10, {"entropy": 0.05, "right": 0.97})),  # certain, and right
    "entropy_explosion": steps((10, {"entropy": 0.01}), (10, {"entropy": 0.05})),
    "kl_running_away": steps((20, {"kl": 0.2})),
    "refused_updates": steps((9, {"updates/refused": 0.0})),
    "critic_worse_than_mean": steps((5, {"value/explained_variance": -0.4}), (9, {"value/explained_variance": 0.6})),
    "engine_mismatch": steps((9, {"sampling/sampling_logp_difference/mean": 0.01})),
    "slow_steps": steps((20, {"tokens_per_second": 1000.0}), (20, {"tokens_per_second": 700.0})),
    "not_moving": steps((9, {"moved_not": 0.3})),
    "hardly_moving": steps((20, {"attained": [0.0001, 0.03, -0.01, 0.0002] * 5})),  # few tokens in every second step
    "moving_away": steps((20, {"attained": jumping(-0.05, 0.1)})),
    "overshooting": steps((9, {"overshoot": [0.12, 0.0, 0.11, 0.13, 0.07, 0.08, 0.0, 0.02, 0.0]})),
    "spent_on_certain": steps((9, {"certain": 0.88})),
    "out_of_reach": steps((9, {"unreachable": 0.6})),
    "clipped_too_much": steps((9, {"clip_ratio/region_mean": 0.2})),
    "clip_never_acts": steps((25, {"clip_ratio/region_mean": 0.0, "updates/done": 1.0})),
    "no_transfer": steps((9, {"transfer/followed": 0.2, "transfer/prompts": 1.0})),  # too few to say so
    "accuracy_fell": steps(
        (1, {"reward": 0.4, "eval/greedy": 0.6, "eval/greedy_low": 0.4, "eval/greedy_high": 0.8}),
        (9, {"reward": 0.9}),
        (1, {"reward": 0.9, "eval/greedy": 0.5, "eval/greedy_low": 0.3, "eval/greedy_high": 0.7}),
    ),
    "reward_fell": steps((20, {"reward": jumping(0.15, 0.95)}), (20, {"reward": jumping(0.1, 0.9)})),  # noise
    "conflicting_reward_parts": steps(
        (20, {"rewards/format/mean": jumping(0.1, 0.9), "rewards/exact/mean": jumping(0.2, 0.9)}),
        (20, {"rewards/format/mean": jumping(0.2, 0.9), "rewards/exact/mean": jumping(0.1, 0.9)}),
    ),
    "reward_rose": steps(
        (20, {"reward": jumping(0.1, 0.9)}), (20, {"reward": jumping(0.15, 0.95)})
    ),  # within the noise
    "held_out_accuracy_rose": steps((1, {"eval/greedy": 0.5}), (5, {}), (1, {"eval/greedy": 0.5})),
    "moved_as_pushed": steps((9, {"moved_right_way": 0.5})),
}
"""A series for every rule that comes near, and of which it says nothing."""


def found_by(rule: str, lines: list[dict[str, Any]], recipe: Mapping[str, Any] | None = GRPO) -> list[Finding]:
    (named,) = [each for each in RULES if each.__name__ == rule]
    return list(named(RunMetrics(lines, recipe or {})))


def test_every_rule_has_an_example_with_and_without_a_finding() -> None:
    assert {rule.__name__ for rule in RULES} == set(FIRES) == set(SILENT)


@pytest.mark.parametrize("rule", FIRES)
def test_a_rule_reports_the_expected_finding(rule: str) -> None:
    lines, words = FIRES[rule]
    (found,) = found_by(rule, lines)
    assert re.search(words, found.text), found.text
    assert found.metric in {name for line in lines for name in line}
    assert 1 <= found.first <= found.last <= len(lines)


@pytest.mark.parametrize("rule", SILENT)
def test_a_rule_reports_nothing_just_below_its_threshold(rule: str) -> None:
    assert found_by(rule, SILENT[rule]) == []


def test_a_healthy_run_gets_good_news_only() -> None:
    findings = diagnose(HEALTHY, recipe=GRPO)
    assert {finding.level for finding in findings} == {"good"}
    before_and_after = (
        "93.8% (85.0% to 97.5%) of the greedy answers to held-out questions are right; "
        "at the start it was 26.6% (17.3% to 38.5%)."
    )
    assert any(before_and_after in finding.text for finding in findings)


def test_an_improvement_that_may_be_chance_is_reported_as_uncertain() -> None:
    told = [{"sampled": value, "sampled_low": value - 0.1, "sampled_high": value + 0.1} for value in (0.5, 0.65)]
    ends = [{f"eval/{name}": value for name, value in each.items()} for each in told]
    (found,) = diagnose(steps((1, ends[0]), (5, {}), (1, ends[1])))
    assert "intervals overlap" in found.text


def test_a_gap_of_two_steps_does_not_end_a_range_and_one_of_three_does() -> None:
    high, low = {"kl": 2.0}, {"kl": 0.1}
    assert [(each.first, each.last) for each in diagnose(steps((5, high), (2, low), (5, high)))] == [(1, 12)]
    assert [(each.first, each.last) for each in diagnose(steps((5, high), (3, low), (5, high)))] == [(1, 5), (9, 13)]


@pytest.mark.parametrize("rule", ["too_easy", "too_hard"])
def test_too_easy_or_too_hard_data_is_not_also_reported_as_no_signal(rule: str) -> None:
    assert found_by("no_signal", FIRES[rule][0]) == []


def test_a_policy_that_became_worse_is_not_reported_as_too_hard_data() -> None:
    lines = steps((2, {"frac_all_wrong": 0.3}), (9, {"frac_all_wrong": 1.0, "learning_rate": 3e-3}))
    (found,) = found_by("too_hard", lines)
    assert re.search(r"all wrong; before it was 30%.*the policy has become worse.*0\.003.*Lower optim\.lr", found.text)
    assert "Take easier questions" not in found.text


def test_accuracy_that_fell_with_the_reward_is_reported() -> None:
    tests = [{"step": 0, "eval/greedy": 0.3}, {"step": 9, "eval/greedy": 0.0, "reward": 0.0}]
    (found,) = found_by("accuracy_fell", tests)
    assert "fell from 30.0% to 0.0%, and the reward did not rise" in found.text
    assert "export" not in found.text  # step 0 is no checkpoint


@pytest.mark.parametrize("rule", ["moving_away", "overshooting", "clipped_too_much"])
def test_sequence_objectives_get_no_findings_about_bounds_of_tokens(rule: str) -> None:
    lines, _ = FIRES[rule]
    assert not found_by(rule, lines, {"train": {"objective": "gspo"}})


def test_a_few_tokens_with_close_bounds_are_not_reported_as_moving_away() -> None:
    assert not found_by("moving_away", steps((12, {"attained": -2.9, "moved_wrong_way": 0.1})))


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


# ------------------------------------------------------------------------------------------------------- the command


def write_run(folder: Path, lines: list[dict[str, Any]], **files: str) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def said_of(run: Path, **how: bool) -> str:
    said = io.StringIO()
    run_doctor(run, Console(file=said, width=1000), **how)
    return said.getvalue()


def test_the_command_prints_warnings_first_also_for_other_libraries(tmp_path: Path) -> None:
    lines = steps((20, {"kl": 2.0, "reward": jumping(0.0, 0.1)}), (20, {"kl": 2.0, "reward": jumping(0.8, 0.9)}))
    said = said_of(write_run(tmp_path / "run", lines))
    assert said.index("warning: steps 1 to 40: the policy is 2 nats") < said.index(
        "good: steps 1 to 40: the mean reward"
    )
    assert "no problem was found" not in said


def test_the_command_reads_recipe_and_summary_if_they_exist(tmp_path: Path) -> None:
    lines = steps((8, {"completions/clipped_ratio": 0.5}), (1, {"eval/greedy": 0.9}))
    recipe, summary = "[sampling]\nmax_tokens = 77\n", '{"before": {"greedy": 0.2}}'
    said = said_of(write_run(tmp_path / "run", lines, recipe_toml=recipe, summary_json=summary))
    assert "max_tokens = 77" in said
    assert "at the start it was 20.0%" in said


def test_the_command_reports_that_nothing_was_found(tmp_path: Path) -> None:
    assert "no problem was found" in said_of(write_run(tmp_path / "run", HEALTHY))
    assert "most rules need five steps" in said_of(write_run(tmp_path / "young", steps((2, {"kl": 9.0}))))


def test_the_incomplete_last_line_of_a_live_run_is_ignored(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps((9, {"kl": 2.0})))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "k')
    assert "9 steps" in said_of(run)


def test_json_output_is_one_object_per_line(tmp_path: Path) -> None:
    said = said_of(write_run(tmp_path / "run", steps((9, {"kl": 2.0}))), as_json=True)
    (found,) = [json.loads(line) for line in said.splitlines()]
    assert (found["first"], found["last"], found["level"], found["metric"]) == (1, 9, "warning", "kl")


def test_an_unknown_run_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run is there"):
        said_of(tmp_path)
    write_run(tmp_path / "sums", steps((1, {})))
    with pytest.raises(UserError, match="no such folder; did you mean sums"):
        said_of(tmp_path / "sum")
    with pytest.raises(UserError, match="this is a file"):
        said_of(tmp_path / "sums" / "metrics.jsonl")


def test_damaged_files_are_named_and_the_rest_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", steps((9, {"kl": 2.0})), summary_json="{")
    assert "2 nats per token" in said_of(run)
    assert "summary.json cannot be read" in capsys.readouterr().err


def test_control_characters_from_a_run_are_not_printed(tmp_path: Path) -> None:
    lines = steps(
        (20, {"rewards/[red]a\x1b]8;;x/mean": jumping(0.1, 0.2), "rewards/b/mean": jumping(0.8, 0.9)}),
        (20, {"rewards/[red]a\x1b]8;;x/mean": jumping(0.8, 0.9), "rewards/b/mean": jumping(0.1, 0.2)}),
    )
    said = said_of(write_run(tmp_path / "run", lines))
    assert "\x1b" not in said
    assert "[red]a␛]8;;x rose" in said
