"""Deliver what a run logs to its trackers, without ever waiting for one of them before the run has ended."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from outdo.extras.trackers.completions import completions_of
from outdo.extras.trackers.process import TrackerProcess, TrackerSettings
from outdo.types import Group

MOST_WAITING = 100
"""Steps that wait for a tracker that is slower than the run; a further step is not delivered."""

Say = Callable[[str], None]


class Delivery:
    """The delivery to one tracker: a bounded queue, and a thread that empties it into the tracker's process."""

    def __init__(self, tracker: TrackerSettings, folder: Path, say: Say, *, after: int) -> None:
        self.tracker = tracker
        self.folder = folder
        self._say = say
        self._queue: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self._given = self._delivered = 0
        self._error: str | None = None
        self._ended = False
        self._process = TrackerProcess(tracker, folder, after=after)
        self._thread = Thread(target=self._deliver, name=f"tracker {tracker.name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float], completions: Sequence[Mapping[str, Any]]) -> None:
        """Queue the metrics and completions of a step; without place in the queue, it is not delivered."""
        self._given += 1
        if self._queue.qsize() >= MOST_WAITING:
            self._error = f"it is slower than the run: {MOST_WAITING} steps were waiting"
            return
        self._queue.put({"step": step, "metrics": metrics, "completions": completions})

    def end(self) -> None:
        """Let the tracker's run end after what is in the queue."""
        self._queue.put(None)

    def close(self, deadline: float) -> str | None:
        """Wait until `deadline` for the tracker, then kill its process; return what was not delivered, if anything."""
        self._thread.join(max(0.0, deadline - monotonic()))
        late = self._thread.is_alive()
        self._process.kill()  # which also ends the wait of the thread
        self._thread.join()
        self._process.close()
        missing = self._given - self._delivered
        if not missing and self._ended:
            return None
        what = f"{missing} of {self._given} steps were" if missing else "the end of the run was"
        why = f"it did not end within {self.tracker.deadline:g} s" if late else self._error
        again = f"`outdo track {self.folder} --to {self.tracker.name}` sends the whole run"
        return f"{self.tracker.name}: {what} not delivered: {why}; {again}"

    def _deliver(self) -> None:
        """Run in the thread: hand everything in the queue to the process, and end the tracker's run."""
        reply = self._process.open()
        for line in reply.said:
            self._say(line)
        if reply.error:
            self._error = reply.error
            self._say(f"{self.tracker.name}: does not track this run: {reply.error}")
            return
        while (entry := self._queue.get()) is not None:
            error = self._process.log(entry).error
            self._delivered += error is None
            self._error = error or self._error
        error = self._process.end().error
        self._ended = error is None
        self._error = error or self._error


class Trackers:
    """All trackers of a run. Nothing is sent before `begin`."""

    def __init__(self, trackers: Sequence[TrackerSettings], folder: Path, say: Say) -> None:
        self._trackers = trackers
        self._folder = folder
        self._say = say
        self._deliveries: list[Delivery] = []

    def begin(self, *, after: int) -> None:
        """Start the processes, when the recipe is in the run folder. `after` is the last step logged before."""
        for tracker in self._trackers:
            try:
                self._deliveries.append(Delivery(tracker, self._folder, self._say, after=after))
            except OSError as error:
                self._say(f"{tracker.name}: does not track this run: {error}")

    def log(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Log the metrics of a step that are finite numbers, and some of its completions."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        for delivery in self._deliveries:
            delivery.log(step, finite, completions_of(groups, delivery.tracker.completions))

    def close(self, *, wait: bool = True) -> None:
        """End the trackers' runs, all at the same time, and print what was not delivered."""
        for delivery in self._deliveries:
            delivery.end()
        now = monotonic()
        for delivery in self._deliveries:
            if lost := delivery.close(now + delivery.tracker.deadline * wait):
                self._say(lost)
        self._deliveries.clear()
