"""Compare families in two replicas, with a fault that is put in, and write what is said of each."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from run_cases import WARM

from benchmarks import family_replicas
from outdo.extras.replicas.replicas import Replicas


def columns_of(families: Sequence[str], folder: Path, fault: str = "") -> dict[str, dict[str, str]]:
    """The columns of families. `fault`: "adds nothing up", or the name of a family with which a replica ends."""
    process = WARM.Process(target=_write, args=(families, folder / "columns.json", fault))  # without checks of shapes
    process.start()
    process.join(600)
    assert process.exitcode == 0
    return json.loads((folder / "columns.json").read_text())


def _write(families: Sequence[str], file: Path, fault: str) -> None:
    if fault == "adds nothing up":
        Replicas.add_up = lambda *_: None  # type: ignore[method-assign]
    elif fault:
        small = family_replicas.small
        family_replicas.small = lambda family: os._exit(1) if family == fault else small(family)
    file.write_text(json.dumps(dict(family_replicas.compared(families))))
