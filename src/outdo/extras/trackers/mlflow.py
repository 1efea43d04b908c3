"""MLflow: a tracking server, or files and databases that MLflow supports. `MLFLOW_TRACKING_URI` names it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from outdo.extras.trackers.base import Completions, Log, TrackedRun, as_table, dashboard_names

MOST_PARAMETERS = 100
"""The largest number of parameters in one request, and the longest value of one."""
LONGEST_PARAMETER = 500
STATUS = {"finished": "FINISHED", "failed": "FAILED"}
"""What MLflow calls the end of a run; any other is KILLED."""


@contextmanager
def mlflow(run: TrackedRun, *, experiment: str = "outdo", uri: str | None = None) -> Iterator[Log]:
    """Track a run by MLflow; `uri` is the address of the server or the store, instead of `MLFLOW_TRACKING_URI`."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=uri)
    if run.id is None:
        known = client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known else client.create_experiment(experiment)
        run_id = run.keep_id(client.create_run(experiment_id, run_name=run.name).info.run_id)
        settings = [Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in run.settings.items()]
        for first in range(0, len(settings), MOST_PARAMETERS):
            client.log_batch(run_id, params=settings[first : first + MOST_PARAMETERS])
    else:
        run_id = run.id
        client.update_run(run_id, status="RUNNING")

    def log(step: int, metrics: Mapping[str, float], completions: Completions) -> None:
        now = int(time.time() * 1000)
        named = dashboard_names(metrics).items()
        client.log_batch(run_id, metrics=[Metric(_name(name), value, now, step) for name, value in named])
        if completions:
            client.log_dict(run_id, as_table(completions), f"completions/step_{step:06d}.json")

    yield log
    if run.report:
        client.log_artifact(run_id, str(run.report))
    client.set_terminated(run_id, STATUS.get(run.state.kind, "KILLED"))


def _name(metric: str) -> str:
    """Return a name with one slash: where MLflow stores files, `loss` and `loss/policy` cannot both be metrics."""
    kind, _, name = metric.partition("/")
    return f"{kind}/{name.replace('/', '.')}"
