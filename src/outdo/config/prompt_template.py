"""`data.template`: a prompt template, or options of the model's chat template."""

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from outdo.models.template_header import DATE

_OPTION = re.compile(r"[A-Za-z_]\w*", re.ASCII)
NOT_OPTIONS = ("messages", "tools", "documents", "add_generation_prompt")
"""What outdo itself gives to a chat template."""


def chat_options(value: Any) -> Any:
    """Return a prompt template, or the options of a chat template, of which `strftime_now` is a date as text.

    Raises ValueError for one that is not possible.
    """
    if not isinstance(value, Mapping):
        return value
    for name, option in value.items():
        if not _OPTION.fullmatch(name) or name in NOT_OPTIONS:
            raise ValueError(f'expected options of the chat template such as enable_thinking, not "{name}"')
        if name != DATE and not isinstance(option, bool | int | float | str | list | tuple):
            raise ValueError(f"expected true, false, a number, text or a list for {name}")
    return {**value, DATE: _date(value[DATE])} if DATE in value else value


def _date(value: Any) -> str:
    """Return a date, with or without a time, in ISO 8601."""
    text = value.isoformat() if isinstance(value, date) else value  # TOML has dates without quotes
    try:
        return datetime.fromisoformat(text).replace(microsecond=0, tzinfo=None).isoformat()
    except (TypeError, ValueError):
        raise ValueError(f"expected a date such as 2026-11-28 for {DATE}") from None


PromptTemplate = Annotated[
    str | Mapping[str, Any],
    AfterValidator(chat_options),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]
