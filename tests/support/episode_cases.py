"""Chat templates with tools, the functions that are called in them, and engines that write calls."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Player
from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import ToolBox
from outdo.testing import END, byte_bpe_tokenizer
from outdo.types import Prompt

TOOLS = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }}({{ tool.function.parameters.properties | "
    "join(', ') }}) {% endfor %}<|end|>\n{% endif %}"
)
CALLS = (
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>\n"
)
ASSISTANT = "{% if message.role == 'assistant' %}<|assistant|>{{ message.content or '' }}" + CALLS
RESULT = (
    "{% elif message.role == 'tool' %}{% if loop.first or loop.previtem.role != 'tool' %}<|user|>{% endif %}"
    "<tool_response>{{ message.content }}</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|end|>\n{% endif %}"
)
OTHER = "{% else %}<|{{ message.role }}|>{{ message.content }}<|end|>\n{% endif %}{% endfor %}"
OPENING = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
LOOP = "{% for message in messages %}"
TEMPLATE = TOOLS + LOOP + ASSISTANT + RESULT + OTHER + OPENING
"""A template as Qwen's: results of calls in a row are one user's turn, and a newline follows the end of each turn."""


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def wait_for(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "done"


def fail(reason: str) -> str:
    """Raise an exception.

    Args:
        reason: Its message.
    """
    raise RuntimeError(reason)


def call(name: str, **arguments: Any) -> str:
    """The text of a call."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def tool_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a chat template that has tools."""
    tokenizer = byte_bpe_tokenizer([])
    tokenizer.chat_template = template
    return tokenizer


def tool_template(
    template: str = TEMPLATE, tools: Sequence[Callable[..., Any]] = (add,), tokenizer: Any = None
) -> Template:
    """The chat template with tools in every prompt."""
    tokenizer = tokenizer or tool_tokenizer(template)
    return Template(tokenizer, end_ids={tokenizer.convert_tokens_to_ids(END)}, tools=ToolBox(tools).schemas)


def dialogue(
    episode: Callable[[], Any] = lambda: None,
    *,
    tools: Sequence[Callable[..., Any]] = (),
    tokenizer: Any = None,
    timeout: float = 30.0,
    **options: Any,
) -> Dialogue:
    """An environment whose episodes are made by `episode`."""
    box = ToolBox(tools)
    template = tool_template(tools=tools, tokenizer=tokenizer)
    return Dialogue(lambda: Player(episode(), box, timeout=timeout), template, **options)


def question(template: Template, text: str = "What is 2 + 3?", name: str = "q") -> Prompt:
    """A prompt, rendered with the tools of the template; its answer is 5."""
    token_ids = template.prompt([{"role": "user", "content": text}])
    return Prompt(id=name, text=text, token_ids=tuple(token_ids), answer="5")
