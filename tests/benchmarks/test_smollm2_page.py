"""The tables and the picture of `docs/results.md`."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.smollm2 import broken, curves, kinds, run, table_parts, tables, teacher_tables, trl_tables
from benchmarks.smollm2.__main__ import results
from benchmarks.smollm2.plan import RATES
from outdo.algorithms.advantages import group_standardised

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def made(name: str, reward: float = 0.5, **fields: Any) -> dict[str, Any]:
    """A line of the results, of 60 steps."""
    task, _, seed = name.split("/")
    held_out = {f"{each}/greedy_reward{end}": reward for each in ("rows", "kinds") for end in ("", "_low", "_high")}
    summary = {**held_out, "rows/greedy": 0.25, "kinds/greedy": 0.125, "reads/mean": 1.0, "start_logprob": -1.0}
    summary["greedy_reward"] = reward
    before = summary | {"rows/greedy_reward": 0.25, "kinds/greedy_reward": 0.25, "greedy_reward": 0.25}
    names = ("entropy", "identical", "moved", "attained", "overshoot", "updates", "kl", "clipped", "seconds", "length")
    return {
        "name": name,
        "task": task,
        "seed": int(seed),
        "lr": 2e-5,
        "before": before,
        "after": summary,
        "curve": {"reward": [reward] * 60} | {each: [0.5] * 60 for each in names},
        "evaluations": [{"step": step, **summary} for step in (20, 40, 60)],
        "bands": [
            {"metric": "reward", "steps": "51-60", "low": 0.5, "high": 0.9, "value": reward, "inside": reward >= 0.5}
        ],
        "remembered": {"gsm8k": 0.02},
        "tokens": 1e5,
        "cpu_seconds": 100,
        "peak_bytes": 8e9,
        "weights": "0123456789",
        "processor": "A",
        **fields,
    }


def test_the_page_has_the_tables_of_the_results():
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert tables.filled(text, results()) == text


def test_the_picture_is_that_of_the_results(tmp_path: Path):
    curves.draw(results(), tmp_path / "smollm2.svg")
    (drawn, numbers), (kept, expected) = map(
        without_numbers, (tmp_path / "smollm2.svg", ROOT / "docs/pictures/smollm2.svg")
    )
    assert drawn == kept
    assert numbers == pytest.approx(expected, abs=0.01)  # processors round differently


def without_numbers(picture: Path) -> tuple[str, list[float]]:
    """Return the text of a picture without its numbers, and the numbers."""
    text = picture.read_text(encoding="utf-8")
    return NUMBER.sub("", text), [float(number) for number in NUMBER.findall(text)]


def test_a_gain_is_an_interval_above_the_reward_before_training():
    low = made("instructions/grpo/1", 0.4)
    low["after"]["rows/greedy_reward_low"] = 0.2
    lines = tables.learned([made("instructions/grpo/0", 0.6), low]).splitlines()
    assert lines[2].endswith("| 25% → 25% | 0.250 → 0.600 (0.600 to 0.600) | 12% → 12% | yes | yes |")
    assert lines[3].endswith("| no | no |")


def test_the_curves_of_trl_agree_where_the_ranges_of_their_windows_overlap():
    runs = [made(f"instructions/grpo/{seed}", reward) for seed, reward in ((0, 0.4), (1, 0.5))]
    runs += [made(f"instructions/trl/{seed}", reward) for seed, reward in ((0, 0.5), (1, 0.6))]
    runs[0]["curve"]["reward"][50:] = runs[1]["curve"]["reward"][50:] = [0.7] * 10
    lines = tables.trl(runs).splitlines()
    assert lines[2] == "| 1 to 10 | 0.400 to 0.500 | 0.500 to 0.600 | yes |"
    assert lines[7] == "| 51 to 60 | 0.700 to 0.700 | 0.500 to 0.600 | no |"


def test_time_and_memory_are_compared_where_both_ran_on_the_same_processor():
    here, there = ([made(f"instructions/{name}/{seed}") for seed in (0, 1)] for name in ("grpo", "trl"))
    for each, processor, seconds in zip([*here, *there], "ABBC", (1, 2, 6, 100), strict=True):
        each["processor"], each["curve"]["seconds"] = processor, [seconds] * 60
    lines = tables.trl([*here, *there]).splitlines()
    assert lines[8] == "| held-out reward, rows | 0.500 to 0.500 | 0.500 to 0.500 | |"
    assert lines[9] == "| steps to 0.500 of it | 20.0 | 20.0 | |"
    assert lines[10] == "| the same in seconds | 40.0 | 120.0 | |"
    there[0]["processor"] = "D"
    assert tables.trl([*here, *there]).splitlines()[10:] == [
        f"| {title} |  |  | |" for title in ("the same in seconds", "processor seconds", "peak GB")
    ]
    beside = made("instructions/beside_trl/0", processor="D", cpu_seconds=7)
    assert tables.trl([*here, *there, beside]).splitlines()[11] == "| processor seconds | 7.0 | 100.0 | |"


def test_steps_to_a_reward_are_interpolated_between_evaluations():
    trained = made("instructions/trl/0")
    trained["curve"]["seconds"] = [1] * 20 + [10] * 40
    for evaluation, reward in zip(trained["evaluations"], (0.4, 0.3, 0.7), strict=True):
        evaluation[table_parts.HELD_OUT] = reward
    assert trl_tables.steps_until(0.3, 0.2, trained) == pytest.approx(10)
    assert trl_tables.steps_until(0.45, 0.2, trained) == pytest.approx(47.5)
    assert trl_tables.seconds_until(0.45, 0.2, trained) == pytest.approx(20 + 275)
    assert trl_tables.seconds_until(0.8, 0.2, trained) == float("inf")


def test_runs_of_one_seed_are_shown_beside_each_other():
    assert tables.bits([made("sums_in_words/grpo/0")]) == tables.NOT_RUN
    twice = [made("sums_in_words/grpo/0"), made("sums_in_words/again/0", weights="abc")]
    assert tables.bits(twice).splitlines()[2:] == [
        "| `sums_in_words/grpo/0` | A | 100 | `0123456789` |",
        "| `sums_in_words/again/0` | A | 100 | `abc` |",
    ]


def test_a_method_of_which_a_seed_never_gets_there_has_no_number_of_answers():
    fast, slow = made("instructions/grpo/0", 0.4), made("instructions/gspo/0", 0.4)
    fast["curve"]["reward"][20:] = [0.8] * 40
    lines = tables.methods([fast, slow]).splitlines()
    assert lines[2].endswith("| 960 | 960 |")
    assert lines[3].endswith("| not all seeds | not all seeds |")


def test_a_run_with_a_teacher_has_its_gain_and_its_distance_from_the_teacher():
    runs = [made(name, 0.6) for name in ("teachers/teacher/100", "teachers/sampled/0", "teachers/whole/1")]
    for line in runs:
        line["task"] = "instructions"
    runs[1]["curve"]["gap"] = [1.0] * 30 + [0.25] * 30
    runs[2]["curve"] |= {"gap": [3.0] * 60, "divergence": [2.0] * 30 + [0.5] * 29 + [None]}
    lines = teacher_tables.taught(runs).splitlines()
    reward = "0.250 | 0.600 (0.600 to 0.600) | 0.600 |"
    assert lines[2:] == [
        f"| the teacher, 60 steps | `instructions` | 100 | {reward}  | 100 |",
        f"| teacher, sampled token | `instructions` | 0 | {reward} 1.00 → 0.25 | 100 |",
        f"| teacher, whole vocabulary | `instructions` | 1 | {reward} 2.00 → 0.50 | 100 |",
    ]
    forgotten = teacher_tables.taught_and_forgotten(runs).splitlines()
    assert forgotten == [
        "| taught by | `gsm8k` |",
        "|---|---|",
        "| the teacher | 0.020 |",
        "| teacher, sampled token | 0.020 |",
    ]


def test_each_seed_of_a_method_has_its_length_and_its_words():
    run, first = made("instructions/gspo/0", 0.4), made("instructions/grpo/0", 0.4)
    run["curve"]["length"] = [42.0] * 10 + [30.0] * 40 + [11.0] * 10
    for evaluation, share in ((run["before"], 0.24), (run["after"], 0.04)):
        evaluation["rows/greedy_distinct_words"] = share
    head, _, without, line = tables.method_seeds([run, first]).splitlines()
    cells = dict(zip(head.split("|"), line.split("|"), strict=True))
    assert cells[" method "] == " `gspo` "
    assert (cells[" length "], cells[" different words "]) == (" 42 → 11 ", " 24% → 4% ")
    assert without.startswith("| `grpo` | 0 |")
    assert without.split("|")[-3].strip() == ""


def test_drift_is_read_where_the_rewards_are_equal():
    evaluations = [
        {"greedy_reward": reward, "start_logprob": drift} for reward, drift in ((0.2, -0.8), (0.4, -1.0), (0.6, -2.0))
    ]
    assert tables.drift_at(0.3, evaluations) == pytest.approx(-0.9)
    assert tables.drift_at(0.5, evaluations) == pytest.approx(-1.5)
    assert tables.drift_at(0.7, evaluations) != tables.drift_at(0.7, evaluations)  # NaN


def test_a_run_that_was_not_made_leaves_a_note_in_place_of_its_table():
    assert {table([]) for name, table in tables.TABLES.items() if name != "missing"} == {tables.NOT_RUN}
    tuned = [made(f"tuning/grpo/{number}", lr=lr) for number, lr in enumerate(RATES)]
    assert "| 3 | `python -m benchmarks.smollm2 --only instructions/grpo` |" in tables.missing(tuned)
    first = [*tuned, made("instructions/grpo/0")]
    assert "| 2 | `python -m benchmarks.smollm2 --only instructions/grpo` |" in tables.missing(first)


def test_answers_stand_in_cells_as_they_are():
    assert tables.cell(" <b>a|b\nc ") == "&lt;b&gt;a\\|b<br>c"


def test_a_short_run_has_no_bands_and_a_long_one_has_them_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    metrics: list[dict[str, Any]] = [{"step": step, "reward": 0.4} for step in range(1, 61)]
    metrics[-1] |= {"eval/rows/greedy_reward": 0.6, "eval/kinds/greedy_reward": 0.45}
    assert [each["inside"] for each in run.bands("instructions", metrics)] == [True, True, False]
    assert run.bands("instructions", metrics[:30]) == []


def test_the_broken_advantage_gives_each_answer_that_of_another():
    rewards, group = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    right = group_standardised(rewards, group).tolist()
    assert broken.next_row(rewards, group).tolist() == [*right[1:], right[0]]


def test_every_line_of_the_results_is_of_a_known_form():
    for line in results():
        assert {"name", "lr", "seed", "settings", "curve", "cpu_seconds", "peak_bytes", "processor"} <= line.keys()


def test_every_question_of_the_archive_is_counted_by_its_kinds():
    counts = kinds.counted()
    assert {name: counts["asked"][name, "topic"] for name in kinds.SETS} == {"rows": 64, "kinds": 64}
    assert all(counts[when][key] <= asked for when in kinds.WHEN for key, asked in counts["asked"].items())
    assert counts["after"]["rows", "contains"] > counts["before"]["rows", "contains"]
