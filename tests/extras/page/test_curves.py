"""`outdo plot`: the usual curves first, mistakes told at once, the same picture the same bytes."""

import json
import re
from pathlib import Path

import pytest

from outdo.extras.page import glossary
from outdo.extras.page.curves import DEFAULT_METRICS, metric_names, plot, smoothed
from outdo.extras.page.plot_command import command
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.errors import OutdoError, UserError

LINES = read_metrics(Path(__file__).with_name("quickstart_metrics.jsonl"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES[1:]))
    (folder / "summary.json").write_text('{"before": {"greedy": 0.3}}')
    return folder


def drawn(path: Path) -> str:
    """The texts of an SVG picture, in which matplotlib writes them as comments."""
    return path.read_text()


def test_the_most_important_metrics_come_first(tmp_path: Path) -> None:
    plot({"a": LINES}, tmp_path / "a.svg")
    text = drawn(tmp_path / "a.svg")
    places = [text.index(f"<!-- {name} -->") for name in DEFAULT_METRICS if name in metric_names(LINES)]
    assert places == sorted(places)
    assert DEFAULT_METRICS[0] == "eval/greedy"
    assert "moved_as_intended" in DEFAULT_METRICS[:3]
    assert all(glossary.entry(name) for name in DEFAULT_METRICS)


def test_one_run_and_two_are_drawn_and_named(tmp_path: Path) -> None:
    plot({"one": LINES}, tmp_path / "one.svg", names=["reward"])
    plot({"one": LINES, "other": LINES[:5]}, tmp_path / "two.svg", names=["reward"])
    assert "<!-- one -->" in drawn(tmp_path / "one.svg")
    assert "<!-- other -->" in drawn(tmp_path / "two.svg")
    assert "<!-- Mean reward -->" in drawn(tmp_path / "two.svg")


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plot({"run": LINES}, tmp_path / f"{name}.svg", names=["reward", "eval/greedy"])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_cliff_stays_a_cliff() -> None:
    assert smoothed([1.0] * 100 + [0.0] * 100) == [1.0] * 100 + [0.0] * 100
    noisy = [0.5 + 0.1 * (-1) ** n for n in range(100)]
    assert all(abs(value - 0.5) <= 0.1 for value in smoothed(noisy))
    spike = [0.0] * 50 + [1.0] + [0.0] * 50
    assert max(smoothed(spike)) == 0.0  # the thin line shows it


@pytest.mark.parametrize(("name", "is_share"), [("eval/start_logprob", False), ("eval/rows/greedy", True)])
def test_only_shares_have_an_axis_from_0_to_1(tmp_path: Path, name: str, is_share: bool) -> None:
    plot({"run": [{"step": n, name: 0.5 + n / 9} for n in range(1, 4)]}, tmp_path / "a.svg", names=[name])
    marks = re.findall(r'<g id="ytick_\d+">.*?<!-- (.*?) -->', drawn(tmp_path / "a.svg"), re.DOTALL)
    assert (float(marks[0]) == 0) is is_share


@pytest.mark.parametrize("count", [2, 8])
def test_the_marks_of_the_steps_are_whole_numbers(tmp_path: Path, count: int) -> None:
    plot({"run": [{"step": n, "reward": 0.5} for n in range(1, count + 1)]}, tmp_path / "a.svg")
    marks = re.findall(r'<g id="xtick_\d+">.*?<!-- (.*?) -->', drawn(tmp_path / "a.svg"), re.DOTALL)
    assert "1" in marks or count == 8
    assert all(mark.isdecimal() for mark in marks)


def test_all_mistakes_are_reported_at_once_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        plot({"a": LINES, "b": LINES, "c": LINES}, tmp_path / "a.jpg", names=["rewrd", "entropy", "greedy"])
    said = str(caught.value)
    assert "ends in .svg or .png" in said
    assert "3 runs: a picture holds one or two" in said
    assert "rewrd: no such metric was written in a or b or c; did you mean reward?" in said
    assert "did you mean eval/greedy?" in said
    assert not list(tmp_path.iterdir())


def test_the_command_draws_runs_with_the_evaluation_before_them(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command([run], out=tmp_path / "a.svg")
    assert f"the picture is {tmp_path / 'a.svg'}" in capsys.readouterr().out
    assert "<!-- run -->" in drawn(tmp_path / "a.svg")


def full_disk(folder: Path) -> Path:
    path = folder / "full.svg"
    path.symlink_to("/dev/full")
    return path


def test_the_command_reports_all_mistakes_in_runs_and_file(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)nothing: no such folder.*nowhere: no such folder.*no folder .*missing"):
        command([tmp_path / "nothing", tmp_path / "nowhere"], out=tmp_path / "missing" / "a.svg")
    with pytest.raises(UserError, match="the same run is given twice"):
        command([run, run], out=tmp_path / "a.svg")


def test_a_picture_that_cannot_be_written_is_reported(run: Path) -> None:
    with pytest.raises(OutdoError, match=r"full\.svg: cannot be written: No space left"):
        command([run], out=full_disk(run.parent))
