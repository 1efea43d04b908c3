"""What answers read, in a run through the command line: its metrics, its files, and what is left after a resume."""

import json
import shutil
from pathlib import Path

import pytest
from run_cases import outdo_, timeless, write_home, write_rows

from outdo.run.folder import reads
from outdo.run.folder.run_folder import read_metrics

PLACE = "reads/What is _ plus"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = write_home(tmp_path_factory.mktemp("home"))
    for name, first in {"train": 1, "held_out": 5}.items():
        rows = [{"prompt": f"What is {a} plus {b} now", "answer": str(a + b)} for a in range(first, 9) for b in (2, 3)]
        write_rows(home / f"{name}.jsonl", rows)
    return home


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    outdo_(home, "train", "recipe.toml", "run=./out", "steps=11", "checkpoint.every=4")
    return home / "out"


def test_it_is_measured_in_the_first_and_every_tenth_step_and_at_evaluations(run: Path) -> None:
    lines = {line["step"]: line for line in read_metrics(run / "metrics.jsonl")}
    measured = [step for step, line in lines.items() if PLACE in line]
    assert measured == [1, 10] == reads.measured_steps(run, "training")
    assert reads.measured_steps(run, "held_out") == [0, 10, 11]
    assert {step for step, line in lines.items() if f"eval/{PLACE}" in line} == {10, 11}
    (first, second) = reads.read(run, "training", 10)
    assert (first["answers"], second["answers"]) == (4, 4)
    lost = [each["lost"] for line in (first, second) for each in line["reads"]]
    assert lines[10]["reads/mean"] == pytest.approx(sum(lost) / len(lost))
    for line in (first, second):
        for each in line["reads"]:
            assert line["question"][each["start"] : each["end"]].isdecimal()


def test_drift_is_measured_at_each_evaluation(run: Path) -> None:
    before = json.loads((run / "summary.json").read_text())["before"]
    assert before["drift"] == 0
    assert before["start_logprob"] < 0
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["step"] for line in lines if abs(line.get("eval/drift", 0)) > 1e-3] == [10, 11]


def test_a_resumed_run_measures_again_what_comes_after_its_checkpoint(run: Path) -> None:
    parts = Path(shutil.copytree(run, run.with_name("parts")))
    expected = reads.read(run, "training", 10)
    shutil.rmtree(parts / "checkpoints/step_000011")
    reads.write(parts, "training", 20, expected)  # of a run that was longer
    outdo_(parts.parent, "resume", "parts")
    assert reads.read(parts, "training", 10) == expected
    assert reads.measured_steps(parts, "training") == [1, 10]
    assert timeless(parts) == timeless(run)
