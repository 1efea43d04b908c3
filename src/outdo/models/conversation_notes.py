"""What a reader of a conversation would not expect of the prompt that a chat template makes of it."""

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.models.prompt_encoding import Message, Tool, render, render_prompt
from outdo.models.written_messages import MARK, has_thinking, left_out, moved, unknown_role
from outdo.utils.errors import ModelError
from outdo.utils.text import one_line


def conversation_notes(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> list[str]:
    """Return what the chat template does with the messages of a prompt; what `encode_prompt` refuses is not looked for.

    Each is a part of a sentence about the template: thinking that is left out, a message that is moved before earlier
    ones, and a role that the model may not know.
    """
    if len(messages) < 2:
        return []
    write = partial(render_prompt, tokenizer, tools=tools, where="the prompt")
    text, doubtful = write(messages), list[str]()
    if has_thinking(messages) and any(lost_part.kind == "thinking" for lost_part in left_out(messages, text, write)):
        doubtful.append("leaves out the thinking of earlier turns")
    if (index := moved(messages, text)) is not None:
        doubtful.append(f"writes a message of the role {messages[index]['role']} before messages that precede it")
    if role := unknown_role(messages, text, write):
        doubtful.append(f'writes the role "{role}" as it writes any word, so that the model may not know it')
    return doubtful


def loses_thinking(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> bool:
    """Return whether the chat template leaves out thinking of a whole conversation, which ends with an answer."""
    write = partial(render, tokenizer, tools=tools, where="a conversation", open_turn=False)
    lost = left_out(messages, write(messages), write) if has_thinking(messages) else []
    return any(lost_part.kind == "thinking" for lost_part in lost)


def beginnings(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[str]:
    """Return whether the chat template begins a prompt with a text of its own, as a part of a sentence about it."""
    added = "" if messages[0].get("role") == "system" else text_of_its_own(tokenizer)
    return [f"begins prompts without a system message with a text of its own: {one_line(added)}"] if added else []


def text_of_its_own(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what a chat template writes before a conversation without a system message; empty if it is nothing."""
    user, turn = {"role": "user", "content": MARK}, {"role": "assistant", "content": "Yes"}
    try:
        before, between, *_ = render(tokenizer, [user, turn, user], (), "a conversation").split(MARK)
    except (ModelError, ValueError):  # it refuses such a conversation, or writes only one of the messages
        return ""
    bos: Any = tokenizer.bos_token
    before = before.removeprefix(bos or "")  # its last characters may be those of a turn's end (DeepSeek)
    pairs = zip(reversed(before), reversed(between), strict=False)
    header = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))  # characters before a user's message
    return before[: len(before) - header].strip()
