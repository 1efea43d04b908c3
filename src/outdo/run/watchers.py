"""What watches the steps of a run: its record, trackers, page and profiler. A run knows them as `Watcher` alone."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from outdo.algorithms.advantages.base import Advantage
from outdo.algorithms.objectives.base import Objective
from outdo.config.names import WATCHERS
from outdo.config.recipe import Recipe
from outdo.data.prompts import Prompts
from outdo.models.bundle import Models
from outdo.run.display import Display
from outdo.types import Group, Prompt, Step
from outdo.utils.errors import UserError
from outdo.utils.extras import load_extra
from outdo.utils.world import World


class Watcher:
    """Watches the steps of a run. Every method is a moment of the run, in this order, and does nothing here.

    All replicas of a run call all of them; what is written outside of the folder that a watcher was opened with is the
    matter of the first one.
    """

    name: ClassVar[str] = ""
    """The name of its part of a checkpoint; empty if no step depends on what it saw of earlier ones."""

    @property
    def recorded(self) -> bool:
        """Whether it writes a record of the last step, which the run counts."""
        return False

    def attach(
        self, recipe: Recipe, models: Models, advantage: Advantage, objective: Objective, prompts: Prompts[Prompt]
    ) -> None:
        """Get the objects of the run, when they are loaded. Every setting of `recipe` is filled in."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, if the run continues and its checkpoint has it."""

    def rewind(self, step: int, records: int) -> list[str]:
        """Remove what was written after `step`, where the run continues; return a line for what is missing before it.

        `records` is the number of steps up to it that were `recorded`.
        """
        return []

    def running(self, after: int) -> AbstractContextManager[None]:
        """Return the context in which the steps after `after` are trained. The run folder describes the run by then."""
        return nullcontext()

    def before(self, step: int, groups: Sequence[Group]) -> None:
        """See the groups of a step between sampling and its first update."""

    def after(self, step: Step) -> Mapping[str, float]:
        """See a step between its last update and its evaluation; return metrics of it.

        An error of what is written in the background waits for `settle`, so that the step gets its line of metrics.
        """
        return {}

    def evaluated(self, step: int, groups: Mapping[str, Sequence[Group]]) -> Mapping[str, float]:
        """See the answers to the held-out questions after `step`, by the kind of evaluation; return numbers of it."""
        return {}

    def settle(self, *, wait: bool) -> None:
        """Raise the error of what was written in the background; if a checkpoint is next, `wait` until it is on disk.

        Raises: RunFolderError.
        """

    def state(self) -> dict[str, Any]:
        """Return what later steps need of earlier ones, for a checkpoint. Only a watcher with a `name` is asked."""
        return {}

    def done(self) -> None:
        """End a step, after its checkpoint."""

    def complete(self) -> None:
        """See that a run has trained all its steps. Its folder is no longer locked."""


def open_watchers(
    recipe: Recipe, folder: Path, display: Display, world: World, *, profile: bool, cleanup: ExitStack
) -> list[Watcher]:
    """Open what watches a run in `folder`, before a model is loaded; `cleanup` closes it.

    Without `profile` no profiler is opened. What nobody has asked for is left out, with a note, where an extra that it
    needs was deleted.

    Raises: UserError and RunFolderError for what cannot be opened.
    """
    asked = {"track": bool(recipe.track), "profile": profile}
    watchers: list[Watcher] = []
    for name, spec in WATCHERS.items():
        if not asked.get(name, True):
            continue
        try:
            open_watcher = load_extra(spec, name)
        except UserError as error:
            if name in asked:
                raise
            display.say(f"{error}; the run goes without it")
        else:
            watchers.append(cleanup.enter_context(open_watcher(recipe, folder, display, world)))
    return watchers
