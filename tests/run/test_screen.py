"""What a run says on the screen: little before its first step, no word without its meaning, and warnings always."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from run_cases import write_home, write_rows

from outdo.cli import main
from outdo.cli.train import TrainOptions, run_train
from outdo.run.display import Display
from outdo.run.step_line import MEANINGS
from outdo.utils.errors import UserError

LINES = 3
"""How many lines a run without warnings prints before that of its first step and what its words mean."""
SETTINGS = ("rewards=exact", "data.max_prompt_tokens=16", "steps=2")
"""What makes a run of the recipe one without warnings."""

METRICS = {
    "completions/mean_length": 1234.0,
    "completions/clipped_ratio": 0.0,
    "tokens_per_second": 123456.0,
    "frac_reward_zero_std": 0.0,
    "frac_zero_advantage": 0.0,
    "num_trained_tokens": 1e6,
}
SOMETIMES = {
    "moved_as_intended": 1.0,
    "reward": -123.4567,
    "right": 1.0,
    "frac_zero_advantage": 0.5,
    "sampling/sampling_logp_difference/max": 0.5,
    "sampling/corrected": 0.5,
    "completions/clipped_ratio": 1.0,
    "updates/refused": 1.0,
    "reward_status/failed": 2000.0,
    "num_without_verdict": 2000.0,
    "dynamic_sampling/dropped": 1.0,
    "demonstrations/ratio": 1.0,
}
"""Metrics that add something to the line of a step."""

steps = st.lists(st.sets(st.sampled_from(sorted(SOMETIMES))), min_size=1, max_size=4)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_rows(write_home(tmp_path) / "held_out.jsonl", [{"prompt": f"{n}+7=", "answer": str(n + 7)} for n in range(4)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*settings: str, verbose: bool = False, **how: bool) -> list[str]:
    console = Console(file=(screen := io.StringIO()), width=80)
    display = Display(console, live=False, verbose=verbose)
    assert run_train(["recipe.toml", *settings], display, TrainOptions(**how)) == 0
    return screen.getvalue().splitlines()


def before_first_step(lines: list[str]) -> list[str]:
    return lines[
        : next(place for place, line in enumerate(lines) if line.startswith(("in the line of step 1:", "step ")))
    ]


def test_a_run_without_warnings_says_little_before_its_first_step_and_its_folder_has_the_rest(home: Path):
    lines = said(*SETTINGS, "run=./quiet")
    first, *evaluation = before_first_step(lines)
    assert first == (
        "training all 35,520 weights of model by grpo on 12 questions: 2 steps of 2 questions with 4 answers each; "
        "run folder: quiet (notes on its settings: start.txt)"
    )
    assert len(evaluation) + 1 <= LINES, evaluation
    assert all("evaluation" in line or "held-out" in line for line in evaluation)

    everything = before_first_step(said(*SETTINGS, "run=./verbose", verbose=True))
    notes = [line for line in everything if line not in evaluation]
    assert len(notes) > 10
    when, *kept = (home / "quiet/start.txt").read_text().replace("quiet", "verbose").split("\n\n")[0].splitlines()
    assert when.endswith(", before step 1")
    differ = {*notes} ^ {*kept}
    assert all(line.startswith("other programs compute here") for line in differ), differ


def test_warnings_are_printed_without_being_asked_for_and_kept(home: Path):
    write_rows(home / "train.jsonl", [{"prompt": f"{'9' * n}+1=", "answer": "2"} for n in (1, 2, 40)])
    printed = said("run=./warned", "steps=1", "data.overlong=drop", "data.max_prompt_tokens=16")
    warnings = [line for line in printed if line.startswith("warning: ")]
    assert any("left out: 1 of 3 training questions, longer than 16 tokens" in line for line in warnings)
    assert len(warnings) == len({*warnings})
    assert {*warnings} <= {*(home / "warned/start.txt").read_text().splitlines()}


def test_a_run_that_goes_on_adds_its_notes(home: Path, capsys: pytest.CaptureFixture[str]):
    said(*SETTINGS, "run=./run")
    for steps, options in (("steps=3", []), ("steps=4", ["--verbose"])):
        assert main.app(["resume", "run", steps, *options], standalone_mode=False) == 0
        printed = capsys.readouterr().out
        assert "training all 35,520 weights" in printed
        assert ("threads: 1 (set in the recipe)" in printed) == bool(options)
    starts = [start.splitlines() for start in (home / "run/start.txt").read_text().strip().split("\n\n")]
    assert [start[0].partition(", ")[2] for start in starts] == ["before step 1", "before step 3", "before step 4"]
    assert all("threads: 1 (set in the recipe)" in start for start in starts)


def test_a_dry_run_prints_notes_only_if_it_is_asked(home: Path):
    assert not [line for line in said(*SETTINGS, dry_run=True) if line.startswith(("objective:", "threads:"))]
    assert [line for line in said(*SETTINGS, dry_run=True, verbose=True) if line.startswith("objective:")]


def test_verbose_is_refused_where_everything_is_printed_anyway(home: Path):
    (home / "made.unfinished").mkdir()
    with pytest.raises(UserError, match="--verbose are for runs of `outdo train`"):
        main.app(["resume", "made", "--verbose"], standalone_mode=False)


def screen_of(runs: list[set[str]], *, total: int, live: bool, width: int) -> list[str]:
    """Return what is printed of steps with some of the metrics; of a terminal, each state of the bar as a line."""
    console = Console(file=(screen := io.StringIO()), width=width, force_terminal=live, color_system=None)
    display = Display(console, live=live)
    with display.steps(total - len(runs), total, rounding=0.1):
        for place, chosen in enumerate(runs):
            display.step(total - len(runs) + place + 1, total, METRICS | {name: SOMETIMES[name] for name in chosen})
            if display._bar:
                display._bar[0].refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    return re.split(r"[\r\n]+", text)


def words_of(line: str) -> Iterator[str]:
    """Yield the word of each part of the line of a step; what else is in a part are numbers and units."""
    _, *parts = re.split(
        r" {2,}", re.sub(r"^step +\d+/\d+ *[━╸╺]*", "  ", re.sub(r" +(\d+ s left|[-\d:]+) *$", "", line))
    )
    for part in filter(None, parts):
        word = max((word for word in MEANINGS if word in part), key=len)
        assert not re.sub(r"[^a-z]|by|nats|tokens?|not finite", "", part.replace(word, "")), part
        yield word


@settings(max_examples=25)
@pytest.mark.parametrize(("live", "width"), [(False, 80), (True, 80), (True, 300)])
@given(runs=steps)
def test_every_word_of_the_line_of_a_step_is_explained_before(live: bool, width: int, runs: list[set[str]]):
    explained = ""
    for line in screen_of(runs, total=30, live=live, width=width):
        if not re.match(r"step +\d+/\d+ ", line):
            explained += f" {line.strip()}"
        else:
            assert all(f" {word} = " in explained for word in words_of(line)), (line, explained)


@settings(max_examples=25)
@given(runs=steps, total=st.sampled_from([9, 80, 1000, 10_000]), width=st.sampled_from([80, 99, 100, 120]))
def test_the_line_of_a_step_fits_into_a_terminal_with_the_step_and_the_time_left(runs, total, width):
    shown = [line for line in screen_of(runs, total=total, live=True, width=width) if line.startswith("step")]
    assert shown
    for line in shown:
        assert len(line) <= width
        assert re.match(rf"step +\d+/{total} .*[-\d]:[-\d]+ *$", line), line


def test_no_meaning_is_left_without_a_word():
    shown = [{*SOMETIMES}, {*SOMETIMES} - {"reward", "demonstrations/ratio"}, {"demonstrations/ratio"}, set()]
    lines = screen_of(shown, total=30, live=False, width=80)
    text = " ".join(lines)
    of_evaluations = {"held-out", "greedy", "sampled", "in brackets", "no spread"}
    assert {word for word in MEANINGS if f" {word} = " not in text} == of_evaluations


def test_every_word_of_the_line_of_an_evaluation_is_explained_before():
    console = Console(file=(screen := io.StringIO()), width=80)
    numbers = {"greedy": 0.5, "greedy_low": 0.25, "greedy_high": 0.75, "greedy_answers": 8, "greedy_without_verdict": 1}
    rewards = {"sampled_reward": 1.0, "sampled_reward_low": 1.0, "sampled_reward_high": 1.0, "sampled_answers": 8}
    display = Display(console)
    display.evaluated(0, numbers | {"questions": 8})
    display.evaluated(5, numbers | rewards | {"sampled_without_reward": 2})
    display.evaluated(9, numbers | rewards)
    assert screen.getvalue().splitlines() == [
        "in the line of an evaluation: held-out = asked only to measure; greedy = answers of the likeliest token each "
        "time; in brackets = 95% confidence interval; without a verdict = answers of which the rewards do not say "
        "whether they are right",
        "held-out questions right after step 0: greedy 50.0% (25.0% to 75.0%; 1 of 8 without a verdict)",
        "in the line of an evaluation: sampled = answers at temperature 1; no spread = all answers have the same "
        "reward; without a reward = answers for which the reward function failed, or to which it does not apply",
        "held-out questions right after step 5: greedy 50.0% (25.0% to 75.0%; 1 of 8 without a verdict)",
        "held-out reward after step 5: sampled 1.000 (no spread; 2 of 8 without a reward)",
        "held-out questions right after step 9: greedy 50.0% (25.0% to 75.0%; 1 of 8 without a verdict)",
        "held-out reward after step 9: sampled 1.000 (no spread)",
    ]
