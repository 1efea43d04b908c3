"""Tell a process that works from one that hangs, by its signs of life and by its progress."""

from time import monotonic


class Watchdog:
    """Finds out that a process gives no sign of life for `silence` seconds, or makes no progress for `patience`.

    Until its first sign of life it may be silent for `first` seconds; unset, for `silence`.
    """

    def __init__(self, silence: float, patience: float, *, first: float | None = None) -> None:
        self._silence = silence
        self._patience = patience
        self._allowed = silence if first is None else first
        self._heard = self._moved = monotonic()
        self._progress: object = None

    def hear(self, progress: object) -> None:
        """Take a sign of life. `progress` differs from that of the sign before it if the work has got on."""
        self._heard, self._allowed = monotonic(), self._silence
        if self._progress not in (None, progress):
            self._moved = self._heard
        self._progress = progress

    def complaint(self) -> str:
        """Return what is wrong with the process; empty if nothing is."""
        now = monotonic()
        if now - self._heard > self._allowed:
            return f"gave no sign of life for {self._allowed:g} s"
        if now - self._moved > self._patience:
            return f"made no progress for {self._patience:g} s"
        return ""
