"""The tool `python`: runs a program that the policy wrote in a sandbox, and returns what it prints."""

import os
import re
import signal
import threading
from dataclasses import replace

from outdo.extras.episodes.tools import Tool, ToolError, as_tool
from outdo.extras.sandbox import Ending, Limits, Outcome, Sandbox, SandboxUnavailableError
from outdo.extras.sandbox.code_tests import completed

NOTHING_PRINTED = "(the program printed nothing)"

_OWN_FRAMES = re.compile(r'(?<=Traceback \(most recent call last\):\n)(?:  File "<string>", .*\n)+')
"""The lines of a traceback about the code that starts the program."""


class PythonTool:
    """Runs programs of the policy in a sandbox. Each is a process of its own, which keeps nothing for the next.

    As many programs run at the same time as there are processors, so that their limits are theirs alone. `characters`
    is how much of its output the policy reads.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits, *, characters: int) -> None:
        self.sandbox = sandbox
        self.limits = limits
        self.characters = characters
        self._places = threading.BoundedSemaphore(os.cpu_count() or 1)

    def tool(self, *, grace: float = 0.0) -> Tool:
        """Return the tool, whose calls may wait `grace` seconds for others. A sandbox that fails ends the episode."""
        return replace(as_tool(self.python), grace=grace, lost=(SandboxUnavailableError,))

    def python(self, code: str) -> str:
        """Run a Python program in a new interpreter, and read what it prints.

        Args:
            code: The program. It has the standard library, no network and no files.
        """
        with self._places:
            outcome = self._run(code)
        printed = shortened(outcome.stdout + _OWN_FRAMES.sub("", outcome.stderr), self.characters)
        if outcome.ending is Ending.timeout:
            limits = f"{self.limits.seconds} s of computing, or {self.limits.wall_seconds:g} s by the clock"
            raise ToolError("timed_out", f"the program was ended after {limits}", printed)
        if outcome.ending is Ending.resource:
            raise ToolError("raised", f"the program was ended: {_used_up(outcome, self.limits)}", printed)
        if outcome.exit_status != 0:
            raise ToolError("raised", f"the program ended with {_status(outcome.exit_status)}", printed)
        return printed or NOTHING_PRINTED

    def _run(self, code: str) -> Outcome:
        """Run a program, once more if the sandbox failed. Raises `SandboxUnavailableError` if it fails again."""
        outcome = self.sandbox.run(code, limits=self.limits)
        if outcome.ending is Ending.infrastructure:
            outcome = self.sandbox.run(code, limits=self.limits)
        return completed(outcome)


def shortened(printed: str, most: int) -> str:
    """Return at most `most` characters of a text, of its beginning and of its end, and how many lie between."""
    printed = printed.rstrip()
    if len(printed) <= most:
        return printed
    head, tail = printed[: most - most // 2], printed[len(printed) - most // 2 :]
    return f"{head}\n[{len(printed) - most} characters are not shown]\n{tail}"


def _used_up(outcome: Outcome, limits: Limits) -> str:
    if max(len(outcome.stdout.encode()), len(outcome.stderr.encode())) >= limits.output:
        return f"it printed more than {limits.output >> 10} KiB"
    return f"it needed more than {limits.memory} MiB of memory"


def _status(status: int | None) -> str:
    """Return an exit status in words; above 128 it is that of a signal."""
    try:
        return f"status {status}" if status is None or status <= 128 else signal.Signals(status - 128).name
    except ValueError:  # the program chose a number that is not a signal's
        return f"status {status}"
