"""Processes listen where the others reach them; `tests/run/test_two_machines.py` tries it on two machines."""

import os
import socket

import pytest
import torch.distributed as dist

from outdo.extras.replicas import network
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
def test_the_machine_that_is_its_own_master_listens_where_another_machine_is_reached(monkeypatch: pytest.MonkeyPatch):
    """As on Debian, where the own name is 127.0.1.1."""
    routes = {"first": "127.0.0.1", "10.77.0.2": "10.77.0.1"}
    monkeypatch.setattr(network, "_address_towards", routes.get)
    monkeypatch.setattr(network, "_address_of", {"lo": "127.0.0.1", "eth7": "10.77.0.1"}.get)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth7")])
    monkeypatch.setenv("MASTER_ADDR", "first")
    choose_interface(store(rank1="127.0.0.1", rank2="10.77.0.2"), 0, 3)
    assert os.environ[INTERFACE] == "eth7"


@pytest.mark.skipif(LOOPBACK != "lo", reason="only on Linux")
def test_an_interface_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    choose_interface(store(rank1="127.0.0.1"), 0, 2)
    assert os.environ[INTERFACE] == "lo"


def test_a_name_that_nobody_knows_leaves_the_choice_to_gloo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    choose_interface(store(rank1="10.77.0.2"), 0, 2)
    assert INTERFACE not in os.environ
