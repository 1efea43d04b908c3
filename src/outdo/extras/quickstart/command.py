"""`outdo quickstart`: train a model by GRPO, and show its accuracy and its answers before and after.

The model is SmolLM2-135M-Instruct, or a small one that is built and fine-tuned here. The command uses what the other
commands use: it fine-tunes as `outdo sft` does, writes a recipe, trains by it as `outdo train` does, and ends with what
`outdo doctor` finds.
"""

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from outdo.cli.arguments import Engine, Verbose
from outdo.cli.output import program
from outdo.cli.recipe import probe_machine, prompt_renderer, recipe_of
from outdo.cli.train import TrainOptions, run_train
from outdo.config.engines import is_remote
from outdo.config.messages import to_toml
from outdo.config.names import REPLICAS
from outdo.config.recipe import Piece
from outdo.config.replicas import trains_on_cpu
from outdo.extras.quickstart import sentences, settings, smollm2, sums
from outdo.extras.quickstart.conclusion import conclude, disappointment
from outdo.extras.quickstart.model import build, fine_tune
from outdo.extras.quickstart.recorded import recorded_runs
from outdo.extras.quickstart.task import SmallModel, Task, TaskData
from outdo.models.gguf_folder import converted
from outdo.run.assemble.engines import named_engine
from outdo.run.check.preflight import check
from outdo.run.display import Display
from outdo.utils.atomic import write_text_atomically
from outdo.utils.errors import UserError
from outdo.utils.extras import missing_extra

TASKS: Mapping[str, Task] = {
    "sentences": sentences.TASK,
    "sums": sums.TASK,
}
"""The tasks by the names that `--task` takes."""
CARELESS: Mapping[str, Task] = {"sentences": sentences.CARELESS_TASK}
"""The same with a careless reward, by the same names."""

FOLDER = Path("quickstart")
REWARD = "reward.py"
"""The file of a task's reward, in its folder."""


def command(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING]...", help="settings of the run: cluster.replicas=2 ...")
    ] = None,
    *,
    task: Annotated[
        Literal["sentences", "sums"],
        typer.Option(
            help="sentences that meet constraints, by SmolLM2-135M-Instruct; sums in writing, by a small model that is "
            "made here"
        ),
    ] = "sentences",
    careless: Annotated[
        bool, typer.Option("--careless", help="sentences with a reward that forgets the topic: a hack, and its signs")
    ] = False,
    folder: Annotated[Path, typer.Option(help="folder for the data and the runs")] = FOLDER,
    seed: Annotated[int, typer.Option(help="random seed of everything")] = 0,
    engine: Engine = None,
    verbose: Verbose = False,
) -> int:
    """Train the model of a task by GRPO, and show the results; return the exit status.

    A small model is built and fine-tuned first, once per seed. `careless` takes the reward that forgets the topic.
    `overrides` are settings of the run by GRPO, in addition to those of its recipe.

    Raises `UserError` if the task has no careless reward, and `ModelError` if its model cannot be downloaded.
    """
    display = Display(verbose=verbose)
    if careless and task not in CARELESS:
        raise UserError([f"--careless: the task {task} has no careless reward; {' and '.join(CARELESS)} has one"])
    chosen = (CARELESS if careless else TASKS)[task]
    sampler = named_engine(engine)
    name = "careless" if careless else task
    home = home_of(folder, name, seed)
    model = home / "warm" if chosen.small else smollm2.model_file(display)
    data, run = write_data(home, seed, chosen), _free(home)
    recipe = write_recipe(run.with_suffix(".toml"), chosen, model, data, seed, sampler)
    arguments = [str(recipe), f"run={run}", *(overrides or [])]
    if chosen.small:
        _prepare(chosen.small, model, data["demonstrations"], seed, arguments, display)
    else:
        with display.working(f"making a model folder of {model.name}, once"):
            converted(model)
    display.say(f"training by {recipe}, as `outdo train {shlex.join(arguments)}` does")
    status = run_train(arguments, display, TrainOptions())
    if status == 0:
        recorded = recorded_runs(name) if _as_shipped(chosen, home, overrides, sampler) else None
        conclude(run, model, data["held_out"], display, recorded=recorded)
        for line in ["inspect {run}", "chat {run}", "eval {run}", *chosen.further]:
            display.say(f"  {program()} {line.format(run=run, reward=home / REWARD)}")
        _say_if_it_did_not_work_out(run, overrides or [], again(task, careless, folder, seed + 1), display)
    return status


def _as_shipped(task: Task, home: Path, overrides: Sequence[str] | None, engine: Piece) -> bool:
    """Return whether a run has the settings of its task, which recorded runs have."""
    reward = home / REWARD
    return (
        not overrides
        and not is_remote(engine)
        and (task.reward is None or reward.read_bytes() == task.reward.read_bytes())
    )


def _say_if_it_did_not_work_out(run: Path, overrides: Sequence[str], retry: str, display: Display) -> None:
    """Print in which way a run did not work out, and what to try; nothing if it did."""
    why = disappointment(json.loads((run / "summary.json").read_text(encoding="utf-8")))
    if why:
        changed = f"; leave out {shlex.join(overrides)}, or" if overrides else ";"
        display.say(f"{why}{changed} try another seed: {program()} {retry}")


def again(task: str, careless: bool, folder: Path, seed: int) -> str:
    """Return the command that makes another first run, with `seed`."""
    named = [*(["--task", task] if task != "sentences" else []), *(["--careless"] if careless else [])]
    where = ["--folder", str(folder)] if folder != FOLDER else []
    return shlex.join(["quickstart", *named, *where, "--seed", str(seed)])


def home_of(folder: Path, task: str, seed: int) -> Path:
    """Return the folder of a task and a seed."""
    return (folder if task == "sums" else folder / task) / f"seed-{seed}"


def write_data(folder: Path, seed: int, task: Task = sums.TASK) -> dict[str, Path]:
    """Write the task as files: worked examples, questions to train on, held-out questions, and its reward.

    A reward that is there already is kept: the user may have changed it.
    """
    data = task.data(seed)
    folder.mkdir(parents=True, exist_ok=True)
    if task.reward and not (folder / REWARD).exists():
        write_text_atomically(folder / REWARD, task.reward.read_text(encoding="utf-8"))
    paths = {field.name: folder / f"{field.name}.jsonl" for field in fields(TaskData) if getattr(data, field.name)}
    for name, path in paths.items():
        write_text_atomically(path, "".join(json.dumps(row) + "\n" for row in getattr(data, name)))
    return paths


def write_recipe(path: Path, task: Task, model: Path, data: Mapping[str, Path], seed: int, engine: Piece) -> Path:
    """Write the recipe of the run, as a user would write it; of the engine only if it is not the built-in one."""
    reward = f'rewards = "{path.with_name(REWARD)}:score"\n' if task.reward else ""
    can_divide = trains_on_cpu("auto") and not is_remote(engine) and not missing_extra(REPLICAS, "cluster.replicas")
    replicas = task.replicas if can_divide else 1
    text = settings.RECIPE.format(
        model=model,
        questions=data["questions"],
        held_out=data["held_out"],
        seed=seed,
        threads=settings.THREADS // replicas,
        replicas=replicas,
        task=reward + task.recipe,
        sampling=task.sampling,
        train=task.train,
        steps=task.steps,
        prompts=task.prompts,
        max_tokens=task.max_tokens,
        lr=task.lr,
        schedule=task.schedule,
        rows=task.rows,
        samples=task.samples,
        evaluation=task.evaluation,
        checkpoint=task.steps // 2 if task.small else task.steps,
    )
    if is_remote(engine):
        text = text.replace("\n[data]", f"engine = {to_toml(engine.model_dump())}\n\n[data]", 1)
    write_text_atomically(path, text)
    return path


def _prepare(small: SmallModel, warm: Path, examples: Path, seed: int, arguments: list[str], display: Display) -> None:
    """Make the small model in the folder `warm`, unless it is there; `arguments` are those of its run."""
    torch.set_num_threads(settings.THREADS)
    if warm.exists():
        display.say(f"the fine-tuned model in {warm} is used again")
        return
    new = build(warm.with_name("new"), seed, tokens=small.tokens)
    _check([*arguments, f"model={new}"])
    display.say(f"building a model and fine-tuning it on examples in which {small.teacher}")
    fine_tune(new, examples, seed, display, steps=settings.WARM_START_STEPS).rename(warm)


def _check(arguments: list[str]) -> None:
    """Raise `UserError` with every mistake in the recipe of a run, before time is spent on fine-tuning."""
    recipe = recipe_of(arguments)
    report = check(recipe, render=prompt_renderer(recipe), probe=probe_machine)
    if report.errors:
        raise UserError(report.errors)


def _free(folder: Path) -> Path:
    """Return the first of `run-1`, `run-2`, ... that does not exist."""
    return next(run for number in itertools.count(1) if not (run := folder / f"run-{number}").exists())
