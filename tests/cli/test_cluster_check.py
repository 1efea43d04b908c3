"""`outdo cluster check` finds what would keep processes from one run, before a model loads."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from run_cases import Command, Replicas, outdo_, write_home

from outdo.extras.replicas.cluster_check import ProcessReport, look, network_hints, problems
from outdo.utils.errors import UserError
from outdo.utils.world import World

ONE = ProcessReport(
    host="a",
    cores=8,
    memory=64 * 2**30,
    free=100 * 2**30,
    gpus=("H100",),
    versions={"python": "3.11.9", "torch": "2.11.0", "transformers": "5.16.0", "outdo": "0.1.0"},
    files={"model": 1000},
)
TWO = replace(ONE, host="b")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_home(tmp_path_factory.mktemp("cluster"))


CHECK = ("cluster", "check", "recipe.toml")


def test_two_processes_on_one_machine_are_a_table_without_a_problem(home: Path):
    said = outdo_(home, *CHECK, "cluster.replicas=2")
    assert "no problem: 2 processes can run together" in said
    assert said.count(socket.gethostname()[:8]) == 2
    assert not list(home.rglob(".outdo-check-*"))


def test_a_folder_that_is_not_shared_is_named_with_the_process(home: Path, tmp_path: Path):
    """Process 1 works in a folder of its own, as on a machine without the file system of the others."""
    processes = Replicas(home, *CHECK, "cluster.replicas=2", second_home=tmp_path)
    assert processes.wait() == [1, 1], processes.said
    said = processes.said
    for sentence in (
        "problem: process 1 on",
        "does not find what process 0 on",
        "problem: recipe.toml is not there for process 1",
        "problem: model is not there for process 1",
        "problem: train.jsonl is not there for process 1",
    ):
        assert sentence in said


def test_processes_that_do_not_meet_end_at_the_deadline_with_what_to_look_at(home: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rendezvous = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = Command(home, *CHECK, "--timeout", "3", variables=rendezvous)
    assert command.wait() == 75
    said = command.said
    assert "Traceback" not in said
    assert "the 2 processes did not meet within 3 s" in said
    assert "is the port of MASTER_ADDR=127.0.0.1 open, and every process started?" in said


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (replace(TWO, versions={**ONE.versions, "torch": "2.12.0"}), "torch: 2.11.0 on a, 2.12.0 on b; install equal"),
        (replace(TWO, clock=-2.5), "the clock of b is -2.5 s from that of a"),
        (replace(TWO, gpus=("A100",)), "unequal GPUs: H100 on a, A100 on b"),
        (replace(TWO, memory=32 * 2**30), "unequal memory: 32.0 GiB on b, 64.0 GiB on a"),
        (replace(TWO, free=2**29), "b: 0.5 GiB are free where runs are written"),
        (replace(TWO, shares=False), "process 1 on b does not find what process 0 on a writes"),
        (replace(TWO, files={"model": None}), "model is not there for process 1 on b"),
        (replace(TWO, files={"model": 999}), "model: 1000 bytes for process 0 on a, 999 for process 1 on b"),
        (ONE, "a: 2 processes and 1 GPU:"),
    ],
)
def test_each_difference_is_one_sentence(other: ProcessReport, sentence: str):
    assert problems([ONE, TWO]) == []
    (found,) = problems([ONE, other])
    assert sentence in found


def test_an_interface_of_this_machine_only_is_a_hint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert "GLOO_SOCKET_IFNAME=lo reaches this machine only" in network_hints()[-1]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert "listens on eth0, at any port: does a firewall close some of them?" in network_hints()[-1]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder in which nobody can write")
def test_a_folder_of_runs_that_cannot_be_written_is_one_sentence():
    class FirstOfTwo(World):
        def __len__(self) -> int:
            return 2

    with pytest.raises(UserError, match="/proc: runs cannot be written there"):
        look(Path("/proc/runs"), [], FirstOfTwo())
