"""Supervised training by `outdo sft` or `outdo reward-model`: its folder, its checkpoints, and how it is resumed.

Until the model is complete, the training has a folder of its own beside the new model folder `OUT`:

    OUT.unfinished/settings.json    the command and its settings
    OUT.unfinished/checkpoints/     see `outdo.run.checkpoints.checkpoint`
    OUT.unfinished/lock             the process that trains here

A checkpoint holds the model, the state of its optimiser, and the identity of the training: its settings, the versions,
and the SHA-256 of its data. The position in the data follows from the number of finished steps.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError

from outdo.cli.arguments import not_empty
from outdo.config.file import read_value
from outdo.config.messages import describe_errors
from outdo.config.resume import accepted_changes
from outdo.models.device import choose_device, describe_hardware, make_deterministic
from outdo.run.checkpoints import checkpoint
from outdo.run.checkpoints.checkpoint import CheckpointInfo
from outdo.run.checkpoints.save_times import SaveTimes, save_after_error
from outdo.run.display import Display
from outdo.run.folder import free_space
from outdo.run.folder.model_folder import save_model_folder
from outdo.run.folder.provenance import versions
from outdo.run.folder.run_folder import RunFolder, is_alive
from outdo.run.folder.unfinished import SETTINGS, unfinished_folder
from outdo.run.interrupt import Interrupted, StopSignals, stop_requested
from outdo.utils import atomic
from outdo.utils.errors import CheckpointError, UserError
from outdo.utils.machine import MOST_THREADS
from outdo.utils.text import counted

EPOCHS = 3.0
"""Passes over the data of a training that is given neither epochs nor steps."""

MOST_EPOCHS = 10
"""A training of more gets a warning."""

AtLeastOne = Annotated[int, Field(ge=1)]


class Changes(BaseModel, extra="forbid", strict=True):
    """The settings that may change when a training is resumed: they decide where and how long it trains."""

    device: str | None = None
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = None
    checkpoint_every: AtLeastOne | None = None
    steps: AtLeastOne | None = None
    epochs: Annotated[float, Field(ge=0.001)] | None = None


MAY_CHANGE = tuple(Changes.model_fields)

StepT = TypeVar("StepT")
SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLength:
    """How long a training lasts, and on how many examples it trains."""

    examples: int
    batch: int  # examples of a step
    steps: int
    most_epochs: float | None = None  # of the file that is repeated most, if the files have weights

    @classmethod
    def of(cls, examples: int, batch: int, *, steps: int | None, epochs: float | None) -> "TrainingLength":
        """Return the length of a training of so many `steps`, or of as many as `epochs` passes over the examples take.

        The last batch of an epoch is filled up from the next one.
        """
        steps = steps or math.ceil((epochs or EPOCHS) * examples / batch)
        return cls(examples=examples, batch=batch, steps=steps)

    @property
    def epochs(self) -> float:
        """How often an example is trained on, on average."""
        return self.steps * self.batch / self.examples

    def lines(self) -> Iterator[str]:
        """Yield lines for the user about the whole training."""
        sizes = f"{counted(self.examples, 'example')}, {self.batch:,} per step"
        yield f"plan: {sizes}, {counted(self.steps, 'step')}, {counted(self.epochs, 'epoch')}"
        most = self.most_epochs or self.epochs
        if most > MOST_EPOCHS:
            often = f"examples are trained on {counted(most, 'time')}"
            yield f"warning: {often}, and the model may learn them by heart; set fewer --epochs or --steps"


class SupervisedTraining(Protocol[StepT]):
    """A model in training, the order of its data, and what the user reads about it."""

    @property
    def length(self) -> TrainingLength:
        """How long the whole training lasts."""
        ...

    @property
    def version(self) -> int:
        """The number of optimiser steps that the weights have taken; steps that were refused do not count."""
        ...

    def weights(self) -> Mapping[str, Any]:
        """Return the weights by name."""
        ...

    def train(self, start: int) -> Iterator[StepT]:
        """Make the optimiser steps from `start` to the last one."""
        ...

    def line(self, steps: Sequence[StepT]) -> str:
        """Return a line for the user about the latest steps."""
        ...

    def conclude(self) -> Iterator[str]:
        """Yield lines for the user about the trained model."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model into a folder."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a saved folder does not hold."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTraining(Generic[StepT]):
    """A training whose data have been checked, and whose model is not loaded yet."""

    makes: str  # "fine-tuned model"
    settings: Mapping[str, Any]  # with `command`; written as JSON
    data: Mapping[str, str]  # the SHA-256 of each file
    load: Callable[[str | Path | None], SupervisedTraining[StepT]]  # from a folder; None: the model it starts from
    checkpoint_every: int

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this training and no other."""
        device = choose_device(self.settings["device"])[0].type
        process = {"device": device, "hardware": describe_hardware(device), "threads": torch.get_num_threads()}
        settings = dict(self.settings)
        return {"settings": settings, "data": dict(self.data), "versions": versions(), "process": process}


def mistakes_of_new(out: Path, *, steps: int | None, epochs: float | None) -> list[str]:
    """Return why no training can start that makes `out` and has these `steps` or `epochs`."""
    both = "--steps and --epochs: give one of them" if steps and epochs else None
    return [mistake for mistake in (not_empty(out), _saved_steps(out), both) if mistake]


def _saved_steps(out: Path) -> str | None:
    """Return that an earlier training has saved steps that would be lost, if it has."""
    folder = unfinished_folder(out)
    if not has_steps(folder) or is_alive(folder):  # one that is under way holds the lock, which names its process
        return None
    return f"{folder}: an unfinished training; `outdo resume {out}` continues it, or remove this folder"


def has_steps(folder: Path) -> bool:
    """Return whether a training has saved steps in its folder."""
    return any((folder / "checkpoints").glob("step_*"))


def parsed(kind: type[SettingsT], settings: Mapping[str, Any], out: Path, overrides: Sequence[str] = ()) -> SettingsT:
    """Return the saved settings of the training that makes `out`, with `key=value` changes.

    Raises `UserError` if they are not such settings, or if one of them may not change.
    """
    values = {name: value for name, value in settings.items() if name != "command"} | _changes(overrides)
    try:
        return kind(**values)
    except TypeError as error:
        where = unfinished_folder(out) / SETTINGS
        raise UserError([f"{where}: not the settings of `outdo {settings['command']}`: {error}"]) from None


def _changes(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings that `key=value` changes; of `steps` and `epochs`, one replaces the other."""
    parts = (override.partition("=") for override in overrides)
    written = {name.strip(): read_value(value) for name, _, value in parts}
    values = {name: value for name, value in written.items() if name in MAY_CHANGE}
    may_change = f"of a training that is resumed, only {', '.join(MAY_CHANGE)} may change"
    refused = [f"{name}: {may_change}" for name in written if name not in values]
    try:
        Changes.model_validate(values)
    except ValidationError as error:
        refused += [sentence for _, sentence in describe_errors(error.errors(), values)]
    if values.keys() >= {"steps", "epochs"}:
        refused.append("steps and epochs: give one of them")
    if refused:
        raise UserError(refused)
    replaced = {"steps": "epochs", "epochs": "steps"}
    return {replaced[name]: None for name in values if name in replaced} | values


def run_plan(
    plan: PreparedTraining[Any], out: Path, display: Display, *, resumed: bool = False, changed: bool = False
) -> int:
    """Train by a plan and write the model folder `out`; return the exit status.

    With `resumed`, the training continues from its latest complete checkpoint. It must be the same training, unless
    `changed`. A training that ends without a checkpoint leaves nothing behind.
    """
    with RunFolder(unfinished_folder(out)) as folder:
        if resumed and folder.notice:
            display.say(folder.notice)
        try:
            make_deterministic(choose_device(plan.settings["device"])[0])
            newest = checkpoint.latest(folder.checkpoints)
            state = checkpoint.load_state(newest.path) if newest else {}
            for line in _notices(plan, newest, state, out, changed=changed):
                display.say(line)
            atomic.write_json_atomically(folder.path / SETTINGS, plan.settings)
            training = _loaded(plan, newest, state)
            done, steps = newest.step if newest else 0, training.length.steps
            free_space.check(folder.path, free_space.needed(training.weights(), keep=1, steps=max(0, steps - done)))
            for line in training.length.lines():
                display.say(line)
            if resumed:
                display.say(f"resumed after step {done}" + (f" of {steps}" if done < steps else "; no step is left"))
            return _Loop(plan, training, out, folder, display, done=done).run()
        finally:
            if not has_steps(folder.path):
                with suppress(OSError):  # an error that is raised must not be hidden by this one
                    atomic.remove_tree(folder.path)


def _notices(
    plan: PreparedTraining[Any], newest: CheckpointInfo | None, state: Mapping[str, Any], out: Path, *, changed: bool
) -> list[str]:
    """Return what differs from the training that was saved, and the faults of newer checkpoints."""
    if newest is None:
        return []
    changes = accepted_changes(state["identity"], plan.identity, out, may_change=MAY_CHANGE, changed=changed)
    return [*changes, *(f"not used: {fault}" for fault in newest.broken)]


def _loaded(
    plan: PreparedTraining[StepT], newest: CheckpointInfo | None, state: Mapping[str, Any]
) -> SupervisedTraining[StepT]:
    """Return the training as its newest checkpoint has it, or as it starts."""
    training = plan.load(newest.path if newest else None)
    if newest:
        try:
            training.load_state(state["training"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{newest.path}: its state does not fit the training: {error}") from error
    return training


@dataclass(slots=True)
class _Loop:
    """The steps of a training, and everything that happens after each of them."""

    plan: PreparedTraining[Any]
    training: SupervisedTraining[Any]
    out: Path
    folder: RunFolder
    display: Display
    done: int  # the last finished step
    version: int = 0  # of the model after it
    saved: int = 0  # the step of the newest checkpoint
    times: SaveTimes = field(default_factory=SaveTimes)

    def run(self) -> int:
        """Train to the end, until a signal or an error; return the exit status."""
        self.saved, self.version = self.done, self.training.version
        with stop_requested() as signals:
            try:
                self.run_steps(signals)
                if self.done >= self.training.length.steps:  # a resumed training may have fewer than are done
                    return self.publish(signals)
            except Interrupted:
                pass
            except KeyboardInterrupt:  # the user wants no save, and an update may be half done
                raise
            except BaseException as error:
                save_after_error(error, self.save_current, self.display.say)
                raise
            self.save_current()
        hint = f"continue with `outdo resume {self.out}`" if self.saved else "nothing is saved"
        self.display.say(f"stopped after step {self.done}; {hint}")
        if self.saved:
            taken = f"`outdo export {self.folder.path} FOLDER`"
            self.display.say(f"the model after step {self.saved} can be used as it is: {taken}")
        return signals.exit_status

    def run_steps(self, signals: StopSignals) -> None:
        """Make the steps that are left, up to a signal."""
        training, since, last = self.training, list[Any](), self.training.length.steps
        steps = signals.interrupting_each(training.train(self.done + 1), self.is_current)
        with self.display.steps(self.done, last):
            for step in steps:
                self.done, self.version = self.done + 1, training.version
                since.append(step)
                has_line = self.done % max(1, last // 20) == 0 or self.done == last
                if has_line or self.display.live:
                    self.display.advance(self.done, last, training.line(since))
                if has_line:
                    since.clear()
                if signals:
                    return
                is_due = self.done % self.plan.checkpoint_every == 0 or self.times.are_long_ago()
                if is_due and self.done < last:
                    self.save()

    def is_current(self) -> bool:
        """Return whether the weights are those of the last finished step."""
        return self.training.version == self.version

    def save_current(self) -> str:
        """Save the last finished step, if the weights are still as it left them; return a line about what was done."""
        if not self.is_current():
            return f"step {self.done + 1} had already changed the weights; a resumed training repeats it"
        if self.saved < self.done:
            self.save()
        return f"saved after step {self.done}; continue with `outdo resume {self.out}`" if self.done else ""

    def save(self) -> None:
        """Write the checkpoint of the last finished step, and remove the one before."""
        state = {"training": self.training.state(), "identity": self.plan.identity}
        with self.times.measured():
            checkpoint.save(self.folder.checkpoints, self.done, self.training.save, state)
            checkpoint.prune(self.folder.checkpoints, keep=1)
        self.saved = self.done

    def publish(self, signals: StopSignals) -> int:
        """Write the model folder, remove the folder of the training, and tell the results; return the exit status."""
        save_model_folder(self.out, self.training.save)
        atomic.remove_tree(self.folder.path)
        try:
            with signals.interrupting():
                for line in self.training.conclude():
                    self.display.say(line)
        except Interrupted:
            pass
        self.display.say(f"the {self.plan.makes} is in {self.out}")
        return signals.exit_status if signals else 0
