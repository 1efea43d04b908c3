"""Encode prompts and conversations as token ids: plain text, a template, or the model's own chat template."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.utils.cpu_limit import cpu_limit
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import first_line

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}, and what the chat template reads besides
Tool = Mapping[str, Any]  # the JSON schema of a function

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The mark in a chat template of what the assistant generates."""

WITHOUT_TOOLS = "use a model with such a template, or remove the column tools"

LONGEST_RENDERING = 10.0
"""Seconds of CPU time. A chat template takes milliseconds, unless it has no end."""


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Message],
    *,
    system: str | None = None,
    template: str | None = None,
    tools: Sequence[Tool] = (),
    where: str = "the prompt",
) -> list[int]:
    """Return the token ids of a prompt: exactly what the policy reads; the prompt is never tokenised again.

    - Messages go through the tokenizer's chat template once, with the opening of the assistant's turn added.
    - A string becomes one user message if the tokenizer has a chat template; otherwise it is tokenised as it is.
    - `template`, for base models, is text with `{prompt}` in it (and `{system}`, if there is one). It replaces any chat
      template, and needs prompts that are strings.
    - `system` becomes the first message, unless the prompt has a system message of its own.
    - `tools` are given to the chat template, which writes their schemas into the prompt.

    Special tokens are added once. A chat template writes its own, so no others are added to its text. Other text gets
    those that the tokenizer always adds (a BOS, for example), but no EOS at the end, because the answer follows.

    `where` names the prompt in errors ("train.jsonl, row 3"). Raises `ModelError` if the chat template refuses the
    prompt or has no place for the tools, if there is none and one is needed, or if there is no token; `UserError` if
    `template` lacks a field.
    """
    if template is not None or (isinstance(prompt, str) and not tokenizer.chat_template):
        ids = _encode_text(tokenizer, _fill_template(prompt, system, template, tools, where))
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
        if system is not None and (not messages or messages[0].get("role") != "system"):
            messages = [{"role": "system", "content": system}, *messages]
        _check_tools(tokenizer, messages, tools, where)
        ids = tokenizer.encode(render(tokenizer, messages, tools, where), add_special_tokens=False)
    if not ids:
        raise ModelError(f"{where} has no tokens, and a model cannot answer nothing")
    return ids


def _fill_template(
    prompt: str | Sequence[Message], system: str | None, template: str | None, tools: Sequence[Tool], where: str
) -> str:
    if tools:
        raise ModelError(f"{where} has tools, and only a chat template has a place for them; {WITHOUT_TOOLS}")
    if not isinstance(prompt, str):
        raise UserError([f"{where} is a list of messages, and a prompt template takes text; leave the template out"])
    values = {"{prompt}": prompt} | ({} if system is None else {"{system}": system})
    text = "{prompt}" if template is None else template
    if missing := [field for field in values if field not in text]:
        what = "the prompt template" if template is not None else "without a chat template or a prompt template there"
        raise UserError([f"{what} has no place for {' and '.join(missing)}"])
    before, _, after = text.partition("{prompt}")
    for field, value in values.items():
        if field != "{prompt}":
            before, after = before.replace(field, value), after.replace(field, value)
    return before + prompt + after.replace("{prompt}", prompt)


def _encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode with the tokenizer's own special tokens, without an EOS that it adds at the end."""
    ids: list[int] = tokenizer.encode(text)
    plain: list[int] = tokenizer.encode(text, add_special_tokens=False)
    eos_added = ids[-1:] == [tokenizer.eos_token_id] and ids[-len(plain) :] != plain
    return ids[:-1] if eos_added else ids


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    first: int = 0,
    tools: Sequence[Tool] = (),
    end_ids: Collection[int] = (),
    where: str = "the conversation",
) -> tuple[list[int], list[bool]]:
    """Return the token ids of a conversation, up to its last learned token, and which of them are learned.

    Learned are the assistant's messages from index `first` on, each with its end-of-turn token. A message that begins
    the conversation answers nothing and is not learned. Which tokens these are is decided

    - by the `{% generation %}` marks of the chat template, where it has them;
    - otherwise by prefixes: the tokens of an answer are those that the conversation up to it has more than the same
      conversation before it, with the opening of the assistant's turn added. So the policy learns to write exactly what
      follows the prompt that it is given when it samples.

    White space after the last token of an answer that is in `end_ids` is not learned: the policy stops before it.

    Raises `ModelError` if the chat template refuses the conversation, marks nothing in it, has no place for the tools,
    or does not keep prefixes: if what it writes up to an answer changes when the answer, or a later turn, follows.
    """
    first = max(first, 1)
    _check_tools(tokenizer, messages, tools, where)
    with_tools: Any = list(tools) or None
    has_marks = tokenizer.chat_template and GENERATION.search(tokenizer.get_chat_template(tools=with_tools))
    encode = _by_generation_marks if has_marks else _by_prefixes
    ids, learned = encode(tokenizer, messages, first, tools, where)
    learned = _without_space_after_end(tokenizer, ids, learned, end_ids)
    if not any(learned):
        raise ModelError(f"{where}: the chat template leaves nothing to learn of the assistant's messages")
    length = len(learned) - learned[::-1].index(True)
    return ids[:length], learned[:length]


def _by_prefixes(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], first: int, tools: Sequence[Tool], where: str
) -> tuple[list[int], list[bool]]:
    ids: list[int] = []
    learned: list[bool] = []
    before = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or index < first:
            continue
        for is_assistant in (False, True):
            text = render(tokenizer, messages[: index + is_assistant], tools, where, open_turn=not is_assistant)
            if not text.startswith(before):
                raise ModelError(
                    f"{where}: the model's chat template does not keep prefixes: with message {index + 1} it changes "
                    "what it wrote before, so that the answer does not follow the prompt that the model is given; use "
                    "a chat template with {% generation %} marks"
                )
            together: list[int] = tokenizer.encode(text, add_special_tokens=False)
            alone = together[len(ids) :]
            if together[: len(ids)] != ids:  # a token crosses the border, which it cannot do when the policy samples
                alone = tokenizer.encode(text[len(before) :], add_special_tokens=False)
            ids += alone
            learned += [is_assistant] * len(alone)
            before = text
    return ids, learned


def _by_generation_marks(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], first: int, tools: Sequence[Tool], where: str
) -> tuple[list[int], list[bool]]:
    options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    encoded = _apply(tokenizer, messages, tools, where, **options)
    ids, learned = list(encoded["input_ids"]), list(map(bool, encoded["assistant_masks"]))
    if any(message["role"] == "assistant" for message in messages[:first]):
        prompt = render(tokenizer, messages[:first], tools, where, open_turn=messages[first]["role"] == "assistant")
        given: list[int] = tokenizer.encode(prompt, add_special_tokens=False)
        if ids[: len(given)] != given:
            raise ModelError(f"{where}: the model's chat template writes the prompt in another way when answers follow")
        learned[: len(given)] = [False] * len(given)
    return ids, learned


def _without_space_after_end(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], learned: Sequence[bool], end_ids: Collection[int]
) -> list[bool]:
    """Return `learned`, False for white space between the end-of-turn token of an answer and the next turn."""
    kept: list[bool] = []
    for is_assistant, pairs in groupby(zip(ids, learned, strict=True), key=itemgetter(1)):
        turn = [token for token, _ in pairs]
        end = max((place + 1 for place, token in enumerate(turn) if token in end_ids), default=len(turn))
        if str(tokenizer.decode(turn[end:])).strip():
            end = len(turn)
        kept += [is_assistant and place < end for place in range(len(turn))]
    return kept


def _check_tools(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool], where: str
) -> None:
    """Raise `ModelError` if the chat template does not read the tools: then it writes the same text without them."""
    if tools and render(tokenizer, messages, tools, where) == render(tokenizer, messages, (), where):
        raise ModelError(f"{where} has tools, which the model's chat template does not read; {WITHOUT_TOOLS}")


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    where: str,
    *,
    open_turn: bool = True,
) -> str:
    """Return the text that the chat template makes of a conversation, with the opening of the assistant's next turn."""
    text = _apply(tokenizer, messages, tools, where, tokenize=False, add_generation_prompt=open_turn)
    assert isinstance(text, str)
    return text


def _apply(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool], where: str, **options: Any
) -> Any:
    """Call the chat template. Raises `ModelError` if there is none, if it refuses the messages, or if it has no end."""
    if not tokenizer.chat_template:
        raise ModelError(
            f"{where} is a list of messages, and the model's tokenizer has no chat template for them; "
            "use a chat model, or prompts that are strings"
        )
    given = [dict(message) for message in messages]
    try:
        with cpu_limit(LONGEST_RENDERING):
            return tokenizer.apply_chat_template(given, tools=[dict(tool) for tool in tools] or None, **options)
    except Exception as error:  # a template is a program, which may raise anything
        raise ModelError(f"{where}: the model's chat template refused it: {first_line(error)}") from error
