"""Whether a chat template writes all of a conversation: messages, calls of tools, thinking, in their order.

What is not found in the rendered text as it is may still have been changed, as by a filter of the template. So it is
changed, and the conversation is rendered again: what makes no difference has been left out.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outdo.utils.errors import ModelError
from outdo.utils.thinking import split_thinking

Message = Mapping[str, Any]
Kind = Literal["text", "thinking", "calls"]

THINKING = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message with the thinking of a turn, whose names depend on the template."""
MARK = "outdo-mark"
SURE = 8
"""Characters of a text that is not in the rendered one by chance."""
KNOWN_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a conversation that a chat template leaves out."""

    place: int  # of the message
    role: str
    kind: Kind

    def __str__(self) -> str:
        """Return what it is, as a part of a sentence."""
        message = "the system message" if self.role == "system" else f"message {self.place + 1} (role {self.role})"
        what = {"text": message, "thinking": f"the thinking in {message}", "calls": f"calls in {message}"}
        return what[self.kind]


def left_out(messages: Sequence[Message], rendered: str, render: Callable[[Sequence[Message]], str]) -> list[LeftOut]:
    """Return what is not in the `rendered` text of a conversation. `render` renders a changed conversation."""
    misplaced = []
    for index, message in enumerate(messages):
        changes: list[tuple[Kind, Message]] = [
            *_changed_texts(messages, message, rendered),
            *_without_calls(message, rendered),
        ]
        for kind, changed in changes:
            if _renders_alike(render, [*messages[:index], changed, *messages[index + 1 :]], rendered):
                misplaced.append(LeftOut(index, str(message.get("role")), kind))
    return list(dict.fromkeys(misplaced))


def moved(messages: Sequence[Message], rendered: str) -> int | None:
    """Return the place of the first message whose text stands before that of an earlier one; None if none does."""
    begin = 0
    for index, message in enumerate(messages):
        text = _text_of(message)
        if len(text) < SURE or rendered.count(text) != 1:
            continue
        if (start := rendered.find(text)) < begin:
            return index
        begin = start
    return None


def unknown_role(messages: Sequence[Message], rendered: str, render: Callable[[Sequence[Message]], str]) -> str | None:
    """Return a role that a template writes as it would write any word, and not as one that its model knows.

    A later system message is known if the template writes a first one in the same way.
    """
    for index, message in enumerate(messages):
        role = str(message.get("role"))
        if role in KNOWN_ROLES and (role != "system" or index == 0):
            continue
        renamed = [*messages[:index], {**message, "role": MARK}, *messages[index + 1 :]]
        try:
            is_any_word = render(renamed).replace(MARK, role) == rendered
            first = render([{"role": role, "content": MARK}, {"role": "user", "content": "?"}]).partition(MARK)[0]
        except ModelError:  # it refuses the unknown role, or a first message of this role
            continue
        if is_any_word and (role != "system" or role not in first):
            return role
    return None


def _renders_alike(render: Callable[[Sequence[Message]], str], changed: Sequence[Message], rendered: str) -> bool:
    try:
        return render(changed) == rendered
    except ModelError:  # it looks at what was changed
        return False


def _changed_texts(messages: Sequence[Message], message: Message, rendered: str) -> Iterator[tuple[Kind, Message]]:
    """Yield a message with a mark in each of its texts that is not surely in the rendered text."""
    content = message.get("content")
    thinking = [(name, _stripped(message.get(name))) for name in THINKING]
    said = _text_of(message)
    if isinstance(content, str) and message.get("role") == "assistant":
        thinking.append(("content", split_thinking(content)[0].strip()))
    texts: list[tuple[Kind, str, str]] = [*(("thinking", *pair) for pair in thinking), ("text", "content", said)]
    for kind, name, text in texts:
        if text and not _is_written(text, rendered, sum(text in str(other.get(name)) for other in messages)):
            middle = len(text) // 2
            whole = str(message[name])
            marked = whole.replace(text, text[:middle] + MARK + text[middle:])
            yield kind, {**message, name: marked}


def _without_calls(message: Message, rendered: str) -> Iterator[tuple[Kind, Message]]:
    """Yield a message without each of its calls whose values are not surely in the rendered text."""
    given = message.get("tool_calls")
    calls = given if isinstance(given, list) else []
    for index, call in enumerate(calls):
        if not all(_is_written(text, rendered, 1) for text in _values(call)):
            others = [*calls[:index], *calls[index + 1 :]]
            yield "calls", {**message, "tool_calls": others} if others else _without(message, "tool_calls")
    if "function_call" in message:
        yield "calls", _without(message, "function_call")


def _is_written(text: str, rendered: str, times: int) -> bool:
    """Return whether a text is surely in the rendered one, so often, as it is or as JSON writes it."""
    forms = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
    return len(text) >= SURE and max(rendered.count(form) for form in forms) >= times


def _values(call: Any) -> Iterator[str]:
    """Yield the name of a function that is called, and the texts in the arguments."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    yield str(function.get("name"))
    arguments = function.get("arguments")
    values = arguments.values() if isinstance(arguments, Mapping) else [arguments]
    yield from (value for value in values if isinstance(value, str) and value)


def _text_of(message: Message) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        return ""
    return (split_thinking(content)[1] if message.get("role") == "assistant" else content).strip()


def _stripped(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _without(message: Message, name: str) -> Message:
    return {key: value for key, value in message.items() if key != name}


def has_thinking(messages: Sequence[Message]) -> bool:
    """Return whether a turn of a conversation has thinking."""
    turns = (message for message in messages if message.get("role") == "assistant")
    return any(
        split_thinking(str(turn.get("content")))[0] or any(turn.get(name) for name in THINKING) for turn in turns
    )
