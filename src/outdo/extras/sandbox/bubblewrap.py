"""The sandbox of bubblewrap: namespaces of its own, a filter of system calls, and limits for a single process.

A program sees the interpreter, its standard library, shared libraries, its own source and its input. It can write no
file. There are no other processes, no `/proc`, no network and no environment variables.
"""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outdo.extras.sandbox.base import DEFAULT_LIMITS, Limits, Outcome
from outdo.extras.sandbox.interpreter import NOBODY, Interpreter, interpreters, user_of_programs
from outdo.extras.sandbox.process import command_arguments, execute, interpreter_arguments, memory_file
from outdo.extras.sandbox.seccomp import system_call_filter

_PROGRAM = "/program.py"

COMMAND_LIMITS = Limits(seconds=10, wall_seconds=30.0, memory=2048, threads=128)

_SYSTEM = ("/usr", "/bin", "/sbin", "/etc/alternatives", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
"""What commands of the system need besides the shared libraries."""


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
            input_file = files.enter_context(memory_file(stdin.encode(errors="replace")))
            rules = files.enter_context(memory_file(system_call_filter()))
            status = files.enter_context(memory_file(b""))
            return execute(
                [
                    *self._isolated(self.interpreter.visible),
                    "--as-pid-1",
                    *("--ro-bind-data", str(source), _PROGRAM, "--ro-bind-data", str(input_file), "/dev/stdin"),
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
                descriptors=(source, input_file, rules, status),
                user=user_of_programs(),
                kill=lambda bwrap: _kill(bwrap, _status(status)),
                exit_status=lambda _: _status(status).get("exit-code"),
            )

    def run_command(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, str],
        environment: Mapping[str, str],
        folder: str,
        visible: Sequence[str] = (),
        limits: Limits = COMMAND_LIMITS,
    ) -> Outcome:
        """Run a command of this machine, which may start others, and return how it ended.

        It sees the programs and libraries of the system and what `visible` names, and can change none of it. All else
        is an empty file system in memory, which ends with it: `files` are written there first, texts by their absolute
        paths, each of them executable. It has no network and no environment but the given one, and starts in `folder`.
        """
        with contextlib.ExitStack() as stack:
            texts = stack.enter_context(memory_file(json.dumps({**files}).encode()))
            rules = stack.enter_context(memory_file(system_call_filter(children=True)))
            status = stack.enter_context(memory_file(b""))
            seen = dict.fromkeys([*self.interpreter.visible, *filter(os.path.exists, _SYSTEM), *visible])
            arguments = command_arguments(command, limits, environment=environment, folder=folder, files=texts)
            return execute(
                [
                    *self._isolated([*seen]),
                    *("--proc", "/proc", "--dev", "/dev", "--dir", "/tmp"),
                    *("--seccomp", str(rules), "--json-status-fd", str(status)),
                    *("--", self.interpreter.python, *arguments),
                ],
                "",
                limits,
                descriptors=(texts, rules, status),
                user=user_of_programs(),
                kill=lambda bwrap: _kill(bwrap, _status(status)),
                exit_status=lambda _: _status(status).get("exit-code"),
            )

    def _isolated(self, visible: Sequence[str]) -> list[str]:
        """Return the words of bwrap for namespaces of its own and these files and folders, which are read-only."""
        return [
            self.bwrap,
            *("--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent"),
            *("--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
            *(word for path in visible for word in ("--ro-bind", path, path)),
            *("--dev-bind", "/dev/null", "/dev/null"),
        ]


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
