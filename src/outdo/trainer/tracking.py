"""Track a run by the trackers of its recipe."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outdo.config.names import TRACKERS
from outdo.config.recipe import Piece
from outdo.config.trackers import missing_clients
from outdo.observability.trackers.base import COMMON
from outdo.observability.trackers.delivery import Trackers
from outdo.observability.trackers.process import TrackerSettings
from outdo.utils.errors import UserError
from outdo.utils.world import World


@contextmanager
def tracking(pieces: Sequence[Piece], folder: Path, say: Callable[[str], None], world: World) -> Iterator[Trackers]:
    """Track the run in `folder` inside a `with` block, by the first of its replicas only.

    Raises: UserError with every tracker whose client is not installed.
    """
    if mistakes := missing_clients(pieces):
        raise UserError(mistakes)
    trackers = Trackers([tracker_settings(piece) for piece in pieces] if world.first else [], folder, say)
    try:
        yield trackers
    except KeyboardInterrupt:  # the user does not want to wait
        trackers.close(wait=False)
        raise
    except BaseException:
        trackers.close()
        raise
    trackers.close()


def tracker_settings(piece: Piece) -> TrackerSettings:
    """Return a tracker as its process takes it: a name outside of `TRACKERS` is a function of the user."""
    options = {name: value for name, value in piece.options.items() if name not in COMMON}
    common: dict[str, Any] = COMMON | {name: value for name, value in piece.options.items() if name in COMMON}
    if piece.name in TRACKERS:
        return TrackerSettings(name=piece.name, spec=TRACKERS[piece.name], options=options, **common)
    function = {"function": piece.name, **options}
    return TrackerSettings(name=piece.name, spec="outdo.observability.trackers.hooks:hook", options=function, **common)
