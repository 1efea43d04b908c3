"""What is printed controls no terminal, whatever it was taken from."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from outdo.cli import main as command_line
from outdo.cli.evaluation_output import _formatted
from outdo.cli.output import print_line, print_warning
from outdo.run.display import Display
from outdo.run.evaluation.evaluation import PairedComparison
from outdo.utils.errors import UserError
from outdo.utils.out_of_memory import OUT_OF_MEMORY
from outdo.utils.text import between, for_terminal

HOSTILE = "a\x1b[2Jb\x07c\u202ed\r\x9be\ud800"
SHOWN = "a\\x1b[2Jb\\x07c\\u202ed\\r\\x9be\\ud800"


def test_control_characters_are_escaped_and_line_breaks_stay():
    assert for_terminal(f"{HOSTILE}\n\tend") == f"{SHOWN}\n\tend"


@pytest.mark.parametrize("write", [lambda console, line: Display(console).say(line), print_line])
def test_a_printed_line_contains_no_control_character_and_no_markup(write):
    out = io.StringIO()
    write(Console(file=out, force_terminal=True), f"{HOSTILE} [bold]x[/bold] [/b]")
    assert out.getvalue() == f"{SHOWN} [bold]x[/bold] [/b]\n"


def test_warnings_and_errors_contain_no_control_character(monkeypatch, capsys):
    def fail(**_: object) -> None:
        raise UserError([f"data: {HOSTILE}"])

    print_warning(HOSTILE)
    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{SHOWN}\noutdo: data: {SHOWN}\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[...] DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_does_not_suffice_is_one_sentence(monkeypatch, capsys, error):
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"outdo: {OUT_OF_MEMORY}\n"


def test_an_interval_whose_ends_are_written_the_same_has_no_spread():
    assert between(0.5, 0.75, "{:.1%}".format) == "50.0% to 75.0%"
    assert between(-0.8, -0.8001, "{:.3g}".format) == "no spread"


def test_mean_rewards_without_spread_are_printed_so(capsys):
    rewards = {"greedy_reward": -0.8, "greedy_reward_low": -0.8, "greedy_reward_high": -0.8}
    Display(Console(width=300)).evaluated(1, rewards)
    assert "greedy -0.800 (no spread)" in capsys.readouterr().out
    assert _formatted("reward_ci95", [-0.8, -0.8]) == "no spread"
    assert _formatted("ci95", [0.125, 0.5]) == "12.5% to 50.0%"


def test_a_difference_without_spread_is_printed_so():
    counts = {"better": 0, "worse": 0, "questions": 4, "left_out": 0}
    same = PairedComparison(by="right", difference=0.0, ci95=(0.0, 0.0), p=1.0, **counts)
    assert str(same).startswith("difference (right): +0.0% (no spread); 0 questions better")
    assert "(95 % interval -10.0% to +20.0%)" in str(replace(same, ci95=(-0.1, 0.2)))
