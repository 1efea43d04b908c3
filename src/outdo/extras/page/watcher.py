"""The page of a complete run, `report.html` in its folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outdo.config.recipe import Recipe
from outdo.extras.page.collect import collect_run
from outdo.extras.page.html import render_page
from outdo.run.display import Display
from outdo.run.watchers import Watcher
from outdo.utils.atomic import write_text_atomically
from outdo.utils.world import World


@contextmanager
def page(recipe: Recipe, folder: Path, display: Display, world: World) -> Iterator[Watcher]:
    """Write the page of a run when it is complete, from what is on disk."""
    yield _Page(folder, display) if world.first else Watcher()


class _Page(Watcher):
    """Writes the page of a complete run."""

    def __init__(self, folder: Path, display: Display) -> None:
        self.folder = folder
        self.display = display

    def complete(self) -> None:
        report = self.folder / "report.html"
        write_text_atomically(report, render_page([collect_run(self.folder)]))
        self.display.say(f"what was trained, token by token: {report}")
