"""Which kinds of instructions answers follow: greedy ones in the archive of seed 0, and those of a whole training."""

import json
import runpy
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from outdo.extras.record import parquet

EXAMPLES = Path("examples/smollm2")
FOLLOWED = runpy.run_path(str(Path(__file__).parents[2] / EXAMPLES / "instructions.py"))["followed"]
ARCHIVE = Path("docs/gallery/instructions.zip")
WHEN = {"before": "held_out/step_000000.jsonl", "after": "held_out/step_000060.jsonl"}
SETS = ("rows", "kinds")

Counts = Mapping[str, Counter[tuple[str, str]]]
"""Of `asked`, and of each of `WHEN`: how often each kind of instruction of a set occurs, or is followed."""


def questions() -> dict[str, dict[str, Any]]:
    """Return the questions of each file of the task, by their prompts."""
    sys.path.insert(0, str(EXAMPLES))  # the modules that data.py imports stand beside it
    try:
        return runpy.run_path(str(EXAMPLES / "data.py"))["written"]("instructions")
    finally:
        sys.path.remove(str(EXAMPLES))


def judged(question: Mapping[str, Any], completion: str) -> Iterator[tuple[str, bool]]:
    """Yield the kinds of instructions of a question, and whether an answer follows them; the topic is a kind, too."""
    asked = [*(kind for kind, _ in question["instructions"]), "topic"]
    yield from zip(asked, FOLLOWED(completion, question["topic"], question["instructions"]), strict=True)


def counted() -> Counts:
    """Return the counts of the greedy answers."""
    made, counts = questions(), {name: Counter[tuple[str, str]]() for name in ("asked", *WHEN)}
    with ZipFile(ARCHIVE) as archive:
        for when, file in WHEN.items():
            for answer in map(json.loads, archive.read(file).splitlines()):
                for kind, holds in judged(made[answer["set"]][answer["prompt"]], answer["completion"]):
                    counts[when][answer["set"], kind] += holds
                    counts["asked"][answer["set"], kind] += when == "before"
    return counts


def sampled(run: Path) -> dict[str, tuple[int, int]]:
    """Return of each kind how many answers of a training were asked for it, and how many followed it."""
    made, asked, followed = [*questions()["train"].values()], Counter[str](), Counter[str]()
    for step in parquet.recorded_steps(run):
        for row in parquet.read(run, step, ("prompt_id", "text")).to_pylist():
            for kind, holds in judged(made[int(row["prompt_id"]) - 1], row["text"]):  # the number of its row
                asked[kind] += 1
                followed[kind] += holds
    return {kind: (count, followed[kind]) for kind, count in asked.items()}


def table() -> list[list[Any]]:
    """Return a row for each kind: its name, and for each set how often it is asked, and followed before and after."""
    counts = counted()
    kinds = sorted({kind for _, kind in counts["asked"]}, key=lambda kind: (-counts["asked"]["rows", kind], kind))
    return [[kind, *(counts[name][each, kind] for each in SETS for name in ("asked", *WHEN))] for kind in kinds]
