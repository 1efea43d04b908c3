"""Commands one after the other on a small disk, in a namespace that may mount it: quicker than a new interpreter each.

A process of the fork server has one thread, so that it may enter a namespace of users, and fork.
"""

import ctypes
import multiprocessing
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from run_cases import PATIENCE, WARM, run_outdo

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000  # linux/sched.h


def full_and_then_free(home: Path, settings: Sequence[str]) -> str:
    """Train in `small/run`, resume it, and once more without the file `small/filler`; copy it to `run`.

    Returns what was said, with a line for each status.
    """
    process = WARM.Process(target=_commands, args=(home, settings))
    process.start()
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == 0, process.exitcode
    return "".join(path.read_text() for path in sorted(home.glob("log-*")))


def _commands(home: Path, settings: Sequence[str]) -> None:
    _own_mounts()
    os.chdir(home)
    (home / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", "small"], check=True)
    _outdo(home, "1-train", "train", "recipe.toml", "run=./small/run", *settings)
    _outdo(home, "2-resume on a full disk", "resume", "small/run")
    (home / "small/filler").unlink()
    _outdo(home, "3-resume", "resume", "small/run")
    subprocess.run(["cp", "-r", "small/run", "run"], check=True)


def _own_mounts() -> None:
    """Be the root of a new namespace of users and of mounts, as `unshare -rm` is."""
    maps = {"uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_USERS | NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "no new namespace")
    for name, text in {"setgroups": "deny", **maps}.items():
        Path("/proc/self", name).write_text(text)


def _outdo(home: Path, name: str, *arguments: str) -> None:
    log = home / f"log-{name}"
    asked = (list(arguments), str(home), str(log), {"COLUMNS": "300"})
    process = multiprocessing.get_context("fork").Process(target=run_outdo, args=asked)
    process.start()
    process.join()
    with log.open("a") as file:
        file.write(f"\n{name[2:]}: status {process.exitcode}\n")
