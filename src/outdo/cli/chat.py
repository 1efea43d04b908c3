"""`outdo chat`: a line in, an answer out."""

from collections.abc import Iterator
from itertools import count

from rich.console import Console

from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.trainer.find_model import find_model
from outdo.types import Request
from outdo.utils.rng import Stream
from outdo.utils.text import escape_control

MAX_TOKENS = 256


def run_chat(
    model: str, console: Console, *, temperature: float, max_tokens: int | None, seed: int, device: str
) -> None:
    """Answer lines until an empty one. A model with a chat template remembers what was said, others do not."""
    source = find_model(model)
    policy = Policy.load(source.model, device=device)
    data = source.recipe.data if source.recipe else None
    template, system = (data.template, data.system) if data else (None, None)
    limit = max_tokens or (source.recipe.sampling.max_tokens if source.recipe else MAX_TOKENS)
    sampling = SamplingParams(temperature=temperature, max_tokens=limit)
    engine = BuiltinEngine(policy, seed=seed)
    remembers = policy.tokenizer.chat_template is not None and template is None
    messages: list[dict[str, str]] = []
    _say(console, f"{source.name}; an empty line ends it")
    for turn, line in zip(count(1), _lines(console), strict=False):
        messages.append({"role": "user", "content": line})
        prompt = list(messages) if remembers else line
        ids = encode_prompt(policy.tokenizer, prompt, template=template, system=system)
        if policy.context is not None and len(ids) >= policy.context:
            _say(console, f"that is longer than the model's context of {policy.context} tokens; starting anew")
            messages.clear()
            continue
        request = Request(token_ids=tuple(ids), stream=Stream("chat", turn, "", 0), max_tokens=limit)
        answer = engine.decode(engine.generate([request], sampling)[0].token_ids)
        messages.append({"role": "assistant", "content": answer})
        for each in answer.splitlines() or [""]:
            _say(console, escape_control(each))


def _lines(console: Console) -> Iterator[str]:
    """What is typed, up to an empty line or the end of the input."""
    while True:
        try:
            line = console.input("> ", markup=False)
        except EOFError:
            return
        if not line.strip():
            return
        yield line


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
