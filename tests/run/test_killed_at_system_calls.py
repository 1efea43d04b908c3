"""Test a real SIGKILL, and a full disk, at every system call of a run that changes the disk; strace causes them."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from kill_cases import assert_same, newest
from run_cases import Command, contents, outdo_, steps_done, timeless, wait_until, weights

import outdo.cli.main
from outdo.run.checkpoints import checkpoint

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine"),
]

CALLS = ("write", "writev", "pwrite64", "fsync", "fdatasync", "ftruncate", "fallocate", "copy_file_range", "sendfile")
CALLS += ("mkdir", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "chmod", "fchmod", "fchmodat")
THREADS = ("MainThread", "checkpoint_0", "record_0")
SETTINGS = ("steps=3", "checkpoint.keep=1", "eval.every=0")


def traced() -> None:
    """Be outdo, whose threads strace follows: it injects `$FAULT` into the thread `$THREAD`."""
    run = threading.Thread.run

    def run_traced(self: threading.Thread) -> None:
        _trace(self.name)
        run(self)

    threading.Thread.run = run_traced
    sys.stdout = io.StringIO()  # what is printed is no change of the run folder
    _trace("MainThread")
    outdo.cli.main.main()


def _trace(thread: str) -> None:
    if thread not in THREADS:
        return
    fault = [f"--inject={os.environ['FAULT']}"] if thread == os.environ.get("THREAD") else []
    watched = ["-e", f"trace={','.join(CALLS)}", *fault, "-p", str(threading.get_native_id())]
    tracer = subprocess.Popen(["strace", "-q", "-o", f"trace-{thread}", *watched], stderr=subprocess.DEVNULL)
    while "TracerPid:\t0\n" in Path("/proc/thread-self/status").read_text():
        assert tracer.poll() is None, "strace may not watch a process here"
        time.sleep(0.001)


def system_calls(home: Path) -> list[tuple[str, str, int]]:
    """Train in `straight`; return thread, name and number of each call: its count in that thread and of that name."""
    command = Command(home, *train("straight"), main=traced)
    assert command.wait() == 0, command.said
    found: list[tuple[str, str, int]] = []
    for thread in THREADS:
        trace, counted = home / f"trace-{thread}", Counter[str]()
        wait_until(lambda trace=trace: "+++ exited" in trace.read_text())
        for call in re.findall(r"(?m)^(\w+)\(", trace.read_text()):
            counted[call] += 1
            found.append((thread, call, counted[call]))
    return found  # all of them: the next run writes other traces


def train(run: str) -> tuple[str, ...]:
    return ("train", "recipe.toml", f"run=./{run}", *SETTINGS)


def with_fault(home: Path, thread: str, fault: str) -> tuple[int, str]:
    """Train in `faulty`; its exit status and what it said."""
    shutil.rmtree(home / "faulty", ignore_errors=True)
    command = Command(home, *train("faulty"), variables={"THREAD": thread, "FAULT": fault}, main=traced)
    return command.wait(), command.said


def resume(home: Path) -> None:
    outdo_(home, *(("resume", "faulty") if (home / "faulty/recipe.toml").exists() else train("faulty")))


def test_a_run_that_is_killed_at_any_system_call_equals_an_uninterrupted_one(own_home: Path) -> None:
    run, straight, found = own_home / "faulty", own_home / "straight", Counter[str]()
    for thread, call, number in system_calls(own_home):
        status, said = with_fault(own_home, thread, f"{call}:signal=KILL:when={number}")
        assert status == -signal.SIGKILL, f"{thread}, {call} {number}: {said}"
        found[f"{thread}: step {steps_done(run)}, checkpoint {newest(run)}"] += 1
        resume(own_home)
        assert_same(run, straight)
        assert contents(run).keys() == contents(straight).keys(), f"{thread}, {call} {number}"
        for answers in ("held_out", "reads"):
            assert contents(run / answers) == contents(straight / answers)
    print(found.total(), "kills", found)
    assert found.total() > 200


def test_a_disk_that_refuses_any_write_ends_a_run_with_one_sentence(own_home: Path) -> None:
    run, straight, found = own_home / "faulty", own_home / "straight", Counter[str]()
    for thread, call, number in system_calls(own_home):
        if call not in ("write", "pwrite64"):
            continue
        at = f"{thread}, {call} {number}"
        status, said = with_fault(own_home, thread, f"{call}:error=ENOSPC:when={number}")
        assert "Traceback" not in said, f"{at}: {said}"
        assert (status, said.count("outdo: ")) == (1, 1), f"{at}: {said}"
        saved = checkpoint.latest(run / "checkpoints")
        assert saved is None or not saved.broken, f"{at}: {saved}"
        found[f"{thread}: step {steps_done(run)}, checkpoint {newest(run)}"] += 1
        resume(own_home)
        assert (timeless(run), weights(run)) == (timeless(straight), weights(straight)), at
    print(found.total(), "refused writes", found)
    assert found.total() > 40
