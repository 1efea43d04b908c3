"""Processes listen where the others reach them; `tests/run/test_two_machines.py` tries it on two machines."""

import os

import pytest
import torch.distributed as dist

from outdo.extras.replicas.launch import LOOPBACK
from outdo.extras.replicas.network import INTERFACE, choose_interface


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is chosen; what a test chooses is forgotten."""
    for name in (INTERFACE, "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def store(**addresses: str) -> dist.Store:
    """What the other processes have told."""
    found = dist.HashStore()
    for rank, address in addresses.items():
        found.set(f"outdo/address/{rank.removeprefix('rank')}", address)
    return found


def test_processes_of_one_machine_listen_on_its_loopback_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    choose_interface(store(), 0, 2)
    assert os.environ[INTERFACE] == LOOPBACK


def test_the_choice_of_the_user_stays_and_the_others_do_not_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(INTERFACE, "mine")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    choose_interface(known := store(rank1="10.77.0.2"), 0, 2)
    assert os.environ[INTERFACE] == "mine"
    assert known.check(["outdo/address/0"])


@pytest.mark.skipif(LOOPBACK != "lo", reason="only on Linux")
def test_an_interface_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    choose_interface(store(rank1="127.0.0.1"), 0, 2)
    assert os.environ[INTERFACE] == "lo"


def test_a_name_that_nobody_knows_leaves_the_choice_to_gloo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    choose_interface(store(rank1="10.77.0.2"), 0, 2)
    assert INTERFACE not in os.environ
