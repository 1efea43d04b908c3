"""Define what a sandbox is, what a program in it may use, and how its run can end."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Ending(StrEnum):
    """How a run ended.

    `infrastructure` is a failure of the sandbox and not of the program: the run says nothing about the program, and is
    repeated. A program cannot cause it: whatever a program does is one of the other three.
    """

    exited = "exited"
    """By itself: with any exit status, by an exception, or by a signal."""
    timeout = "timeout"
    """It computed, or waited, for too long."""
    resource = "resource"
    """It used up its memory, or printed too much."""
    infrastructure = "infrastructure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run of a program may use."""

    seconds: int = 4
    """Seconds of computing, which do not depend on how busy the machine is."""
    wall_seconds: float = 60.0
    """Seconds by the clock: the limit of a program that only waits."""
    memory: int = 512
    """MiB of address space."""
    threads: int = 16
    """Threads at the same time; a program is a single process."""
    output: int = 1 << 20
    """Bytes that it may print to stdout, and as many to stderr."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program printed, and how it ended."""

    ending: Ending
    stdout: str = ""
    """At most `Limits.output` bytes; invalid UTF-8 is replaced by U+FFFD."""
    stderr: str = ""
    """As `stdout`; the reason if the ending is `infrastructure`."""
    exit_status: int | None = None
    """0 if the program ended normally, 128 + n after signal n; `None` if it did not end by itself.

    The program chooses it, so 0 proves nothing.
    """
    seconds: float = 0.0
    """Seconds of computing, with the start of the interpreter."""


class Sandbox(Protocol):
    """Runs Python programs. Several threads may use one sandbox at the same time."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str:
        """What isolates the program, and which Python runs it: one line."""
        ...

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        """Run the source of a Python program with the text `stdin` as its input."""
        ...


class SandboxUnavailableError(ConnectionError):
    """A run ended with `Ending.infrastructure`. A reward that raises it is `unavailable`: it is called again."""
