"""`outdo chat`: talk to a model, line by line."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.answering import answering
from outdo.cli.arguments import Device, Engine, MaxTokens, RunOrModel
from outdo.cli.output import print_line
from outdo.config.recipe import Recipe
from outdo.models.completion_text import completion_text, rendered_text
from outdo.models.device import make_deterministic
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.run.assemble.engines import named_engine, open_engine
from outdo.run.export.find_model import find_model
from outdo.run.progress_bar import progress
from outdo.types import Request
from outdo.utils.errors import UserError
from outdo.utils.rng import Stream
from outdo.utils.text import escape_control
from outdo.utils.thinking import prefill_of


def command(
    *,
    model: RunOrModel,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0: greedy; by default that of the run, and 1 for a model")
    ] = None,
    max_tokens: MaxTokens = None,
    seed: Annotated[int, typer.Option(help="random seed of the sampling")] = 0,
    device: Device = "auto",
    engine: Engine = None,
) -> None:
    """Answer each line until an empty one. A model with a chat template remembers the conversation, others do not."""
    console, source = Console(), find_model(model)
    piece = named_engine(engine, source.recipe)
    if temperature is None:
        temperature = source.recipe.sampling.temperature if source.recipe else 1.0
    _check_inputs(source.recipe)
    how = answering("chat", source.recipe, k=1, temperature=temperature, max_tokens=max_tokens, template=None)
    with progress(f"loading {source.name}"):
        policy = Policy.load(source.model, device=device, stop_token_ids=how.sampling.stop_token_ids)
        make_deterministic(policy.device)
    date = how.set_template(policy.tokenizer)
    sampler = open_engine(piece, policy, seed=seed)
    remembers = policy.tokenizer.chat_template is not None and how.template is None
    messages: list[dict[str, str]] = []
    dated = f"; date in the chat template: {date}" * (date is not None)
    print_line(console, f"{source.name}; an empty line ends the conversation{dated}")
    if how.environment is not None:
        print_line(console, "note: the environment of the run, with its tools, takes no part in a chat")
    for turn, line in zip(count(1), _lines(console), strict=False):
        messages.append({"role": "user", "content": line})
        prompt = list(messages) if remembers else line
        ids = encode_prompt(policy.tokenizer, prompt, template=how.template, **how.in_prompts)
        if policy.context is not None and len(ids) >= policy.context:
            print_line(
                console,
                f"the conversation is longer than the model's context of {policy.context} tokens; it starts again",
            )
            messages.clear()
            continue
        longest = how.sampling.max_tokens
        request = Request(token_ids=tuple(ids), stream=Stream("chat", turn, "", 0), max_tokens=longest)
        completion = completion_text(policy.tokenizer, sampler.generate([request], how.sampling)[0].token_ids)
        prefill = prefill_of(rendered_text(policy.tokenizer, ids))
        messages.append({"role": "assistant", "content": prefill + completion})
        for text in completion.splitlines() or [""]:
            print_line(console, escape_control(text))


def _check_inputs(recipe: Recipe | None) -> None:
    """Raise `UserError` if the model reads of a row what no line has."""
    if recipe is not None and recipe.data.inputs is not None:
        made_by = f"what data.inputs makes of a row ({recipe.data.inputs.name})"
        raise UserError([f"chat: this model was trained with {made_by}, and a line that is typed has no row"])


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
