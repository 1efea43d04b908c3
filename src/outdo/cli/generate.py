"""`outdo generate`: the answers of a model to a file of prompts, as JSONL."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from outdo.cli.answering import answering
from outdo.cli.arguments import not_writable
from outdo.cli.output import print_line
from outdo.config.environments import row_environments
from outdo.data.questions import questions_from
from outdo.models.device import make_deterministic
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine
from outdo.storage.atomic import write_text_atomically
from outdo.trainer.engines import answers_of, named_engine, open_engine
from outdo.trainer.find_model import find_model
from outdo.trainer.progress_bar import progress
from outdo.types import Completion, Prompt, Request
from outdo.utils.errors import UserError
from outdo.utils.rng import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateArguments:
    """The arguments of `outdo generate`; None is the run's own setting, or the default where there is no run."""

    data: str
    out: Path
    k: int
    temperature: float | None
    max_tokens: int | None
    limit: int | None
    template: str | None
    seed: int
    device: str
    engine: str | None = None


def run_generate(model: str, arguments: GenerateArguments, console: Console) -> None:
    """Answer every prompt of a file k times, and write a line for each answer. An existing file is replaced."""
    if mistake := not_writable(arguments.out):
        raise UserError([mistake])
    source = find_model(model)
    how = answering(
        "generate",
        source.recipe,
        k=arguments.k,
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
        template=arguments.template,
    )
    piece = named_engine(arguments.engine, source.recipe)
    environments = row_environments(how.environment)
    questions = questions_from(arguments.data, limit=arguments.limit, environments=environments)
    with progress(f"loading {source.name}"):
        policy = Policy.load(source.model, device=arguments.device, stop_token_ids=how.sampling.stop_token_ids)
        make_deterministic(policy.device)
    engine = open_engine(piece, policy, seed=arguments.seed)
    with progress("tokenising"):
        prompts = how.prompts(questions, policy)
    asked = list(product(prompts, range(arguments.k)))  # the answers to a prompt are neighbours
    requests = [
        Request(
            token_ids=prompt.token_ids,
            stream=Stream("generate", 0, prompt.id, sample),
            max_tokens=how.sampling.max_tokens,
        )
        for prompt, sample in asked
    ]
    try:
        with progress("answering", answers_of(engine)):
            completions = engine.generate(requests, how.sampling)
    finally:
        engine.close()
    lines = [json.dumps(line, ensure_ascii=False, default=str) for line in _lines(asked, completions, engine)]
    write_text_atomically(arguments.out, "".join(f"{line}\n" for line in lines))
    print_line(console, f"{len(lines):,} answers of {source.name}: {arguments.out}")


def _lines(
    asked: Sequence[tuple[Prompt, int]], completions: Sequence[Completion], engine: Engine
) -> Iterator[dict[str, Any]]:
    for (prompt, sample), completion in zip(asked, completions, strict=True):
        yield {
            "id": prompt.id,
            "sample": sample,
            "prompt": prompt.text,
            **({} if prompt.answer is None else {"answer": prompt.answer}),
            "completion": engine.decode(completion.token_ids),
            "finish_reason": str(completion.finish_reason),
            "tokens": len(completion.token_ids),
        }
