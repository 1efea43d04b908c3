"""Read the parts of a row as the standard formats write them: chat messages, Alpaca's prompt, and schemas of tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

Message = Mapping[str, Any]  # {"role": ..., "content": text}, and what the chat template reads besides
Text = str | tuple[Message, ...]  # plain text, or a conversation
Row = Mapping[str, Any]

CONVERSATION_COLUMNS = ("messages", "conversations", "conversation")
"""Names of columns that hold a whole conversation, usually with the assistant's answers."""

SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
}
"""The values of `from` in ShareGPT's messages, and the roles of chat templates."""

NOT_MESSAGES = 'is neither text nor a list of messages {"role": ..., "content": text}'


def messages_of(value: Any) -> tuple[Message, ...]:
    """Return the messages of a conversation as chat templates read them: `{"role": ..., "content": text, ...}`.

    ShareGPT's `{"from": "human", "value": text}` is converted. A list of text parts becomes one text, and a call of
    tools without content has the content "". Arguments of a call that are JSON text of an object, as OpenAI's API has
    them, become this object, because chat templates write JSON of them. Fields that are null are left out at every
    depth, because Parquet files have the fields of every call in each of them.

    Raises `ValueError` with the reason if `value` is not a conversation.
    """
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(NOT_MESSAGES)
    return tuple(map(_message, value))


def is_conversation(value: Any) -> bool:
    """Return whether `value` is meant as a list of messages; `messages_of` may still find a fault in it."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(message, Mapping) for message in value)


def text_of(value: Any) -> Text:
    """Return text as it is, and a conversation as messages. Raises `ValueError` with the reason if it is neither."""
    return value if isinstance(value, str) else messages_of(value)


def as_messages(text: Text, role: str) -> tuple[Message, ...]:
    """Return text as one message of `role`, and messages as they are."""
    return ({"role": role, "content": text},) if isinstance(text, str) else text


def alpaca_prompt(row: Row) -> str | None:
    """Return `instruction` and what it is applied to as one prompt; None if a row has no such text.

    Alpaca (Taori et al. 2023) has this text in `input`, where it may be empty, and Dolly in `context`.
    """
    instruction, context = row.get("instruction"), row.get("input") or row.get("context")
    if not isinstance(instruction, str) or not isinstance(context, str) or not context.strip():
        return None
    return f"{instruction}\n\n{context}"


def truth_of(value: Any) -> bool | None:
    """Return what `true`, `false`, 1 or 0 say, also as text; None for everything else."""
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())


def label_of(row: Row) -> bool | None:
    """Return whether the answer of a row is good, in TRL's unpaired preference data; None if that is not labelled."""
    return truth_of(row.get("label"))


def arguments_of(value: Any) -> Any:
    """Return the arguments of a call as an object; text that is no JSON of one, and any other value, stays as it is."""
    try:
        arguments = from_json(value, allow_inf_nan=False) if isinstance(value, str) else value
    except ValueError:
        return value
    return arguments if isinstance(arguments, Mapping) else value


def tools_of(row: Row) -> tuple[Mapping[str, Any], ...]:
    """Return the schemas in the column `tools`, which a chat template writes into the prompt; () if there are none.

    The column is a list of JSON schemas, or JSON text of one, as in TRL's format. Fields that are null are left out,
    because Parquet files have the fields of every schema in each of them. Raises `ValueError` for anything else.
    """
    value = row.get("tools")
    try:
        value = json.loads(value) if isinstance(value, str) and value.strip() else value
        tools = [json.loads(tool) if isinstance(tool, str) else tool for tool in value or ()]
    except (TypeError, ValueError):
        tools = [None]
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError('column "tools" is neither a list of JSON schemas nor JSON text of one')
    return tuple(map(_without_nulls, tools))


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping):
        raise ValueError(NOT_MESSAGES)
    if "role" not in value and "from" in value and "value" in value:
        value = {"role": _sharegpt_role(value["from"]), "content": value["value"]}
    content = value.get("content")
    if content is None and value.get("tool_calls"):
        content = ""
    if isinstance(content, list | tuple):
        content = _joined(content)
    if not isinstance(value.get("role"), str) or not isinstance(content, str):
        raise ValueError(NOT_MESSAGES)
    return _with_arguments(_without_nulls(value)) | {"content": content}


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose calls of tools have objects as arguments."""
    calls = message.get("tool_calls")
    return message | {"tool_calls": [*map(_with_object, calls)]} if isinstance(calls, list) else message


def _with_object(call: Any) -> Any:
    """Return a call, or the table `function` in it, with an object as arguments."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_object(call["function"])}
    return {**call, "arguments": arguments_of(call["arguments"])} if "arguments" in call else call


def _sharegpt_role(name: Any) -> str:
    if name not in SHAREGPT_ROLES:
        raise ValueError(f"has a message from {json.dumps(name)}; known are {', '.join(SHAREGPT_ROLES)}")
    return SHAREGPT_ROLES[name]


def _joined(parts: Sequence[Any]) -> str:
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("has a message with parts that are not text, such as images, which outdo does not train on")
    return "".join(map(str, texts))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list | tuple) else value
