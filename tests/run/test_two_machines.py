"""A run of two machines: what it computes, what is said when they cannot work together, and a machine that is cut off.

The machines are two network namespaces: see `tests/support/two_machines.py`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import SOURCE, cold, command_line, steps_done, wait_until
from test_replicated_runs import finished
from two_machines import WHY_NOT, Machine, two_machines

import outdo

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.release]

OWN_NAME = "127.0.1.1"
"""As on Debian and Ubuntu: a machine finds itself where the other one does not."""

TIMEOUT = 20
"""Seconds of `cluster.timeout`."""

LONGER = 60
"""Seconds after `cluster.timeout` in which both machines have ended when one is cut off."""

SETTINGS = (
    *("steps=12", "eval.every=6", "checkpoint.every=2"),
    *("cluster.replicas=2", f"cluster.timeout={TIMEOUT}"),
)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    with two_machines(tmp_path, OWN_NAME) as pair:
        yield pair


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    """The same run as two replicas of one machine."""
    said, status = finished(cold(home, "train", "recipe.toml", "run=./one-machine", *SETTINGS))
    assert status == 0, said
    return home / "one-machine"


Commands = tuple["subprocess.Popen[str]", "subprocess.Popen[str]"]


def one_each(
    machines: tuple[Machine, Machine], home: Path, *arguments: str, of: tuple[int, ...] = (1,), **more: str
) -> Commands:
    """Start one process of `outdo` on each machine, as `srun` does; `more` is in the environment of some."""
    meet = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "first", "MASTER_PORT": "29500"}
    command = (sys.executable, "-m", "outdo", *arguments)
    first, second = (
        machine.popen(*command, cwd=home, **(meet | {"RANK": str(rank)} | (more if rank in of else {})))
        for rank, machine in enumerate(machines)
    )
    return first, second


def by_torchrun(machines: tuple[Machine, Machine], home: Path, *arguments: str, restarts: int = 0) -> Commands:
    """Start `outdo` on both machines by torchrun."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1")
    meet = ("--rdzv-backend=c10d", "--rdzv-endpoint=first:29500", f"--max-restarts={restarts}")
    first, second = (machine.popen(*torchrun, *meet, "-m", "outdo", *arguments, cwd=home) for machine in machines)
    return first, second


def ended(commands: Commands) -> tuple[str, list[int]]:
    """What both have written, and their exit statuses."""
    found = [finished(command) for command in commands]
    return "\n".join(said for said, _ in found), [status for _, status in found]


def test_two_machines_whose_own_names_are_loopback_addresses_can_run_together(machines, home: Path):
    said, statuses = ended(by_torchrun(machines, home, "cluster", "check", "recipe.toml", "cluster.replicas=2"))
    assert statuses == [0, 0], said
    assert "no problem: 2 processes can run together" in said
    assert not any(machine.processes() for machine in machines)


@pytest.mark.long
def test_a_run_of_two_machines_is_that_of_two_replicas_on_one(machines, home: Path, undisturbed: Path):
    said, statuses = ended(by_torchrun(machines, home, "train", "recipe.toml", "run=./two-machines", *SETTINGS))
    assert statuses == [0, 0], said
    assert said.count("run folder:") == 1
    assert (home / "two-machines" / "report.html").exists()
    assert_same(home / "two-machines", undisturbed)
    assert not any(machine.processes() for machine in machines)


@pytest.mark.long
def test_a_machine_that_is_cut_off_ends_the_run_on_both_and_it_resumes_exactly(machines, home: Path, undisturbed: Path):
    run = home / "cut-off"
    commands = one_each(machines, home, "train", "recipe.toml", f"run=./{run.name}", *SETTINGS)
    cut_off_after(5, run, machines, commands)
    began = time.monotonic()
    said, statuses = ended(commands)
    seconds = time.monotonic() - began
    print(f"both had ended {seconds:.1f} s after one was cut off, with cluster.timeout={TIMEOUT}")
    assert seconds < TIMEOUT + LONGER
    assert statuses == [75, 75], said
    assert said.count("another replica ended, or does not answer") == 2
    assert "saved after step" in said
    assert not any(machine.processes() for machine in machines)
    machines[1].put_the_plug_back()
    said, statuses = ended(one_each(machines, home, "resume", str(run)))
    assert statuses == [0, 0], said
    assert_same(run, undisturbed)


@pytest.mark.long
def test_torchrun_goes_on_when_the_network_is_back(machines, home: Path, undisturbed: Path):
    run = home / "cut-off-under-torchrun"
    arguments = ("train", "recipe.toml", f"run=./{run.name}", *SETTINGS, "--resume")
    commands = by_torchrun(machines, home, *arguments, restarts=1)
    cut_off_after(5, run, machines, commands)
    wait_until(lambda: not any(map(is_replica, machines[1].processes())), seconds=TIMEOUT + LONGER)
    machines[1].put_the_plug_back()
    said, statuses = ended(commands)
    assert statuses == [0, 0], said
    assert said.count("resumed after step") == 1
    assert_same(run, undisturbed)
    assert not any(machine.processes() for machine in machines)


def cut_off_after(step: int, run: Path, machines: tuple[Machine, Machine], commands: Commands) -> None:
    wait_until(lambda: steps_done(run) >= step, commands[0])
    assert commands[0].poll() is None, ended(commands)
    machines[1].pull_the_plug()


def is_replica(process: int) -> bool:
    """Whether a process is `outdo train`, and not torchrun, which has started it."""
    return b"-m\0outdo\0train" in command_line(process).partition(b"torch.distributed")[0]


@pytest.mark.long
def test_the_check_says_what_keeps_two_machines_from_one_run(machines, home: Path, tmp_path: Path):
    check = ("cluster", "check", "recipe.toml", "cluster.replicas=2", "run=./new", "--timeout=5")

    said, statuses = ended(one_each(machines, home, *check, MASTER_PORT="29501"))
    assert statuses == [75, 75], said
    assert said.count("the 2 processes did not meet within 5 s") == 2
    assert "is the port of MASTER_ADDR=first open, and every process started?" in said

    said, statuses = ended(one_each(machines, home, *check, of=(0, 1), GLOO_SOCKET_IFNAME="lo"))
    assert statuses == [75, 75], said
    assert "GLOO_SOCKET_IFNAME=lo reaches this machine only: name the interface of the network" in said

    machines[1].pull_the_plug()
    said, statuses = ended(one_each(machines, home, *check))
    assert statuses == [75, 75], said
    assert said.count("the 2 processes did not meet within 5 s") == 2
    machines[1].put_the_plug_back()

    (other := tmp_path / "other").mkdir()
    (older := tmp_path / "site" / "outdo-0.0.1.dist-info").mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: outdo\nVersion: 0.0.1\n")
    machines[1].cover(home, other)
    path = os.pathsep.join([str(older.parent), SOURCE])
    said, statuses = ended(one_each(machines, home, *check[:-1], PYTHONPATH=path))
    assert statuses == [1, 1], said
    for sentence in (
        f"outdo: {outdo.__version__} on first, 0.0.1 on second; install equal versions",
        "process 1 on second does not find what process 0 on first writes into the folder of runs",
        "recipe.toml is not there for process 1 on second",
        "train.jsonl is not there for process 1 on second",
    ):
        assert sentence in said
