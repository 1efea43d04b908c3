"""Test that traces of OpenEnv become rows of the tokens that were sampled."""

from typing import Any

import pytest

from outdo.extras.agents.traces import read_openenv_trace
from outdo.types import Batch
from outdo.utils.errors import UserError


def turn(name: str, prompt: list[int], sampled: list[int], mask: list[int] | None = None) -> dict[str, Any]:
    """A turn as OpenEnv writes it, all of whose sampled tokens are trained unless a mask is given."""
    whole = [0] * len(prompt) + ([1] * len(sampled) if mask is None else mask)
    logprobs = [-0.5] * len(sampled)
    fields = {"prompt_token_ids": prompt, "completion_token_ids": sampled, "per_token_logps": logprobs}
    return {"node_id": name, **fields, "loss_mask": whole, "request": {}, "response": {}, "metadata": {}}


def test_turns_that_continue_one_another_are_one_row_and_others_begin_rows() -> None:
    turns = [
        turn("a", [1, 2], [3, 4]),
        turn("b", [1, 2, 3, 4, 9], [5]),
        turn("c", [1, 2, 8], [6]),  # the history was rewritten
        turn("d", [1, 2, 3, 4, 9, 5, 7], [4], mask=[0]),  # context that the trace does not train
    ]
    first, second = sorted(
        read_openenv_trace({"schema_version": 1, "turns": turns}), key=lambda row: -len(row.token_ids)
    )
    assert (first.prompt_ids, first.token_ids) == ((1, 2), (3, 4, 9, 5, 7, 4))
    assert first.loss_mask == (True, True, False, True, False, False)
    assert first.logprobs == (-0.5, -0.5, 0.0, -0.5, 0.0, -0.5)
    assert (second.prompt_ids, second.token_ids, second.loss_mask) == ((1, 2, 8), (6,), (True,))
    rows = (first, second)
    batch = Batch.of_tokens(
        [row.prompt_ids for row in rows], [row.token_ids for row in rows], masks=[row.loss_mask for row in rows]
    )
    assert batch.totals.tokens == 4


def test_a_trace_may_be_an_object_with_model_dump() -> None:
    class Trace:
        def model_dump(self) -> dict[str, Any]:
            return {"turns": [turn("a", [1], [2])]}

    (row,) = read_openenv_trace(Trace())
    assert row.token_ids == (2,)


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"prompt_token_ids": [], "loss_mask": [1]}, "turn 0 of the trace: no prompt"),
        ({"per_token_logps": []}, "1 sampled tokens, but 0 log-probabilities"),
        ({"loss_mask": [1]}, "2 tokens, but 1 mask entries"),
        ({"loss_mask": [1, 1]}, "prompt tokens to train"),
    ],
)
def test_a_trace_whose_lists_do_not_fit_is_refused(change: dict[str, Any], mistake: str) -> None:
    with pytest.raises(UserError, match=mistake):
        read_openenv_trace({"turns": [turn("a", [1], [2]) | change]})
