"""The body of the command line's `for step in train(...)`: evaluate, record, save, stop in good order."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from outdo.config.file import dump, load
from outdo.config.recipe import Recipe
from outdo.config.resume import differences, refused_differences
from outdo.loop import train
from outdo.observability.metrics import step_metrics
from outdo.observability.page.collect import collect_run
from outdo.observability.page.html import page
from outdo.observability.record import parquet
from outdo.observability.record.background_writer import BackgroundWriter
from outdo.storage import checkpoint
from outdo.storage.provenance import describe_environment
from outdo.storage.run_folder import RunFolder, read_metrics, write_json_atomically, write_text_atomically
from outdo.trainer.build import Run, build_run, sampling_params
from outdo.trainer.display import Display
from outdo.trainer.evaluation import Evaluation, evaluate
from outdo.trainer.interrupt import stop_requested
from outdo.trainer.profiling import traced, where_it_went
from outdo.trainer.state import Progress, restore, save
from outdo.types import Batch, Step
from outdo.utils.errors import CheckpointError, OutdoError, RunFolderError, UserError
from outdo.utils.timing import BETWEEN, Clock, span

INTERRUPTED = 130
TRACE = "profile/trace.json.gz"


def start(recipe: Recipe, folder: Path, display: Display, *, profile: bool = False) -> int:
    """Train from the first step; returns the exit status. A run folder that holds a run is refused.

    `profile` traces two of the steps, and says where all of them went.
    """
    with RunFolder(folder) as run:
        if run.recipe.exists():
            raise RunFolderError(f"{folder} holds a run already: `outdo resume {folder}` goes on with it")
        _make_room(run, recipe)
        status = _train(run, build_run(recipe), Progress(), display, profile=profile)
    return _shown(folder, status, display)


def resume(folder: Path, overrides: list[str], display: Display, *, profile: bool = False) -> int:
    """Go on from the newest whole checkpoint as if nothing had happened; from the start if there is none yet."""
    if not (folder / "recipe.toml").is_file():
        raise UserError([f"{folder}: no run is there (it has no recipe.toml)"])
    with RunFolder(folder) as run:
        saved = load(run.recipe, [])
        recipe = load(run.recipe, overrides)
        refused = refused_differences(saved.model_dump(), recipe.model_dump())
        if refused:
            raise UserError([f"{line}; a resumed run may not change this" for line in refused])
        for line in [*([run.notice] if run.notice else []), *differences(saved.model_dump(), recipe.model_dump())]:
            display.say(line)
        _make_room(run, recipe)
        found = checkpoint.latest(run.checkpoints)
        for fault in found.broken if found else ():
            display.say(f"not used: {fault}")
        state = checkpoint.load_state(found.path) if found else {}
        model = found.path if found else None
        session = build_run(recipe, model=model, fingerprints=state.get("fingerprints"))
        progress = restore(session, found.path, state, display) if found else Progress()
        display.say(f"resumed after step {progress.step} of {recipe.steps}")
        run.rewind(progress.step)
        parquet.drop_after(run.path, progress.step)
        parquet.remove_leftovers(run.path)
        status = _train(run, session, progress, display, profile=profile)
    return _shown(folder, status, display)


def _make_room(run: RunFolder, recipe: Recipe) -> None:
    """Before any model is loaded: the place where tokens are going to be recorded."""
    if recipe.record.every:
        parquet.make_room(run.path)


def _shown(folder: Path, status: int, display: Display) -> int:
    """Write the page of a run that is complete; the exit status. What the page needs is all on disk."""
    if status == 0:
        report = folder / "report.html"
        write_text_atomically(report, page([collect_run(folder)]))
        display.say(f"what was trained, token by token: {report}")
    return status


def _train(run: RunFolder, session: Run, progress: Progress, display: Display, *, profile: bool) -> int:
    """Run the loop to its end, or to the step under way when it is interrupted or fails."""
    recipe = session.recipe
    for note in session.notes:
        display.say(note)
    if progress.step >= recipe.steps:
        session.close()
        if not run.summary.exists():  # killed after the last checkpoint
            write_json_atomically(run.summary, summary(progress, run.path))
        display.say(f"complete: all {recipe.steps} steps are done; more with `outdo resume {run.path} steps=...`")
        return 0
    models = session.models
    weights = models.policy.model.state_dict()
    critic = models.critic is not None and models.critic.trains_model
    trained = 1 + critic + len(session.online_reward_models)  # weights with two moments each, about
    copies = 3 * trained + (models.reference is not None)
    needed = checkpoint.free_space_needed(weights, copies=copies, keep=recipe.checkpoint.keep)
    checkpoint.check_free_space(run.path, needed)
    _describe(run, session)
    progress.version = session.models.version
    try:
        trace = run.path / TRACE if profile else None
        with stop_requested() as asked, BackgroundWriter() as behind, traced(trace) as traced_step:
            _steps(run, session, progress, display, asked, behind, traced_step)
    except OutdoError as error:
        # What failed is the step under way; if it has not touched the weights, those before it are worth keeping.
        untouched = session.models.version == progress.version
        if progress.step and untouched and not isinstance(error, CheckpointError):
            save(run, session, progress)
            display.say(f"saved after step {progress.step}; go on with `outdo resume {run.path}`")
        raise
    finally:
        session.close()
    if profile:
        _profiled(run, display)
    write_json_atomically(run.summary, summary(progress, run.path))
    if progress.step < recipe.steps:
        display.say(f"stopped after step {progress.step}, saved; go on with `outdo resume {run.path}`")
        return INTERRUPTED
    return 0


def _steps(
    run: RunFolder,
    session: Run,
    progress: Progress,
    display: Display,
    asked: list[int],
    behind: BackgroundWriter,
    traced_step: Callable[[], None],
) -> None:
    """The body of the loop."""
    recipe = session.recipe
    if not progress.before:
        progress.before = progress.after = _evaluate(session, 0, display)
    steps = train(
        session.models,
        session.prompts,
        session.rollout,
        session.advantage,
        session.objective,
        passes=recipe.train.passes,
        stop=session.stop,
        start=progress.step + 1,
    )
    with display.steps(progress.step, recipe.steps), Clock() as clock:
        for step in steps:
            recorded, refused = _recorded(session, step, run.path, behind)
            evaluated = _evaluation(session, progress, step.index, display)
            metrics = _metrics(session, step, clock) | recorded | evaluated
            metrics |= _follow(session, step, metrics)
            _keep_refused(run.path / "refused", step)
            run.append_metrics(step.index, metrics)
            _move_on(progress, session, step.index, metrics)  # now, and not before: a saved step has its line
            display.step(step.index, recipe.steps, metrics)
            if refused:
                raise refused
            best = progress.best.get("step") == step.index
            last = step.index == recipe.steps
            if last or best or asked or _due(step.index, recipe.checkpoint.every):
                with span("record"):
                    refused = behind.wait()  # what a checkpoint says is done is recorded
                if refused:
                    raise refused
                save(run, session, progress)
            traced_step()
            if last or asked:
                return


def _profiled(run: RunFolder, display: Display) -> None:
    """Say where the steps went, and where the trace is."""
    table, trace = where_it_went(read_metrics(run.metrics)), run.path / TRACE
    if table:
        display.console.print(table)
    if trace.exists():
        display.say(f"a trace of two steps: {trace}; open it at ui.perfetto.dev")
    else:
        display.say("too few steps for a trace: it begins with the third")


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _recorded(
    session: Run, step: Step, folder: Path, behind: BackgroundWriter
) -> tuple[dict[str, float], RunFolderError | None]:
    """Record a step; it is written while the next one is made. What the disk refused of the step before, if it did.

    That ends the run, but only when this step, which is done, has its line as well.
    """
    with span("record"):
        metrics, write = session.recorder.taken(step, folder)
        refused = behind.wait()
        behind.begin(write)
    return metrics, refused


def _metrics(session: Run, step: Step, clock: Clock) -> dict[str, float]:
    metrics = step_metrics(step)
    spent = clock.lap()  # since the last step had its metrics: saving it is in here, and no part of a step's seconds
    seconds = sum(each for name, each in spent.items() if name not in BETWEEN)
    times = {f"time/{name}": each for name, each in spent.items()}
    return metrics | times | {"seconds": seconds, "tokens_per_second": _sampled(metrics) / seconds}


def _sampled(metrics: Mapping[str, float]) -> float:
    """The tokens of a step, including those of answers that dynamic sampling dropped."""
    return metrics["num_tokens"] + metrics.get("refill/dropped_tokens", 0.0)


def _follow(session: Run, step: Step, metrics: Mapping[str, float]) -> dict[str, float]:
    """Let reward models and coefficients learn from a step; what they have come to."""
    found: dict[str, float] = {}
    with span("reward"):
        for judge in session.online_reward_models:
            found |= judge.after_step(step.index, step.groups)
    for name, coefficient in session.adaptive.items():
        found[f"coefficient/{name}"] = float(coefficient)  # that of this step
        coefficient.observe(metrics)
    return found


def _move_on(progress: Progress, session: Run, step: int, metrics: Mapping[str, float]) -> None:
    progress.step, progress.version = step, session.models.version
    progress.prompts = session.prompts.state()
    progress.seconds += metrics["seconds"]
    progress.tokens += int(_sampled(metrics))


def summary(progress: Progress, folder: Path) -> dict[str, Any]:
    """What `summary.json` holds; accuracies are null where nothing was held out."""
    before, after = progress.before, progress.after
    return {
        "accuracy_before": before.get("greedy"),
        "accuracy_after": after.get("greedy"),
        "sampled_before": before.get("sampled"),
        "sampled_after": after.get("sampled"),
        "steps": progress.step,
        "seconds": progress.seconds,
        "tokens_per_second": progress.tokens / progress.seconds if progress.seconds else 0.0,
        "run": str(folder),
        "before": before,
        "after": after,
        "best": progress.best,
    }


def _evaluate(session: Run, step: int, display: Display) -> dict[str, float]:
    """Accuracy on the held-out questions: greedy, and sampled at temperature 1. Nothing if there are none."""
    if not session.held_out:
        return {}
    settings, numbers = session.recipe.eval, {}
    asked: dict[str, tuple[float, int]] = {}
    if settings.greedy:
        asked["greedy"] = (0.0, 1)
    if settings.samples:
        asked["sampled"] = (1.0, settings.samples)
    for name, (temperature, k) in asked.items():
        sampling = sampling_params(session.recipe, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)
        with span("evaluate"), Clock():  # of its own: what is sampled and rewarded here is no part of a step
            found: Evaluation = evaluate(
                session.engine, session.eval_environment, session.held_out, sampling, k=k, step=step
            )
        low, high = found.ci95
        numbers |= {name: found.accuracy, f"{name}_low": low, f"{name}_high": high}
    display.evaluated(step, numbers)
    return numbers


def _evaluation(session: Run, progress: Progress, step: int, display: Display) -> dict[str, float]:
    """The metrics of an evaluation after this step, if one is due; `progress` remembers it."""
    recipe = session.recipe
    if step != recipe.steps and not _due(step, recipe.eval.every):
        return {}
    progress.after = _evaluate(session, step, display)
    progress.best = _better(progress, step, recipe.eval.best)
    return {f"eval/{name}": value for name, value in progress.after.items()}


def _better(progress: Progress, step: int, by: str) -> dict[str, float]:
    """The better of the best evaluation so far and the latest, that of `step`; the earlier one if they are equal."""
    if by in progress.after and progress.after[by] > progress.best.get(by, -1.0):
        return {"step": step, **progress.after}
    return progress.best


def _describe(run: RunFolder, session: Run) -> None:
    recipe = session.recipe
    environment = describe_environment(seed=recipe.seed, threads=recipe.threads or 0, device=recipe.device)
    write_text_atomically(run.recipe, dump(recipe))
    write_json_atomically(run.environment, environment)


def _keep_refused(folder: Path, step: Step) -> None:
    """If an update of the step was refused, keep its batch to be looked at."""
    kinds = ("updates/refused", "value/refused")
    if not any(update.metrics.get(kind) for update in step.updates for kind in kinds):
        return
    folder.mkdir(exist_ok=True)
    batch: Batch = step.batch
    names = ("token_ids", "loss_mask", "rewards", "advantages", "values", "returns", "targets")
    names += ("old_logprobs", "ref_logprobs", "rollout_logprobs")
    found = {name: getattr(batch, name) for name in names}
    tensors = {name: value.contiguous() for name, value in found.items() if isinstance(value, Tensor)}
    save_file(tensors, folder / f"step_{step.index:06d}.safetensors")
