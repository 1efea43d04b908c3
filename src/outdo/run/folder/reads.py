"""What answers read of their questions (`outdo.extras.record.reading`): one JSON object for each measured question.

`reads/training_000010.jsonl` is about answers of step 10, before its update, and `reads/held_out_000020.jsonl` about
answers to held-out questions after step 20, where 0 is before the first step.

    {"id": "7", "question": "... about a bridge. ...", "answers": 8,
     "reads": [{"start": 40, "end": 46, "other": "desert", "place": "about a _ Use", "lost": 20.1, "ratio": 1.0}]}
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from outdo.utils import atomic
from outdo.utils.errors import RunFolderError

FOLDER = "reads"
Kind = Literal["training", "held_out"]
KINDS: tuple[Kind, ...] = ("training", "held_out")


def write(run: Path, kind: Kind, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write what was measured at a step, completely or not at all. Raises `RunFolderError`."""
    atomic.write_lines_atomically(_path(run, kind, step), lines)


def measured_steps(run: Path, kind: Kind) -> list[int]:
    """Return the steps at which something was measured, in order."""
    names = [path.stem.removeprefix(f"{kind}_") for path in (run / FOLDER).glob(f"{kind}_*.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def read(run: Path, kind: Kind, step: int) -> list[dict[str, Any]]:
    """Return what was measured at a step. Raises `RunFolderError` if there is no such file, or if it is damaged."""
    lines = atomic.read_lines(_path(run, kind, step))
    if not all(map(_is_whole, lines)):
        raise RunFolderError(f"{_path(run, kind, step)}: is damaged: a line lacks what answers read of a question")
    return lines


def _is_whole(line: Mapping[str, Any]) -> bool:
    """Return whether a line has a question, and of each of its words the place and the loss."""
    reads = line.get("reads")
    if "id" not in line or not isinstance(line.get("question"), str) or not isinstance(reads, list):
        return False
    return all(isinstance(read, dict) and {"start", "end", "lost"} <= read.keys() for read in reads)


def drop_after(run: Path, step: int) -> None:
    """Delete what was measured after `step`, for a run that continues from there."""
    for kind in KINDS:
        for later in measured_steps(run, kind):
            if later > step:
                atomic.remove(_path(run, kind, later))


def _path(run: Path, kind: Kind, step: int) -> Path:
    return run / FOLDER / f"{kind}_{step:06d}.jsonl"
