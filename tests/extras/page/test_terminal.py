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


def test_rollouts_are_sorted_by_reward_unscored_ones_last() -> None:
    unscored = row(rollout=2, reward=None, right=False, status="timed_out", advantage=None)
    shown = said(unscored, row(rollout=0, reward=0.0, right=False), row(rollout=1), row(group=4, rollout=9))
    heads = [line.split(":")[0] for line in shown.splitlines() if "rollout" in line]
    assert heads == ["✓ rollout 1", "✗ rollout 0", "– rollout 2"]
    assert "no reward, timed_out, 4 tokens" in shown


@pytest.mark.parametrize("by", QUANTITIES)
def test_every_quantity_can_be_shown(by: str) -> None:
    assert QUANTITIES[by].up in said(row(kl_pull=[0.1] * 4, ratio=[1.0, 1.2, 0.9, 1.0]), by=by)


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
