"""Encode conversations as token ids, of which those of the assistant's answers are learned."""

import re
from collections.abc import Collection, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.models.prompt_encoding import Message, Tool, apply_template, check_tools, check_written, render
from outdo.models.special_tokens import Hidden, encode, encode_with_places, hide
from outdo.models.written_messages import MARK
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
    special_tokens: bool = False,
    where: str = "the conversation",
) -> tuple[list[int], list[bool]]:
    """Return the token ids of a conversation, up to its last learned token, and which of them are learned.

    Learned are the assistant's messages from index `first` on, each with its end-of-turn token. A message that begins
    the conversation answers nothing and is not learned. Which tokens these are is decided

    - by the `{% generation %}` marks of the chat template, where it has them;
    - otherwise by prefixes: the tokens of an answer are those that the conversation up to it has more than the same
      conversation before it, with the opening of the assistant's turn added. So the policy learns to write exactly what
      follows the prompt that it is given when it samples.

    White space after the last token of an answer that is in `end_ids` is not learned: the policy stops before it. Where
    the role of the next message ends an answer, as in GLM, that token is learned with the answer.
    Special tokens in the messages and the tools are ordinary text, unless `special_tokens` is true.

    Raises `ModelError` if the chat template refuses the conversation, leaves out a part of it, marks nothing in it, has
    no place for the tools, or does not keep prefixes: if what it writes up to an answer changes when the answer, or a
    later turn, follows.
    """
    first = max(first, 1)
    hidden: Hidden = {}
    if not special_tokens:
        (messages, tools), hidden = hide(tokenizer, (messages, tools))
    check_tools(tokenizer, messages, tools, where)
    with_tools: Any = list(tools) or None
    has_marks = tokenizer.chat_template and GENERATION.search(tokenizer.get_chat_template(tools=with_tools))
    ranges = _by_generation_marks if has_marks else _by_prefixes
    ids, learned = ranges(tokenizer, messages, first, tools, where, hidden)
    if end_ids and not has_marks:
        ids, learned = _with_roles_that_end(tokenizer, messages, tools, ids, learned, end_ids)
    write = partial(render, tokenizer, tools=tools, where=where, open_turn=False)
    check_written(write(messages), messages, write, where)
    learned = _without_space_after_end(tokenizer, ids, learned, end_ids)
    if not any(learned):
        raise ModelError(f"{where}: the chat template leaves nothing to learn of the assistant's messages")
    length = len(learned) - learned[::-1].index(True)
    return ids[:length], learned[:length]


def _by_prefixes(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    first: int,
    tools: Sequence[Tool],
    where: str,
    hidden: Hidden,
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
            together = encode(tokenizer, text, hidden, where=where)
            alone = together[len(ids) :]
            if together[: len(ids)] != ids:  # a token crosses the border, which it cannot do when the policy samples
                alone = encode(tokenizer, text[len(before) :], hidden, where=where)
            ids += alone
            learned += [is_assistant] * len(alone)
            before = text
    return ids, learned


def _with_roles_that_end(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    ids: Sequence[int],
    learned: Sequence[bool],
    end_ids: Collection[int],
) -> tuple[list[int], list[bool]]:
    """Return tokens, and which are learned, with those in `end_ids` that follow an answer which does not end with one.

    After the last answer that is the role of a user's message, which might follow.
    """
    ids, learned = list(ids), list(learned)
    if learned and learned[-1] and ids[-1] not in end_ids:
        following = _first_after_answer(tokenizer, messages, tools)
        ids += following
        learned += [False] * len(following)
    for position in range(1, len(ids)):
        begins_prompt = learned[position - 1] and not learned[position]
        if begins_prompt and ids[position] in end_ids and ids[position - 1] not in end_ids:
            learned[position] = True
    return ids, learned


def _first_after_answer(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool]
) -> list[int]:
    """Return the first token that the template writes when a user's message follows the last answer; empty for none."""
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    if messages[last].get("tool_calls"):  # which a result follows
        return []
    answered = [*messages[:last], {"role": "assistant", "content": MARK}]  # its thinking may be left out later
    asked = [*answered, {"role": "user", "content": "..."}]
    before, after = (
        render(tokenizer, part, tools, "the conversation", open_turn=False).rpartition(MARK)[2]
        for part in (answered, asked)
    )
    if not after.startswith(before):
        return []
    return tokenizer.encode(after[len(before) :].lstrip(), add_special_tokens=False)[:1]


def _by_generation_marks(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    first: int,
    tools: Sequence[Tool],
    where: str,
    hidden: Hidden,
) -> tuple[list[int], list[bool]]:
    options: dict[str, Any] = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    if hidden:
        options["tokenizer_kwargs"] = {"return_offsets_mapping": True}
    encoded = apply_template(tokenizer, messages, tools, where, **options)
    ids, learned = list(encoded["input_ids"]), list(map(bool, encoded["assistant_masks"]))
    if hidden:
        text = render(tokenizer, messages, tools, where, open_turn=False)
        turns = groupby(zip(encoded["offset_mapping"], learned, strict=True), key=itemgetter(1))
        spans = [[span for span, _ in turn] for is_marked, turn in turns if is_marked]
        places = {position for turn in spans for position in range(turn[0][0], turn[-1][1])}
        ids, token_positions = encode_with_places(tokenizer, text, hidden, where)
        learned = [not places.isdisjoint(of_token) for of_token in token_positions]
    if any(message["role"] == "assistant" for message in messages[:first]):
        prompt = render(tokenizer, messages[:first], tools, where, open_turn=messages[first]["role"] == "assistant")
        prompt_ids = encode(tokenizer, prompt, hidden, where=where)
        if ids[: len(prompt_ids)] != prompt_ids:
            raise ModelError(f"{where}: the model's chat template writes the prompt in another way when answers follow")
        learned[: len(prompt_ids)] = [False] * len(prompt_ids)
    return ids, learned


def _without_space_after_end(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], learned: Sequence[bool], end_ids: Collection[int]
) -> list[bool]:
    """Return `learned`, False for white space between the end-of-turn token of an answer and the next turn."""
    answers: list[bool] = []
    for is_assistant, pairs in groupby(zip(ids, learned, strict=True), key=itemgetter(1)):
        turn = [token for token, _ in pairs]
        end = max((position + 1 for position, token in enumerate(turn) if token in end_ids), default=len(turn))
        if str(tokenizer.decode(turn[end:])).strip():
            end = len(turn)
        answers += [is_assistant and position < end for position in range(len(turn))]
    return answers
