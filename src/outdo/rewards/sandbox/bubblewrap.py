"""The sandbox of bubblewrap: namespaces of its own, a filter of system calls, and limits for a single process.

A program sees the interpreter, its standard library, shared libraries, its own source and its input. It can write no
file. There are no other processes, no `/proc`, no network and no environment variables.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outdo.rewards.sandbox.base import DEFAULT_LIMITS, Limits, Outcome
from outdo.rewards.sandbox.process import execute, interpreter_arguments, memory_file
from outdo.rewards.sandbox.seccomp import system_call_filter

NOBODY = 65534

_PROGRAM = "/program.py"
_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_QUERY = "import os, sys; print(sys.version.split()[0], os.path.realpath(sys.executable), *sys.path[1:], sep=chr(10))"


SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """Runs programs by `bwrap` and the Python interpreter at `python`, which any user of the machine can read."""

    bwrap: str
    python: str
    version: str
    visible: Sequence[str]
    """Files and folders of this machine that a program can read."""

    name = "bubblewrap"

    @classmethod
    def with_interpreter(cls, python: str) -> "Bubblewrap":
        """Return the sandbox for an interpreter; it is not tried.

        Raises:
            OSError, CalledProcessError: bwrap or the interpreter is not on this machine, or does not work.
        """
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise FileNotFoundError("bwrap is not installed")
        query = [python, "-S", "-s", "-c", _QUERY]
        described = subprocess.run(query, env={}, capture_output=True, text=True, check=True)
        version, executable, *path = described.stdout.splitlines()
        prefix = os.path.dirname(os.path.dirname(executable))
        visible = [executable, *path, os.path.join(prefix, "lib"), *_LIBRARIES]
        return cls(bwrap, executable, version, [each for each in dict.fromkeys(visible) if os.path.exists(each)])

    @property
    def description(self) -> str:
        return f"bubblewrap, with namespaces, seccomp and limits, Python {self.version}"

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        """Run the source of a Python program with the text `stdin` as its input."""
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
                    *(word for path in self.visible for word in ("--ro-bind", path, path)),
                    *("--dev-bind", "/dev/null", "/dev/null"),
                    *("--ro-bind-data", str(source), _PROGRAM, "--ro-bind-data", str(given), "/dev/stdin"),
                    *("--remount-ro", "/", "--chdir", "/"),
                    *("--seccomp", str(rules), "--json-status-fd", str(status)),
                    *("--", self.python, *interpreter_arguments(_PROGRAM, limits, processes=limits.threads)),
                ],
                stdin,
                limits,
                descriptors=(source, given, rules, status),
                user=NOBODY if os.geteuid() == 0 else None,  # the kernel exempts root from the limit of threads
                kill=lambda bwrap: _kill(bwrap, _status(status)),
                exit_status=lambda _: _status(status).get("exit-code"),
            )


def bubblewraps() -> Iterator[Bubblewrap]:
    """Yield the sandbox with outdo's own interpreter, and with that of the system.

    A run of root belongs to the user nobody, who cannot read an interpreter in root's home.

    Raises:
        OSError, CalledProcessError: bwrap, libseccomp or an interpreter is not on this machine, or does not work.
    """
    system_call_filter()
    for python in (sys.executable, SYSTEM_PYTHON):
        if os.path.exists(python):
            yield Bubblewrap.with_interpreter(python)


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
