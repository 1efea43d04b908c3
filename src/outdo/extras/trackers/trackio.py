"""Trackio: a database on this machine, or a Space on the Hugging Face Hub."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from outdo.extras.trackers.base import Completions, Log, TrackedRun, as_table, dashboard_names


@contextmanager
def trackio(
    run: TrackedRun, *, project: str = "outdo", group: str | None = None, space_id: str | None = None
) -> Iterator[Log]:
    """Track a run by Trackio; `space_id` is the Space `owner/name` to write to instead of this machine.

    Trackio continues a run by its name, which therefore ends with random digits.
    """
    client: Any = import_module("trackio")  # which outdo's own tests and checks run without: it needs an older pillow
    tracked = client.init(
        project,
        name=run.id or f"{run.name}-{secrets.token_hex(3)}",
        group=group,
        space_id=space_id,
        config=run.settings,
        resume="allow",
        embed=False,
    )
    run.keep_id(tracked.name)

    def log(step: int, metrics: Mapping[str, float], completions: Completions) -> None:
        table = {"completions": client.Table(**as_table(completions))} if completions else {}
        tracked.log(dashboard_names(metrics) | table, step=step)

    yield log
    if run.report:
        tracked.log_artifact(run.report, name=f"report-{tracked.name}", type="report")
    tracked.finish()
