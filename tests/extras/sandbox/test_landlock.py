"""The tier landlock: what each of its walls keeps out alone, and how it starts and ends."""

import os
import signal
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_calls import children
from test_attacks import ATTACKS, FRAME
from test_sandbox import wait_for_child

from outdo.extras.sandbox import Ending, Sandbox, bubblewrap, choose, landlock, open_sandbox
from outdo.utils.errors import UserError

pytestmark = pytest.mark.parametrize("sandbox", ["landlock"], indirect=True)

FCNTL = {"x86_64": 72, "aarch64": 25}
"""The number of the system call."""


def attempt(sandbox: Sandbox, attack: str, around: dict[str, object]) -> str:
    return sandbox.run(FRAME.format(attack=attack.format(**around))).stdout.partition(" ")[0].strip()


@pytest.mark.parametrize(
    ("attack", "since"),
    [
        ("reads a file", 1),
        ("lists a folder", 1),
        ("renames a file", 1),
        ("reads the environment of a process", 1),
        ("traces a process", 1),
        ("empties a file", 3),
        ("connects to a port", 4),
        ("opens a port", 4),
        ("connects to an abstract socket", 6),
        ("signals a process", 6),
    ],
)
def test_landlock_alone_keeps_a_program_inside(
    attack: str, since: int, surroundings: dict[str, object], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    """The filter of system calls allows everything here."""
    assert isinstance(sandbox, landlock.Landlock)
    if sandbox.version < since:
        pytest.skip(f"landlock {sandbox.version} does not refuse it")
    monkeypatch.setattr(landlock, "system_call_filter", lambda **_: struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    assert attempt(sandbox, ATTACKS[attack], surroundings) == "refused"
    assert attempt(sandbox, ATTACKS["keeps memory in a file"], surroundings) == "succeeded"


@pytest.mark.parametrize(
    "attack",
    [
        "empties a file",
        "connects to a port",
        "connects to an abstract socket",
        "signals a process",
        "signals a process as the owner of a file",
    ],
)
def test_the_oldest_landlock_keeps_a_program_inside(attack: str, surroundings: dict[str, object], sandbox: Sandbox):
    """Version 1 knows neither TCP nor signals nor `truncate`: the filter refuses them."""
    assert isinstance(sandbox, landlock.Landlock)
    assert attempt(replace(sandbox, version=1), ATTACKS[attack], surroundings) == "refused"


def test_a_program_limits_no_other_process(surroundings: dict[str, object], sandbox: Sandbox):
    assert attempt(sandbox, "__import__('resource').prlimit({victim}, 7, (9, 9))", surroundings) == "refused"


@pytest.mark.skipif(os.uname().machine not in FCNTL, reason="the number of fcntl is not known here")
def test_a_command_with_further_bits_is_refused_as_well(surroundings: dict[str, object], sandbox: Sandbox):
    """The kernel reads 32 bits of the register."""
    number = FCNTL[os.uname().machine]
    attack = f"import ctypes; check(libc.syscall({number}, 0, ctypes.c_ulong(8 | 1 << 32), {{victim}}))"
    assert attempt(sandbox, attack, surroundings) == "refused"


def test_a_system_call_that_is_newer_than_the_filter_is_refused(surroundings: dict[str, object], sandbox: Sandbox):
    """fchmodat2, which changes the permissions of a file that belongs to the user."""
    assert attempt(sandbox, "check(libc.syscall(452, -100, {file!r}.encode(), 0, 0))", surroundings) == "refused"
    assert Path(str(surroundings["file"])).stat().st_mode & 0o777 == 0o666


def test_an_interpreter_that_is_not_confined_runs_no_program(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(landlock, "_RESTRICT_SELF", 9999)
    outcome = sandbox.run("print('outside')")
    assert (outcome.ending, outcome.stdout) == (Ending.infrastructure, "")
    assert "Function not implemented" in outcome.stderr


@pytest.mark.usefixtures("orphans_are_ours")
@pytest.mark.parametrize("program", ["import time; time.sleep(30)", "import ctypes; ctypes.CDLL(None).prctl(1, 0)"])
def test_a_program_ends_with_outdo_also_if_it_tries_not_to(program: str, sandbox: Sandbox):
    runner = os.fork()
    if not runner:
        sandbox.run(f"{program}\nimport time; time.sleep(30)")
        os._exit(0)
    confined(wait_for_child(runner))
    os.kill(runner, signal.SIGKILL)
    ends = [os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) for _ in ("runner", "program")]
    assert ends == [-signal.SIGKILL] * 2


def confined(process: int) -> None:
    """Wait until a program runs."""
    while "Seccomp:\t2" not in Path(f"/proc/{process}/status").read_text():
        time.sleep(0.01)
    time.sleep(0.5)


@pytest.mark.usefixtures("orphans_are_ours")
def test_a_program_that_is_killed_leaves_nothing(sandbox: Sandbox):
    before = children()
    outcome = sandbox.run("import os, time\ntry: os.setsid()\nexcept OSError: pass\nwhile True: print('a' * 1000)")
    assert outcome.ending is Ending.resource
    assert children() == before


def test_it_is_chosen_where_bubblewrap_does_not_work(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    assert list(choose.TIERS).index("landlock") > list(choose.TIERS).index("bubblewrap")
    monkeypatch.setenv("PATH", "/nowhere")
    tiers = {"bubblewrap": bubblewrap.bubblewraps, "landlock": landlock.landlocks}
    monkeypatch.setattr(choose, "TIERS", tiers)
    open_sandbox.cache_clear()
    try:
        assert open_sandbox().name == "landlock"
        assert open_sandbox().description.startswith("landlock (version ")
    finally:
        open_sandbox.cache_clear()


@pytest.mark.usefixtures("sandbox")
def test_a_kernel_without_landlock_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(landlock, "_CREATE_RULESET", 9999)
    open_sandbox.cache_clear()
    with pytest.raises(UserError, match=r"landlock: .*Function not implemented"):
        open_sandbox("landlock")
