"""Runs with trackers: what arrives is what metrics.jsonl has, and no tracker changes a run."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import wandb_file
from run_cases import Command, metrics, outdo_, timeless, together, wait_until, weights

from outdo.cli.train import TrainOptions, run_train
from outdo.config.recipe import Piece
from outdo.extras.trackers.base import dashboard_names
from outdo.extras.trackers.check import tracker_mistakes
from outdo.extras.trackers.command import command as track
from outdo.run.checkpoints.resume import resume
from outdo.run.display import Display
from outdo.run.folder.run_folder import RunFolder
from outdo.utils.errors import UserError

SIX = ("train", "recipe.toml", "run=./run", "steps=6", "checkpoint.every=3", "eval.every=3")


def finite(line):
    """The metrics of a line under the names of dashboards."""
    return dashboard_names({name: value for name, value in line.items() if name != "step" and value is not None})


def with_clients(home: Path, variables: dict[str, str], *arguments: str) -> str:
    """Run a command to its end with some more environment variables; what it said."""
    command = Command(home, *arguments, variables=variables)
    assert command.wait() == 0, command.said
    return command.said


def wandb_files(run: Path) -> list[Path]:
    return sorted((run / "trackers").glob("wandb/offline-run-*/run-*.wandb"))


def events(run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    return read.Reload()


def test_the_clients_have_every_metric_of_every_step_and_a_resumed_run_continues_theirs(tracked_home, offline):
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    mlflow = pytest.importorskip("mlflow")
    three = 'track=["wandb", "tensorboard", "mlflow"]'
    with_clients(tracked_home, offline, *SIX, "steps=3", three)
    run = tracked_home / "run"
    said = with_clients(tracked_home, offline, "resume", "run", "steps=6")
    assert "not delivered" not in said
    lines = {line["step"]: line for line in metrics(run)}

    first, second = wandb_files(run)
    assert first.name == second.name  # the same id
    logged = wandb_file.history(first) | wandb_file.history(second)
    assert sorted(logged) == [0, *lines]
    for step, line in lines.items():
        assert {name: logged[step][name] for name in finite(line)} == pytest.approx(finite(line))
    assert logged[0]["eval/greedy_reward"] == json.loads((run / "summary.json").read_text())["reward_before"]
    assert logged[6]["completions/ncols"] == 6
    config = wandb_file.config(first)
    assert (config["optim.lr"], config["environment.seed"]) == (1e-3, 0)
    assert "track" not in config
    assert "report" in wandb_file.artifacts(second)

    shown = events(run)
    for name, value in finite(lines[5]).items():
        assert {event.step: event.value for event in shown.Scalars(name)}[5] == pytest.approx(value, rel=1e-6)
    assert [event.step for event in shown.Scalars("train/reward")] == list(lines)
    assert "completions/text_summary" in shown.Tags()["tensors"]

    client = mlflow.MlflowClient()
    (there,) = client.search_runs([client.get_experiment_by_name("outdo").experiment_id])
    assert (there.info.status, there.data.params["optim.lr"]) == ("FINISHED", "0.001")
    history = client.get_metric_history(there.info.run_id, "train/reward")
    assert {each.step: each.value for each in history} == {step: line["reward"] for step, line in lines.items()}
    assert {each.path for each in client.list_artifacts(there.info.run_id)} == {"completions", "report.html"}


@pytest.mark.release
def test_trackio_has_the_metrics_and_continues_its_run(tracked_home, offline):
    trackio = pytest.importorskip("trackio")
    with_clients(tracked_home, offline, *SIX, "steps=3", "track=trackio")
    with_clients(tracked_home, offline, "resume", "run", "steps=6")
    (run,) = trackio.Api().runs("outdo")
    logs = importlib.import_module("trackio.sqlite_storage").SQLiteStorage.get_logs("outdo", run.name)
    assert {line["step"] for line in logs} == set(range(7))


NOTE = '{name = "hooks.py:note", completions = 3, out = "%s"}'
ENDS = """{name = 'on_end', command = 'echo "$OUTDO_STATE in $OUTDO_RUN" > ended; ls tracked/report.html && exit 3'}"""


@pytest.fixture(scope="module")
def tracked(shared_home: Path) -> tuple[Path, str]:
    """A home with a plain run, and a run that is tracked well, badly and slowly; and what the latter said."""
    home = shared_home
    outdo_(home, *SIX)
    bad = ", ".join(f'"hooks.py:{name}"' for name in ("fail", "crash", "leave", "slow"))
    hang = '{name = "hooks.py:hang", deadline = 1}'
    said = outdo_(home, *SIX, "run=./tracked", f"track=[{hang}, {bad}, {NOTE % 'live.jsonl'}, {ENDS}]")
    return home, said


@pytest.mark.release
def test_trackers_that_hang_raise_crash_or_are_slow_change_nothing(tracked):
    home, said = tracked
    assert weights(home / "tracked") == weights(home / "run")
    assert timeless(home / "tracked") == timeless(home / "run")
    lost = {line.partition(": ")[0]: line for line in said.splitlines() if "steps were not delivered" in line}
    assert lost.keys() == {f"hooks.py:{name}" for name in ("hang", "fail", "crash", "leave")}
    assert "7 of 7 steps were not delivered: it did not end within 1 s" in lost["hooks.py:hang"]
    assert "no place for step 6" in lost["hooks.py:fail"]
    assert "pa55word" not in said
    assert "7 of 7 steps were not delivered: its process has ended" in lost["hooks.py:crash"]
    assert "`outdo track tracked --to hooks.py:fail` sends the whole run" in lost["hooks.py:fail"]


def test_what_a_tracker_missed_is_sent_afterwards(tracked):
    home, _ = tracked
    said = outdo_(home, "track", "tracked", "--to", NOTE % "later.jsonl")
    assert "hooks.py:note: tracked was sent" in said
    live, later = (
        [json.loads(line) for line in (home / name).read_text().splitlines()] for name in ("live.jsonl", "later.jsonl")
    )
    assert later == live
    assert [step for step, *_ in later] == list(range(7))
    _, last, completions, folder = later[-1]
    assert last == {name: value for name, value in metrics(home / "tracked")[-1].items() if name != "step"}
    assert folder == str(home / "tracked")
    assert [row["status"] for row in completions] == ["ok"] * 3
    assert {"question", "prompt", "completion", "reward", "right"} <= completions[0].keys()


def test_a_command_runs_at_the_end_of_a_run_learns_its_state_and_may_fail(tracked):
    home, said = tracked
    assert (home / "ended").read_text() == f"finished after 6 steps in {home / 'tracked'}\n"
    assert "on_end: the end of the run was not delivered: RuntimeError: the command ended with status 3" in said


@pytest.mark.release
def test_a_run_that_goes_on_can_be_followed_to_its_end(tracked_home):
    training = Command(tracked_home, *SIX, "steps=20")
    wait_until(lambda: (tracked_home / "run" / "environment.json").exists(), seconds=600)
    said = outdo_(tracked_home, "track", "run", "--to", "hooks.py:note", "--follow")
    assert "hooks.py:note: run was sent" in said
    assert training.wait() == 0, training.said
    lines = (tracked_home / "noted.jsonl").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == list(range(21))


def test_a_run_that_goes_on_cannot_be_followed_for_a_tracker_of_its_own(tracked_home, monkeypatch):
    monkeypatch.chdir(tracked_home)
    run = tracked_home / "run"
    with RunFolder(run):
        (run / "recipe.toml").write_text(f'track = "hooks.py:crash"\n{(tracked_home / "recipe.toml").read_text()}')
        (run / "environment.json").write_text("{}")
        with pytest.raises(UserError, match=r"--to hooks.py:crash: .*run is active, and its recipe names this tracker"):
            track(run, ["hooks.py:crash"], follow=True)


def test_a_tracker_that_fails_to_be_sent_a_run_keeps_its_id(tracked_home, monkeypatch):
    monkeypatch.chdir(tracked_home)
    run = tracked_home / "run"
    (run / "trackers").mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    for name in ("recipe.toml", "environment.json", "trackers/hooks_py_crash.json"):
        (run / name).write_text("{}")
    assert track(run, ["hooks.py:crash"]) == 1
    assert (run / "trackers" / "hooks_py_crash.json").exists()


@pytest.mark.release
def test_of_several_replicas_only_the_first_tracks(tracked_home):
    said = together(tracked_home, *SIX, "cluster.replicas=2", "track=hooks.py:note")
    assert "not delivered" not in said
    assert len((tracked_home / "noted.jsonl").read_text().splitlines()) == 7


def test_mistakes_are_found_before_a_model_loads(tracked_home):
    tracks = '[{name = "wandb", projekt = "x"}, "hooks.py:nothing", "tensorbord", "on_end", "mlflow", "mlflow"]'
    said = outdo_(tracked_home, *SIX, "model=nowhere", f"track={tracks}", status=2)
    for sentence in (
        "track.wandb.projekt: unknown option; did you mean project?",
        'track: "hooks.py:nothing": hooks.py has no "nothing"',
        'track: nothing is called "tensorbord"; did you mean tensorboard?',
        "track.on_end.command: required by on_end",
        "track: mlflow is given twice",
        "nowhere",
    ):
        assert sentence in said
    assert not (tracked_home / "run").exists()


def test_options_of_the_wrong_kind_are_found_before_they_stop_a_tracker_at_the_end_of_the_run():
    given = [
        {"name": "on_end", "command": 3},
        {"name": "wandb", "entity": 7, "deadline": 0},
        {"name": "mlflow", "uri": " ", "experiment": "mine"},
    ]
    assert list(tracker_mistakes([Piece.model_validate(each) for each in given])) == [
        "track.on_end.command: expected text, found 3",
        "track.wandb.entity: expected text, found 7",
        "track.wandb.deadline: expected a number above 0, found 0",
        "track.mlflow.uri: expected text, found ' '",
    ]


def test_a_missing_client_is_named_before_a_model_loads(tracked_home, monkeypatch):
    monkeypatch.chdir(tracked_home)
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    sentence = r'track: wandb needs its client: pip install "outdo\[wandb\]"'
    with pytest.raises(UserError, match=sentence):
        run_train(["recipe.toml", "run=./run", "track=wandb"], Display(), TrainOptions())
    run = tracked_home / "run"
    run.mkdir()
    (run / "recipe.toml").write_text((tracked_home / "recipe.toml").read_text())
    (run / "history.jsonl").touch()
    with pytest.raises(UserError, match=sentence):
        resume(run, ["track=wandb"], Display())
    assert {path.name for path in run.iterdir()} == {"history.jsonl", "lock", "recipe.toml"}
