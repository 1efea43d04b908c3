"""`outdo generate`: the answers of a model to a file of prompts, as JSONL."""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outdo.cli.answering import answering
from outdo.cli.arguments import (
    Device,
    Engine,
    Limit,
    MaxTokens,
    RunOrModel,
    Temperature,
    Template,
    Threads,
    not_writable,
)
from outdo.cli.output import print_line
from outdo.cli.template_option import say_template_notes
from outdo.config.environments import row_environments
from outdo.data.questions import questions_from
from outdo.models.completion_text import completion_text, rendered_text
from outdo.models.device import make_deterministic, set_threads
from outdo.models.policy import Policy
from outdo.rollouts.engines import base
from outdo.run.assemble.engines import completions_of, named_engine, open_engine
from outdo.run.export.find_model import find_model
from outdo.run.progress_bar import progress
from outdo.types import Completion, Prompt, Request
from outdo.utils.atomic import write_text_atomically
from outdo.utils.errors import UserError
from outdo.utils.rng import Stream
from outdo.utils.text import counted
from outdo.utils.thinking import prefill_of


def command(
    *,
    model: RunOrModel,
    data: Annotated[str, typer.Option(help="prompts, in the formats of data.path")],
    out: Annotated[Path, typer.Option(help="the .jsonl file to write, one line for each answer")],
    k: Annotated[int, typer.Option(min=1, help="answers per prompt")] = 1,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    limit: Limit = None,
    template: Template = None,
    seed: Annotated[int, typer.Option(help="random seed of the sampling")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    engine: Engine = None,
) -> None:
    """Answer every prompt of a file k times, and write a line for each answer. An existing file is replaced."""
    if mistake := not_writable(out):
        raise UserError([mistake])
    source = find_model(model)
    how = answering("generate", source.recipe, k=k, temperature=temperature, max_tokens=max_tokens, template=template)
    piece = named_engine(engine, source.recipe)
    environments = row_environments(how.environment)
    environment_of = environments.name_in if environments else None
    questions = questions_from(data, limit=limit, environment_of=environment_of)
    set_threads(threads)
    say_template_notes(template, [source], dated=how.dated)
    with progress(f"loading {source.name}"):
        policy = Policy.load(source.model, device=device, stop_token_ids=how.sampling.stop_token_ids)
        make_deterministic(policy.device)
    sampler = open_engine(piece, policy, seed=seed)
    with progress("tokenising"):
        prompts = how.prompts(questions, policy)
    sampler.check_inputs(prompts)
    asked = list(product(prompts, range(k)))  # the answers to a prompt are neighbours
    requests = [
        Request(
            token_ids=prompt.token_ids,
            stream=Stream("generate", 0, prompt.id, sample),
            max_tokens=how.sampling.max_tokens,
            inputs=prompt.inputs,
        )
        for prompt, sample in asked
    ]
    try:
        with progress("answering", completions_of(sampler)):
            completions = sampler.generate(requests, how.sampling)
    finally:
        sampler.close()
    lines = [json.dumps(line, ensure_ascii=False, default=str) for line in _lines(asked, completions, sampler)]
    write_text_atomically(out, "".join(f"{line}\n" for line in lines))
    print_line(Console(), f"{counted(len(lines), 'answer')} of {source.name}: {out}")


def _lines(
    asked: Sequence[tuple[Prompt, int]], completions: Sequence[Completion], engine: base.Engine
) -> Iterator[dict[str, Any]]:
    for (prompt, sample), completion in zip(asked, completions, strict=True):
        rendered = rendered_text(engine.tokenizer, prompt.token_ids)
        yield {
            "id": prompt.id,
            "sample": sample,
            "prompt": prompt.text,
            **({} if prompt.answer is None else {"answer": prompt.answer}),
            **({"prefill": prefill} if (prefill := prefill_of(rendered, prompt.text)) else {}),
            "completion": completion_text(engine.tokenizer, completion.token_ids),
            "finish_reason": str(completion.finish_reason),
            "tokens": len(completion.token_ids),
        }
