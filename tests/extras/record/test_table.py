"""The table of a step: every number where its token is, null where nothing is known."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from made_records import TOKEN_TEXTS, group, record_of, rollout, step_of
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outdo.extras.record.table import COLUMNS, record_table
from outdo.extras.record.tokens import CLIP, TokenRecord
from outdo.models.token_text import TokenTexts
from outdo.types import FinishReason, Group, Prompt, Rollout, Step

STEP = step_of(
    [
        group("2 + 2 = ", [rollout("4", 1.0, right=True), rollout("über 😀", right=False)], answer="4"),
        group(
            "What is 12 + 30? ",
            [
                rollout("", reward_parts={"exact": 1.0, "format": None}, reward=1.0),
                rollout("42.", status="failed", reward_parts={"format": 0.5}, finish_reason=FinishReason.length),
                rollout("x", loss_mask=(True, False), temperature=0.7),
            ],
            answer=[4, "é"],
            baseline=0.25,
        ),
    ]
)
MEASURED = [True, True, False, False, False]
RECORD = record_of(STEP, measured=MEASURED)


def written(step: Step = STEP, record: TokenRecord = RECORD, **about: str) -> pa.Table:
    return record_table(step, record, TOKEN_TEXTS, about=about)


def test_a_row_is_a_rollout() -> None:
    found = written()
    assert found["step"].to_pylist() == [40] * 5
    assert found["group"].to_pylist() == [0, 0, 1, 1, 1]
    assert found["rollout"].to_pylist() == [0, 1, 0, 1, 2]
    assert found["prompt_id"].to_pylist()[1:3] == ["id of 2 + 2 = ", "id of What is 12 + 30? "]
    assert found["prompt"].to_pylist()[1:3] == ["2 + 2 = ", "What is 12 + 30? "]
    assert found["answer"].to_pylist()[1:3] == ["4", '[4, "é"]']
    assert found["text"].to_pylist() == ["4", "über 😀", "", "42.", "x"]
    assert found["reward"].to_pylist() == [1.0, 0.0, 1.0, None, 0.0]
    assert found["reward_parts"].to_pylist()[2:4] == [{"exact": 1.0, "format": None}, {"exact": None, "format": 0.5}]
    assert found["status"].to_pylist() == ["ok", "ok", "ok", "failed", "ok"]
    assert found["right"].to_pylist() == [True, False, None, None, None]  # null where there is no verdict
    assert found["baseline"].to_pylist() == [None, None, 0.25, 0.25, 0.25]
    assert found["finish_reason"].to_pylist() == ["stop", "stop", "stop", "length", "stop"]
    assert found["policy_version"].to_pylist() == [7] * 5
    assert found["temperature"].to_pylist() == [1.0, 1.0, 1.0, 1.0, 0.7]
    assert found["measured"].to_pylist() == MEASURED


def test_an_episode_has_its_rewards_conversations_and_counts() -> None:
    counts = {"tools/calls": 3, "tools/raised": 1, "engine/tokens_read": 70}
    forks = ((6, 4), (7, 1), (8, -1))  # columns of the row, whose prompt has four tokens
    episode = rollout("1234", token_rewards=(0.0, 0.5, 0.0, 0.0, 0.5), counts=counts, tool_seconds={"add": (0.1, 0.2)})
    step = step_of([group("1+1=", [episode, rollout("1234", forks=forks)])])
    assert step.batch.prompt_lengths.tolist() == [4, 4]
    first, second = written(step, record_of(step)).to_pylist()
    assert first["token_rewards"] == [0.0, 0.5, 0.0, 0.0, 0.5]
    assert second["forks"] == [{"token": 2, "after": 0}, {"token": 3, "after": -3}, {"token": 4, "after": None}]
    assert dict(first["counts"]) == {"tools/calls": 3, "tools/calls/add": 2, "tools/raised": 1}
    assert second["token_rewards"] is first["forks"] is None
    assert second["counts"] is None


def test_lists_have_one_entry_per_completion_token() -> None:
    found = written().to_pylist()
    record = {name: getattr(RECORD, name) for name in COLUMNS if name != "target"}
    rollouts = [each for group in STEP.groups for each in group.rollouts]
    for row, each, start, b in zip(found, rollouts, STEP.batch.prompt_lengths.tolist(), range(5), strict=True):
        inside = slice(start, start + len(each.token_ids))
        assert tuple(row["token_ids"]) == each.token_ids
        assert row["loss_mask"] == STEP.batch.loss_mask[b, inside].tolist()
        assert row["clip"] == [CLIP[code] for code in RECORD.clip[b, inside].tolist()]
        for name, values in record.items():
            if values is not None and row[name] is not None:
                expected = values[b, inside].tolist()
                assert row[name] == [None if np.isnan(number) else number for number in expected], name


def test_pieces_depend_on_their_position() -> None:
    for row in written().to_pylist():
        assert "".join(row["prompt_pieces"]) == row["prompt"]
        assert "".join(row["pieces"]) == row["text"] + "<|end|>"
        assert b"".join(row["token_bytes"]).decode() == row["text"] + "<|end|>"
        assert len(row["pieces"]) == len(row["token_bytes"]) == len(row["token_ids"])


def test_the_text_of_a_completion_continues_that_of_its_prompt() -> None:
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"What": 0, "is": 1}, unk_token="is")))
    asked = Prompt(id="1", text="What", token_ids=(0,))
    step = step_of([Group(prompt=asked, rollouts=(rollout("", token_ids=(1,), loss_mask=(True,), logprobs=(0.0,)),))])
    row = record_table(step, record_of(step), TokenTexts(words), about={}).to_pylist()[0]
    assert (row["prompt_pieces"], row["pieces"], row["token_bytes"]) == (["What"], [" is"], [b" is"])


def test_the_advantage_is_the_mean_over_trained_tokens() -> None:
    assert RECORD.advantages is not None
    found = written()["advantage"].to_pylist()
    mask = STEP.batch.loss_mask
    for b in (0, 1, 2, 4):
        assert found[b] == pytest.approx(float(RECORD.advantages[b, mask[b]].mean()))
    assert found[3] is None  # its reward failed: no token is trained
    assert written(record=replace(RECORD, advantages=None))["advantage"].null_count == 5


def test_only_half_a_surrogate_pair_is_escaped() -> None:
    torn, whole = "a\ud83d\x00\n<b>", "😀\x00\n\u2028"
    step = step_of([group("1", [_with_text(torn), _with_text(whole)], answer={"a": torn})])
    found = written(step, record_of(step))
    assert found["text"].to_pylist() == ["a\\ud83d\x00\n<b>", whole]
    assert json.loads(found["answer"][0].as_py()) == {"a": torn}
    strange = step_of([group("1", [rollout("1", reward_parts={"a\ud83d": 1.0})])])
    assert written(strange, record_of(strange))["reward_parts"].to_pylist() == [{"a\\ud83d": 1.0}]


def test_a_completion_without_tokens_has_empty_lists() -> None:
    silent = rollout("", token_ids=(), loss_mask=(), logprobs=())
    step = step_of([group("1", [silent, rollout("1")])])
    row = written(step, record_of(step, measured=[False, True])).to_pylist()[0]
    assert row["token_ids"] == row["pieces"] == row["old_logprobs"] == row["clip"] == []
    assert row["new_logprobs"] is None
    assert row["advantage"] is None


def _with_text(text: str) -> Rollout:
    return replace(rollout("1"), text=text)
