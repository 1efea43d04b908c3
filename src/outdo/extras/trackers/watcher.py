"""Track a run by the trackers of its recipe."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from outdo.config.packages import missing_clients
from outdo.config.recipe import Recipe
from outdo.extras.trackers.sending import sending
from outdo.run.checkpoints.run_state import TAIL
from outdo.run.display import Display
from outdo.run.folder.run_folder import read_metrics
from outdo.run.watchers import Watcher
from outdo.utils.errors import RunFolderError, UserError
from outdo.utils.world import World


@contextmanager
def tracking(recipe: Recipe, folder: Path, display: Display, world: World) -> Iterator[Watcher]:
    """Track the run in `folder` inside a `with` block, by the first of its replicas only.

    Raises: UserError with every tracker whose client is not installed.
    """
    if mistakes := missing_clients(recipe.track):
        raise UserError(mistakes)
    with ExitStack() as until:
        yield _Tracking(recipe, folder, display, until) if world.first else Watcher()


class _Tracking(Watcher):
    """Starts the processes that send what they find in the run folder: no step waits for them."""

    def __init__(self, recipe: Recipe, folder: Path, display: Display, until: ExitStack) -> None:
        self.recipe = recipe
        self.folder = folder
        self.display = display
        self.until = until

    @contextmanager
    def running(self, after: int) -> Iterator[None]:
        last = read_metrics(self.folder / "metrics.jsonl", limits=TAIL, report=lambda _: None)[-1:]
        evaluated = not after or any(name.startswith("eval/") for line in last for name in line)
        track, say = self.recipe.track, self.display.say
        try:
            self.until.enter_context(sending(self.folder, track, say, follow=True, after=after, evaluated=evaluated))
        except RunFolderError as error:
            say(f"track: the trackers do not track this run: {error}")
        yield
