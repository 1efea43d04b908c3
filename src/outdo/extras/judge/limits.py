"""How fast a judge may be asked, and how long it may take."""

import asyncio
from collections import deque
from dataclasses import dataclass
from time import monotonic

MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLimits:
    """The option `limits` of a judge."""

    at_once: int = 16
    """Requests that wait for a reply at the same time."""
    requests_per_minute: int = 0
    """0: no limit."""
    tokens_per_minute: int = 0
    """Input and output together; 0: no limit. What a request takes is known when its reply is there."""
    timeout: float = 120.0
    """Seconds that one request may take."""
    retries: int = 5
    """How often a request is sent again after a timeout, a lost connection, or a status such as 429 or 503."""


class PerMinute:
    """Counts what was used in the last minute; `limit` 0 means none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: deque[tuple[float, int]] = deque()  # time of monotonic, amount

    def add(self, amount: int) -> None:
        """Count `amount` as used now."""
        if self.limit:
            self.used.append((monotonic(), amount))

    async def wait(self) -> None:
        """Wait until less than the limit was used in the last minute."""
        while self.limit:
            while self.used and self.used[0][0] <= monotonic() - MINUTE:
                self.used.popleft()
            if sum(amount for _, amount in self.used) < self.limit:
                return
            await asyncio.sleep(self.used[0][0] + MINUTE - monotonic())
