"""Make text of values, and text safe to show: characters that hide, move or reorder others become visible marks."""

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def mark_invisible(text: str, *, spaces: bool = True) -> str:
    """Replace every character that hides, moves or reorders others by a mark; a line break stays after its mark.

    With `spaces` False, spaces, line breaks and tabs stay as they are, so that the text reads as usual.
    """
    marked = "".join(c if not spaces and c in " \n\t" else _mark(c) for c in text)
    return f"◌{marked}" if marked and unicodedata.combining(marked[0]) else marked


def _mark(character: str) -> str:
    code = ord(character)
    marks: Mapping[str, str] = {" ": "·", "\n": "⏎\n", "\t": "→", "\x7f": "␡"}
    if character in marks:
        return marks[character]
    if character.isprintable():
        return character
    return chr(0x2400 + code) if code < 0x20 else f"⟨{code:04X}⟩"


SHOWN = 400
"""Characters of a long text that a message shows, half from its beginning and half from its end."""


def one_line(text: str) -> str:
    """Shorten `text` and write it on one line, safe for a terminal: see `escape_control`."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]} [... {len(text) - SHOWN} characters ...] {text[-(SHOWN // 2) :]}"
    return escape_control(text)


def shortened(text: str, most: int) -> str:
    """Return `text`, or its beginning and its length if it is longer than `most`."""
    return text if len(text) <= most else f"{text[:most]}…({len(text):,} characters)"


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the name of its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def for_terminal(text: str) -> str:
    """Return text of any origin as it may be printed: line breaks and tabs stay, other control characters do not.

    Every line that outdo prints goes through this function: a name, a path or the message of a reward could otherwise
    move the cursor, change the title of the window, or hide a part of the output.
    """
    return "".join(c if c in "\n\t" else escape_control(c) for c in text)


def escape_control(text: str) -> str:
    """Replace characters that do not print, and could control a terminal, by their escape sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(count: float, noun: str, *, plural: str = "") -> str:
    """Return `1 step`, `2 steps` or `1,000 steps`; `plural` is that of a noun to which an s is not just appended."""
    number = f"{count:,.3g}" if isinstance(count, float) else f"{count:,}"
    return f"{number} {noun if number == '1' else plural or f'{noun}s'}"


NO_SPREAD = "no spread"


def between(low: float, high: float, show: Callable[[float], str]) -> str:
    """Return `0.1 to 0.3`, or `no spread` for an interval whose ends are written the same."""
    return NO_SPREAD if show(low) == show(high) else f"{show(low)} to {show(high)}"


def text_or_json(value: Any) -> str:
    """Return text as it is, and every other value as JSON; what JSON does not know is written as `str` writes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables with their dotted keys; a table that is empty is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def listed_steps(steps: Sequence[int]) -> str:
    """Return `step 3`, or `the steps 3, 7-9`."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and ranges[-1][-1] == step - 1:
            ranges[-1][1:] = [step]
        else:
            ranges.append([step])
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"the steps {', '.join('-'.join(map(str, ends)) for ends in ranges)}"


def excerpt(text: str, longest: int = 1200) -> str:
    """Return text with its line breaks, safe for a terminal, without the middle if it has more characters."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"
    return "\n".join(map(escape_control, text.split("\n")))
