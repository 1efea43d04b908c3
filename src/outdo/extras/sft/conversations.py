"""Encode conversations as token ids, of which those of the assistant's answers are learned."""

import re
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.models.prompt_encoding import Message, Tool, apply_template, check_tools, render
from outdo.utils.errors import ModelError

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The mark in a chat template of what the assistant generates."""


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
    check_tools(tokenizer, messages, tools, where)
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
    encoded = apply_template(tokenizer, messages, tools, where, **options)
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
