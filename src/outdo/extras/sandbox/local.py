"""No sandbox: the program runs as a process of this user, with limits that only stop accidents."""

import platform
import sys
from dataclasses import dataclass

from outdo.extras.sandbox.base import DEFAULT_LIMITS, Limits, Outcome
from outdo.extras.sandbox.process import execute, interpreter_arguments, memory_file, shell_status
from outdo.utils.child import kill_group


@dataclass(frozen=True, slots=True)
class UnsafeLocal:
    """Runs programs with the files, the network and the permissions of this user (`unsafe_local = true`)."""

    name = "unsafe_local"
    description = (
        f"NO SANDBOX (unsafe_local): programs have this user's files and network, Python {platform.python_version()}"
    )

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        with memory_file(program.encode(errors="replace")) as source:
            return execute(
                [sys.executable, *interpreter_arguments(source, limits)],
                stdin,
                limits,
                descriptors=[source],
                kill=kill_group,
                exit_status=shell_status,
            )
