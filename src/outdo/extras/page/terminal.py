"""Print a group of rollouts in a terminal, with tokens coloured by one quantity, or marked by signs without colours.

Text of a model reaches the terminal only as marks and letters: no control character, no escape sequence, no markup.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from outdo.extras.page.encode import Table
from outdo.utils.text import counted, mark_invisible, shortened

Row = Mapping[str, Any]
Values = Sequence[float | None]

REACHED = 0.9
"""A bound counts as reached after this share of the way to it."""

LONGEST = 200
"""The maximum number of characters shown of a token."""

UP = ("#dbeafe", "#93c5fd", "#3b82f6", "#1e40af")
DOWN = ("#ffedd5", "#fdba74", "#f97316", "#9a3412")
TEXT_COLOURS = ("black", "black", "white", "white")
"""Background colours from small to large values, and the text colours on them."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity by which tokens can be coloured: a function from a row of the record to one number per token."""

    title: str
    down: str  # the meaning of a number below 0; empty if there is none
    up: str
    values: Callable[[Row], Values | None]


def _column(name: str) -> Callable[[Row], Values | None]:
    return lambda row: row.get(name)


def _difference(name: str, other: str) -> Callable[[Row], Values | None]:
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


def _leverage(row: Row) -> Values | None:
    net, old = row.get("net_push"), row.get("old_logprobs")
    if net is None or old is None:
        return None
    return [None if a is None or b is None else a * -math.expm1(min(b, 0.0)) for a, b in zip(net, old, strict=True)]


QUANTITIES: Mapping[str, Quantity] = {
    "moved": Quantity(
        "change of the log-probability", "less likely", "more likely", _difference("new_logprobs", "old_logprobs")
    ),
    "ratio": Quantity(
        "ratio in the last pass",
        "below 1",
        "above 1",
        _mapped("ratio", lambda ratio: math.log(max(ratio, 1e-9))),
    ),
    "advantage": Quantity("advantage", "worse than expected", "better", _column("advantages")),
    "surprise": Quantity(
        "minus the log-probability before the step", "", "surprising", _mapped("old_logprobs", lambda x: -x)
    ),
    "gap": Quantity("gap to the target or bound", "should fall", "should rise", _difference("bound", "new_logprobs")),
    "entropy": Quantity("entropy", "", "uncertain", _column("entropy")),
    "leverage": Quantity("net push × (1 - probability)", "pushed down", "pushed up", _leverage),
    "policy_push": Quantity("policy push", "pushed down", "pushed up", _column("policy_push")),
    "kl_pull": Quantity("KL pull", "pulled down", "pulled up", _column("kl_pull")),
}
"""The same as on the page."""

INSTEAD = ("leverage", "policy_push")
"""What is shown of a group that was not measured. The policy push comes last: it is nearly the same for all tokens of
an answer, so that it shows little more than the sign of the advantage."""


def show_group(table: Table, group: int, console: Console, *, by: str = "moved") -> None:
    """Print a group of a step's record, the rollouts with the highest rewards first, coloured by the quantity `by`.

    If the quantity is not known for this group (`moved` of a group that was not measured), it says so and shows another
    one of `INSTEAD`.
    """
    step = table.to_pylist()
    rows = _rows(step, group)
    shown = next((each for each in (by, *INSTEAD) if _largest(each, rows) is not None), by)
    known = _largest(shown, rows) is not None
    largest = _largest(shown, step) or 0.0  # over the whole step, so that noise is pale in every group
    first = rows[0]
    _print(console, Text(f"step {first['step']}, group {group}: {_on_one_line(first['prompt_id'])}", style="bold"))
    if shown != by or not known:
        instead = f"colours show {shown}" if known else f"{' and '.join(INSTEAD)} are not known either"
        _print(console, Text(f"{by} is not known for this group; {instead}"))
    _print(console, Text.assemble(("prompt  ", "dim"), _on_one_line(first["prompt"])))
    if first.get("answer") is not None:
        _print(console, Text.assemble(("answer  ", "dim"), _on_one_line(first["answer"])))
    _print(console, _legend(QUANTITIES[shown], largest, coloured=_has_colours(console)))
    for row in rows:
        _print(console, Text())
        _print(console, _heading(row))
        _print(console, _tokens(row, QUANTITIES[shown], largest, coloured=_has_colours(console)))


def _rows(step: Sequence[Row], group: int) -> list[Row]:
    """Return the rollouts of a group, highest reward first, those without a reward last."""
    rows = [row for row in step if row["group"] == group]
    return sorted(rows, key=lambda row: math.inf if row["reward"] is None else -row["reward"])


def _largest(by: str, rows: Sequence[Row]) -> float | None:
    """Return the end of the colour scale: the 98 % quantile of the absolute values. None if no value is known."""
    values = (QUANTITIES[by].values(row) or () for row in rows)
    sizes = sorted(abs(value) for each in values for value in each if value is not None)
    return sizes[math.ceil(0.98 * len(sizes)) - 1] if sizes else None


def _tokens(row: Row, quantity: Quantity, largest: float, *, coloured: bool) -> Text:
    text = Text()
    values = quantity.values(row) or [None] * len(row["pieces"])
    for n, (piece, value) in enumerate(zip(row["pieces"], values, strict=True)):
        level = _level(value, largest)
        stopped = _is_stopped(row, n)
        shown = _shown_token(piece, row["token_bytes"][n])
        if coloured:
            colours = UP if level > 0 else DOWN
            ink = f"{TEXT_COLOURS[abs(level) - 1]} on {colours[abs(level) - 1]}" if level else ""
            dim = "" if row["loss_mask"][n] else " dim"
            text.append(shown, style=f"{ink}{dim}{' underline' if stopped else ''}".strip())
        else:
            line, broken, _ = shown.partition("\n")
            text.append(f"{line}{_sign(level)}{'|' if stopped else ''}{broken}")
    return text


def _level(value: float | None, largest: float) -> int:
    """Return -4 to 4, by the square root of the value; 0 if it is less than a sixtieth of the largest."""
    if not value or not largest:
        return 0
    return int(math.copysign(round(4 * math.sqrt(min(1.0, abs(value) / largest))), value))


def _sign(level: int) -> str:
    return {1: "▴", 2: "▴▴", -1: "▾", -2: "▾▾"}.get(
        (level > 0) * (1 + (level > 2)) - (level < 0) * (1 + (level < -2)), ""
    )


def _is_stopped(row: Row, n: int) -> bool:
    """Return whether the objective no longer pushes the token: it is clipped, or it has reached its bound."""
    if row["clip"][n] in ("low", "high"):
        return True
    old, new, bound = (
        values[n] if (values := row.get(name)) else None for name in ("old_logprobs", "new_logprobs", "bound")
    )
    if old is None or new is None or bound is None or old == bound:
        return False
    return bound <= 0 and (new - old) / (bound - old) >= REACHED


def _shown_token(piece: str, raw: bytes) -> str:
    """Return a token as shown: marks for hidden characters; bytes if it is only a part of a character."""
    if not piece:
        return f"⟨{raw[:8].hex(' ')}⟩"
    cut = f"…({len(piece):,} characters)" if len(piece) > LONGEST else ""
    return mark_invisible(piece[:LONGEST]) + cut


def _heading(row: Row) -> Text:
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:.4g}"
    parts = row.get("reward_parts") or {}
    part_texts = ", ".join(f"{_on_one_line(name)} {value:.4g}" for name, value in parts.items() if value is not None)
    verdict = {True: "right", False: "wrong", None: ""}[row["right"]]
    word = verdict if row["reward"] is not None else _on_one_line(row["status"])
    ending = "" if row["finish_reason"] == "stop" else f"ended by {_on_one_line(row['finish_reason'])}"
    advantage = "" if row["advantage"] is None else f"advantage {row['advantage']:+.3g}"
    detail = f" ({part_texts})" if len(parts) > 1 else ""
    sign = {"right": "✓", "wrong": "✗"}.get(word, "–")
    parts = [f"{reward}{detail}", word, advantage, counted(len(row["pieces"]), "token"), ending]
    return Text(f"{sign} rollout {row['rollout']}: {', '.join(filter(None, parts))}", style="bold")


def _legend(quantity: Quantity, largest: float, *, coloured: bool) -> Text:
    text = Text(f"{quantity.title}, up to {largest:.3g}: " if largest else f"{quantity.title}: nothing to colour  ")
    for words, colours, sign in ((quantity.down, DOWN, "▾ ▾▾"), (quantity.up, UP, "▴ ▴▴")):
        if not words or not largest:
            continue
        if coloured:
            for ink, colour in zip(TEXT_COLOURS, colours, strict=True):
                text.append("  ", style=f"{ink} on {colour}")
        else:
            text.append(sign)
        text.append(f" {words}  ")
    text.append("underlined" if coloured else "|", style="underline" if coloured else "")
    return text.append(" clipped, or at its bound")


def _has_colours(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def _on_one_line(text: object) -> str:
    """Return text on one line, with marks for hidden characters."""
    marked = mark_invisible(shortened(str(text), 20 * LONGEST), spaces=False)
    return marked.replace("\n", "⏎").replace("\t", "→")


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
