"""Test that shapes in signatures are checked while tests run, and that a custom piece's result is always checked."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import batch_of, evaluate, rollout, with_noise

from outdo.algorithms.advantages import chain, compute_advantages, group_standardised, per_token, whitened
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.objectives.presets import grpo
from outdo.algorithms.objectives.ratios import sequence
from outdo.algorithms.objectives.surrogates import clip
from outdo.types import Batch, TokenScores
from outdo.utils.errors import UserError

BATCH, LOGPROBS = with_noise(batch_of([rollout(3, 1.0), rollout(2)], [rollout(1, 1.0), rollout(3)]))  # [4, 5]


def by_row(*tensors: Any) -> torch.Tensor:
    """Return a wrong shape, as a piece that forgot a dimension would."""
    return torch.zeros(4, dtype=torch.float64)


def no_tensor(*tensors: Any) -> list[float]:
    return [0.0]


PER_TOKEN = r"expected \[B, T\] = \[4, 5\]$"
FACTOR = r"expected \[B, T\] = \[4, 5\], \[B, 1\] = \[4, 1\] or a number$"


@pytest.mark.parametrize(
    ("field", "kind", "expected"),
    [
        ("surrogate", "surrogate", PER_TOKEN),
        ("level", "level", PER_TOKEN),
        ("divergence", "divergence", PER_TOKEN),
        ("correction", "correction", FACTOR),
        ("weight", "weight", FACTOR),
        ("divergence_weight", "weight", FACTOR),
        ("entropy_weight", "weight", FACTOR),
    ],
)
def test_a_piece_that_returns_a_wrong_shape_is_named_with_the_returned_and_expected_shape(
    field: str, kind: str, expected: str
) -> None:
    objective = replace(grpo(), entropy_bonus=0.1 if field == "entropy_weight" else 0.0, **{field: by_row})
    with pytest.raises(UserError, match=rf"^the {kind} test_shapes.by_row returned shape \[B\] = \[4\], {expected}"):
        call(objective)
    with pytest.raises(
        UserError, match=rf"^the {kind} test_shapes.no_tensor returned a value of type list, {expected}"
    ):
        call(replace(objective, **{field: no_tensor}))


def call(objective: Any) -> Any:
    return objective(TokenScores(logprobs=LOGPROBS, sums={"entropy": LOGPROBS.abs()}), BATCH)


@pytest.mark.parametrize("number", [2, 0.5, torch.tensor(0.5)])
def test_weights_and_corrections_may_be_numbers(number: Any) -> None:
    evaluate(replace(grpo(), weight=lambda batch: number, correction=lambda logprobs, batch: number), LOGPROBS, BATCH)


def test_an_advantage_that_returns_a_wrong_shape_is_named() -> None:
    with pytest.raises(
        UserError, match=r"^the advantage test_shapes\S+ returned shape \[1, B\] = \[1, 4\], expected \[B\]"
    ):
        per_token(lambda rewards, group: rewards[None])(BATCH)


@pytest.mark.parametrize("fill", [compute_advantages, lambda advantage, batch: chain(advantage)(batch)])
def test_a_batch_advantage_that_returns_no_batch_is_refused(fill: Callable[..., Batch]) -> None:
    with pytest.raises(UserError, match=r"^the advantage test_shapes.by_row returned Tensor, expected Batch$"):
        fill(by_row, BATCH)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: group_standardised(torch.zeros(3), torch.zeros(2, dtype=torch.int64)),
        lambda: group_standardised(torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
        lambda: sequence(torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool)),
        lambda: k3(torch.zeros(2, 3), torch.zeros(3)),
        lambda: whitened(torch.zeros(2, 3), torch.ones(2, 3)),
        lambda: clip(low=0.2, high=0.2)(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), BATCH),
        lambda: BATCH.with_(advantages=torch.zeros(4)),
    ],
    ids=["another size", "integers", "another width", "another rank", "a mask of floats", "nested", "a batch"],
)
def test_a_wrong_shape_or_dtype_is_refused_while_tests_run(wrong: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"expected .*(Float|Int|Bool)\["):
        wrong()


@pytest.mark.release
def test_shapes_in_signatures_are_not_checked_in_normal_use() -> None:
    code = (
        "import sys, outdo, torch; from outdo.algorithms.objectives.surrogates import unclipped;"
        "assert 'beartype' not in sys.modules and not hasattr(unclipped, '__wrapped__');"
        "unclipped(torch.zeros(2), torch.zeros(2), torch.zeros(1), None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
