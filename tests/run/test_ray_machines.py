"""A Ray cluster of two machines: the engine and a reward work on the other machine than the trainer.

The machines are two network namespaces: see `tests/support/two_machines.py`.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from run_cases import command_line, outdo_, steps_done, wait_until
from test_ray_runs import RAY
from test_replicated_runs import finished, tokens
from two_machines import WHY_NOT, Machine, two_machines

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
    pytest.mark.long,
]

SETTINGS = ("steps=12", "eval.every=6", "checkpoint.every=2")
PORT = 6379


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    with two_machines(tmp_path) as pair:
        yield pair


@pytest.fixture
def joining(machines: tuple[Machine, Machine], tmp_path: Path) -> Iterator[dict[str, str]]:
    """A cluster of both, whose processors are those of the second; yield the environment of those who join it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-two-"))  # Ray's sockets need a short path
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    first, _ = machines
    head = ("--head", f"--port={PORT}", "--include-dashboard=false", "--num-cpus=0", f"--temp-dir={folder}/first")
    start_ray(first, tmp_path, token, *head)
    second_joins(machines, tmp_path, token)
    try:
        yield token | {"RAY_ADDRESS": f"{first.address}:{PORT}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def second_joins(machines: tuple[Machine, Machine], folder: Path, joining: dict[str, str]) -> None:
    first, second = machines
    start_ray(second, folder, joining, f"--address={first.address}:{PORT}", "--num-cpus=4")


def start_ray(machine: Machine, folder: Path, joining: dict[str, str], *arguments: str) -> None:
    command = (sys.executable, "-m", "ray.scripts.scripts", "start", *arguments)
    own = (f"--node-ip-address={machine.address}", f"--object-store-memory={2**28}")
    said, status = finished(machine.popen(*command, *own, cwd=folder, **joining))
    assert status == 0, said


def outdo_on(machine: Machine, home: Path, joining: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    return machine.popen(sys.executable, "-m", "outdo", *arguments, cwd=home, **joining)


@pytest.fixture(scope="module")
def alone(home: Path) -> Path:
    """The same run in one process."""
    run = home / "ray-machines-alone"
    outdo_(home, "train", "recipe.toml", f"run=./{run.name}", *SETTINGS)
    return run


@pytest.mark.parametrize("through", ["network", "folder"])
def test_an_engine_and_a_reward_on_another_machine_change_nothing(
    machines: tuple[Machine, Machine], joining: dict[str, str], home: Path, alone: Path, through: str
):
    run = home / f"ray-machines-{through}"
    (shared := home / "weights-of-machines").mkdir(exist_ok=True)
    engine = RAY if through == "network" else f'{RAY[:-1]}, folder = "{shared}"}}'
    reward = f'rewards={{name = "{home}/score.py:score", place = "ray"}}'
    arguments = ("train", "recipe.toml", f"run=./{run.name}", "--verbose", *SETTINGS, engine, reward)
    said, status = finished(outdo_on(machines[0], home, joining, *arguments))
    assert status == 0, said
    assert "engine: processes on cpu of second (Ray)" in said
    assert "rewards: score in an actor on second (Ray)" in said
    for step in range(1, 13):
        assert tokens(alone, step) == tokens(run, step)


def test_an_engine_on_a_machine_that_is_cut_off_ends_the_run_and_it_resumes_exactly(
    machines: tuple[Machine, Machine], joining: dict[str, str], home: Path, alone: Path, tmp_path: Path
):
    """Ray has no other machine to start the engine on."""
    run = home / "ray-machines-cut-off"
    command = outdo_on(machines[0], home, joining, "train", "recipe.toml", f"run=./{run.name}", *SETTINGS, RAY)
    wait_until(lambda: steps_done(run) >= 3, command)
    machines[1].pull_the_plug()
    said, status = finished(command)
    assert status == 75, said
    assert "the Ray cluster has no room for" in said
    machines[1].put_the_plug_back()
    wait_until(lambda: not any(b"raylet" in command_line(each) for each in machines[1].processes()), seconds=300)
    second_joins(machines, tmp_path, joining)
    said, status = finished(outdo_on(machines[0], home, joining, "resume", str(run)))
    assert status == 0, said
    for step in range(1, 13):
        assert tokens(alone, step) == tokens(run, step)
