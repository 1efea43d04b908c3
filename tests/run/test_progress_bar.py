"""On a terminal a long command shows how much is done; elsewhere, and after it, there is nothing."""

import sys
from functools import partial
from io import StringIO
from threading import Event

import pytest
from engine_cases import shared
from rich.console import Console
from run_cases import write_home, write_rows
from tqdm import tqdm

from outdo.cli import main
from outdo.cli.commands import COMMANDS
from outdo.cli.train import TrainOptions, run_train
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.engines import completions_of
from outdo.run.display import Display
from outdo.run.progress_bar import progress
from outdo.types import Request
from outdo.utils.rng import Stream


def test_a_terminal_shows_what_is_done_of_how_much():
    screen, counted = StringIO(), Event()

    def count() -> tuple[int, int]:
        counted.set()
        return 3, 8

    with progress("answering", count, console=Console(file=screen, force_terminal=True, width=100)):
        assert counted.wait(600)
        counted.clear()
        assert counted.wait(600)  # what was counted first has been shown to the bar
    assert "answering" in screen.getvalue()
    assert "3/8" in screen.getvalue()


def test_elsewhere_nothing_is_written_and_nothing_is_counted():
    file = StringIO()

    def count() -> tuple[int, int]:
        raise AssertionError("nobody looks")

    with progress("answering", count, console=Console(file=file)):
        pass
    assert file.getvalue() == ""


def test_bars_of_tqdm_are_shown_beside_the_bar_and_other_lines_above_it():
    screen = StringIO()
    stderr = sys.stderr
    with progress("loading model", console=Console(file=screen, force_terminal=True, width=120)):
        assert sys.stderr.fileno() == stderr.fileno()  # as faulthandler and subprocess ask
        list(tqdm(range(2), desc="model.safetensors", position=1))
        print("a warning", file=sys.stderr)
    lines = screen.getvalue().splitlines()
    assert any("loading model" in line and "model.safetensors: 100%" in line for line in lines)
    assert any(line.endswith("a warning") for line in lines)


def test_the_builtin_engine_counts_its_finished_answers():
    engine = BuiltinEngine(shared())
    count = completions_of(engine)
    assert count is not None
    assert count() == (0, 0)
    requests = [Request(token_ids=(1, 2), stream=Stream("generate", 0, str(n), 0), max_tokens=4) for n in range(3)]
    engine.generate(requests, SamplingParams(max_tokens=4))
    assert count() == (3, 3)


def test_a_run_on_a_terminal_shows_that_it_loads_tokenises_and_evaluates(tmp_path, monkeypatch):
    screen = StringIO()
    monkeypatch.chdir(write_home(tmp_path))
    display = Display(Console(file=screen, force_terminal=True, width=200))
    assert run_train(["recipe.toml", "run=./run", "steps=1"], display, TrainOptions()) == 0
    said = screen.getvalue()
    for what in ("loading", "tokenising training questions", "tokenising held-out questions", "evaluating, greedy"):
        assert what in said


@pytest.mark.parametrize(
    ("command", "columns", "shown"),
    [
        pytest.param("sft", ("prompt", "answer"), ["tokenising examples"], id="sft"),
        pytest.param(
            "reward-model",
            ("prompt", "chosen", "rejected"),
            ["tokenising comparisons", "ranking the held-out answers"],
            id="reward-model",
        ),
    ],
)
def test_supervised_training_on_a_terminal_shows_that_it_loads_and_tokenises(
    tmp_path, monkeypatch, command, columns, shown
):
    monkeypatch.chdir(write_home(tmp_path))
    write_rows(tmp_path / "rows.jsonl", [{name: f"{name} {n}" for name in columns} for n in range(4)])
    display = partial(Display, Console(file=(screen := StringIO()), force_terminal=True))
    module = COMMANDS[command].function.partition(":")[0]
    monkeypatch.setattr(f"{module}.Display", display)
    arguments = ["model", "--data=rows.jsonl", "--out=made", "--steps=1", "--batch=2", "--lr=0.01", "--device=cpu"]
    assert main.app([command, *arguments], standalone_mode=False) == 0
    for what in ("loading model", *shown):
        assert what in screen.getvalue()


def test_between_steps_the_bar_of_the_steps_shows_what_goes_on():
    display = Display(Console(file=StringIO(), force_terminal=True, width=100))
    counted = Event()

    def count() -> tuple[int, int]:
        counted.set()
        return 3, 8

    with display.steps(0, 5):
        bar, _ = display._bar or pytest.fail("no bar")
        bar.update(bar.tasks[0].id, text="reward 0.5")
        with display.working("evaluating", count):
            assert bar.tasks[0].fields["text"] == "evaluating"
            assert counted.wait(600)
            counted.clear()
            assert counted.wait(600)
            assert bar.tasks[0].fields["text"] == "evaluating 3/8"
        assert bar.tasks[0].fields["text"] == "reward 0.5"
