"""A group of rollouts in a terminal, its tokens coloured by one quantity; with signs where there are no colours.

Text of a model reaches the terminal as marks and letters only: no control character, no escape sequence, no markup.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rich.console import Console
from rich.text import Text

from outdo.observability.page.encode import Table
from outdo.utils.errors import UserError
from outdo.utils.text import mark_invisible

Row = Mapping[str, Any]
Values = Sequence[float | None]

REACHED = 0.9
"""A bound is reached when this share of the way to it was gone."""

LONGEST = 200
"""Characters of a token that are shown."""

UP = ("#dbeafe", "#93c5fd", "#3b82f6", "#1e40af")
DOWN = ("#ffedd5", "#fdba74", "#f97316", "#9a3412")
INK = ("black", "black", "white", "white")
"""Backgrounds from little to much, and the letters on them."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What tokens can be coloured by: from a row of the record, a number for each token."""

    title: str
    down: str  # what a number below 0 says; empty where there is none
    up: str
    of: Callable[[Row], Values | None]


def _column(name: str) -> Callable[[Row], Values | None]:
    return lambda row: row.get(name)


def _less(name: str, other: str) -> Callable[[Row], Values | None]:
    """One column less another."""

    def difference(row: Row) -> Values | None:
        first, second = row.get(name), row.get(other)
        if first is None or second is None:
            return None
        return [None if a is None or b is None else a - b for a, b in zip(first, second, strict=True)]

    return difference


def _mapped(name: str, change: Callable[[float], float]) -> Callable[[Row], Values | None]:
    def mapped(row: Row) -> Values | None:
        values = row.get(name)
        return None if values is None else [None if value is None else change(value) for value in values]

    return mapped


QUANTITIES: Mapping[str, Quantity] = {
    "moved": Quantity(
        "log-probability after the step less before", "less likely", "likelier", _less("new_logprobs", "old_logprobs")
    ),
    "ratio": Quantity(
        "ratio as the last pass found it",
        "below 1",
        "above 1",
        _mapped("ratio", lambda ratio: math.log(max(ratio, 1e-9))),
    ),
    "advantage": Quantity("advantage", "worse than expected", "better", _column("advantages")),
    "surprise": Quantity(
        "minus the log-probability before the step", "", "surprising", _mapped("old_logprobs", lambda x: -x)
    ),
    "gap": Quantity("way left to the target or bound", "should fall", "should rise", _less("bound", "new_logprobs")),
    "entropy": Quantity("entropy", "", "open", _column("entropy")),
    "policy_push": Quantity("policy push", "pushed down", "pushed up", _column("policy_push")),
    "kl_pull": Quantity("pull of the reference", "pulled down", "pulled up", _column("kl_pull")),
}
"""As on the page."""


def show_group(table: Table, group: int, console: Console, *, by: str = "moved") -> None:
    """Print a group of a step's record, the best rollouts first, tokens coloured by the quantity `by`.

    Where the quantity is not known of this group (`moved` of one that was not measured), this is said, and the policy
    push is shown. Raises `UserError` for a group or quantity that there is not.
    """
    step = table.to_pylist()
    rows = _rows(step, group)
    _check(by, rows, group, table)
    shown = by if _largest(by, rows) is not None else "policy_push"
    largest = _largest(shown, step) or 0.0  # of the whole step: what is noise in it is pale in every group
    first = rows[0]
    _say(console, Text(f"step {first['step']}, group {group}: {_inert(first['prompt_id'])}", style="bold"))
    if shown != by:
        instead = "and neither is policy_push" if _largest(shown, rows) is None else f"it is coloured by {shown}"
        _say(console, Text(f"{by} is not known of this group; {instead}"))
    _say(console, Text.assemble(("prompt  ", "dim"), _inert(first["prompt"])))
    if first.get("answer") is not None:
        _say(console, Text.assemble(("answer  ", "dim"), _inert(first["answer"])))
    _say(console, _legend(QUANTITIES[shown], largest, coloured=_coloured(console)))
    for row in rows:
        _say(console, Text())
        _say(console, _head(row))
        _say(console, _tokens(row, QUANTITIES[shown], largest, coloured=_coloured(console)))


def _rows(step: Sequence[Row], group: int) -> list[Row]:
    """The rollouts of a group, the best first, those without a reward last."""
    rows = [row for row in step if row["group"] == group]
    return sorted(rows, key=lambda row: math.inf if row["reward"] is None else -row["reward"])


def _check(by: str, rows: Sequence[Row], group: int, table: Table) -> None:
    mistakes: list[str] = []
    if by not in QUANTITIES:
        near = get_close_matches(by, QUANTITIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        mistakes.append(f"--by {by}: expected one of {', '.join(QUANTITIES)}{hint}")
    if not rows:
        groups = table["group"].to_pylist()
        mistakes.append(
            f"--group {group}: the record has the groups {min(groups)} to {max(groups)}"
            if groups
            else "the record has no group"
        )
    if mistakes:
        raise UserError(mistakes)


def _largest(by: str, rows: Sequence[Row]) -> float | None:
    """Where the scale ends: of the values of all rollouts, by size, the last but 2 %. None where none is known."""
    values = (QUANTITIES[by].of(row) or () for row in rows)
    sizes = sorted(abs(value) for each in values for value in each if value is not None)
    return sizes[math.ceil(0.98 * len(sizes)) - 1] if sizes else None


def _tokens(row: Row, quantity: Quantity, largest: float, *, coloured: bool) -> Text:
    text = Text()
    values = quantity.of(row) or [None] * len(row["pieces"])
    for n, (piece, value) in enumerate(zip(row["pieces"], values, strict=True)):
        level = _level(value, largest)
        stopped = _stopped(row, n)
        shown = _token(piece, row["token_bytes"][n])
        if coloured:
            colours = UP if level > 0 else DOWN
            ink = f"{INK[abs(level) - 1]} on {colours[abs(level) - 1]}" if level else ""
            dim = "" if row["loss_mask"][n] else " dim"
            text.append(shown, style=f"{ink}{dim}{' underline' if stopped else ''}".strip())
        else:
            line, broken, _ = shown.partition("\n")
            text.append(f"{line}{_sign(level)}{'|' if stopped else ''}{broken}")
    return text


def _level(value: float | None, largest: float) -> int:
    """-4 to 4, with the square root of the value; 0 where it is less than a sixtieth of the largest."""
    if not value or not largest:
        return 0
    return int(math.copysign(round(4 * math.sqrt(min(1.0, abs(value) / largest))), value))


def _sign(level: int) -> str:
    return {1: "▴", 2: "▴▴", -1: "▾", -2: "▾▾"}.get(
        (level > 0) * (1 + (level > 2)) - (level < 0) * (1 + (level < -2)), ""
    )


def _stopped(row: Row, n: int) -> bool:
    """Whether the objective pushes the token no more: it is clipped, or it has reached its bound."""
    if row["clip"][n] in ("low", "high"):
        return True
    old, new, bound = (
        values[n] if (values := row.get(name)) else None for name in ("old_logprobs", "new_logprobs", "bound")
    )
    if old is None or new is None or bound is None or old == bound:
        return False
    return bound <= 0 and (new - old) / (bound - old) >= REACHED


def _token(piece: str, raw: bytes) -> str:
    """A token as it is shown: marks for what hides; the bytes of one that is only a part of a character."""
    if not piece:
        return f"⟨{raw[:8].hex(' ')}⟩"
    cut = f"…({len(piece):,} characters)" if len(piece) > LONGEST else ""
    return mark_invisible(piece[:LONGEST]) + cut


def _head(row: Row) -> Text:
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:.4g}"
    parts = row.get("reward_parts") or {}
    said = ", ".join(f"{_inert(name)} {value:.4g}" for name, value in parts.items() if value is not None)
    word = "right" if row["right"] else "wrong" if row["reward"] is not None else _inert(row["verdict"])
    ending = "" if row["finish_reason"] == "stop" else f", ended by {_inert(row['finish_reason'])}"
    advantage = "" if row["advantage"] is None else f", advantage {row['advantage']:+.3g}"
    detail = f" ({said})" if len(parts) > 1 else ""
    sign = {"right": "✓", "wrong": "✗"}.get(word, "–")
    about = f"{sign} rollout {row['rollout']}: {reward}{detail}, {word}{advantage}, {len(row['pieces'])} tokens{ending}"
    return Text(about, style="bold")


def _legend(quantity: Quantity, largest: float, *, coloured: bool) -> Text:
    text = Text(f"{quantity.title}, to {largest:.3g}: " if largest else f"{quantity.title}: nothing stands out  ")
    for words, colours, sign in ((quantity.down, DOWN, "▾ ▾▾"), (quantity.up, UP, "▴ ▴▴")):
        if not words or not largest:
            continue
        if coloured:
            for ink, colour in zip(INK, colours, strict=True):
                text.append("  ", style=f"{ink} on {colour}")
        else:
            text.append(sign)
        text.append(f" {words}  ")
    text.append("underlined" if coloured else "|", style="underline" if coloured else "")
    return text.append(" clipped, or at its bound")


def _coloured(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def _inert(text: object) -> str:
    """On one line, with marks for what hides."""
    whole = str(text)
    cut = f"…({len(whole):,} characters)" if len(whole) > 20 * LONGEST else ""
    return mark_invisible(whole[: 20 * LONGEST], spaces=False).replace("\n", "⏎").replace("\t", "→") + cut


def _say(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
