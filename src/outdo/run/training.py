"""`outdo train`: the body of `for step in train(...)`, and what is before and after.

`start` builds a run, `outdo.run.checkpoints.resume` one that goes on, and `run_to_end` trains it: the loop over
`outdo.loop.train` is `_Training.run_steps`.
"""

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from outdo.loop import train
from outdo.models.limits import MISMATCH
from outdo.run.assemble.assemble import Run, assemble_run
from outdo.run.check.preflight import Report
from outdo.run.checkpoints.checkpoints import Checkpoints
from outdo.run.checkpoints.save_times import save_after_error
from outdo.run.checkpoints.state import Progress, check_free_space
from outdo.run.display import Display
from outdo.run.evaluation.held_out import completion, early_end, evaluate_after, evaluate_run, evaluation_is_due, is_due
from outdo.run.export.description import describe_run
from outdo.run.folder.begin import why_taken
from outdo.run.folder.run_folder import RunFolder
from outdo.run.interrupt import Interrupted, StopSignals, stop_requested
from outdo.run.metrics.metrics import step_metrics
from outdo.run.metrics.mismatch import correction_metrics
from outdo.run.opening import announce
from outdo.run.watchers import open_watchers
from outdo.types import Sampled, Step
from outdo.utils.atomic import write_json_atomically
from outdo.utils.errors import RunFolderError, UserError
from outdo.utils.timing import BETWEEN, Clock, span
from outdo.utils.world import ALONE, FOLDER, World


def start(report: Report, folder: Path, display: Display, *, profile: bool = False, world: World = ALONE) -> int:
    """Train by a recipe that was checked, from the first step; return the exit status.

    Raises `UserError` if `folder` holds a run already, or a file that a run writes.

    `profile` traces two of the steps and prints where the time of all of them went. All processes of a `world` have to
    call it.
    """
    if world.first and (problem := why_taken(folder)):
        raise UserError([problem])
    with own_folder(folder, world) as own, ExitStack() as cleanup, RunFolder(own) as run_folder:
        watchers = open_watchers(report.recipe, own, display, world, profile=profile, cleanup=cleanup)
        run = assemble_run(
            report.recipe,
            facts=report.facts,
            questions=report.questions,
            folder=own,
            display=display,
            watchers=watchers,
            world=world,
        )
        return run_to_end(run_folder, run, Progress(), display, cleanup)


@contextmanager
def own_folder(folder: Path, world: World) -> Iterator[Path]:
    """Give the run folder to the first process, and a temporary one to each other process: it is dropped at the end."""
    if world.first:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="outdo-replica-", dir=os.environ.get(FOLDER)) as other:
        yield Path(other)


def run_to_end(
    folder: RunFolder,
    run: Run,
    progress: Progress,
    display: Display,
    cleanup: ExitStack,
    *,
    changes: Sequence[str] = (),
) -> int:
    """Run the loop until its last step, a signal or an error; return the exit status.

    `cleanup` closes what watches the run, when its folder is no longer locked. `changes` are the differences from the
    run that was saved, for the history of the run folder.
    """
    folder.forget_failure()
    if done := completion(run.recipe, progress, folder.path):
        run.close()
        # If the run was killed after its last checkpoint, the summary is that of an earlier evaluation.
        write_json_atomically(folder.summary, summary(run, progress, folder.path))
        display.say(f"complete: {done}")
        status = 0
    else:
        check_free_space(folder, run, progress.step)
        describe_run(folder, run, progress.step, changes)
        announce(folder, run, progress.step, display)
        progress.version = run.models.version
        status = _run_steps(folder, run, progress, display)
    for watcher in run.watchers if status == 0 else ():
        cleanup.callback(watcher.complete)
    return status


def _run_steps(folder: RunFolder, run: Run, progress: Progress, display: Display) -> int:
    """Run the steps that are left, until a signal or an error; return the exit status."""
    with stop_requested(may_interrupt=len(run.world) == 1) as signals:
        training = _Training(folder, run, progress, display, signals)
        try:
            with ExitStack() as watched:
                for watcher in run.watchers:
                    watched.enter_context(watcher.running(progress.step))
                training.run_steps()
        except Interrupted:
            training.save_finished()
            progress = training.progress
        except KeyboardInterrupt:  # the user wants no save, and an update may be half done
            raise
        except BaseException as error:
            save_after_error(error, training.save_finished, display.say)
            _keep_failure(folder, error, display)
            raise
        finally:
            if fault := training.checkpoints.close():
                display.say(fault)
            run.close()
    write_json_atomically(folder.summary, summary(run, progress, folder.path))
    if signals:
        display.say(f"stopped after step {progress.step}; continue with `outdo resume {folder.path}`")
        return signals.exit_status
    if why := early_end(run.recipe, progress):
        display.say(why)
    return 0


def _keep_failure(folder: RunFolder, error: BaseException, display: Display) -> None:
    """Write the error to the run folder; if the disk refuses, say so, because the error itself has to be raised."""
    try:
        folder.keep_failure(error)
    except RunFolderError as second:
        display.say(str(second))


@dataclass(slots=True)
class _Training:
    """The steps of a run, and everything that happens after each of them."""

    folder: RunFolder
    run: Run
    progress: Progress
    display: Display
    signals: StopSignals
    checkpoints: Checkpoints = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder, self.run, saved=self.progress.step)

    def run_steps(self) -> None:
        """Train step by step."""
        run, progress, recipe = self.run, self.progress, self.run.recipe
        self.evaluate_before()
        if self.is_last():
            return
        steps = train(
            run.models,
            self.rollouts(),
            run.method.advantage,
            run.method.objective,
            passes=recipe.train.passes,
            stop=run.method.stop,
        )
        forward = run.models.policy.forward  # in bfloat16, sampler and trainer always may differ
        explained = forward.tolerance(MISMATCH) if forward.precision_name == "float32" else math.inf
        with self.display.steps(progress.step, recipe.steps, rounding=explained), Clock() as clock:
            for step in self.signals.interrupting_each(steps, self.can_be_saved):
                evaluated = self.finish(step, clock)
                self.settle(wait=False)
                is_last = self.is_last()  # once, so that a signal that comes later ends the next step, not this one
                if is_last or self.save_is_due():
                    self.checkpoints.wait()
                    self.settle(wait=True)  # what a checkpoint counts as done is recorded
                    self.wait_for_completions()
                    self.checkpoints.save(self.progress, wait=is_last or recipe.checkpoint.every.wait)
                if evaluated:
                    self.write_summary()
                for watcher in run.watchers:
                    watcher.done()
                if is_last:
                    return

    def rollouts(self) -> Iterator[tuple[int, Sampled]]:
        """Yield the scored groups of each step; before it changes weights, copy the last finished step."""
        for step, sampled in self.run.rollouts:
            for watcher in self.run.watchers:
                watcher.before(step, sampled.groups)
            self.checkpoints.copy_finished(self.progress)
            yield step, sampled

    def evaluate_before(self) -> None:
        """Evaluate the policy before the first step, or after the last finished one if that was interrupted."""
        run, progress = self.run, self.progress
        if not progress.before:
            with self.signals.interrupting():
                progress.before = progress.after = evaluate_run(run, self.folder.path, 0, self.display)
            self.write_summary()  # a run that is killed has its baseline
        if progress.unevaluated:
            with self.signals.interrupting():
                evaluated = evaluate_after(run, self.folder.path, progress, progress.step, self.display)
            progress.unevaluated = False
            self.folder.amend_metrics(progress.step, evaluated)

    def finish(self, step: Step, clock: Clock) -> bool:
        """Record and evaluate a step, and write its metrics; return whether an evaluation was due.

        If the evaluation fails, the step is finished all the same, and a resumed run repeats the evaluation.
        """
        with self.signals.interrupting(self.can_be_saved):
            watched = self.watched(step)
        if not evaluation_is_due(self.run, step.index):
            self.write_metrics(step, watched, clock)
            return False
        try:
            with self.signals.interrupting():
                evaluated = evaluate_after(self.run, self.folder.path, self.progress, step.index, self.display)
        except BaseException:
            self.write_metrics(step, watched, clock)
            self.progress.unevaluated = True
            raise
        self.write_metrics(step, watched | evaluated, clock)
        return True

    def write_metrics(self, step: Step, more: Mapping[str, float], clock: Clock) -> None:
        """Write and print the metrics of a step, with `more` that were measured. The step is finished then."""
        run, progress, steps = self.run, self.progress, self.run.recipe.steps
        metrics = _metrics(run, step, clock) | dict(more)
        metrics |= _adapt(run, step, metrics)
        _keep_refused_batch(self.folder, step)
        self.folder.append_metrics(step.index, metrics)
        # Only now is the step finished: a step that is saved has its line of metrics.
        tokens, recorded = _sampled_tokens(metrics), any(watcher.recorded for watcher in run.watchers)
        progress.finish(run, step.index, seconds=metrics["seconds"], tokens=tokens, recorded=recorded)
        self.display.step(step.index, steps, metrics)

    def write_summary(self) -> None:
        """Write `summary.json` with what is known so far, when the checkpoint that it may name as the best is there."""
        content = summary(self.run, self.progress, self.folder.path)
        self.checkpoints.then(lambda: write_json_atomically(self.folder.summary, content))

    def can_be_saved(self) -> bool:
        """Return whether the last finished step is saved, or can be."""
        return self.checkpoints.can_save(self.progress)

    def save_finished(self) -> str:
        """Save the last finished step that can be saved; return a line about it for the user, or an empty one."""
        self.run.sampling.rollouts.stop()  # what it holds is saved
        self.progress, line = self.checkpoints.save_finished(self.progress)
        return line

    def watched(self, step: Step) -> dict[str, float]:
        """Let the watchers see a step before its evaluation; return their metrics."""
        metrics: dict[str, float] = {}
        for watcher in self.run.watchers:
            metrics |= watcher.after(step)
        return metrics

    def settle(self, *, wait: bool) -> None:
        """Raise the error of what watchers write in the background, up to now or, if they `wait`, up to its end."""
        for watcher in self.run.watchers:
            watcher.settle(wait=wait)

    def wait_for_completions(self) -> None:
        """Wait until all batches that run ahead are sampled, so that a checkpoint does not depend on speed.

        After a signal it does not wait: the checkpoint then holds the weights for the batches that are missing.
        """
        if not self.signals:
            with span("save"), self.signals.interrupting():
                self.run.sampling.rollouts.wait()

    def is_last(self) -> bool:
        """Return whether no step comes after the last finished one. Replicas go by the signals of the first one."""
        recipe = self.run.recipe
        stop = self.run.world.from_first(lambda: bool(self.signals))
        return stop or self.progress.step == recipe.steps or bool(early_end(recipe, self.progress))

    def save_is_due(self) -> bool:
        """Return whether the last finished step gets a checkpoint.

        It does if it is the best so far, if its turn has come, or if the last checkpoint is long ago or has failed.
        Replicas go by the first one.
        """
        step = self.progress.step
        is_best, is_turn = self.progress.best.get("step") == step, is_due(step, self.run.recipe.checkpoint.every.steps)
        return is_best or is_turn or self.run.world.from_first(self.checkpoints.are_overdue)


def _metrics(run: Run, step: Step, clock: Clock) -> dict[str, float]:
    metrics = step_metrics(step) | correction_metrics(step, run.method.objective)
    metrics |= run.sampling.engine.metrics() | run.reward.metrics() | run.world.metrics()
    spans = clock.lap()  # since the metrics of the step before, so that the save after it is included
    seconds = sum(time for name, time in spans.items() if name not in BETWEEN)  # of the step alone
    times = {f"time/{name}": time for name, time in spans.items()}
    waited = clock.processor.share()
    lost = {} if waited is None else {"seconds_without_processor": waited * seconds}
    return metrics | times | lost | {"seconds": seconds, "tokens_per_second": _sampled_tokens(metrics) / seconds}


def _sampled_tokens(metrics: Mapping[str, float]) -> float:
    """Return the number of tokens sampled in a step, with those of answers that dynamic sampling dropped."""
    return metrics["num_tokens"] + metrics.get("dynamic_sampling/dropped_tokens", 0.0)


def _adapt(run: Run, step: Step, metrics: Mapping[str, float]) -> dict[str, float]:
    """Let the reward models and coefficients learn from a step; return their metrics."""
    learnt: dict[str, float] = {}
    with span("reward"):
        learnt |= run.reward.after_step(step.index, step.groups)
    for name, coefficient in run.method.adaptive.items():
        learnt[f"coefficient/{name}"] = float(coefficient)  # the value used in this step
        coefficient.observe(metrics)
    return learnt


def _keep_refused_batch(folder: RunFolder, step: Step) -> None:
    """Write the batch of a step to `refused/` if one of its updates was refused."""
    kinds = ("updates/refused", "value/refused")
    if not any(update.metrics.get(kind) for update in step.updates for kind in kinds):
        return
    target = folder.path / "refused"
    target.mkdir(exist_ok=True)
    names = ("token_ids", "loss_mask", "rewards", "advantages", "values", "returns", "targets")
    names += ("old_logprobs", "ref_logprobs", "teacher_logprobs", "rollout_logprobs")
    fields = {name: getattr(step.batch, name) for name in names}
    tensors = {name: value.contiguous() for name, value in fields.items() if isinstance(value, Tensor)}
    save_file(tensors, target / f"step_{step.index:06d}.safetensors")


def summary(run: Run, progress: Progress, folder: Path) -> dict[str, Any]:
    """Return the content of `summary.json`.

    Accuracies are null where nothing was held out or right is not defined, rewards where nothing was held out.
    `questions` says what became of those that were asked (`QuestionCounts.table`).
    """
    before, after = progress.before, progress.after
    return {
        "accuracy_before": before.get("greedy"),
        "accuracy_after": after.get("greedy"),
        "sampled_before": before.get("sampled"),
        "sampled_after": after.get("sampled"),
        "reward_before": before.get("greedy_reward"),
        "reward_after": after.get("greedy_reward"),
        "steps": progress.step,
        "seconds": progress.seconds,
        "tokens_per_second": progress.tokens / progress.seconds if progress.seconds else 0.0,
        "run": str(folder),
        "before": before,
        "after": after,
        "best": progress.best,
        "ended_early": bool(early_end(run.recipe, progress)),
        "questions": run.sampling.rollouts.question_counts(after=progress.step),
    }
