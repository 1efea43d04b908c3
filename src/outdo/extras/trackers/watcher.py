"""Track a run by the trackers of its recipe."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outdo.config.names import TRACKERS
from outdo.config.packages import missing_clients
from outdo.config.recipe import Piece, Recipe
from outdo.extras.trackers.base import COMMON
from outdo.extras.trackers.delivery import Trackers
from outdo.extras.trackers.process import TrackerSettings
from outdo.trainer.display import Display
from outdo.trainer.watchers import Watcher
from outdo.types import Group
from outdo.utils.errors import UserError
from outdo.utils.world import World


@contextmanager
def tracking(recipe: Recipe, folder: Path, display: Display, world: World) -> Iterator[Watcher]:
    """Track the run in `folder` inside a `with` block, by the first of its replicas only.

    Raises: UserError with every tracker whose client is not installed.
    """
    if mistakes := missing_clients(recipe.track):
        raise UserError(mistakes)
    settings = [tracker_settings(piece) for piece in recipe.track] if world.first else []
    trackers = Trackers(settings, folder, display.say)
    try:
        yield _Tracking(trackers)
    except KeyboardInterrupt:  # the user does not want to wait
        trackers.close(wait=False)
        raise
    except BaseException:
        trackers.close()
        raise
    trackers.close()


class _Tracking(Watcher):
    """Sends what a run logs to its trackers."""

    def __init__(self, trackers: Trackers) -> None:
        self.trackers = trackers

    @contextmanager
    def running(self, after: int) -> Iterator[None]:
        self.trackers.begin(after=after)
        yield

    def log(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        self.trackers.log(step, metrics, groups)


def tracker_settings(piece: Piece) -> TrackerSettings:
    """Return a tracker as its process takes it: a name outside of `TRACKERS` is a function of the user."""
    options = {name: value for name, value in piece.options.items() if name not in COMMON}
    common: dict[str, Any] = COMMON | {name: value for name, value in piece.options.items() if name in COMMON}
    if piece.name in TRACKERS:
        return TrackerSettings(name=piece.name, spec=TRACKERS[piece.name], options=options, **common)
    function = {"function": piece.name, **options}
    return TrackerSettings(name=piece.name, spec="outdo.extras.trackers.hooks:hook", options=function, **common)
