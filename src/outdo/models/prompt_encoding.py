"""Encode prompts as token ids: plain text, a template, or the model's own chat template."""

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from transformers import PreTrainedTokenizerBase

from outdo.models.special_tokens import Hidden, encode, hide
from outdo.models.written_messages import left_out
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import first_line

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}, and what the chat template reads besides
Tool = Mapping[str, Any]  # the JSON schema of a function

ROLE = re.compile(r"[\w .-]+")

WITHOUT_TOOL_COLUMN = "use a model with such a template, or remove the column tools"
WITHOUT_ENVIRONMENT_TOOLS = (
    "use a model with such a template, or an environment of your own that explains its calls in the prompt and reads "
    "them from the answers (docs/environments.md), which `outdo sft` on such episodes teaches first (docs/sft.md)"
)
"""What to do where the prompt has no place for tools, by what brings them."""

LONGEST_RENDERING = 10.0
"""Seconds of CPU time. A chat template takes milliseconds, unless it has no end."""


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Message],
    *,
    system: str | None = None,
    template: str | None = None,
    tools: Sequence[Tool] = (),
    without_tools: str = WITHOUT_TOOL_COLUMN,
    special_tokens: bool = False,
    whole: bool = True,
    where: str = "the prompt",
) -> list[int]:
    """Return the token ids of a prompt: exactly what the policy reads; the prompt is never tokenised again.

    - Messages go through the tokenizer's chat template once, with the opening of the assistant's turn added. A last
      message of the assistant is the beginning of its answer, which stays open.
    - A string becomes one user message if the tokenizer has a chat template; otherwise it is tokenised as it is.
    - `template`, for base models, is text with `{prompt}` in it (and `{system}`, if there is one). It replaces any chat
      template, and needs prompts that are strings.
    - `system` becomes the first message, unless the prompt has a system message of its own.
    - `tools` are given to the chat template, which writes their schemas into the prompt; `without_tools` ends the error
      if it does not.
    - Messages, and their calls of tools, have to be in the text that the chat template writes, if it is to be `whole`.

    Special tokens are added once. A chat template writes its own, so no others are added to its text. Other text gets
    those that the tokenizer always adds (a BOS, for example) and that do not begin it already, but no EOS at the end,
    because the answer follows.
    Special tokens in the prompt and in the tools are ordinary text, unless `special_tokens` is true; those of the chat
    template, of `template` and of `system` are special tokens.

    `where` names the prompt in errors ("train.jsonl, row 3"). Raises `ModelError` if the chat template refuses the
    prompt, leaves out a part of it or has no place for the tools, if there is none and one is needed, if there is no
    token, or if the tokenizer cannot encode a special token as ordinary text; `UserError` if `template` lacks a field.
    """
    hidden: Hidden = {}
    if not special_tokens:
        (prompt, tools), hidden = hide(tokenizer, (prompt, tools), beside=(system, template))
    if template is not None or (isinstance(prompt, str) and not tokenizer.chat_template):
        if tools:
            raise ModelError(f"{where} has tools, and only a chat template has a place for them; {without_tools}")
        ids = _encode_text(tokenizer, _fill_template(prompt, system, template, where), hidden, where)
    else:
        messages = with_system(prompt, system)
        check_tools(tokenizer, messages, tools, where, without_tools)
        text = render_prompt(tokenizer, messages, tools, where)
        if whole:
            check_written(text, messages, partial(render_prompt, tokenizer, tools=tools, where=where), where)
        ids = encode(tokenizer, text, hidden, where=where)
    if not ids:
        raise ModelError(f"{where} has no tokens, and a model cannot answer nothing")
    return ids


def with_system(prompt: str | Sequence[Message], system: str | None) -> list[dict[str, Any]]:
    """Return a prompt as messages, after the `system` message unless it has one of its own."""
    messages = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(message) for message in prompt]
    )
    if system is not None and (not messages or messages[0].get("role") != "system"):
        messages = [{"role": "system", "content": system}, *messages]
    return messages


def _fill_template(prompt: str | Sequence[Message], system: str | None, template: str | None, where: str) -> str:
    if not isinstance(prompt, str):
        raise UserError([f"{where} is a list of messages, and a prompt template takes text; leave the template out"])
    values = {"{prompt}": prompt} | ({} if system is None else {"{system}": system})
    text = "{prompt}" if template is None else template
    if template is None and system is not None:
        needs = "a system message needs a template with {system} and {prompt}"
        raise UserError([f"the model has no chat template, and {needs}: set data.template, or leave data.system out"])
    if missing := [field for field in values if field not in text]:
        raise UserError([f"the prompt template has no place for {' and '.join(missing)}"])
    before, _, after = text.partition("{prompt}")
    for field, value in values.items():
        if field != "{prompt}":
            before, after = before.replace(field, value), after.replace(field, value)
    return before + prompt + after.replace("{prompt}", prompt)


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str, *, special_tokens: bool = False) -> list[int]:
    """Return the token ids of a text with the special tokens that the tokenizer always adds, but no EOS at the end.

    Special tokens in the text are ordinary text, unless `special_tokens` is true. Raises `ModelError` if the tokenizer
    cannot encode them so.
    """
    return _encode_text(tokenizer, *((text, {}) if special_tokens else hide(tokenizer, text)))


def encode_continuation(tokenizer: PreTrainedTokenizerBase, text: str, *, special_tokens: bool = False) -> list[int]:
    """Return the token ids of a text that follows other tokens; the same as `encode_text`, but nothing is added."""
    return encode(tokenizer, *((text, {}) if special_tokens else hide(tokenizer, text)))


def _encode_text(tokenizer: PreTrainedTokenizerBase, text: str, hidden: Hidden, where: str = "the text") -> list[int]:
    """Encode with the tokenizer's own special tokens, each once, without an EOS that it adds at the end."""
    ids: list[int] = tokenizer.encode(text)
    plain: list[int] = tokenizer.encode(text, add_special_tokens=False)
    eos_added = ids[-1:] == [tokenizer.eos_token_id] and ids[-len(plain) :] != plain
    ids = ids[:-1] if eos_added else ids
    added = ids[: len(ids) - len(plain)]
    if added and plain[: len(added)] == added:  # a template that writes its own BOS
        added, ids = [], plain
    return added + encode(tokenizer, text, hidden, where=where) if hidden else ids


def check_tools(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    where: str,
    without_tools: str = WITHOUT_TOOL_COLUMN,
) -> None:
    """Raise `ModelError` if the chat template does not read the tools: then it writes the same text without them."""
    if tools and render(tokenizer, messages, tools, where) == render(tokenizer, messages, (), where):
        raise ModelError(f"{where} has tools, which the model's chat template does not read; {without_tools}")


def check_written(
    text: str, messages: Sequence[Message], render: Callable[[Sequence[Message]], str], where: str
) -> None:
    """Raise `ModelError` if the `text` of a conversation lacks a message or a call; thinking may be left out."""
    lost = [str(part) for part in left_out(messages, text, render) if part.kind != "thinking"]
    if lost:
        raise ModelError(
            f"{where}: the model's chat template leaves out {', '.join(lost)}; remove it, write it into another "
            "message, or use a model whose chat template writes it"
        )


def render_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool], where: str
) -> str:
    """Return the text of a prompt: with the opening of the assistant's turn, or the turn that the messages begin."""
    last = messages[-1]
    if last.get("role") != "assistant" or last.get("tool_calls"):  # a turn that ends with calls is whole
        return render(tokenizer, messages, tools, where)
    text = apply_template(tokenizer, messages, tools, where, tokenize=False, continue_final_message=True)
    assert isinstance(text, str)
    return text


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    where: str,
    *,
    open_turn: bool = True,
) -> str:
    """Return the text that the chat template makes of a conversation, with the opening of the assistant's next turn."""
    text = apply_template(tokenizer, messages, tools, where, tokenize=False, add_generation_prompt=open_turn)
    assert isinstance(text, str)
    return text


def apply_template(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool], where: str, **options: Any
) -> Any:
    """Call the chat template. Raises `ModelError` if there is none, if it refuses the messages, or if it has no end."""
    if not tokenizer.chat_template:
        raise ModelError(
            f"{where} is a list of messages, and the model's tokenizer has no chat template for them; "
            "use a chat model, or prompts that are strings"
        )
    copied = [dict(message) for message in messages]
    for role in (message.get("role") for message in copied):
        if isinstance(role, str) and not ROLE.fullmatch(role):  # a template may write <|ROLE|>
            raise ModelError(f"{where}: a role has letters, digits, spaces and . _ -, and not {role[:100]!r}")
    try:
        with _cpu_limit(LONGEST_RENDERING):
            return tokenizer.apply_chat_template(copied, tools=[dict(tool) for tool in tools] or None, **options)
    except Exception as error:  # a template is a program, which may raise anything
        raise ModelError(f"{where}: the model's chat template refused it: {first_line(error)}") from error


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in a `with` block after `seconds` of the process's CPU time: waiting does not count.

    Only the main thread can be interrupted, between two operations of Python; in another thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise TimeoutError(f"it did not end within {seconds:g} seconds")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
