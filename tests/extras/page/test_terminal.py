"""A group in a terminal: coloured or with signs, and inert."""

import io
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from outdo.extras.page.terminal import QUANTITIES, show_group

HOSTILE = "[red]x[/red][link=http://x]y\x1b[2J\x1b]8;;http://x\x07z\x9b1m\u202e\u2066\r\x00"


def row(**changes: Any) -> dict[str, Any]:
    made = {
        "step": 40,
        "group": 3,
        "rollout": 0,
        "prompt_id": "q7",
        "prompt": "1+1=",
        "answer": "2",
        "text": "a b",
        "pieces": ["a", " b", "c", "d"],
        "token_bytes": [b"a", b" b", b"c", b"d"],
        "reward": 1.0,
        "reward_parts": {"exact": 1.0},
        "status": "ok",
        "right": True,
        "advantage": 0.5,
        "finish_reason": "stop",
        "loss_mask": [True, True, True, True],
        "old_logprobs": [-1.0, -1.0, -1.0, -1.0],
        "new_logprobs": [-0.5, -1.5, -1.0, -0.95],
        "ref_logprobs": None,
        "advantages": [0.5] * 4,
        "bound": [-0.5, -2.0, None, -0.5],
        "ratio": [1.0, 1.0, 1.0, 1.0],
        "clip": ["free", "low", "neutral", "free"],
        "entropy": [0.1] * 4,
        "policy_push": [0.1, -0.1, 0.0, 0.1],
        "kl_pull": [0.0] * 4,
        "net_push": [0.1, -0.1, 0.0, 0.1],
    }
    return made | changes


def said(*rows: dict[str, Any], by: str = "moved", group: int = 3, **console: Any) -> str:
    file = io.StringIO()
    show_group(pa.Table.from_pylist(list(rows)), group, Console(file=file, width=400, **console), by=by)
    return file.getvalue()


def coloured(*rows: dict[str, Any], **how: Any) -> str:
    return said(*rows, force_terminal=True, color_system="truecolor", **how)


def test_without_colours_signs_show_how_far_and_where_a_token_moved() -> None:
    shown = said(row())
    assert "a▴▴|·b▾▾|cd▴\n" in shown  # the first has reached its bound, the second is clipped, the third stood still
    assert "\x1b" not in shown
    assert "▾ ▾▾ less likely  ▴ ▴▴ more likely  | clipped, or at its bound" in shown


def test_with_colours_the_same_is_shown_and_underlines_are_real() -> None:
    shown = coloured(row())
    assert "\x1b[4;37;48;2;30;64;175ma\x1b[0m" in shown
    assert "\x1b[4;37;48;2;154;52;18m·b\x1b[0m" in shown
    assert "▴" not in shown


def test_the_colour_scale_covers_the_whole_step() -> None:
    still = row(new_logprobs=[-1.0 + 1e-6] * 4, bound=[None] * 4, clip=["free"] * 4)
    assert "a·bcd\n" in said(still, row(group=4))
    assert "a▴▴·b▴▴c▴▴d▴▴\n" in said(still)


def test_the_variable_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = coloured(row())
    assert "a▴▴|·b▾▾|cd▴" in shown
    assert "48;2" not in shown


def test_rollouts_are_sorted_by_reward_unscored_ones_last() -> None:
    unscored = row(rollout=2, reward=None, right=False, status="timed_out", advantage=None)
    shown = said(unscored, row(rollout=0, reward=0.0, right=False), row(rollout=1), row(group=4, rollout=9))
    heads = [line.split(":")[0] for line in shown.splitlines() if "rollout" in line]
    assert heads == ["✓ rollout 1", "✗ rollout 0", "– rollout 2"]
    assert "no reward, timed_out, 4 tokens" in shown


def test_an_unmeasured_group_is_coloured_by_its_leverage_with_a_note() -> None:
    certain = row(new_logprobs=None, old_logprobs=[-1.0, -1.0, -1.0, -1e-6])
    shown = said(certain)
    assert "moved is not known for this group; colours show leverage" in shown
    assert "a▴▴·b▾▾|cd\n" in shown  # the last one is pushed, and cannot move
    shown = said(certain | {"net_push": None})
    assert "moved is not known for this group; colours show policy_push" in shown
    assert "a▴▴·b▾▾|cd▴▴" in shown
    shown = said(certain | {"net_push": None, "policy_push": None})
    assert "moved is not known for this group; leverage and policy_push are not known either" in shown


@pytest.mark.parametrize("by", QUANTITIES)
def test_every_quantity_can_be_shown(by: str) -> None:
    assert QUANTITIES[by].up in said(row(kl_pull=[0.1] * 4, ratio=[1.0, 1.2, 0.9, 1.0]), by=by)


def test_a_note_is_shown_if_nothing_can_be_coloured() -> None:
    assert "ratio in the last pass: nothing to colour" in said(row(ratio=[1.0] * 4), by="ratio")


@pytest.mark.parametrize("console", [{}, {"force_terminal": True, "color_system": "truecolor"}])
def test_control_characters_of_a_model_are_not_printed(console: dict[str, Any]) -> None:
    bad = row(
        prompt=HOSTILE,
        prompt_id=HOSTILE,
        answer=HOSTILE,
        pieces=[HOSTILE] * 4,
        status=HOSTILE,
        reward=None,
        right=False,
        finish_reason=HOSTILE,
        reward_parts={HOSTILE: 1.0, "b": 1.0},
    )
    shown = said(bad, **console)
    for style in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[4m"):
        shown = shown.replace(style, "")
    rest = "".join(part.partition("m")[2] if n else part for n, part in enumerate(shown.split("\x1b[")))
    assert all(character.isprintable() or character == "\n" for character in rest)
    assert rest.count("[red]x[/red][link=http://x]y␛[2J␛]8;;http://x␇z⟨009B⟩1m⟨202E⟩⟨2066⟩␍␀") >= 8


def test_a_line_break_is_shown_as_a_mark_and_a_new_line() -> None:
    assert "a⏎▴▴|\n·b▾▾|" in said(row(pieces=["a\n", " b", "c", "d"]))


def test_a_part_of_a_character_shows_its_bytes_and_a_huge_token_its_length() -> None:
    torn = row(pieces=["", "日", "y" * 10_485_760, "d"], token_bytes=[b"\xe6\x97", b"\xa5", b"y", b"d"])
    shown = said(torn)
    assert "⟨e6 97⟩▴▴|日" in shown
    assert "…(10,485,760 characters)" in shown
    assert len(shown) < 2000
