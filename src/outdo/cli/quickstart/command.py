"""`outdo quickstart`: from nothing to a model that has improved itself, and what to type next.

Nothing here is special to the quickstart: it builds a model folder, fine-tunes it as `outdo sft` does, writes a recipe
and trains by it as `outdo train` does.
"""

import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.table import Table

from outdo.cli.quickstart import settings
from outdo.cli.quickstart.model import build
from outdo.cli.quickstart.task import demonstrations, held_out, problems, rows
from outdo.config.file import load
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import questions_from
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.policy import Policy
from outdo.rewards.exact import exact
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.storage.run_folder import write_text_atomically
from outdo.trainer.display import Display
from outdo.trainer.find_model import find_model
from outdo.trainer.run import start
from outdo.trainer.sft import sft
from outdo.types import Prompt, Request
from outdo.utils.rng import Stream

LONGEST = 64  # tokens: prompt and answer fit into it
LOOKED_AT, SHOWN = 32, 3  # problems answered before and after for the table, and shown in it


def quickstart(folder: Path, *, seed: int, display: Display) -> int:
    """Build and warm-start a model (once per seed), train it by GRPO, and show before and after. The exit status."""
    torch.set_num_threads(1)
    data = write_data(folder / f"seed-{seed}", seed)
    warm = warm_start(folder / f"seed-{seed}" / "warm", data["demonstrations"], seed, display)
    run = _free(folder / f"seed-{seed}")
    recipe = write_recipe(run.with_suffix(".toml"), warm, data, seed)
    display.say(f"training by {recipe}: the same as `outdo train {recipe} run={run}`")
    status = start(load(recipe, [f"run={run}"]), run, display)
    if status == 0:
        conclude(run, warm, data["held_out"], display)
    return status


def write_data(folder: Path, seed: int) -> dict[str, Path]:
    """The task as data files: worked examples to learn from, questions to train on, and questions held out."""
    judged = held_out()
    learnt = problems(settings.QUESTIONS, seed, exclude=judged)
    files = {
        "demonstrations": demonstrations(learnt, seed, careless=settings.CARELESS),
        "questions": rows(learnt),
        "held_out": rows(judged),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = "".join(json.dumps(row) + "\n" for row in content)
        write_text_atomically(folder / f"{name}.jsonl", text)
    return {name: folder / f"{name}.jsonl" for name in files}


def warm_start(folder: Path, data: Path, seed: int, display: Display) -> Path:
    """The model folder after supervised fine-tuning; made if it is not there yet."""
    if folder.exists():
        display.say(f"the warm-started model in {folder} is used again")
        return folder
    display.say(f"building a model, and teaching it to add; its teacher forgets {settings.CARELESS:.0%} of the carries")
    unfinished = build(folder.with_name("new"), seed)
    with WorkerPool(settings.WORKERS - 1) as pool:
        policy = Policy.load(unfinished, device="cpu", optimiser=settings.WARM_START, pool=pool)
        pairs = tokenise(questions_from(str(data), answer="completion"), policy.tokenizer, max_tokens=LONGEST)
        prompts = Prompts(pairs, per_step=settings.WARM_START_PAIRS, seed=seed)
        steps = settings.WARM_START_STEPS
        for step in display.track(sft(policy, prompts, steps=steps), total=steps, what="warm start"):
            if step.index % 50 == 0 and not display.live:
                display.say(f"warm start {step.index}/{steps}  log-likelihood of a token {step.likelihood:.3f}")
    policy.save(unfinished)
    return unfinished.rename(folder)


def write_recipe(path: Path, model: Path, data: Mapping[str, Path], seed: int) -> Path:
    """The recipe of the run, as a user would write it."""
    text = settings.RECIPE.format(
        model=model, questions=data["questions"], held_out=data["held_out"], seed=seed, workers=settings.WORKERS
    )
    write_text_atomically(path, text)
    return path


def conclude(run: Path, warm: Path, questions: Path, display: Display) -> None:
    """The table of before and after, three problems with both answers, and the next commands."""
    summary = json.loads((run / "summary.json").read_text())
    before, after = summary["before"], summary["after"]
    table = Table("held-out questions right", "before", "after", title=f"{summary['steps']} steps of GRPO")
    for name, meaning in (("greedy", "likeliest answer"), ("sampled", "sampled at temperature 1")):
        table.add_row(meaning, *(_share(numbers, name) for numbers in (before, after)))
    display.console.print(table)

    policies = [Policy.load(warm, device="cpu"), Policy.load(find_model(str(run)).model, device="cpu")]
    prompts = tokenise(questions_from(str(questions), limit=LOOKED_AT), policies[0].tokenizer, max_tokens=LONGEST)
    told = list(zip(prompts, *(_answers(policy, prompts) for policy in policies), strict=True))
    told.sort(key=lambda each: _is_right(each[0], each[1]))  # those first that were wrong before
    table = Table("question", "sampled before", "sampled after")
    for prompt, *answers in told[:SHOWN]:
        table.add_row(str(prompt.text), *(_marked(prompt, answer) for answer in answers))
    display.console.print(table)
    display.say(f"all of it is in {run}, in {summary['seconds']:.0f} s of training. Next:")
    for command in ("chat", "eval", "doctor"):
        display.say(f"  {_typed()} {command} {run}")


def _typed() -> str:
    """How to type `outdo` here: its path where it is not found by its name."""
    called = Path(sys.argv[0])
    return "outdo" if called.name != "outdo" or shutil.which("outdo") else os.path.relpath(called)


def _answers(policy: Policy, prompts: Sequence[Prompt]) -> list[str]:
    """One answer to each, sampled with the same random numbers for every policy."""
    engine = BuiltinEngine(policy)
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
    """The first of `run-1`, `run-2`, ... that is not there yet."""
    return next(run for number in itertools.count(1) if not (run := folder / f"run-{number}").exists())
