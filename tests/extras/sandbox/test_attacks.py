"""Programs that reach for what is outside of their sandbox. Each of them succeeds without one."""

import struct
from pathlib import Path

import pytest

from outdo.extras.sandbox import Ending, Limits, Sandbox, bubblewrap
from outdo.extras.sandbox.landlock import PROGRAMS_AT_ONCE
from outdo.extras.sandbox.local import UnsafeLocal

ATTACKS = {
    "reads a file": "open({file!r}).read()",
    "lists a folder": "os.listdir({folder!r})",
    "finds a file": "os.stat({file!r})",
    "renames a file": "os.rename({file!r}, {file!r} + '2')",
    "makes a folder": "os.mkdir({folder!r} + '/made')",
    "changes the permissions of a file": "os.chmod({file!r}, 0o777)",
    "changes the time of a file": "os.utime({file!r})",
    "empties a file": "os.truncate({file!r}, 0)",
    "watches a file": "check(libc.inotify_add_watch(libc.inotify_init(), {file!r}.encode(), 2))",
    "reads the environment of a process": "open('/proc/{victim}/environ').read()",
    "reads the memory map of a process": "open('/proc/{victim}/maps').read()",
    "connects to a port": "socket.create_connection(('127.0.0.1', {port}), timeout=60)",
    "connects to a local socket": "socket.socket(socket.AF_UNIX).connect({path!r})",
    "connects to an abstract socket": "socket.socket(socket.AF_UNIX).connect({abstract!r})",
    "opens a port": "socket.create_server(('127.0.0.1', 0))",
    "signals a process": "os.kill({victim}, signal.SIGTERM)",
    "signals a process as the owner of a file": "__import__('fcntl').fcntl(0, 8, {victim})",
    "binds a process to a processor": "os.sched_setaffinity({victim}, os.sched_getaffinity(0))",
    "changes the priority of a process": "os.setpriority(os.PRIO_PROCESS, {victim}, 19)",
    "lives on without outdo": "check(libc.prctl(1, 0))",
    "starts a process": "os.fork() or os._exit(0)",
    "starts a command": "subprocess.run([sys.executable, '-c', ''], check=True)",
    "leaves a daemon": "os.fork() or (os.setsid(), os.fork(), os._exit(0))",
    "traces a process": "check(libc.ptrace(0x4206, {victim}, 0, 0))",
    "is traced": "check(libc.ptrace(0, 0, 0, 0))",
    "reads the memory of a process": "check(libc.process_vm_readv({victim}, None, 0, None, 0, 0))",
    "makes a user namespace": "check(libc.unshare(0x10000000))",
    "makes a namespace of mounts": "check(libc.unshare(0x00020000))",
    "keeps memory in a file": "os.memfd_create('a')",
    "keeps memory in a segment": "check(libc.shmget(0, 4096, 0o1600))",
    "reads a segment": "check(-(libc.shmat({segment}, None, 0o10000) == -1))",
    "keeps a key": "check(libc.syscall(248, b'user', b'outdo', b'a', 1, -2))",
}

FRAME = """
import ctypes, os, signal, socket, subprocess, sys, time

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")

libc = ctypes.CDLL(None, use_errno=True)
try:
    {attack}
except OSError as error:
    print("refused", error)
else:
    print("succeeded")
"""

NOT_REFUSED = {("landlock", "finds a file")}
"""What a tier does not refuse: landlock cannot (docs/code-rewards.md says so)."""

BUBBLEWRAP = pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)
"""For a test of what this tier alone does."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_program_reaches_nothing_outside_of_its_sandbox(
    attack: str, surroundings: dict[str, object], sandbox: Sandbox
):
    program = FRAME.format(attack=ATTACKS[attack].format(**surroundings))
    file = Path(str(surroundings["file"]))
    before = file.stat()
    assert sandbox.run(program).stdout.startswith("refused") or (sandbox.name, attack) in NOT_REFUSED
    assert file.read_text() == "a secret"
    assert (file.stat().st_mode, file.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_attack_succeeds_without_a_sandbox(attack: str, surroundings: dict[str, object]):
    program = FRAME.format(attack=ATTACKS[attack].format(**surroundings))
    assert UnsafeLocal().run(program).stdout.startswith("succeeded")


@pytest.mark.parametrize(
    "attack",
    [
        "reads the environment of a process",
        "connects to a port",
        "connects to a local socket",
        "connects to an abstract socket",
        "signals a process",
        "traces a process",
        "makes a user namespace",
    ],
)
@BUBBLEWRAP
def test_namespaces_alone_keep_a_program_inside(
    attack: str, surroundings: dict[str, object], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    """The filter of system calls is a second wall: here it allows everything."""
    monkeypatch.setattr(bubblewrap, "system_call_filter", lambda: struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    program = FRAME.format(attack=ATTACKS[attack].format(**surroundings))
    assert sandbox.run(program).stdout.startswith("refused")
    assert sandbox.run(FRAME.format(attack=ATTACKS["keeps memory in a file"])).stdout.startswith("succeeded")


def test_a_program_has_no_environment_and_no_descriptors_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
):
    monkeypatch.setenv("OUTDO_CANARY", "a secret")
    program = """
import os
print(sorted({*os.environ} - {"LC_CTYPE", "PWD", "PYTHONHASHSEED"}))
for number in range(3, 64):
    try:
        print(number, os.fstat(number))
    except OSError:
        pass
"""
    assert sandbox.run(program).stdout == "[]\n"


def test_a_program_can_write_no_file(sandbox: Sandbox):
    program = """
import os
for folder, _, files in os.walk("/"):
    for path in [os.path.join(folder, "new"), *(os.path.join(folder, name) for name in files)]:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
            if os.path.realpath(path) != "/dev/null":
                print(path)
        except OSError:
            pass
try:
    os.write(0, b"more input")
except OSError:
    print("none")
"""
    assert sandbox.run(program, "input").stdout == "none\n"


@BUBBLEWRAP
def test_a_program_is_the_only_process_that_it_sees(sandbox: Sandbox):
    outcome = sandbox.run("import os; print(os.getpid(), os.getppid(), os.path.exists('/proc')); os.kill(-1, 9)")
    assert outcome.stdout == "1 0 False\n"
    assert "ProcessLookupError" in outcome.stderr


def test_threads_are_limited(sandbox: Sandbox):
    # With landlock the programs of a user share a limit, and those of other tests may start or end meanwhile.
    together, least, most = {"bubblewrap": (1, 1, 16), "landlock": (PROGRAMS_AT_ONCE, 0, 256)}[sandbox.name]
    program = f"""
import threading, time
threading.stack_size(1 << 16)  # so that their memory has room for many more
started = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
        started += 1
except RuntimeError:
    print({least} <= started < {most})
"""
    assert sandbox.run(program, limits=Limits(threads=16 // together)).stdout == "True\n"


@pytest.mark.parametrize(
    ("program", "ending"),
    [
        (
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass",
            Ending.timeout,
        ),
        ("a = bytearray(1 << 30)", Ending.resource),
        ("while True: print('a' * 1000)", Ending.resource),
        ("import sys\nwhile True: sys.stderr.write('a' * 1000)", Ending.resource),
        ("import os\nos._exit(0)", Ending.exited),
        ("import ctypes\nctypes.string_at(0)", Ending.exited),
        ("import sys\nsys.exit('infrastructure')", Ending.exited),
        ("import os\nfor n in range(3): os.close(n)", Ending.exited),
        ("def f(:", Ending.exited),
        ("\0", Ending.exited),
    ],
)
def test_the_ending_of_a_program(program: str, ending: Ending, sandbox: Sandbox):
    seconds = 1 if ending is Ending.timeout else 10  # on a busy machine, computing takes longer
    outcome = sandbox.run(program, limits=Limits(seconds=seconds, memory=256))
    assert outcome.ending is ending
    assert len(outcome.stdout) <= 1 << 20


def test_a_program_that_computes_is_stopped_by_the_time_that_it_computes(sandbox: Sandbox):
    outcome = sandbox.run("while True: pass", limits=Limits(seconds=1))
    assert (outcome.ending, outcome.exit_status) == (Ending.timeout, 128 + 9)  # not by the clock


def test_a_program_that_only_waits_is_stopped_by_the_clock(sandbox: Sandbox):
    outcome = sandbox.run("import time\ntime.sleep(60)", limits=Limits(wall_seconds=2))
    assert (outcome.ending, outcome.exit_status) == (Ending.timeout, None)
    assert outcome.seconds < 2


def test_output_that_is_no_text_does_not_matter(sandbox: Sandbox):
    assert sandbox.run("import os; os.write(1, bytes([0xff, 0x61]))").stdout == "\N{REPLACEMENT CHARACTER}a"
    assert sandbox.run("print(input())", "Grüße \ud800").stdout == "Grüße ?\n"


def test_a_program_that_closes_its_output_and_goes_on_is_stopped(sandbox: Sandbox):
    program = "import os\nos.close(1)\nos.close(2)\nwhile True: pass"
    assert sandbox.run(program, limits=Limits(seconds=1)).ending is Ending.timeout
