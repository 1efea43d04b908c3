"""`outdo quickstart`: build a small model, fine-tune it, train it by GRPO, and show its accuracy before and after.

It uses what the other commands use: it writes a model folder, fine-tunes it as `outdo sft` does, writes a recipe, and
trains by it as `outdo train` does.
"""

import itertools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from rich.markup import escape
from rich.table import Table

from outdo.cli.answering import answering
from outdo.cli.quickstart import calculator, guessing, programs, settings, sums
from outdo.cli.quickstart.model import build
from outdo.cli.quickstart.task import Data, Task
from outdo.cli.recipe import probe_machine, recipe_of
from outdo.cli.train import TrainArguments, run_train
from outdo.config.engines import is_separate
from outdo.config.messages import to_toml
from outdo.config.recipe import Piece, Recipe
from outdo.data.prompts import Prompts
from outdo.data.questions import Question, questions_from
from outdo.data.sft_examples import encode_examples, read_examples
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.storage.atomic import write_text_atomically
from outdo.trainer.display import Display
from outdo.trainer.engines import named_engine, open_engine
from outdo.trainer.environment import open_environment
from outdo.trainer.find_model import find_model
from outdo.trainer.preflight import check
from outdo.trainer.sft import sft
from outdo.utils.errors import UserError

TASKS: Mapping[str, Task] = {
    "sums": sums.TASK,
    "calculator": calculator.TASK,
    "guessing": guessing.TASK,
    "programs": programs.TASK,
}
"""The tasks by the names that `--task` takes."""

ANSWERED, SHOWN = 32, 3  # problems that both models answer at the end, and those of them that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An answer, or an episode with all that was said in it."""

    text: str
    right: bool | None  # None: not defined by the rewards

    def __str__(self) -> str:
        return self.text + {True: " right", False: " wrong", None: ""}[self.right]


def run_quickstart(
    folder: Path,
    *,
    task: str = "sums",
    seed: int,
    display: Display,
    engine: str | None = None,
    overrides: Sequence[str] = (),
) -> int:
    """Build and fine-tune a model (once per seed), train it by GRPO, and show the results; return the exit status.

    `overrides` are settings of the run by GRPO, in addition to those of its recipe.
    """
    sampler = named_engine(engine)
    torch.set_num_threads(1)
    home = home_of(folder, task, seed)
    data, warm, run = write_data(home, seed, TASKS[task]), home / "warm", _free(home)
    recipe = write_recipe(run.with_suffix(".toml"), TASKS[task], warm, data, seed, sampler)
    command = [str(recipe), f"run={run}", *overrides]
    if warm.exists():
        display.say(f"the fine-tuned model in {warm} is used again")
    else:
        new = build(home / "new", seed, tokens=TASKS[task].tokens, is_chat=TASKS[task].is_chat)
        _check([*command, f"model={new}"])
        display.say(f"building a model and fine-tuning it on examples in which {TASKS[task].teacher}")
        fine_tune(TASKS[task], new, data["demonstrations"], seed, display).rename(warm)
    display.say(f"training by {recipe}, as `outdo train {shlex.join(command)}` does")
    status = run_train(command, display, TrainArguments())
    if status == 0:
        conclude(run, warm, data["held_out"], display)
    return status


def home_of(folder: Path, task: str, seed: int) -> Path:
    """Return the folder of a task and a seed."""
    return (folder if task == "sums" else folder / task) / f"seed-{seed}"


def write_data(folder: Path, seed: int, task: Task = sums.TASK) -> dict[str, Path]:
    """Write the task as data files: worked examples, questions to train on, and held-out questions."""
    data = task.data(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {each.name: folder / f"{each.name}.jsonl" for each in fields(Data)}
    for name, path in paths.items():
        write_text_atomically(path, "".join(json.dumps(row) + "\n" for row in getattr(data, name)))
    return paths


def fine_tune(task: Task, folder: Path, data: Path, seed: int, display: Display) -> Path:
    """Fine-tune the model in a folder on the examples of a file; return the folder."""
    steps = task.warm_start
    optimiser = replace(settings.WARM_START, total=steps)
    with WorkerPool(task.workers - 1) as pool:
        policy = Policy.load(folder, device="cpu", optimiser=optimiser, pool=pool)
        pairs, _ = read_examples(str(data))
        examples = encode_examples(pairs, policy.tokenizer, end_ids=policy.end_ids)
        prompts = Prompts(examples, per_step=settings.WARM_START_PAIRS, seed=seed)
        for step in display.track(sft(policy, prompts, steps=steps), total=steps, what="fine-tuning"):
            if step.index % 50 == 0 and not display.live:
                display.say(f"fine-tuning {step.index}/{steps}  log-likelihood of a token {step.likelihood:.3f}")
    policy.save(folder)
    return folder


def write_recipe(path: Path, task: Task, model: Path, data: Mapping[str, Path], seed: int, engine: Piece) -> Path:
    """Write the recipe of the run, as a user would write it; of the engine only if it is not the built-in one."""
    text = settings.RECIPE.format(
        model=model,
        questions=data["questions"],
        held_out=data["held_out"],
        seed=seed,
        workers=task.workers,
        task=task.recipe,
        train=task.train,
        steps=task.steps,
        prompts=task.prompts,
        max_tokens=task.max_tokens,
        lr=task.lr,
        rows=task.rows,
        samples=task.samples,
        checkpoint=task.steps // 2,
    )
    if is_separate(engine):
        text = text.replace("\n[data]", f"engine = {to_toml(engine.model_dump())}\n\n[data]", 1)
    write_text_atomically(path, text)
    return path


def conclude(run: Path, warm: Path, questions: Path, display: Display) -> None:
    """Print the accuracy before and after, three problems with both answers, and commands to try next."""
    summary = json.loads((run / "summary.json").read_text())
    before, after = summary["before"], summary["after"]
    table = Table("held-out questions right", "before", "after", title=f"{summary['steps']} steps of GRPO")
    for name, meaning in (("greedy", "greedy"), ("sampled", "sampled at temperature 1")):
        table.add_row(meaning, *(_share(numbers, name) for numbers in (before, after)))
    display.console.print(table)

    trained = find_model(str(run))
    assert trained.recipe
    asked = questions_from(str(questions), limit=ANSWERED)
    answers = [_answers(model, asked, trained.recipe) for model in (str(warm), trained.model)]
    answered = sorted(zip(asked, *answers, strict=True), key=lambda each: each[1].right is True)  # first the wrong ones
    table = Table("question", "sampled before", "sampled after")
    for question, *both in answered[:SHOWN]:
        table.add_row(*map(escape, (str(question.text), *map(str, both))))
    display.console.print(table)
    display.say(f"the run is in {run}; training took {summary['seconds']:.0f} s. Try next:")
    for command in ("chat", "eval", "doctor"):
        display.say(f"  {_program()} {command} {run}")


def _check(command: list[str]) -> None:
    """Raise `UserError` with every mistake in the recipe of a run, before time is spent on fine-tuning."""
    report = check(recipe_of(command), probe=probe_machine)
    if report.errors:
        raise UserError(report.errors)


def _program() -> str:
    """Return how to call `outdo` here: by its path if it is not found by its name."""
    program = Path(sys.argv[0])
    return "outdo" if program.name != "outdo" or shutil.which("outdo") else os.path.relpath(program)


def _answers(model: str, questions: Sequence[Question], recipe: Recipe) -> list[Shown]:
    """Sample one answer to each question, with the same random numbers for every model."""
    policy = Policy.load(model, device="cpu")
    how = answering("quickstart", recipe, k=1, temperature=1.0, max_tokens=None, template=None)
    reward = load_reward([{**spec, "weight": weight} for spec, weight in recipe.reward_functions])
    engine = open_engine(named_engine(None), policy)
    try:
        environment = open_environment(how.environment, policy, reward, system=how.system)
        prompts = how.prompts(questions, policy)
        groups = environment.rollouts(engine, prompts, 1, how.sampling, step=0, purpose="shown")
        rollouts = [group.rollouts[0] for group in groups]
        return [Shown(text=engine.decode(each.token_ids), right=each.right) for each in rollouts]
    finally:
        engine.close()
        reward.close()


def _share(numbers: Mapping[str, float], name: str) -> str:
    return f"{numbers[name]:.1%} ({numbers[f'{name}_low']:.1%} to {numbers[f'{name}_high']:.1%})"


def _free(folder: Path) -> Path:
    """Return the first of `run-1`, `run-2`, ... that does not exist."""
    return next(run for number in itertools.count(1) if not (run := folder / f"run-{number}").exists())
