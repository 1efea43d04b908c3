"""What is left after a run, what a failure of the sandbox itself is, and which sandbox is chosen."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sandbox_calls
from sandbox_calls import children

from outdo.extras.sandbox import Ending, Outcome, Sandbox, bubblewrap, choose, landlock, open_sandbox, run
from outdo.extras.sandbox.local import UnsafeLocal
from outdo.utils.errors import UserError

BUBBLEWRAP = pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)
"""For a test of what this tier alone does."""


def leaves_nothing(sandbox: Sandbox, calls: int) -> None:
    command = [sys.executable, sandbox_calls.__file__, sandbox.name, str(calls)]
    left = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert left.pop("kib") < 8192
    assert left == {"endings": [Ending.exited, Ending.resource], "processes": 0, "descriptors": 0}


def test_calls_leave_no_process_no_descriptor_and_no_memory(sandbox: Sandbox):
    leaves_nothing(sandbox, 20)


@pytest.mark.long
def test_ten_thousand_calls_leave_no_process_no_descriptor_and_no_memory(sandbox: Sandbox):
    leaves_nothing(sandbox, 10_000)


def in_thread(function: Callable[[], Outcome]) -> tuple[threading.Thread, list[Outcome]]:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(function()))
    thread.start()
    return thread, outcomes


def wait_for_child(process: int | str = "self", known: Sequence[int] = ()) -> int:
    """Return a child that is not `known`: the process of the tests may have others, such as a server of forks."""
    while not (found := [child for child in children(process) if child not in known]):
        time.sleep(0.01)
    return found[0]


def wait_for_program(bwrap: int) -> None:
    program = wait_for_child(bwrap)
    while b"python" not in Path(f"/proc/{program}/cmdline").read_bytes().split(b"\0")[0]:
        time.sleep(0.01)
    time.sleep(1.0)  # the interpreter starts


@BUBBLEWRAP
@pytest.mark.parametrize("first", ["", "import ctypes; ctypes.CDLL(None).prctl(1, 0)"], ids=["waits", "refuses to"])
@pytest.mark.usefixtures("orphans_are_ours")
def test_a_program_ends_with_the_process_that_runs_it(first: str, sandbox: Sandbox):
    runner = os.fork()
    if not runner:
        sandbox.run(f"{first}\nimport time\ntime.sleep(30)")
        os._exit(0)
    wait_for_program(wait_for_child(runner))
    os.kill(runner, signal.SIGKILL)
    ends = [os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) for _ in ("runner", "bwrap", "program")]
    assert ends == [-signal.SIGKILL] * 3


@BUBBLEWRAP
@pytest.mark.usefixtures("orphans_are_ours")
def test_a_sandbox_that_is_killed_is_a_failure_of_the_infrastructure(sandbox: Sandbox):
    known = children()
    thread, outcomes = in_thread(lambda: sandbox.run("import time\ntime.sleep(30)"))
    bwrap = wait_for_child(known=known)
    wait_for_program(bwrap)
    os.kill(bwrap, signal.SIGKILL)
    thread.join()
    assert outcomes[0].ending is Ending.infrastructure
    _, status = os.waitpid(-1, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL  # the program ended with its sandbox


def test_an_interpreter_that_does_not_start_is_a_failure_of_the_infrastructure(sandbox: Sandbox):
    assert isinstance(sandbox, bubblewrap.Bubblewrap | landlock.Landlock)
    broken = replace(sandbox, interpreter=replace(sandbox.interpreter, python="/no/python"))
    outcome = broken.run("print(1)")
    assert outcome.ending is Ending.infrastructure
    assert "No such file" in outcome.stderr


def test_a_program_that_pretends_not_to_have_started_has_still_exited(sandbox: Sandbox):
    program = "import os\nos.write(2, b'\\0started\\n' + b'bwrap: cannot do anything')\nos._exit(1)"
    assert sandbox.run(program).ending is Ending.exited


def test_sets_have_the_same_order_in_each_run(sandbox: Sandbox):
    assert len({sandbox.run("print({*map(str, range(50))})").stdout for _ in range(3)}) == 1


class Leaky(UnsafeLocal):
    """A sandbox that contains nothing."""


def test_a_sandbox_that_leaks_is_not_chosen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choose, "TIERS", {"leaky": lambda: iter([Leaky()])})
    with pytest.raises(UserError) as refused:
        open_sandbox.__wrapped__()
    assert "leaky: a program in it reached a file of this machine, the network, another process" in str(refused.value)


def test_without_a_sandbox_nothing_runs_unless_that_is_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(choose, "TIERS", {"bubblewrap": bubblewrap.bubblewraps})
    open_sandbox.cache_clear()
    with pytest.raises(UserError, match=r"bwrap is not installed.*apt-get install bubblewrap.*unsafe_local = true"):
        run("print(1)")
    assert open_sandbox(unsafe_local=True).run("print(1)").stdout == "1\n"
    open_sandbox.cache_clear()


@pytest.mark.usefixtures("orphans_are_ours")
def test_without_a_sandbox_a_process_that_a_program_leaves_is_killed_with_it():
    program = "import os, time\nif not os.fork(): time.sleep(600)\nprint('left')"
    assert UnsafeLocal().run(program).stdout == "left\n"
    assert os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) == -signal.SIGKILL
