"""Test a real SIGKILL at every system call of a save that changes the disk, which strace delivers."""

import shutil
import subprocess
import sys
from pathlib import Path

import checkpoint_faults
import pytest
from checkpoint_faults import holds, leftovers, save

from outdo.run.checkpoints import checkpoint

pytestmark = pytest.mark.long

CALLS = ("fsync", "fdatasync", "rename", "renameat2", "mkdir", "unlink", "unlinkat", "rmdir", "ftruncate", "fallocate")
CALLS += ("write", "pwrite64", "fchmod", "fchmodat", "chmod", "copy_file_range", "sendfile")
SCRIPT = "import sys; from pathlib import Path; from checkpoint_faults import save; save(Path(sys.argv[1]), 40)"


def killed_at(call: str, number: int, folder: Path) -> bool:
    """Save step 40 in a process that is killed at its n-th such call; return whether it made so many."""
    inject = f"inject={call}:signal=KILL:when={number}"
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={call}",
        "-e",
        inject,
        sys.executable,
        "-c",
        SCRIPT,
    ]
    paths = {"PYTHONPATH": f"{Path(checkpoint_faults.__file__).parent}:{Path.cwd() / 'src'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, folder], env=paths | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode in (0, -9, 137), done.stderr
    return done.returncode != 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine")
def test_a_kill_at_any_system_call_of_a_save_leaves_the_old_or_the_new_checkpoint(tmp_path: Path):
    save(tmp_path / "start", 20)
    kills, found_steps = 0, set()
    for call in CALLS:
        number = 1
        while killed_at(call, number, folder := shutil.copytree(tmp_path / "start", tmp_path / f"{call}-{number}")):
            found = checkpoint.latest(folder)
            assert found is not None
            assert holds(found, found.step), f"killed at {call} {number}"
            assert holds(checkpoint.latest(save(folder, 40).parent), 40), f"killed at {call} {number}"
            assert leftovers(folder) == [], f"killed at {call} {number}"
            found_steps.add(found.step)
            shutil.rmtree(folder)
            kills, number = kills + 1, number + 1
    assert kills > 20
    assert found_steps == {20, 40}
