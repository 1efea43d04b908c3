"""What a contender's process is told when it starts, and what it says after each turn."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import IO, Any

from benchmarks.suite.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The same for all contenders of a case, but for `options`."""

    case: Case
    threads: int
    device: str = "cpu"
    model: str | None = None  # a model folder instead of the case's random model
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """As text for a command line."""
        return json.dumps(
            {each.name: getattr(self, each.name) for each in fields(self)} | {"case": self.case.as_dict()}
        )

    @classmethod
    def loads(cls, text: str) -> "Setting":
        """Back from it."""
        found = json.loads(text)
        return cls(**{**found, "case": Case.from_dict(found["case"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn took. Whole step and sampling in seconds; a contender that does not do one of them says None."""

    seconds: float | None = None
    sampling: float | None = None
    tokens: int = 0  # sampled, or scored
    times: float = 1.0  # how much more the case asks for than was done: `seconds` are multiplied by it already
    bytes: int = 0  # most memory in use on an accelerator
    figures: Mapping[str, float] = field(default_factory=dict)  # whatever else


class Turns:
    """A contender's side of the pipes: a line in is a turn, a line out is what it took, the end of input is the end."""

    def __init__(self, inbox: IO[str], outbox: IO[str]) -> None:
        self.inbox = inbox
        self.outbox = outbox

    def ready(self, **about: Any) -> None:
        """All is prepared; nothing has been timed yet."""
        self._say(about)

    def wait(self) -> None:
        """Return when it is this contender's turn; raises SystemExit when there will be none."""
        if not self.inbox.readline():
            sys.exit(0)

    def done(self, turn: Turn) -> None:
        """The turn is over."""
        self._say(asdict(turn))

    def take(self, turn: Callable[[], Turn], **about: Any) -> None:
        """Be ready, and do the same in every turn."""
        self.ready(**about)
        while True:
            self.wait()
            self.done(turn())

    def _say(self, what: Mapping[str, Any]) -> None:
        self.outbox.write(json.dumps(what) + "\n")
        self.outbox.flush()
