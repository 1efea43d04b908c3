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
from pathlib import Path

import torch
from rich.table import Table

from outdo.cli.quickstart import settings
from outdo.cli.quickstart.model import build
from outdo.cli.quickstart.task import demonstrations, held_out, problems, rows
from outdo.cli.train import TrainArguments, run_train
from outdo.config.engines import is_separate
from outdo.config.messages import to_toml
from outdo.config.recipe import Piece
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import questions_from
from outdo.data.sft_examples import encode_examples, read_examples
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.policy import Policy
from outdo.rewards.exact import exact
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.storage.atomic import write_text_atomically
from outdo.trainer.display import Display
from outdo.trainer.engines import named_engine, open_engine
from outdo.trainer.find_model import find_model
from outdo.trainer.sft import sft
from outdo.types import Prompt, Request
from outdo.utils.rng import Stream

LONGEST = 64  # tokens: prompt and answer fit into it
ANSWERED, SHOWN = 32, 3  # problems that both models answer at the end, and those of them that are shown


def run_quickstart(
    folder: Path, *, seed: int, display: Display, engine: str | None = None, overrides: Sequence[str] = ()
) -> int:
    """Build and fine-tune a model (once per seed), train it by GRPO, and show the results; return the exit status.

    `overrides` are settings of the run by GRPO, in addition to those of its recipe.
    """
    sampler = named_engine(engine)
    torch.set_num_threads(1)
    data = write_data(folder / f"seed-{seed}", seed)
    warm = warm_start(folder / f"seed-{seed}" / "warm", data["demonstrations"], seed, display)
    run = _free(folder / f"seed-{seed}")
    recipe = write_recipe(run.with_suffix(".toml"), warm, data, seed, sampler)
    command = [str(recipe), f"run={run}", *overrides]
    display.say(f"training by {recipe}, as `outdo train {shlex.join(command)}` does")
    status = run_train(command, display, TrainArguments())
    if status == 0:
        conclude(run, warm, data["held_out"], display)
    return status


def write_data(folder: Path, seed: int) -> dict[str, Path]:
    """Write the task as data files: worked examples, questions to train on, and held-out questions."""
    test = held_out()
    train = problems(settings.QUESTIONS, seed, exclude=test)
    files = {
        "demonstrations": demonstrations(train, seed, careless=settings.CARELESS),
        "questions": rows(train),
        "held_out": rows(test),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = "".join(json.dumps(row) + "\n" for row in content)
        write_text_atomically(folder / f"{name}.jsonl", text)
    return {name: folder / f"{name}.jsonl" for name in files}


def warm_start(folder: Path, data: Path, seed: int, display: Display) -> Path:
    """Return the model folder after supervised fine-tuning; make it if it is missing."""
    if folder.exists():
        display.say(f"the fine-tuned model in {folder} is used again")
        return folder
    careless = f"{settings.CARELESS:.0%} of the carries are forgotten"
    display.say(f"building a model and fine-tuning it on additions in which {careless}")
    unfinished = build(folder.with_name("new"), seed)
    with WorkerPool(settings.WORKERS - 1) as pool:
        policy = Policy.load(unfinished, device="cpu", optimiser=settings.WARM_START, pool=pool)
        pairs, _ = read_examples(str(data))
        prompts = Prompts(encode_examples(pairs, policy.tokenizer), per_step=settings.WARM_START_PAIRS, seed=seed)
        steps = settings.WARM_START_STEPS
        for step in display.track(sft(policy, prompts, steps=steps), total=steps, what="fine-tuning"):
            if step.index % 50 == 0 and not display.live:
                display.say(f"fine-tuning {step.index}/{steps}  log-likelihood of a token {step.likelihood:.3f}")
    policy.save(unfinished)
    return unfinished.rename(folder)


def write_recipe(path: Path, model: Path, data: Mapping[str, Path], seed: int, engine: Piece) -> Path:
    """Write the recipe of the run, as a user would write it; of the engine only if it is not the built-in one."""
    text = settings.RECIPE.format(
        model=model, questions=data["questions"], held_out=data["held_out"], seed=seed, workers=settings.WORKERS
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

    policies = [Policy.load(warm, device="cpu"), Policy.load(find_model(str(run)).model, device="cpu")]
    prompts = tokenise(questions_from(str(questions), limit=ANSWERED), policies[0].tokenizer, max_tokens=LONGEST)
    answered = list(zip(prompts, *(_answers(policy, prompts) for policy in policies), strict=True))
    answered.sort(key=lambda each: _is_right(each[0], each[1]))  # first those that were wrong before
    table = Table("question", "sampled before", "sampled after")
    for prompt, *answers in answered[:SHOWN]:
        table.add_row(str(prompt.text), *(_marked(prompt, answer) for answer in answers))
    display.console.print(table)
    display.say(f"the run is in {run}; training took {summary['seconds']:.0f} s. Try next:")
    for command in ("chat", "eval", "doctor"):
        display.say(f"  {_program()} {command} {run}")


def _program() -> str:
    """Return how to call `outdo` here: by its path if it is not found by its name."""
    program = Path(sys.argv[0])
    return "outdo" if program.name != "outdo" or shutil.which("outdo") else os.path.relpath(program)


def _answers(policy: Policy, prompts: Sequence[Prompt]) -> list[str]:
    """Sample one answer to each prompt, with the same random numbers for every policy."""
    engine = open_engine(named_engine(None), policy)
    requests = [
        Request(token_ids=prompt.token_ids, stream=Stream("shown", 0, prompt.id, 0), max_tokens=LONGEST)
        for prompt in prompts
    ]
    return [engine.decode(each.token_ids) for each in engine.generate(requests, SamplingParams())]


def _is_right(prompt: Prompt, answer: str) -> bool:
    return exact(answer, prompt.answer)


def _marked(prompt: Prompt, answer: str) -> str:
    return f"{answer} {'right' if _is_right(prompt, answer) else 'wrong'}"


def _share(numbers: Mapping[str, float], name: str) -> str:
    return f"{numbers[name]:.1%} ({numbers[f'{name}_low']:.1%} to {numbers[f'{name}_high']:.1%})"


def _free(folder: Path) -> Path:
    """Return the first of `run-1`, `run-2`, ... that does not exist."""
    return next(run for number in itertools.count(1) if not (run := folder / f"run-{number}").exists())
