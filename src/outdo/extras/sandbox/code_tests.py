"""Test a program in a sandbox by pairs of input and output, as APPS, TACO and LiveCodeBench have them.

Expected outputs never enter the sandbox: what a program printed is compared here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from outdo.extras.sandbox import Ending, Limits, Outcome, Sandbox, SandboxUnavailableError


class Verdict(StrEnum):
    """The result of one test."""

    passed = "pass"
    failed = "fail"
    timeout = "timeout"
    resource = "resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSetting:
    """Where programs run, and how their output is compared."""

    sandbox: Sandbox
    limits: Limits
    tolerance: float = 0.0
    """How far a printed number may be from the expected one: absolutely, or relative to it."""


class Tests(Protocol):
    """The tests of one question."""

    def __len__(self) -> int: ...

    def verdicts(self, program: str, setting: ProgramSetting) -> Iterator[Verdict]:
        """Yield the verdict of each test; a test that the caller does not reach is not run.

        Raises:
            SandboxUnavailableError: a run of the sandbox failed, which says nothing about the program.
        """
        ...


def completed(outcome: Outcome) -> Outcome:
    """Return an outcome that says something about the program.

    Raises:
        SandboxUnavailableError: it does not: the sandbox failed.
    """
    if outcome.ending is Ending.infrastructure:
        raise SandboxUnavailableError(f"the sandbox failed: {outcome.stderr.strip()[:200]}")
    return outcome


VERDICTS = {Ending.timeout: Verdict.timeout, Ending.resource: Verdict.resource}
"""The verdicts of runs that were ended."""


@dataclass(frozen=True, slots=True)
class OutputTests:
    """Pairs of an input and the output that it should give."""

    cases: Sequence[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.cases)

    def verdicts(self, program: str, setting: ProgramSetting) -> Iterator[Verdict]:
        """Run the program once for each test. A passed test printed the output and ended with status 0."""
        for stdin, expected in self.cases:
            outcome = completed(setting.sandbox.run(program, stdin, setting.limits))
            right = outcome.exit_status == 0 and same_output(outcome.stdout, expected, setting.tolerance)
            yield VERDICTS.get(outcome.ending, Verdict.passed if right else Verdict.failed)


def same_output(printed: str, expected: str, tolerance: float = 0.0) -> bool:
    """Return whether two outputs have the same words in the same lines; empty lines at the end do not count."""
    return len(lines := _words(printed)) == len(wanted := _words(expected)) and all(
        len(line) == len(other) and all(_same_word(*pair, tolerance) for pair in zip(line, other, strict=True))
        for line, other in zip(lines, wanted, strict=True)
    )


def _words(output: str) -> list[list[str]]:
    return [line.split() for line in output.rstrip().splitlines()]


def _same_word(printed: str, expected: str, tolerance: float) -> bool:
    if printed == expected or not tolerance:
        return printed == expected
    try:
        return math.isclose(float(printed), float(expected), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False
