"""What is shown of a run folder comes from files inside it, and a file of any size or kind is read without harm."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outdo.cli.output import metrics_of
from outdo.extras.page.bands import Band
from outdo.run.folder import run_files
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.errors import RunFolderError


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path):
    (tmp_path / "outside").write_text('{"step": 1}\n')
    run = tmp_path / "run"
    run.mkdir()
    for name in ("metrics.jsonl", "summary.json"):
        (run / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RunFolderError, match=r"leads out of the run folder"):
        run_files.MetricsFile(run).read(print)
    said: list[str] = []
    assert run_files.table(run, "summary.json", said.append) == {}
    assert said == ["summary.json cannot be read and is left out"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_reading_does_not_wait_for_a_pipe(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(RunFolderError, match=r"is not a file"):
        run_files.MetricsFile(tmp_path).read(print)


def test_a_very_long_line_is_left_out(tmp_path: Path):
    long = '{"step": 7, "x": "' + "a" * 3_000_000 + '"}\n{"step": 8, "reward": 0.5}\n{"step": 9, "reward": '
    (tmp_path / "metrics.jsonl").write_text(long)
    said: list[str] = []
    assert run_files.MetricsFile(tmp_path).read(said.append) == [{"step": 8, "reward": 0.5}]
    assert said == [f"{tmp_path / 'metrics.jsonl'}, line 1: longer than the limit; left out"]


def test_a_very_long_run_is_thinned_from_its_beginning_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_files, "MOST_LINES", 100)
    lines = [
        {"step": step, "reward": 0.5, **({"eval/greedy": 0.1} if step % 50 == 25 else {})} for step in range(1, 1001)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = [line["step"] for line in run_files.MetricsFile(tmp_path).read(print)]
    assert len(steps) < 200
    assert steps[0] < 10
    assert steps[-1] == 1000
    assert set(range(25, 1000, 50)) <= set(steps)


def test_a_followed_file_is_read_from_where_the_last_read_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, parsed = tmp_path / "metrics.jsonl", []
    record = run_files._record
    monkeypatch.setattr(run_files, "_record", lambda line: parsed.append(line) or record(line))
    followed = run_files.MetricsFile(tmp_path)
    assert followed.read(print) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [line["step"] for line in followed.read(print)] == [1, 2]
    with path.open("a") as file:
        file.write('p": 3}\n')
    assert [line["step"] for line in followed.read(print)] == [1, 2, 3]
    assert len(parsed) == 3
    path.write_text('{"step": 1}\n{"step": 2, "reward": 1.0}\n{"step": 3, "reward": 1.0}\n')  # longer, and written anew
    assert followed.read(print)[1:] == [{"step": 2, "reward": 1.0}, {"step": 3, "reward": 1.0}]
    path.unlink()
    assert followed.read(print) == []


def test_lines_of_one_step_are_one(tmp_path: Path) -> None:
    """Other trainers log an evaluation in a line of its own."""
    lines = ('{"step": 5, "reward": 0.5}', '{"step": 5, "eval/greedy": 0.25}', '{"step": 6, "reward": 0.75}')
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found, last = metrics_of(tmp_path, print)
    assert found == [{"step": 5, "reward": 0.5, "eval/greedy": 0.25}, {"step": 6, "reward": 0.75}]
    assert last == 6
    assert Band("reward", 5, 6, 0, 1).value(read_metrics(tmp_path / "metrics.jsonl", report=print)) == 0.625
