"""The messages between the benchmark and the process of an implementation."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import IO, Any

from benchmarks.suite.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of a process: the same for all implementations of a case, except for `options`."""

    case: Case
    threads: int
    device: str = "cpu"
    model: str | None = None  # a model folder instead of the case's random model
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """Return the setting as text for a command line."""
        return json.dumps(
            {each.name: getattr(self, each.name) for each in fields(self)} | {"case": self.case.as_dict()}
        )

    @classmethod
    def loads(cls, text: str) -> "Setting":
        """Make a setting from that text."""
        found = json.loads(text)
        return cls(**{**found, "case": Case.from_dict(found["case"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The times of one turn in seconds; None where an implementation does not do that part."""

    seconds: float | None = None
    sampling: float | None = None
    tokens: int = 0  # sampled, or scored
    times: float = 1.0  # the case is this many times the work that was done; `seconds` are multiplied by it already
    bytes: int = 0  # most memory in use on an accelerator
    figures: Mapping[str, float] = field(default_factory=dict)  # further numbers


class Turns:
    """The pipes of an implementation: each line of input starts a turn, each line of output is its result."""

    def __init__(self, inbox: IO[str], outbox: IO[str]) -> None:
        self.inbox = inbox
        self.outbox = outbox

    def ready(self, **about: Any) -> None:
        """Report that everything is prepared; nothing has been timed yet."""
        self._send(about)

    def wait(self) -> None:
        """Wait for the next turn; raise SystemExit when there is none, at the end of the input."""
        if not self.inbox.readline():
            sys.exit(0)

    def done(self, turn: Turn) -> None:
        """The turn is over."""
        self._send(asdict(turn))

    def take(self, turn: Callable[[], Turn], **about: Any) -> None:
        """Report that everything is prepared, and run `turn` in every turn."""
        self.ready(**about)
        while True:
            self.wait()
            self.done(turn())

    def _send(self, content: Mapping[str, Any]) -> None:
        self.outbox.write(json.dumps(content) + "\n")
        self.outbox.flush()
