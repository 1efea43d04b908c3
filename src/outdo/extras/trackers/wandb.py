"""Weights & Biases. `WANDB_MODE=offline` writes into the run folder, and `wandb sync` sends that later."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from outdo.extras.trackers.base import FOLDER, Completions, Log, TrackedRun, as_table, dashboard_names


@contextmanager
def wandb(
    run: TrackedRun, *, project: str = "outdo", entity: str | None = None, group: str | None = None
) -> Iterator[Log]:
    """Track a run by Weights & Biases; `entity` is the user or team that it belongs to, by default your own."""
    import wandb as client

    tracked = client.init(
        project=project,
        entity=entity,
        group=group,
        name=run.name,
        id=run.id or secrets.token_hex(4),
        resume="allow",
        config=run.settings,
        dir=run.folder / FOLDER,
        settings=client.Settings(console="off"),
    )
    run.keep_id(tracked.id)
    if not tracked.offline:
        run.say(f"wandb: {tracked.url}")

    def log(step: int, metrics: Mapping[str, float], completions: Completions) -> None:
        table = {"completions": client.Table(**as_table(completions))} if completions else {}
        tracked.log(dashboard_names(metrics) | table, step=step)

    yield log
    if run.report:
        report = client.Artifact(f"report-{tracked.id}", type="report")
        report.add_file(str(run.report))
        tracked.log_artifact(report)
    tracked.finish(exit_code=0 if run.state.kind == "finished" else 1)
