"""TensorBoard: event files in the run folder, which `tensorboard --logdir runs` shows."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outdo.extras.trackers.base import Completions, Log, TrackedRun, dashboard_names


@contextmanager
def tensorboard(run: TrackedRun) -> Iterator[Log]:
    """Track a run by event files in `RUN/tensorboard`.

    TensorBoard has no artifacts: the page stays beside the event files. The events of steps that a resumed run repeats
    are hidden, and those of a run that is sent once more.
    """
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.after + 1 if run.after else 0) as writer:
        if not run.after:
            writer.add_text("settings", _markdown(["setting", "value"], run.settings.items()), 0)

        def log(step: int, metrics: Mapping[str, float], completions: Completions) -> None:
            for name, value in dashboard_names(metrics).items():
                writer.add_scalar(name, value, step)
            if completions:
                table = _markdown(list(completions[0]), (row.values() for row in completions))
                writer.add_text("completions", table, step)
            writer.flush()

        yield log


def _markdown(columns: list[str], rows: Any) -> str:
    """Return a table in Markdown; the cells are JSON, which has no line breaks."""
    cells = [[json.dumps(cell, ensure_ascii=False).replace("|", "\\|") for cell in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
