"""What answers read, in a run through the command line: its metrics, its files, and what is left after a resume."""

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


def test_it_is_measured_in_the_first_and_every_tenth_step_and_at_evaluations(home: Path) -> None:
    outdo_(home, "train", "recipe.toml", "run=./out", "steps=11")
    lines = {line["step"]: line for line in read_metrics(home / "out/metrics.jsonl")}
    assert (
        [step for step, line in lines.items() if PLACE in line]
        == [1, 10]
        == reads.measured_steps(home / "out", "training")
    )
    assert reads.measured_steps(home / "out", "held_out") == [0, 10, 11]
    assert {step for step, line in lines.items() if f"eval/{PLACE}" in line} == {10, 11}
    (first, second) = reads.read(home / "out", "training", 10)
    assert (first["answers"], second["answers"]) == (4, 4)
    lost = [each["lost"] for line in (first, second) for each in line["reads"]]
    assert lines[10]["reads/mean"] == pytest.approx(sum(lost) / len(lost))
    for line in (first, second):
        for each in line["reads"]:
            assert line["question"][each["start"] : each["end"]].isdecimal()


def test_a_resumed_run_measures_again_what_comes_after_its_checkpoint(home: Path) -> None:
    outdo_(home, "train", "recipe.toml", "run=./whole", "steps=10")
    outdo_(home, "train", "recipe.toml", "run=./parts", "steps=10", "checkpoint.every=4")
    expected = reads.read(home / "parts", "training", 10)
    for checkpoint in (home / "parts/checkpoints").glob("step_00001*"):
        checkpoint.rename(home / checkpoint.name)
    reads.write(home / "parts", "training", 20, expected)  # of a run that was longer
    outdo_(home, "resume", "parts")
    assert reads.read(home / "parts", "training", 10) == expected
    assert reads.measured_steps(home / "parts", "training") == [1, 10]
    assert timeless(home / "parts") == timeless(home / "whole")


def test_a_run_without_a_record_does_not_measure_it(home: Path) -> None:
    outdo_(home, "train", "recipe.toml", "run=./bare", "steps=1", "record.every=0")
    assert not (home / "bare/reads").exists()
