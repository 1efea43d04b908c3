"""`outdo chat`: talk to a model, line by line."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.arguments import Device, Engine, MaxTokens, RunOrModel
from outdo.cli.output import print_line
from outdo.models.chat_options import keep_date
from outdo.models.completion_text import completion_text
from outdo.models.device import make_deterministic
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.build.engines import named_engine, open_engine
from outdo.run.export.find_model import find_model
from outdo.run.progress_bar import progress
from outdo.types import Request
from outdo.utils.rng import Stream
from outdo.utils.text import escape_control

MAX_TOKENS = 256


def command(
    *,
    model: RunOrModel,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy")] = 1.0,
    max_tokens: MaxTokens = None,
    seed: Annotated[int, typer.Option(help="random seed of the sampling")] = 0,
    device: Device = "auto",
    engine: Engine = None,
) -> None:
    """Answer each line until an empty one. A model with a chat template remembers the conversation, others do not."""
    console, source = Console(), find_model(model)
    piece = named_engine(engine, source.recipe)
    with progress(f"loading {source.name}"):
        policy = Policy.load(source.model, device=device)
        make_deterministic(policy.device)
    data = source.recipe.data if source.recipe else None
    how = {"template": data.prompt_template, **data.model_dump(include={"system", "special_tokens"})} if data else {}
    limit = max_tokens or (source.recipe.sampling.max_tokens if source.recipe else MAX_TOKENS)
    sampling = SamplingParams(temperature=temperature, max_tokens=limit)
    sampler = open_engine(piece, policy, seed=seed)
    remembers = policy.tokenizer.chat_template is not None and how.get("template") is None
    messages: list[dict[str, str]] = []
    date = keep_date(policy.tokenizer)
    dated = f"; date in the chat template: {date}" * (date is not None)
    print_line(console, f"{source.name}; an empty line ends the conversation{dated}")
    for turn, line in zip(count(1), _lines(console), strict=False):
        messages.append({"role": "user", "content": line})
        prompt = list(messages) if remembers else line
        ids = encode_prompt(policy.tokenizer, prompt, **how)
        if policy.context is not None and len(ids) >= policy.context:
            print_line(
                console,
                f"the conversation is longer than the model's context of {policy.context} tokens; it starts again",
            )
            messages.clear()
            continue
        request = Request(token_ids=tuple(ids), stream=Stream("chat", turn, "", 0), max_tokens=limit)
        completion = completion_text(policy.tokenizer, sampler.generate([request], sampling)[0].token_ids)
        messages.append({"role": "assistant", "content": completion})
        for text in completion.splitlines() or [""]:
            print_line(console, escape_control(text))


def _lines(console: Console) -> Iterator[str]:
    """Yield the lines that are typed, up to an empty line or the end of the input."""
    while True:
        try:
            line = console.input("> ", markup=False)
        except EOFError:
            return
        if not line.strip():
            return
        yield line
