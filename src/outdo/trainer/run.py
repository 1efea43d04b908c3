"""`outdo train` and `outdo resume`: the body of `for step in train(...)`, and what is before and after."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from outdo.config.file import dump, load
from outdo.config.paths import code_of
from outdo.config.recipe import Recipe
from outdo.config.resume import differences, refused_differences
from outdo.loop import train
from outdo.models.inspect_folder import ModelFacts
from outdo.observability.metrics import step_metrics
from outdo.observability.page.collect import collect_run
from outdo.observability.page.html import render_page
from outdo.observability.record import parquet
from outdo.observability.record.background_writer import BackgroundWriter
from outdo.storage import checkpoint, held_out_answers
from outdo.storage.atomic import write_json_atomically, write_text_atomically
from outdo.storage.provenance import describe_environment
from outdo.storage.run_folder import RunFolder, read_metrics
from outdo.trainer.build import Run, build_run
from outdo.trainer.display import Display
from outdo.trainer.held_out import evaluate_if_due, evaluate_run, is_due
from outdo.trainer.interrupt import stop_requested
from outdo.trainer.profiling import time_table, traced
from outdo.trainer.state import Progress, restore, save
from outdo.types import Step
from outdo.utils.errors import CheckpointError, NonFiniteWeightsError, OutdoError, RunFolderError, UserError
from outdo.utils.timing import BETWEEN, Clock, span

INTERRUPTED = 130
"""The exit status after Ctrl-C, as a shell has it: 128 + SIGINT."""

TRACE = "profile/trace.json.gz"


def start(
    recipe: Recipe, folder: Path, display: Display, *, facts: ModelFacts | None = None, profile: bool = False
) -> int:
    """Train from the first step; return the exit status. A folder that holds a run already is refused.

    `facts` describes the recipe's model if its folder has been inspected. `profile` traces two of the steps and prints
    where the time of all of them went.
    """
    with RunFolder(folder) as run_folder:
        if run_folder.recipe.exists():
            raise RunFolderError(f"{folder} holds a run already; `outdo resume {folder}` continues it")
        _make_tokens_folder(run_folder, recipe)
        run = build_run(recipe, facts=facts)
        status = _train(run_folder, run, Progress(), display, profile=profile)
    return _write_page(folder, status, display)


def resume(folder: Path, overrides: list[str], display: Display, *, profile: bool = False) -> int:
    """Continue a run from its newest whole checkpoint, or from the start if it has none; return the exit status."""
    if not (folder / "recipe.toml").is_file():
        raise UserError([f"{folder}: no run is there (it has no recipe.toml)"])
    with RunFolder(folder) as run_folder:
        recipe, changes = _resumed_recipe(run_folder, overrides)
        notices = [run_folder.notice] if run_folder.notice else []
        if code := code_of(recipe):
            notices.append(f"runs code that the recipe names: {', '.join(code)}")
        for line in [*notices, *changes]:
            display.say(line)
        _make_tokens_folder(run_folder, recipe)
        newest = checkpoint.latest(run_folder.checkpoints)
        for fault in newest.broken if newest else ():
            display.say(f"not used: {fault}")
        state = checkpoint.load_state(newest.path) if newest else {}
        model = newest.path if newest else None
        run = build_run(recipe, model=model, fingerprints=state.get("fingerprints"))
        progress = restore(run, state) if newest else Progress()
        display.say(f"resumed after step {progress.step} of {recipe.steps}")
        run_folder.rewind(progress.step)
        parquet.drop_after(run_folder.path, progress.step)
        held_out_answers.drop_after(run_folder.path, progress.step)
        parquet.remove_leftovers(run_folder.path)
        status = _train(run_folder, run, progress, display, profile=profile)
    return _write_page(folder, status, display)


def _resumed_recipe(folder: RunFolder, overrides: list[str]) -> tuple[Recipe, list[str]]:
    """Return the saved recipe with the overrides, and a line for each setting that changes."""
    saved, recipe = load(folder.recipe, []), load(folder.recipe, overrides)
    before, after = saved.model_dump(), recipe.model_dump()
    if refused := refused_differences(before, after):
        raise UserError([f"{line}; this setting must stay the same when a run is resumed" for line in refused])
    return recipe, differences(before, after)


def _make_tokens_folder(folder: RunFolder, recipe: Recipe) -> None:
    """Create the folder of the token records before any model is loaded, so that a full disk is noticed now."""
    if recipe.record.every:
        parquet.make_folder(folder.path)


def _write_page(folder: Path, status: int, display: Display) -> int:
    """Write the page of a complete run, from what is on disk; return the exit status."""
    if status == 0:
        report = folder / "report.html"
        write_text_atomically(report, render_page([collect_run(folder)]))
        display.say(f"what was trained, token by token: {report}")
    return status


def _train(folder: RunFolder, run: Run, progress: Progress, display: Display, *, profile: bool) -> int:
    """Run the loop until its last step, an interrupt or an error; return the exit status."""
    recipe = run.recipe
    for note in run.notes:
        display.say(note)
    if progress.step >= recipe.steps:
        run.close()
        # If the run was killed after its last checkpoint, the summary is that of an earlier evaluation.
        write_json_atomically(folder.summary, summary(progress, folder.path))
        display.say(f"complete: all {recipe.steps} steps are done; more with `outdo resume {folder.path} steps=...`")
        return 0
    _check_free_space(folder, run)
    _describe(folder, run)
    progress.version = run.models.version
    try:
        trace = folder.path / TRACE if profile else None
        with stop_requested() as signals, BackgroundWriter() as writer, traced(trace) as step_traced:
            training = _Training(folder, run, progress, display, signals, writer)
            training.run_steps(step_traced)
    except OutdoError as error:
        # The error belongs to the step under way. If that step has not changed the weights, the steps before are saved.
        untouched = run.models.version == progress.version
        if progress.step and untouched and not isinstance(error, CheckpointError | NonFiniteWeightsError):
            save(folder, run, progress)
            display.say(f"saved after step {progress.step}; continue with `outdo resume {folder.path}`")
        raise
    finally:
        run.close()
    if profile:
        _show_profile(folder, display)
    write_json_atomically(folder.summary, summary(progress, folder.path))
    if progress.step < recipe.steps:
        display.say(f"stopped and saved after step {progress.step}; continue with `outdo resume {folder.path}`")
        return INTERRUPTED
    return 0


@dataclass(slots=True)
class _Training:
    """The steps of a run, and everything that happens after each of them."""

    folder: RunFolder
    run: Run
    progress: Progress
    display: Display
    signals: Sequence[int]  # not empty once the user wants the run to stop
    writer: BackgroundWriter
    write_error: RunFolderError | None = None  # of a record that could not be written

    def run_steps(self, step_traced: Callable[[], None]) -> None:
        """Train step by step. `step_traced` ends each step for the profiler."""
        run, progress, recipe = self.run, self.progress, self.run.recipe
        if not progress.before:
            progress.before = progress.after = evaluate_run(run, self.folder.path, 0, self.display)
            self.write_summary()  # a run that is killed has its baseline
        steps = train(
            run.models,
            run.prompts,
            run.sampler,
            run.advantage,
            run.objective,
            passes=recipe.train.passes,
            stop=run.stop,
            start=progress.step + 1,
        )
        float32 = run.models.policy.forward.precision_name == "float32"
        with self.display.steps(progress.step, recipe.steps, float32=float32), Clock() as clock:
            for step in steps:
                recorded = self.record(step)
                evaluated = evaluate_if_due(run, self.folder.path, progress, step.index, self.display)
                metrics = _metrics(run, step, clock) | recorded | evaluated
                metrics |= _adapt(run, step, metrics)
                _keep_refused_batch(self.folder, step)
                self.folder.append_metrics(step.index, metrics)
                # Only now is the step finished: a step that is saved has its line of metrics.
                progress.finish(run, step.index, seconds=metrics["seconds"], tokens=_sampled_tokens(metrics))
                self.display.step(step.index, recipe.steps, metrics)
                self.raise_write_error()
                is_last = self.is_last()  # once, so that a signal that comes later ends the next step, not this one
                if is_last or self.save_is_due():
                    self.wait_for_record()
                    save(self.folder, run, progress)
                if evaluated:  # after the checkpoint, which the summary may name as the best
                    self.write_summary()
                step_traced()
                if is_last:
                    return

    def write_summary(self) -> None:
        """Write `summary.json` with what is known so far."""
        write_json_atomically(self.folder.summary, summary(self.progress, self.folder.path))

    def record(self, step: Step) -> dict[str, float]:
        """Start to write the record of a step and return its metrics; wait for the record of the step before.

        An error of that earlier record is kept in `write_error`, and raised when this step has its line of metrics.
        """
        with span("record"):
            metrics, write = self.run.recorder.measure(step, self.folder.path)
            self.write_error = self.writer.wait()
            self.writer.begin(write)
        return metrics

    def wait_for_record(self) -> None:
        """Wait until the record of this step is on disk: what a checkpoint counts as done is recorded."""
        with span("record"):
            self.write_error = self.writer.wait()
        self.raise_write_error()

    def raise_write_error(self) -> None:
        """Raise the error of a record that could not be written, if there is one."""
        if self.write_error:
            raise self.write_error

    def is_last(self) -> bool:
        """Return whether no step comes after the last finished one."""
        return self.progress.step == self.run.recipe.steps or bool(self.signals)

    def save_is_due(self) -> bool:
        """Return whether the last finished step gets a checkpoint: it is the best so far, or its turn has come."""
        step = self.progress.step
        return self.progress.best.get("step") == step or is_due(step, self.run.recipe.checkpoint.every)


def _metrics(run: Run, step: Step, clock: Clock) -> dict[str, float]:
    metrics = step_metrics(step)
    spans = clock.lap()  # since the metrics of the step before, so that the save after it is included
    seconds = sum(time for name, time in spans.items() if name not in BETWEEN)  # of the step alone
    times = {f"time/{name}": time for name, time in spans.items()}
    return metrics | times | {"seconds": seconds, "tokens_per_second": _sampled_tokens(metrics) / seconds}


def _sampled_tokens(metrics: Mapping[str, float]) -> float:
    """Return the number of tokens sampled in a step, with those of answers that dynamic sampling dropped."""
    return metrics["num_tokens"] + metrics.get("refill/dropped_tokens", 0.0)


def _adapt(run: Run, step: Step, metrics: Mapping[str, float]) -> dict[str, float]:
    """Let the reward models and coefficients learn from a step; return their metrics."""
    learnt: dict[str, float] = {}
    with span("reward"):
        for reward_model in run.online_reward_models:
            learnt |= reward_model.after_step(step.index, step.groups)
    for name, coefficient in run.adaptive.items():
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
    names += ("old_logprobs", "ref_logprobs", "rollout_logprobs")
    fields = {name: getattr(step.batch, name) for name in names}
    tensors = {name: value.contiguous() for name, value in fields.items() if isinstance(value, Tensor)}
    save_file(tensors, target / f"step_{step.index:06d}.safetensors")


def _check_free_space(folder: RunFolder, run: Run) -> None:
    models = run.models
    trains_critic = models.critic is not None and models.critic.trains_model
    trained = 1 + trains_critic + len(run.online_reward_models)  # models saved with two moments each, about
    copies = 3 * trained + (models.reference is not None)
    weights = models.policy.model.state_dict()
    needed = checkpoint.free_space_needed(weights, copies=copies, keep=run.recipe.checkpoint.keep)
    checkpoint.check_free_space(folder.path, needed)


def _describe(folder: RunFolder, run: Run) -> None:
    recipe = run.recipe
    environment = describe_environment(seed=recipe.seed, threads=recipe.threads or 0, device=recipe.device)
    write_text_atomically(folder.recipe, dump(recipe))
    write_json_atomically(folder.environment, environment)


def _show_profile(folder: RunFolder, display: Display) -> None:
    """Print where the time of the steps went, and where the trace is."""
    table, trace = time_table(read_metrics(folder.metrics)), folder.path / TRACE
    if table:
        display.console.print(table)
    if trace.exists():
        display.say(f"a trace of two steps: {trace}; open it at ui.perfetto.dev")
    else:
        display.say("too few steps for a trace: it starts with the third")


def summary(progress: Progress, folder: Path) -> dict[str, Any]:
    """Return the content of `summary.json`.

    Accuracies are null where nothing was held out or right is not defined, rewards where nothing was held out.
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
    }
