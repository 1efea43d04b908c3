"""A group or a step in a notebook: what it shows, and that text of a model is nothing but text in it."""

import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from outdo.extras.page.notebook import LONGEST, show
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Sampled, Step, Update

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)></pre></div><style>*{}</style>"
    "\"' onmouseover='x' javascript:x &lt;b&gt; \x1b[31m\x1b]8;;http://x\x07 \u202egnp \ud800 \u2028 \x00"
)
TAGS = {"style", "div", "p", "dl", "dt", "dd", "pre", "ol", "li", "small", "br", "span"}
TOKENIZER = byte_bpe_tokenizer(["one two three naïve 日本"])


class Parsed(HTMLParser):
    """What a browser would make of a fragment."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def rollout(text: str, reward: float = 0.0, **how: object) -> Rollout:
    ids = tuple(TOKENIZER.encode(text, add_special_tokens=False))
    made = Rollout(
        token_ids=ids,
        loss_mask=(True,) * len(ids),
        logprobs=(-1.0,) * len(ids),
        text=text,
        reward=reward,
        finish_reason=FinishReason.stop,
        policy_version=0,
    )
    return replace(made, **how)


def group(*rollouts: Rollout, prompt: str = "1+1=") -> Group:
    return Group(prompt=Prompt(id="q1", text=prompt, token_ids=(5, 6), answer="2"), rollouts=rollouts)


def step(*groups: Group, passes: int = 2) -> Step:
    """In every pass, token t of row b is pushed by t - 4; all tokens have probability 0.75 before the step."""
    batch = Batch.from_groups(groups)
    push = (torch.arange(batch.token_ids.shape[1]) - 4.0).expand_as(batch.token_ids)
    tokens = {"push": push, "logprobs": torch.full(push.shape, math.log(0.75))}
    updates = [Update(metrics={}, tokens=tokens)] * passes
    return Step(index=40, sampled=Sampled(groups=groups), batch=batch, updates=updates)


def test_a_group_shows_its_prompt_and_its_rollouts_best_first() -> None:
    shown = Parsed(
        show(
            group(
                rollout("bad", -1.0, right=False),
                rollout("failing", status="timed_out"),
                rollout("good", 1.0, right=True),
                rollout("endless", 0.5, finish_reason=FinishReason.length),
            )
        )
    ).text
    places = [shown.index(text) for text in ("1+1=", "good", "endless", "bad", "failing")]
    assert places == sorted(places)
    assert "1 right" in shown
    assert "-1 wrong" in shown
    assert "no reward timed_out" in shown
    assert "length" in shown


def test_tokens_are_coloured_by_their_leverage() -> None:
    """Two passes push token t of each row by t - 4, and every token had probability 0.75."""
    parsed = Parsed(show(step(group(rollout("one two three 4567"))), TOKENIZER))
    tokens = [attributes for tag, attributes in parsed.tags if tag == "span" and "title" in attributes]
    count = len(rollout("one two three 4567").token_ids)
    pushes = [2 * (2 + n - 4) for n in range(count)]  # two tokens of prompt come before
    assert [each["title"] for each in tokens] == [f"net push {push:+.3g}, probability 0.75" for push in pushes]
    kinds = [each.get("class", "")[:-1] for each in tokens]
    assert kinds == ["down" if push < 0 else "up" if push > 0 else "" for push in pushes]
    assert tokens[-1]["class"] == "up4"
    assert f"at most {0.25 * max(pushes):.3g}" in parsed.text
    assert "Step 40, group 0 of 1" in parsed.text


def hostile() -> Group:
    ids = rollout("x").token_ids
    bad = replace(rollout("x", 1.0), text=HOSTILE, status="ok")
    failed = replace(rollout("x"), text="", status=HOSTILE, token_ids=ids)
    prompt = Prompt(id=HOSTILE, text=HOSTILE, token_ids=(5,), answer=HOSTILE)
    return Group(prompt=prompt, rollouts=(bad, failed), baseline=0.5)


@pytest.mark.parametrize("make", [show, lambda made: show(step(made), Spells())])
def test_no_text_adds_an_element_attribute_or_control_character(make) -> None:
    html = make(hostile())
    parsed = Parsed(html)
    assert parsed.open == []
    assert {tag for tag, _ in parsed.tags} <= TAGS
    assert {name for _, attributes in parsed.tags for name in attributes} <= {"class", "title"}
    assert all(value and "script" not in value for _, attributes in parsed.tags for value in attributes.values())
    assert sum(tag == "style" for tag, _ in parsed.tags) == 1
    assert "<script>alert(1)</script>" in parsed.text.replace("·", " ")
    assert all(character.isprintable() or character == "\n" for character in html)
    html.encode()  # no half of a surrogate pair is left


class Spells:
    """A tokenizer all of whose tokens are hostile."""

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return HOSTILE

    def decode(self, token_ids: list[int], **_: object) -> str:
        return HOSTILE * len(token_ids)


def test_a_long_text_is_cut_and_its_length_is_shown() -> None:
    html = show(group(replace(rollout("x"), text="y" * 10_485_760)))
    assert len(html) < 2 * LONGEST
    assert "(10,485,760 characters)" in html
