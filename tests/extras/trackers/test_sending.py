"""The processes that send a run folder to trackers, without a run."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from run_cases import alive, wait_until

from outdo.config.file import read_piece
from outdo.config.recipe import Piece
from outdo.extras.record import parquet
from outdo.extras.trackers import sending as module
from outdo.extras.trackers.base import TrackedRun, file_stem
from outdo.extras.trackers.mlflow import mlflow
from outdo.extras.trackers.sending import sending
from outdo.extras.trackers.steps import steps_of
from outdo.run.folder.run_folder import RunFolder
from outdo.utils.errors import RunFolderError

FUNCTIONS = """
import pathlib, time


def beside(name):
    return pathlib.Path(__file__).with_name(name)


def note(step):
    beside("noted").open("a").write(f"{step} ")


def slow(step):
    time.sleep(0.01)
    note(step)


def hang(step):
    import subprocess
    child = subprocess.Popen(["sleep", "3600"])
    beside("child").write_text(str(child.pid))
    time.sleep(3600)


def stall(step):
    time.sleep(30)


def take_turns(step, *, who):
    # The first one goes on when the test says so, or when the second one has not waited for it.
    noted = beside("turns")
    noted.open("a").write(f"{who} ")
    while who == "first" and not beside("go").exists() and "second" not in noted.read_text():
        time.sleep(0.05)
    noted.open("a").write(f"{who} ")
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    return tmp_path


def tracker(run: Path, name: str, **options) -> Piece:
    return Piece.model_validate({"name": f"{run}/own.py:{name}", "completions": 0, "deadline": 600.0, **options})


def append(run: Path, *steps: int, **metrics: float) -> None:
    with RunFolder(run) as folder:
        for step in steps:
            folder.append_metrics(step, {"reward": 0.0, **metrics})


def noted(run: Path) -> list[int]:
    return [int(step) for step in (run / "noted").read_text().split()] if (run / "noted").exists() else []


def has_text(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and bool(path.read_text())


def test_steps_are_sent_while_the_run_goes_on_and_those_that_are_left_at_its_end(run):
    with sending(run, [tracker(run, "slow")], print, follow=True) as lost:
        append(run, 1)
        wait_until(lambda: noted(run) == [1], seconds=600)
        append(run, *range(2, 200))
    assert noted(run) == list(range(1, 200))
    assert not lost


def test_a_killed_tracker_leaves_no_process(run):
    append(run, 1)
    said: list[str] = []
    with sending(run, [tracker(run, "hang", deadline=1)], said.append, follow=True):
        wait_until(has_text(run / "child"), seconds=600)
    wait_until(lambda: not alive(int((run / "child").read_text())), seconds=600)
    assert "1 of 1 step was not delivered: it did not end within 1 s" in said[-1]


def test_a_process_that_does_not_keep_its_deadline_is_killed(run, monkeypatch):
    monkeypatch.setattr(module, "MARGIN", 1.0)
    said: list[str] = []
    with sending(run, [tracker(run, "note", deadline=1)], said.append, follow=True):
        append(run, 1)
        wait_until(lambda: noted(run) == [1], seconds=600)
        (process,) = children_of_this_process()
        os.kill(process, signal.SIGSTOP)
    assert "not delivered: its process has ended" in said[-1]


def children_of_this_process() -> list[int]:
    """The processes that this one has started and that send."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    found = [int(child) for task in tasks for child in task.read_text().split()]
    return [each for each in found if b"outdo.extras.trackers.send" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_a_tracker_that_cannot_be_opened_is_reported_at_once(run):
    said: list[str] = []
    nowhere = Piece.model_validate({"name": f"{run}/missing.py:note"})
    with sending(run, [nowhere], said.append, follow=True) as lost:
        wait_until(lambda: bool(said), seconds=600)
        assert "missing.py:note: does not track this run: UserError" in said[0]
        append(run, 1)
    assert "missing.py:note: 1 of 1 step was not delivered: UserError" in said[1]
    assert lost == [nowhere.name]


FOLLOW = """
import sys, time
from pathlib import Path
from outdo.config.recipe import Piece
from outdo.extras.trackers.mlflow import mlflow
from outdo.extras.trackers.sending import sending

pieces = [Piece.model_validate({"name": name, "completions": 0, "deadline": 3}) for name in sys.argv[2:]]
with sending(Path(sys.argv[1]), pieces, print, follow=True):
    time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.release)])
def test_who_started_the_trackers_and_was_killed_or_interrupted_leaves_them_their_deadline(run, number):
    append(run, 1)
    names = [tracker(run, name).name for name in ("hang", "note")]
    follower = subprocess.Popen([sys.executable, "-c", FOLLOW, str(run), *names], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: has_text(run / "child")() and noted(run) == [1], seconds=600)
        append(run, 2)
    finally:
        follower.send_signal(number)
        follower.wait()
    wait_until(lambda: noted(run) == [1, 2], seconds=600)
    wait_until(lambda: not alive(int((run / "child").read_text())), seconds=600)


def test_a_tracker_that_hangs_while_a_run_that_has_ended_is_sent_is_killed(run):
    append(run, 1)
    said: list[str] = []
    with sending(run, [tracker(run, "stall", deadline=1)], said.append, follow=False) as lost:
        pass
    assert "1 of 1 step was not delivered: nothing was delivered for 1 s" in said[-1]
    assert len(lost) == 1


def test_a_process_waits_until_the_one_that_serves_its_tracker_has_ended(run):
    append(run, 1)
    said: list[str] = []
    turns = run / "turns"
    with ExitStack() as first:
        first.enter_context(sending(run, [tracker(run, "take_turns", who="first")], print, follow=True))
        wait_until(has_text(turns), seconds=600)
        with sending(run, [tracker(run, "take_turns", who="second")], said.append, follow=True) as lost:
            wait_until(lambda: bool(said) or "second" in turns.read_text(), seconds=600)
            (run / "go").touch()
            first.close()
    assert turns.read_text().split() == ["first", "first", "second", "second"]
    assert "waiting until another process that sends this run to it has ended" in said[0]
    assert not lost


def test_a_fault_without_a_reason_says_so(run):
    append(run, 1)
    said: list[str] = []
    with sending(run, [tracker(run, "note")], said.append, follow=False):
        wait_until(lambda: noted(run) == [1] and not children_of_this_process(), seconds=600)
        append(run, 2)
    assert "1 of 2 steps were not delivered: it gave no reason; see " in said[-1]


def test_a_tracker_that_cannot_be_started_does_not_end_the_others(run):
    append(run, 1)
    said: list[str] = []
    bad, good = tracker(run, "hang"), tracker(run, "note")
    (run / "trackers" / f"{file_stem(bad.name)}.log").mkdir(parents=True)
    with sending(run, [bad, good], said.append, follow=True) as lost:
        pass
    assert noted(run) == [1]
    assert lost == [bad.name]
    assert f"{bad.name}: does not track this run: its process cannot be started: " in said[0]


def test_a_run_folder_without_room_for_trackers_is_one_sentence(run):
    (run / "trackers").symlink_to(run / "nowhere")  # as in a read-only folder, mkdir fails
    with pytest.raises(RunFolderError, match="trackers: cannot be created: "), sending(run, [], print, follow=False):
        pass


def test_a_tracker_gets_the_environment_of_the_recipe_beside_that_of_the_machine(run):
    (run / "environment.json").write_text('{"seed": 3}')
    (run / "recipe.toml").write_text('environment = {name = "tools", functions = "own.py:note"}\ntrack = "wandb"\n')
    tracked = TrackedRun(run, "mine", 0, False, print)
    assert tracked.settings == {
        "recipe.environment.name": "tools",
        "recipe.environment.functions": "own.py:note",
        "environment.seed": 3,
    }
    (run / "recipe.toml").write_text('environment = "own.py:Game"\n')
    assert tracked.settings == {"recipe.environment": "own.py:Game", "environment.seed": 3}


def test_what_is_said_of_a_run_that_was_not_sent_sends_it_to_the_same_place(run):
    append(run, 1)
    said: list[str] = []
    project = {"name": "mlflow", "experiment": "it's mine", "uri": "bad://user:pa55word@host", "completions": 0}
    with sending(run, [Piece.model_validate(project)], said.append, follow=True):
        pass
    command = said[-1].rpartition("; `")[2].removesuffix("` sends the whole run")
    outdo, track, folder, to, written = shlex.split(command)
    assert (outdo, track, folder, to) == ("outdo", "track", str(run), "--to")
    assert read_piece("--to", written, "") == Piece.model_validate(project | {"uri": "bad://***@host"})


def test_a_run_that_is_sent_anew_keeps_its_id_until_it_has_another_one(run):
    resumed, anew = (TrackedRun(run, "mine", 0, anew, print) for anew in (False, True))
    (run / "trackers").mkdir()
    resumed.keep_id("old")
    assert (resumed.id, anew.id) == ("old", None)
    anew.keep_id("new")
    assert resumed.id == "new"


def steps(run: Path, **options) -> list[tuple[int, dict[str, float]]]:
    found = steps_of(run, 0, **{"after": 0, "evaluated": True, **options})
    return [(step, metrics) for step, metrics, _ in found]


def test_the_first_evaluation_is_step_0_and_numbers_that_are_not_finite_are_left_out(run):
    (run / "summary.json").write_text(json.dumps({"before": {"greedy": 0.5}}))
    append(run, 1, kl=float("nan"))
    assert steps(run) == [(0, {"eval/greedy": 0.5}), (1, {"reward": 0.0})]
    assert steps(run, after=1) == []


def test_an_evaluation_that_a_resumed_run_repeats_comes_by_itself(run):
    append(run, 1, 2)
    turns = iter([True, True, False])
    found = steps_of(run, 0, after=2, evaluated=False, active=lambda: next(turns))
    with RunFolder(run) as folder:
        folder.amend_metrics(2, {"eval/greedy": 0.5})
        assert next(found) == (2, {"eval/greedy": 0.5}, [])
        folder.append_metrics(3, {"reward": 1.0})
    assert list(found) == [(3, {"reward": 1.0}, [])]


def test_the_last_step_waits_for_its_record_or_for_the_next_step_or_for_the_end(run):
    looks = count(1)
    found = steps_of(run, 1, after=0, evaluated=True, active=lambda: next(looks) < 9)
    append(run, 1, 2)
    assert (next(found)[0], next(looks)) == (1, 2)
    append(run, 3)
    assert (next(found)[0], next(looks)) == (2, 4)
    (run / "tokens").mkdir()
    parquet.path_of(run, 3).touch()
    with pytest.raises(RunFolderError, match=r"step_000003.parquet: cannot be read"):
        next(found)

    looks = count(1)
    found = steps_of(run, 1, after=3, evaluated=True, active=lambda: next(looks) < 9)
    append(run, 4)
    assert (next(found)[0], next(looks)) == (4, 10)


@pytest.mark.parametrize(("failure", "status"), [(None, "KILLED"), ('{"message": "no room"}', "FAILED")])
def test_mlflow_tells_a_run_that_failed_from_one_that_was_stopped(run, tmp_path, monkeypatch, failure, status):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (run / "trackers").mkdir()
    client = pytest.importorskip("mlflow").MlflowClient(uri := (tmp_path / "mlflow").as_uri())
    (run / "recipe.toml").write_text("steps = 2\n")
    (run / "environment.json").write_text("{}")
    if failure:
        (run / "failure.json").write_text(failure)
    tracked = TrackedRun(run, "mlflow", 0, False, print)
    with mlflow(tracked, uri=uri):
        pass
    assert tracked.id
    assert client.get_run(tracked.id).info.status == status
