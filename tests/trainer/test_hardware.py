"""The hardware of a run: as many workers as shared memory has room for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import MAY_MOUNT, weights

import outdo
from outdo.config.file import load
from outdo.trainer import hardware


@pytest.fixture
def recipe(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(home)
    return load("recipe.toml", ["workers=4"])


@pytest.mark.parametrize(("free", "workers"), [(1000, 4), (157, 4), (156, 3), (78, 1), (0, 1)])
def test_workers_are_as_many_as_shared_memory_has_room_for(recipe, monkeypatch, free: int, workers: int):
    """Each model of 10 million weights takes 39.1 MiB: the weights once, and a gradient for each further worker."""
    usage = shutil.disk_usage("/")._replace(free=free * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(hardware, "SHARED_MEMORY", Path("/"))
    found, why = hardware._fit_shared_memory(recipe, 4, 10_000_000, "set in the recipe")
    assert found == workers
    assert ("MiB free, and 4 workers need" in why) == (workers < 4)


@pytest.mark.skipif(not MAY_MOUNT, reason="no permission to mount a small /dev/shm")
def test_a_run_in_a_small_shared_memory_takes_fewer_workers_and_says_so(own_home: Path):
    command = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} -m outdo.cli.main train recipe.toml"
    environment = os.environ | {"PYTHONPATH": str(Path(outdo.__file__).parent.parent)}
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{command} run=./run steps=2 threads=2 workers=2"],
        cwd=own_home,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "workers: 1, threads per worker: 2 (/dev/shm has 0 MiB free, and 2 workers need" in ended.stdout
    assert weights(own_home / "run")
