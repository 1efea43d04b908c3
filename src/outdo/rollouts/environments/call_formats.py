"""How models write tool calls: each format finds the JSON of the calls in the text of a turn."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CALL_FORMATS: Mapping[str, re.Pattern[str]] = {
    "hermes": re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL),  # Qwen, Hermes
    "mistral": re.compile(r"\[TOOL_CALLS\]\s*(.*)\Z", re.DOTALL),
    "llama": re.compile(r"\A\s*(?:<\|python_tag\|>)?\s*(\{\s*\"name\".*)\Z", re.DOTALL),  # Llama 3.1 and later
}
"""The formats by name. Group 1 is the JSON of one call, or of a list of calls."""


def find_calls(form: str, text: str) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Return the text without its calls, the calls as a chat template takes them, and a sentence for each faulty call.

    A call is `{"name": ..., "arguments": {...}}`; the arguments may also be called `parameters`, or be JSON as text.
    """
    calls: list[dict[str, Any]] = []
    faults: list[str] = []
    for found in CALL_FORMATS[form].finditer(text):
        try:
            calls += [{"type": "function", "function": each} for each in _read(found[1])]
        except ValueError as error:
            faults.append(f"the call is not valid: {error}")
    return CALL_FORMATS[form].sub("", text).strip(), calls, faults


def _read(text: str) -> Iterator[dict[str, Any]]:
    """Yield the calls in `text`. Raises `ValueError`."""
    value = json.loads(text)
    for call in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise ValueError('expected {"name": ..., "arguments": {...}}')
        arguments = call.get("arguments", call.get("parameters", {}))
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(arguments, Mapping):
            raise ValueError("expected the arguments as an object")
        yield {"name": call["name"], "arguments": dict(arguments)}
