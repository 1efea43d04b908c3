"""The record of a run: what happened to every token, what answers read, and how far they have drifted."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outdo.algorithms.advantages.base import Advantage
from outdo.algorithms.objectives.base import Objective
from outdo.config.recipe import Recipe
from outdo.data.formats import tools_of as tools_in
from outdo.data.prompts import Prompts
from outdo.extras.record import parquet
from outdo.extras.record.reading.drift import drift_metrics, first_completions
from outdo.extras.record.reading.measure import Reading
from outdo.extras.record.reading.swaps import Text
from outdo.extras.record.recorder import Recorder
from outdo.extras.record.starting_policy import starting_logprobs
from outdo.models.bundle import Models
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.run.assemble.environment import tools_of
from outdo.run.display import Display
from outdo.run.folder import reads
from outdo.run.watchers import Watcher
from outdo.types import Group, Prompt, Step
from outdo.utils.errors import ModelError, RunFolderError
from outdo.utils.text import counted, listed_steps
from outdo.utils.timing import span
from outdo.utils.world import World

OTHER_QUESTIONS = 32
"""Questions of a run of which words are taken to find out what answers read."""


@contextmanager
def recording(recipe: Recipe, folder: Path, display: Display, world: World) -> Iterator[Watcher]:
    """Record a run inside a `with` block. The folder of the token records is made now, so that a full disk is noticed.

    Raises: RunFolderError if the disk refuses.
    """
    if recipe.record.every:
        parquet.make_folder(folder)
    yield _Recording(folder, display, world)


def recorder_of(
    recipe: Recipe, models: Models, advantage: Advantage, objective: Objective, prompts: Prompts[Prompt]
) -> Recorder:
    """Return the recorder that a recipe describes."""
    reading = _reading(recipe, models.policy, prompts) if recipe.record.every else None
    settings = recipe.record.model_dump() | {"teachers": models.teachers, "reading": reading, "seed": recipe.seed}
    return Recorder(models.policy, objective, advantage=advantage, **settings)


class _Recording(Watcher):
    """A recorder, and the thread that writes what it has measured. The record of a step is waited for in the next."""

    name = "recorder"
    recorder: Recorder  # since `attach`, like the recipe and the models
    recipe: Recipe
    models: Models

    def __init__(self, folder: Path, display: Display, world: World) -> None:
        self.folder = folder
        self.display = display
        self.world = world
        self._thread = ThreadPoolExecutor(1, "record")
        self._written: Future[None] | None = None  # the record of the step `_step`, until it was waited for
        self._error: RunFolderError | None = None  # of a record that could not be written
        self._step = 0  # the last one

    def attach(
        self, recipe: Recipe, models: Models, advantage: Advantage, objective: Objective, prompts: Prompts[Prompt]
    ) -> None:
        self.recipe, self.models = recipe, models
        self.recorder = recorder_of(recipe, models, advantage, objective, prompts)

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.recorder.load_state(state)

    def state(self) -> dict[str, Any]:
        return self.recorder.state()

    def rewind(self, step: int, records: int) -> list[str]:
        parquet.drop_after(self.folder, step)
        reads.drop_after(self.folder, step)
        parquet.remove_leftovers(self.folder)
        recorded, every = parquet.recorded_steps(self.folder), self.recipe.record.every
        lost = records - len(recorded)
        if lost <= 0:
            return []
        due = [earlier for earlier in range(1, step + 1) if every and earlier % every == 0 and earlier not in recorded]
        named = f": {listed_steps(due)}" if len(due) == lost else ""  # unless records were made at other steps before
        return [f"{self.folder / 'tokens'}: {lost} of the {counted(records, 'record')} are missing{named}"]

    @contextmanager
    def running(self, after: int) -> Iterator[None]:
        try:
            with self._thread:
                yield
        finally:  # an error that has ended the run has left a record that nobody waited for
            if self._written and (lost := self._written.exception()):
                self.display.say(f"the record of step {self._step} is incomplete: {lost}")

    def before(self, step: int, groups: Sequence[Group]) -> None:
        with span("record"):
            self.recorder.before(step, groups)

    def after(self, step: Step) -> dict[str, float]:
        with span("record"):
            metrics, write = self.recorder.measure(step, self.folder)
            self._wait()
            self._step = step.index
            if write is not None and self.world.first:
                self._written = self._thread.submit(write)
        return metrics

    @property
    def recorded(self) -> bool:
        return self._written is not None

    def settle(self, *, wait: bool) -> None:
        if wait:
            with span("record"):
                self._wait()
        if self._error:
            raise self._error

    def _wait(self) -> None:
        """Wait for the record that is being written, and keep its `RunFolderError`; any other error is raised."""
        written, self._written, self._error = self._written, None, None
        try:
            if written:
                written.result()
        except RunFolderError as error:
            self._error = error

    def evaluated(self, step: int, groups: Mapping[str, Sequence[Group]]) -> dict[str, float]:
        if not self.recipe.record.every or not groups:
            return {}
        read = self._read(step, next(iter(groups.values())))
        return read | self._drift(step, groups.get("sampled") or groups["greedy"])

    def _read(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Measure what answers to held-out questions read; write it and return its metrics."""
        reading = self.recorder.reading
        read = reading.of_evaluation(groups) if reading else []
        if not reading or not read:
            return {}
        reads.write(self.folder, "held_out", step, [question.line() for question in read])
        return reading.metrics(read)

    def _drift(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Measure how far answers have drifted from the starting policy.

        Its files were needed before the first step only. That they are gone later is a warning, and ends no run.
        """
        batch = first_completions(groups)
        if not batch.loss_mask.any():
            return {}
        now = self.models.policy.logprobs(batch)
        try:
            start = starting_logprobs(self.recipe, self.models, batch, self.world) if step else now
        except ModelError as error:
            self.display.say(f"warning: eval/drift is not measured after step {step}: {error}")
            return {}
        return {} if start is None else drift_metrics(batch, now, start)


def _reading(recipe: Recipe, policy: Policy, prompts: Prompts[Prompt]) -> Reading:
    """Return what measures what answers read of their questions."""
    tools = tools_of(recipe.environment)

    def encode(prompt: Prompt, text: Text) -> list[int]:
        return encode_prompt(
            policy.tokenizer,
            text,
            template=recipe.data.prompt_template,
            system=recipe.data.system,
            special_tokens=recipe.data.special_tokens,
            tools=[*tools(prompt.columns), *tools_in(prompt.columns)],
            where=f"question {prompt.id}",
        )

    known = prompts.prompts
    count = min(OTHER_QUESTIONS, len(known))
    others = [known[n * len(known) // count].text for n in range(count)]
    return Reading(policy, encode, others, max_tokens=recipe.sampling.max_tokens)
