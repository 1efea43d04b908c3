"""A reward in an actor of Ray: the outputs of a local one, also after the actor or its worker has ended or hangs."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from run_cases import command_line, family, wait_for_end, wait_until

from outdo.extras.ray import cluster
from outdo.extras.ray.cluster import connected
from outdo.extras.ray.rewards import RayReward, RewardActor
from outdo.rewards import RewardInput, Status, WeightedSum, load_reward
from outdo.rewards.types import DEADLINE, RewardOutput
from outdo.utils.errors import EngineError, RewardError, UserError, WorkerError

pytestmark = pytest.mark.release

if find_spec("ray") is None:
    pytest.skip("needs ray", allow_module_level=True)

SOURCE = """
import os, pathlib, signal, time

def score(completion, answer, folder=""):
    print("scores", completion)
    if completion == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if completion == "hang":
        time.sleep(1000)
    if completion == "wait":
        pathlib.Path(folder, "waits").write_text(str(os.getppid()))
        while not pathlib.Path(folder, "go").exists():
            time.sleep(0.01)
    return {"one": 1, "true": True, "none": None, "worker": os.getpid()}.get(completion, completion == answer)

def all_at_once(completions, **columns):
    return [len(each) for each in completions]
"""
KINDS = ("one", "true", "none", "4", "kill", "hang", "5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray-rewards")
    (path / "mine.py").write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def placed(folder: Path) -> Iterator[RayReward]:
    before = family(os.getpid())
    reward = RayReward(spec(folder), timeout=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: 8)  # room for the rewards of all tests
        reward.start()
    yield reward
    of_ray = [each for each in family(os.getpid()) if each not in before and b"ray" in command_line(each)]
    started = [*of_ray, *workers()]
    assert len(actors()) == 1 == len(workers())
    reward.close()
    wait_for_end(started)


@pytest.fixture(autouse=True)
def often_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL", 0.05)


def spec(folder: Path, function: str = "score") -> dict[str, str]:
    return {"name": f"{folder}/mine.py:{function}", "folder": str(folder)}


def actors() -> list[int]:
    return [each for each in family(os.getpid()) if b"RewardActor" in command_line(each)]


def workers() -> list[int]:
    """The worker processes of the actors."""
    return [each for actor in actors() for each in family(actor) if b"serve" in command_line(each)]


def inputs(*completions: str) -> list[RewardInput]:
    return [RewardInput(prompt="2+2=", completion=each, answer="4") for each in completions]


def in_the_background(reward: RayReward, *completions: str) -> tuple[threading.Thread, list[RewardOutput | Exception]]:
    """Score completions in a thread; return it, and a list that gets the outputs or the error."""
    found: list[RewardOutput | Exception] = []

    def work() -> None:
        try:
            found.extend(reward(inputs(*completions)))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, found


def waits(folder: Path) -> None:
    """Wait until a function waits; it is then allowed to go on the next time."""
    wait_until((folder / "waits").exists, seconds=600)
    (folder / "waits").unlink()


def test_values_failures_and_prints_are_those_of_a_local_worker(placed: RayReward, folder: Path, capfd):
    local = load_reward([spec(folder)], timeout=1.0)
    assert isinstance(local, WeightedSum)
    expected = local.rewards[0](inputs(*KINDS))
    local.close()
    printed = capfd.readouterr().err
    assert placed(inputs(*KINDS)) == expected
    assert capfd.readouterr().err == printed
    assert "scores 4\n" in printed
    statuses = [each.status for each in expected]
    assert statuses == ["ok", "ok", "not_applicable", "ok", "failed", "timed_out", "ok"]


def test_an_actor_that_is_killed_in_a_call_is_replaced_and_the_call_repeated(placed: RayReward, folder: Path, capfd):
    (first,) = actors()
    thread, found = in_the_background(placed, "4", "wait", "5")
    waits(folder)
    started = [first, *workers()]
    os.kill(first, signal.SIGKILL)
    (folder / "go").touch()
    thread.join(600)
    for name in ("go", "waits"):
        (folder / name).unlink()
    assert [each.value for each in found] == [1, 0, 0]
    assert "the actor of the reward score is restarted: The actor died" in capfd.readouterr().err
    assert actors() != [first]
    wait_for_end(started)


def test_a_stopped_actor_does_not_hold_up_a_step_whose_time_is_over(placed: RayReward, monkeypatch):
    monkeypatch.setattr("outdo.extras.ray.rewards.GRACE", 0.2)
    monkeypatch.setattr(cluster, "SILENCE", 600.0)
    placed(inputs("4"))
    started = [*actors(), *workers()]
    os.kill(started[0], signal.SIGSTOP)
    token = DEADLINE.set((begun := time.monotonic()) + 0.5)
    try:
        late = placed(inputs("4", "5"))
    finally:
        DEADLINE.reset(token)
    assert time.monotonic() - begun < cluster.SILENCE  # then it would have been lost anyway
    assert [(each.status, each.reason) for each in late] == [
        (Status.timed_out, "the time for the rewards of this step was used up")
    ] * 2
    assert [each.value for each in placed(inputs("4"))] == [1]
    wait_for_end(started)


def test_the_time_that_a_step_has_left_is_known_to_the_actor(placed: RayReward):
    placed(inputs("4"))
    before = actors()
    token = DEADLINE.set(time.monotonic() + 0.3)
    try:
        outputs = placed(inputs("hang", "4"))
    finally:
        DEADLINE.reset(token)
    assert [each.status for each in outputs] == [Status.timed_out] * 2
    assert actors() == before


def test_an_actor_that_is_lost_again_and_again_ends_the_run(placed: RayReward, monkeypatch, capfd):
    def lost(*_: object, **__: object) -> None:
        for each in actors():
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    call = connected.call
    with monkeypatch.context() as patch:
        patch.setattr(connected, "call", lambda *given, **limits: (lost(), call(*given, **limits))[1])
        with pytest.raises(WorkerError, match="the actor of the reward score was lost 3 times: The actor died"):
            placed(inputs("4"))
    assert capfd.readouterr().err.count("is restarted") == 2
    assert [each.value for each in placed(inputs("4"))] == [1]


def test_all_roles_are_placed_together_and_ray_ends_with_the_last_one(placed: RayReward, folder: Path, monkeypatch):
    (before,) = actors()
    together = [RayReward(spec(folder, "all_at_once"), timeout=600.0), RayReward(spec(folder), timeout=600.0)]
    together[0].start()
    first, second = (each._role for each in together)
    assert first.group is second.group is not None
    assert {first.first, second.first} == {0, 1}
    together[1].start()
    assert [each.value for each in together[0](inputs("", "abc"))] == [0, 3]
    assert together[0].name == "all_at_once"
    assert together[0].source == "mine"
    monkeypatch.setattr(cluster, "ROOM", 0.5)
    large = [connected.join("the engine", [{"CPU": 5000}] * 2), connected.join("the judge", [{"CPU": 1}])]
    with pytest.raises(EngineError, match=r"no room for the .* and the .*: free are [\d.]+ CPU") as error:
        connected.start(large[0], RewardActor)
    assert "the engine (2 x 5000 CPU)" in str(error.value)
    assert "the judge (1 x 1 CPU)" in str(error.value)
    for each in large:
        connected.leave(each)
    for each in together:
        each.close()
    assert [each.value for each in placed(inputs("4"))] == [1]
    assert before in actors()


def test_what_is_wrong_on_that_machine_is_a_sentence(placed: RayReward, folder: Path):
    wrong = RayReward(spec(folder, "scor"))
    with pytest.raises(UserError, match=rf"mine.py has no .*score.* \(on {os.uname().nodename}, where Ray has placed"):
        wrong.start()
    wrong.close()


def test_a_call_ends_when_another_thread_closes_the_reward(placed: RayReward, folder: Path):
    before = len(actors())
    other = RayReward(spec(folder), timeout=600.0)
    other.start()
    thread, found = in_the_background(other, "wait")
    waits(folder)
    other.close()
    thread.join(600)
    assert isinstance(found[0], RewardError)
    assert str(found[0]) == "the reward score was interrupted"
    wait_until(lambda: len(actors()) <= before)
