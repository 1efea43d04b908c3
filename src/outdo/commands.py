"""What `outdo eval`, `outdo chat` and `outdo sft` do, once their arguments are read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outdo.data import questions_from
from outdo.display import Display
from outdo.engines.base import SamplingParams
from outdo.engines.builtin import BuiltinEngine
from outdo.environments.question import Question
from outdo.errors import Mistakes
from outdo.evaluation import Evaluation, evaluate
from outdo.loading import encode_prompt
from outdo.optimiser import OptimiserSettings
from outdo.policy import Policy
from outdo.prompts import Prompts, tokenise
from outdo.rewards import load as load_reward
from outdo.rewards.budget import inert
from outdo.session import held_out_questions
from outdo.sft import sft
from outdo.source import Source, find
from outdo.types import Request, Stream

MAX_TOKENS = 256
SHARES = ("pass@", "maj@", "truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """What was asked of `outdo eval`; what is None comes from the run, or is a default."""

    data: str | None
    rewards: str | None
    k: int
    temperature: float | None
    max_tokens: int | None
    limit: int | None
    template: str | None
    seed: int
    device: str


def eval_command(models: Sequence[str], settings: EvalSettings, console: Console, *, as_json: bool) -> None:
    """Evaluate one model, or two side by side, and print the table or one JSON object."""
    sources = [find(model) for model in models]
    run = next((source for source in sources if source.recipe is not None), None)
    if settings.data is None and run is None:
        raise Mistakes(["eval: --data FILE is needed, for a model folder has no held-out questions of its own"])
    found = {source.name: _evaluated(source, run, settings) for source in sources}
    numbers = {name: evaluation.summary() for name, evaluation in found.items()}
    if as_json:
        console.file.write(json.dumps(next(iter(numbers.values())) if len(numbers) == 1 else numbers) + "\n")
        return
    table = Table("", *numbers)
    for row in next(iter(numbers.values())):
        table.add_row(row, *(_shown(row, each[row]) for each in numbers.values()))
    console.print(table)


def _evaluated(source: Source, run: Source | None, settings: EvalSettings) -> Evaluation:
    recipe = run.recipe if run else None
    sampling = SamplingParams(
        temperature=(0.0 if settings.k == 1 else 1.0) if settings.temperature is None else settings.temperature,
        max_tokens=settings.max_tokens or (recipe.sampling.max_tokens if recipe else MAX_TOKENS),
        stop=recipe.sampling.stop if recipe else (),
    )
    if sampling.temperature == 0 and settings.k > 1:
        raise Mistakes([f"eval: at temperature 0 the {settings.k} answers to a question are one; use --k 1"])
    template = settings.template or (recipe.data.template if recipe else None)
    if settings.data is not None:
        questions = questions_from(settings.data, limit=settings.limit)
    else:
        assert recipe is not None
        questions = held_out_questions(recipe)[: settings.limit]
    rewards: Any = settings.rewards or ([(r.name, r.weight) for r in recipe.rewards] if recipe else "last_number")
    reward = load_reward(rewards, **({"timeout": recipe.reward.timeout} if recipe else {}))
    policy = Policy.load(source.model, device=settings.device)
    longest = (policy.context or 10**9) - 1
    system = recipe.data.system if recipe else None
    prompts = tokenise(questions, policy.tokenizer, max_tokens=longest, template=template, system=system)
    try:
        return evaluate(BuiltinEngine(policy, seed=settings.seed), Question(reward), prompts, sampling, k=settings.k)
    finally:
        reward.close()


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(f"{each:.1%}" for each in value)
    return f"{value:.1%}" if name.startswith(SHARES) else f"{value:g}"


def chat_command(
    model: str, console: Console, *, temperature: float, max_tokens: int | None, seed: int, device: str
) -> None:
    """Answer lines until an empty one. A model with a chat template remembers what was said, others do not."""
    source = find(model)
    policy = Policy.load(source.model, device=device)
    data = source.recipe.data if source.recipe else None
    limit = max_tokens or (source.recipe.sampling.max_tokens if source.recipe else MAX_TOKENS)
    sampling = SamplingParams(temperature=temperature, max_tokens=limit)
    engine = BuiltinEngine(policy, seed=seed)
    remembers = policy.tokenizer.chat_template is not None and not (data and data.template)
    messages: list[dict[str, str]] = []
    console.print(f"{source.name}; an empty line ends it", markup=False, highlight=False)
    for turn in range(1, 10**9):
        try:
            line = console.input("> ", markup=False)
        except EOFError:
            return
        if not line.strip():
            return
        messages.append({"role": "user", "content": line})
        ids = encode_prompt(
            policy.tokenizer,
            list(messages) if remembers else line,
            template=data.template if data else None,
            system=data.system if data else None,
        )
        if policy.context is not None and len(ids) >= policy.context:
            console.print(f"that is longer than the model's context of {policy.context} tokens", highlight=False)
            messages.clear()
            continue
        request = Request(token_ids=tuple(ids), stream=Stream("chat", turn, "", 0), max_tokens=limit)
        answer = engine.decode(engine.generate([request], sampling)[0].token_ids)
        messages.append({"role": "assistant", "content": answer})
        console.print("\n".join(inert(part) for part in answer.splitlines()), markup=False, highlight=False)


def sft_command(
    model: str,
    data: str,
    out: Path,
    display: Display,
    *,
    steps: int,
    batch: int,
    optimiser: OptimiserSettings,
    seed: int,
    device: str,
    prompt: str | None = None,
    answer: str | None = None,
    template: str | None = None,
) -> None:
    """Fine-tune a model on the pairs of a file, and write it to a new folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Mistakes([f"{out}: there is something there already; choose a new folder"])
    pairs = questions_from(data, prompt=prompt, answer=answer)
    missing = [pair.id for pair in pairs if pair.answer is None]
    if missing:
        raise Mistakes([f"{data}: row {row} has no answer to learn" for row in missing[:20]])
    policy = Policy.load(model, device=device, optimiser=replace(optimiser, total=steps))
    prompts = tokenise(pairs, policy.tokenizer, max_tokens=(policy.context or 10**9) - 1, template=template)
    for step in sft(policy, Prompts(prompts, per_step=batch, seed=seed), steps=steps):
        if step.index % max(1, steps // 20) == 0 or step.index == steps:
            display.say(f"step {step.index}/{steps}  log-likelihood of a token {step.likelihood:.3f}")
    policy.save(out)
    display.say(f"the fine-tuned model is in {out}")
