"""The answers of every evaluation of a run: `held_out/step_000040.jsonl`, one JSON object per answer.

    {"kind": "greedy", "id": "7", "sample": 0, "prompt": "2+3=", "answer": "5", "completion": "5", "right": true,
     "reward": 1.0, "parts": {"exact": 1.0}, "status": "ok", "finish_reason": "stop", "tokens": 2}

`kind` is greedy or sampled, `id` and `sample` name the same answer in each evaluation of the run, `right` is null where
it is not defined, `reward` is null where `status` is not "ok". `prefill` is there where the prompt has written the
beginning of the answer, such as `<think>` (`RewardInput.prefill`). Step 0 is the evaluation before the first step.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outdo.utils import atomic
from outdo.utils.errors import RunFolderError

FOLDER = "held_out"

HeldOutCompletion = Mapping[str, Any]
"""One line of the file."""


def path_of(run: Path, step: int) -> Path:
    """Return the file of the evaluation after `step`."""
    return run / FOLDER / f"step_{step:06d}.jsonl"


def write(path: Path, completions: Iterable[HeldOutCompletion]) -> None:
    """Write the answers, completely or not at all; an existing file is replaced. Raises `RunFolderError`."""
    atomic.write_lines_atomically(path, completions)


def evaluated_steps(run: Path) -> list[int]:
    """Return the steps after which the held-out answers were recorded, in order; 0 is before the first step."""
    names = [path.stem.removeprefix("step_") for path in (run / FOLDER).glob("step_*.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def read(run: Path, step: int) -> list[dict[str, Any]]:
    """Return the answers of the evaluation after `step`.

    Raises: RunFolderError if there is no such file, or if a line of it is not an answer.
    """
    path = path_of(run, step)
    completions = atomic.read_lines(path)
    if not all({"kind", "id", "sample", "completion"} <= completion.keys() for completion in completions):
        raise RunFolderError(f"{path}: is damaged: a line is not an answer")
    return completions


def drop_after(run: Path, step: int) -> None:
    """Delete the files of evaluations after `step`, for a run that continues from there."""
    for path in [path_of(run, later) for later in evaluated_steps(run) if later > step]:
        atomic.remove(path)
