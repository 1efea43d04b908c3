"""The sandbox of landlock: rules for files, a filter of system calls, and limits for a single process.

It needs no namespaces, which containers and some distributions forbid. A program can open the interpreter, its standard
library, shared libraries and `/dev/null`, and change nothing. It runs beside the other processes of its user: it can
tell whether a file or a process exists (`stat`), but neither open, change nor signal one.

Three walls stand between a program and the machine. Landlock refuses to open, make, remove and rename files, to trace
processes, and, where the kernel knows how, TCP (version 4 of landlock) and signals to others (6). The filter refuses
sockets, signals and processes on every kernel, and what landlock does not know: to change permissions, times and
attributes of files, and to attach the shared memory of other processes. Limits bound the rest.
"""

import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outdo.extras.sandbox.base import DEFAULT_LIMITS, Limits, Outcome
from outdo.extras.sandbox.interpreter import Interpreter, interpreters, user_of_programs
from outdo.extras.sandbox.process import execute, interpreter_arguments, memory_file, shell_status
from outdo.extras.sandbox.seccomp import OWN_PROCESS, system_call_filter
from outdo.rewards.limits import running_threads
from outdo.utils.child import kill_group

PROGRAMS_AT_ONCE = 16
"""Programs of a user that may each have `Limits.threads` threads: the kernel counts the threads of a user together."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls; the same on all architectures
_GET_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""The rights to files that landlock handles, from this version on. None to execute a file is granted."""
_TCP = 0b11  # bind and connect, from version 4 on
_OTHERS = 0b11  # abstract sockets and signals, from version 6 on
_NOT_LOGGED = 1  # what a program tries does not fill the log of the kernel, from version 7 on

_CONFINE = """
import ctypes, os, struct

libc = ctypes.CDLL(None, use_errno=True)

def call(function, *arguments):
    if function(*map(ctypes.c_ulong, arguments)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

call(libc.prctl, {PR_SET_PDEATHSIG}, {SIGKILL})
if os.getppid() != {parent}:
    os._exit(1)
call(libc.prctl, {PR_SET_NO_NEW_PRIVS}, 1, 0, 0, 0)
call(libc.syscall, {RESTRICT_SELF}, {ruleset}, {flags})
os.close({ruleset})
rules = {rules}.replace(struct.pack("=I", {OWN_PROCESS}), struct.pack("=I", os.getpid()))
instructions = ctypes.create_string_buffer(rules)
program = ctypes.create_string_buffer(struct.pack("HP", len(rules) // 8, ctypes.addressof(instructions)))
call(libc.prctl, {PR_SET_SECCOMP}, {SECCOMP_MODE_FILTER}, ctypes.addressof(program))
"""


@dataclass(frozen=True, slots=True)
class Landlock:
    """Runs programs by an interpreter that confines itself before it runs them, and that any user can read."""

    interpreter: Interpreter
    version: int
    """Of landlock, as the kernel calls its ABI."""

    name = "landlock"

    @property
    def description(self) -> str:
        return (
            f"landlock (version {self.version}), with seccomp and limits but no namespaces, "
            f"Python {self.interpreter.version}"
        )

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        user = user_of_programs()
        with (
            memory_file(program.encode(errors="replace")) as source,
            _ruleset(self.interpreter.visible, self.version) as ruleset,
        ):
            confine = _CONFINE.format(
                PR_SET_PDEATHSIG=1,
                SIGKILL=int(signal.SIGKILL),
                parent=os.getpid(),
                PR_SET_NO_NEW_PRIVS=38,
                RESTRICT_SELF=_RESTRICT_SELF,
                ruleset=ruleset,
                flags=_NOT_LOGGED if self.version >= 7 else 0,
                rules=system_call_filter(signals=False),
                OWN_PROCESS=OWN_PROCESS,
                PR_SET_SECCOMP=22,
                SECCOMP_MODE_FILTER=2,
            )
            threads = running_threads(os.getuid() if user is None else user) + PROGRAMS_AT_ONCE * limits.threads
            return execute(
                [
                    self.interpreter.python,
                    *interpreter_arguments(source, limits, processes=threads, before=confine),
                ],
                stdin,
                limits,
                descriptors=(source, ruleset),
                user=user,
                kill=kill_group,
                exit_status=shell_status,
            )


def landlocks() -> Iterator[Landlock]:
    """Yield the sandbox with each interpreter; none is tried.

    Raises:
        OSError, CalledProcessError: the kernel has no landlock, libseccomp or an interpreter is not on this machine,
            or does not work.
    """
    system_call_filter()
    if sys.platform != "linux":
        raise OSError("landlock is a part of Linux")
    version = _call(_CREATE_RULESET, None, 0, _GET_VERSION)
    for interpreter in interpreters():
        yield Landlock(interpreter, version)


@contextlib.contextmanager
def _ruleset(visible: Sequence[str], version: int) -> Iterator[int]:
    """Yield the descriptor of rules by which a process can read what is visible and `/dev/null`, and nothing else."""
    rights = max(rights_of_version for since, rights_of_version in _ALL_RIGHTS.items() if since <= version)
    handled = struct.pack("=QQQ", rights, _TCP if version >= 4 else 0, _OTHERS if version >= 6 else 0)
    ruleset = _call(_CREATE_RULESET, handled, len(handled), 0)
    try:
        for path in visible:
            _allow(ruleset, path, _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE)
        _allow(ruleset, os.devnull, _READ_FILE | _WRITE_FILE)
        yield ruleset
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0)
    finally:
        os.close(beneath)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")
    return result
