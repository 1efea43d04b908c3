"""The sandbox of bubblewrap: namespaces of its own, a filter of system calls, and limits for a single process.

A program sees the interpreter, its standard library, shared libraries, its own source and its input. It can write no
file. There are no other processes, no `/proc`, no network and no environment variables.
"""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from outdo.extras.sandbox.base import DEFAULT_LIMITS, Limits, Outcome
from outdo.extras.sandbox.interpreter import NOBODY, Interpreter, interpreters, user_of_programs
from outdo.extras.sandbox.process import execute, interpreter_arguments, memory_file
from outdo.extras.sandbox.seccomp import system_call_filter

_PROGRAM = "/program.py"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """Runs programs by `bwrap` and an interpreter that any user of the machine can read."""

    bwrap: str
    interpreter: Interpreter

    name = "bubblewrap"

    @property
    def description(self) -> str:
        return f"bubblewrap, with namespaces, seccomp and limits, Python {self.interpreter.version}"

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        with contextlib.ExitStack() as files:
            source = files.enter_context(memory_file(program.encode(errors="replace")))
            given = files.enter_context(memory_file(stdin.encode(errors="replace")))
            rules = files.enter_context(memory_file(system_call_filter()))
            status = files.enter_context(memory_file(b""))
            return execute(
                [
                    self.bwrap,
                    *("--unshare-user", "--unshare-all", "--disable-userns", "--as-pid-1", "--die-with-parent"),
                    *("--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
                    *(word for path in self.interpreter.visible for word in ("--ro-bind", path, path)),
                    *("--dev-bind", "/dev/null", "/dev/null"),
                    *("--ro-bind-data", str(source), _PROGRAM, "--ro-bind-data", str(given), "/dev/stdin"),
                    *("--remount-ro", "/", "--chdir", "/"),
                    *("--seccomp", str(rules), "--json-status-fd", str(status)),
                    *(
                        "--",
                        self.interpreter.python,
                        *interpreter_arguments(_PROGRAM, limits, processes=limits.threads),
                    ),
                ],
                stdin,
                limits,
                descriptors=(source, given, rules, status),
                user=user_of_programs(),
                kill=lambda bwrap: _kill(bwrap, _status(status)),
                exit_status=lambda _: _status(status).get("exit-code"),
            )


def bubblewraps() -> Iterator[Bubblewrap]:
    """Yield the sandbox with each interpreter; none is tried.

    Raises:
        OSError, CalledProcessError: bwrap, libseccomp or an interpreter is not on this machine, or does not work.
    """
    system_call_filter()
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise FileNotFoundError("bwrap is not installed")
    for interpreter in interpreters():
        yield Bubblewrap(bwrap, interpreter)


def _status(file: int) -> dict[str, int]:
    """Return what bwrap has written: `child-pid`, and once the program has ended `exit-code`."""
    content = os.pread(file, 1 << 16, 0).decode()
    return {name: value for line in content.splitlines() for name, value in json.loads(line).items()}


def _kill(bwrap: int, status: dict[str, int]) -> None:
    """Kill the program, which bwrap reaps; bwrap ends too. While bwrap starts, kill all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        if "child-pid" not in status:
            os.killpg(bwrap, signal.SIGKILL)
        elif "exit-code" not in status:
            os.kill(status["child-pid"], signal.SIGKILL)
