"""Test how progress towards targets is measured: shares of tokens, attained mass, and unreachable targets."""

import math

import pytest
import torch
from contexts import doubles, essay, logprobs_of, one_context, vocabulary
from torch import Tensor
from toys import assert_close

from outdo.algorithms.progress import NOISE, attained, movable, progress, target_metrics
from outdo.types import Batch


def two_tokens() -> Batch:
    """Return a good token (probability 1/4, target 1/2) and a bad one (1/2, target 1/4), each in its own context."""
    batch = one_context([1.0, -1.0]).with_(old_logprobs=doubles([[0.0, math.log(0.25)], [0.0, math.log(0.5)]]))
    return essay(merge="none").prepare(batch)


def now(good: float, bad: float) -> Tensor:
    return doubles([[0.0, math.log(good)], [0.0, math.log(bad)]])


@pytest.mark.parametrize(
    ("good", "bad", "share", "metrics"),
    [
        (0.250, 0.50, 0.0, {"reached": 0.0, "wrong_way": 0.0, "overshoot": 0.0}),
        (0.375, 0.50, 0.25, {"reached": 0.0, "wrong_way": 0.0, "overshoot": 0.0}),
        (0.500, 0.25, 1.0, {"reached": 1.0, "wrong_way": 0.0, "overshoot": 0.0}),
        (0.500, 0.75, 0.0, {"reached": 0.5, "wrong_way": 0.5, "overshoot": 0.0}),
        (0.900, 0.25, 1.0, {"reached": 0.5, "wrong_way": 0.0, "overshoot": 0.5}),
    ],
)
def test_attained_mass_and_shares_of_tokens(good, bad, share, metrics):
    batch = two_tokens()
    assert attained(batch, now(good, bad)) == pytest.approx(share)
    found = target_metrics(batch, now(good, bad))
    assert found["target/attained"] == pytest.approx(share)
    assert {name: found[f"target/{name}"] for name in metrics} == metrics
    assert found["target/unreachable"] == 0.0


def test_progress_is_the_share_of_the_distance_in_nats():
    found = progress(two_tokens(), now(0.25 * 2**0.5, 1.0))
    assert_close(found, doubles([[0.0, 0.5], [0.0, -1.0]]))


def test_changes_below_the_noise_level_do_not_count_as_movement():
    batch = two_tokens()
    assert target_metrics(batch, batch.old_logprobs - NOISE / 10)["target/wrong_way"] == 0.0
    still = essay().prepare(one_context([1.0]).with_(old_logprobs=doubles([[0.0, -NOISE / 10]])))
    assert not movable(still).any()
    assert target_metrics(still, still.old_logprobs)["target/reached"] == 1.0


@pytest.mark.parametrize(("p", "expected"), [(0.83, 0.0), (0.84, 1.0)])
def test_a_clip_bound_above_probability_one_is_unreachable(p, expected):
    """From the essay: if π_old is 0.99 the ratio cannot reach 1.1; with ε = 0.2 this begins at 0.833."""
    batch = one_context([1.0]).with_(old_logprobs=doubles([[0.0, math.log(p)]]))
    for rule, share in (("clip", expected), ("power", 0.0)):
        assert target_metrics(essay(rule=rule).prepare(batch), batch.old_logprobs)["target/unreachable"] == share


def test_good_tokens_are_unreachable_if_no_other_token_can_lose_probability():
    batch = one_context([1.0, 1.0])
    batch = essay().prepare(batch.with_(old_logprobs=logprobs_of(batch, vocabulary([0.5, 0.5]))))
    assert target_metrics(batch, batch.old_logprobs)["target/unreachable"] == 1.0


def test_a_batch_without_targets_has_no_metrics():
    assert target_metrics(one_context([1.0]), torch.zeros(1, 2)) == {}


def test_tokens_merged_in_the_loss_count_once_in_the_metrics():
    batch = one_context([1.0, 1.0, 1.0, -1.0], tokens=[0, 0, 0, 1])
    batch = essay().prepare(batch.with_(old_logprobs=logprobs_of(batch, vocabulary([0.1, 0.5]))))
    moved = batch.old_logprobs.clone()
    moved[:3] = batch.targets[:3]
    assert target_metrics(batch, moved)["target/reached"] == 0.5
