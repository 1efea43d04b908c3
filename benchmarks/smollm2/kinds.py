"""Which kinds of instructions the greedy answers follow, from the archive of seed 0 in the gallery."""

import json
import runpy
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from benchmarks.smollm2.run import EXAMPLES

ARCHIVE = Path("docs/gallery/instructions.zip")
WHEN = {"before": "held_out/step_000000.jsonl", "after": "held_out/step_000060.jsonl"}
SETS = ("rows", "kinds")

Counts = Mapping[str, Counter[tuple[str, str]]]
"""Of `asked`, and of each of `WHEN`: how often each kind of instruction of a set occurs, or is followed."""


def counted() -> Counts:
    """Return the counts. The topic of a question is a kind of its own."""
    sys.path.insert(0, str(EXAMPLES))
    task = runpy.run_path(str(EXAMPLES / "instructions.py"))
    made = runpy.run_path(str(EXAMPLES / "data.py"))["written"]("instructions")
    counts: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in ("asked", *WHEN)}
    with ZipFile(ARCHIVE) as archive:
        for when, file in WHEN.items():
            for answer in map(json.loads, archive.read(file).splitlines()):
                question = made[answer["set"]][answer["prompt"]]
                asked = [*question["instructions"], ("topic", None)]
                followed = task["followed"](answer["completion"], question["topic"], question["instructions"])
                for (kind, _), holds in zip(asked, followed, strict=True):
                    counts[when][answer["set"], kind] += holds
                    counts["asked"][answer["set"], kind] += when == "before"
    return counts


def table() -> list[list[Any]]:
    """Return a row for each kind: its name, and for each set how often it is asked, and followed before and after."""
    counts = counted()
    kinds = sorted({kind for _, kind in counts["asked"]}, key=lambda kind: (-counts["asked"]["rows", kind], kind))
    return [[kind, *(counts[name][each, kind] for each in SETS for name in ("asked", *WHEN))] for kind in kinds]
