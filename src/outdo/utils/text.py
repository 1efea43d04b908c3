"""Text made safe to look at: what hides, moves or reorders other characters becomes a mark."""

import unicodedata
from collections.abc import Mapping


def mark_invisible(text: str, *, spaces: bool = True) -> str:
    """`text` with a mark for every character that hides, moves or reorders others; a line break stays behind its mark.

    With `spaces` False, spaces, line breaks and tabs are left as they are: text to be read.
    """
    marked = "".join(c if not spaces and c in " \n\t" else _mark(c) for c in text)
    return f"◌{marked}" if marked and unicodedata.combining(marked[0]) else marked


def _mark(character: str) -> str:
    code = ord(character)
    named: Mapping[str, str] = {" ": "·", "\n": "⏎\n", "\t": "→", "\x7f": "␡"}
    if character in named:
        return named[character]
    if character.isprintable():
        return character
    return chr(0x2400 + code) if code < 0x20 else f"⟨{code:04X}⟩"


SHOWN = 400
"""Characters of the failing completion that a message shows, from its beginning and its end."""


def one_line(text: str) -> str:
    """`text` on one line, short, and safe on a terminal: what does not print is written as its escape."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]} [... {len(text) - SHOWN} characters ...] {text[-(SHOWN // 2) :]}"
    return escape_control(text)


def escape_control(text: str) -> str:
    """`text` with what does not print, and could steer a terminal, written as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
