"""Test the early-stopping rules: the condition of each, their order, and which settings are refused."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from contexts import essay
from toys import batch_of, rollout

from outdo.algorithms.early_stopping import first_of
from outdo.algorithms.objectives import presets
from outdo.algorithms.objectives.base import clip_measurements
from outdo.types import Batch, TokenScores, Update


def batch_with(advantages: Sequence[float], old: Sequence[float]) -> Batch:
    """Return a batch of one-token answers with these advantages and probabilities."""
    batch = batch_of([rollout(token_ids=(n,), loss_mask=(True,), logprobs=(0.0,)) for n in range(len(old))])
    column = torch.tensor(advantages, dtype=torch.float64)[:, None]
    return batch.with_(advantages=column * batch.loss_mask, old_logprobs=logprobs(old))


def logprobs(probabilities: Sequence[float]) -> torch.Tensor:
    """Return log-probabilities [B, 2]; the value at the prompt is never read."""
    return torch.tensor([[math.nan, math.log(p)] for p in probabilities], dtype=torch.float64)


def passes(*probabilities: Sequence[float]) -> list[Update]:
    """Return one `Update` per pass, with these token probabilities."""
    return [Update(metrics={}, tokens={"logprobs": logprobs(each)}) for each in probabilities]


TARGETS = essay(merge="none").prepare(batch_with([1.0, -1.0], [0.25, 0.5]))  # to 0.5 and 0.25
CLIP = batch_with([1.0, -1.0], [0.25, 0.5])  # to 0.3 and 0.4


def test_reached_stops_at_the_share_of_tokens_at_their_targets():
    stop = first_of(reached=1.0)
    assert stop(TARGETS, passes([0.25, 0.5], [0.5, 0.4])) == ""
    assert stop(TARGETS, passes([0.25, 0.5], [0.49, 0.26])) == "reached"
    assert stop(TARGETS, passes([0.9, 0.25])) == ""  # beyond its target does not count
    assert first_of(reached=1.0, tolerance=0.01)(TARGETS, passes([0.49, 0.26])) == ""
    assert first_of(reached=0.5)(TARGETS, passes([0.5, 0.5])) == "reached"


def test_attained_stops_at_the_share_of_probability_mass_moved():
    stop = first_of(attained=0.7)
    assert stop(TARGETS, passes([0.40, 0.35])) == ""  # 0.15 + 0.15 of 0.5
    assert stop(TARGETS, passes([0.45, 0.30])) == "attained"  # 0.20 + 0.20 of 0.5


def test_a_plateau_needs_two_passes():
    stop = first_of(plateau=0.01)
    assert stop(TARGETS, passes([0.25, 0.5])) == ""
    assert stop(TARGETS, passes([0.25, 0.5], [0.35, 0.5])) == ""
    assert stop(TARGETS, passes([0.25, 0.5], [0.35, 0.5], [0.351, 0.5])) == "plateau"
    assert stop(TARGETS, passes([0.35, 0.5], [0.30, 0.5])) == "plateau"  # worse is no better


def test_kl_is_the_mean_k3_between_the_old_and_the_new_policy():
    ratio = 2.0
    k3 = ratio - 1 - math.log(ratio)  # and 0 for the token that did not move
    assert first_of(kl=k3 / 2 * 1.01)(TARGETS, passes([0.5, 0.5])) == ""
    assert first_of(kl=k3 / 2 * 0.99)(TARGETS, passes([0.5, 0.5])) == "kl"


def test_the_first_rule_that_holds_gives_the_reason():
    stop = first_of(reached=0.5, attained=0.5, kl=1e-6)
    assert stop(TARGETS, passes([0.25, 0.5])) == ""
    assert stop(TARGETS, passes([0.25, 0.49])) == "kl"
    assert stop(TARGETS, passes([0.40, 0.35])) == "attained"
    assert stop(TARGETS, passes([0.50, 0.30])) == "reached"


def test_without_targets_the_clip_bounds_are_the_targets():
    stop = first_of(reached=1.0)
    assert stop(CLIP, passes([0.30, 0.41])) == ""
    assert stop(CLIP, passes([0.30, 0.40])) == "reached"
    assert stop(CLIP, passes([0.90, 0.01])) == "reached"  # beyond a clip bound counts as reached
    wider = first_of(reached=1.0, clip_low=0.3, clip_high=0.4)
    assert wider(CLIP, passes([0.30, 0.40])) == ""
    assert wider(CLIP, passes([0.35, 0.35])) == "reached"


def test_the_bounds_are_those_of_the_ratio_that_the_objective_bounds():
    """With `bypass` it is that to the engine's probabilities, and at the level of the sequence that of the answer."""
    engine = torch.log(torch.tensor([[1.0, 0.2], [1.0, 0.4]], dtype=torch.float64))
    batch = batch_with([1.0, -1.0], [0.26, 0.3]).with_(rollout_logprobs=engine)
    now = logprobs([0.26, 0.3]).nan_to_num(0.0)  # 1.3 and 0.75 times the engine's, and still π_old
    scores = TokenScores(logprobs=now.requires_grad_())
    for objective, reason in ((presets.grpo(beta=0.0), ""), (replace(presets.grpo(beta=0.0), bypass=True), "reached")):
        (push,) = torch.autograd.grad(objective(scores, batch).policy, now)
        tokens = {"logprobs": now.detach(), **clip_measurements(objective, scores, batch, push)}
        assert first_of(reached=1.0)(batch, [Update(metrics={}, tokens=tokens)]) == reason
        assert first_of(kl=1e-9)(batch, [Update(metrics={}, tokens=tokens)]) == ""  # from π_old


@pytest.mark.parametrize(
    ("found", "share"), [([0.25, 0.5], 0.0), ([0.275, 0.5], 0.25), ([0.3, 0.4], 1.0), ([0.3, 0.6], 0.0)]
)
def test_attained_of_a_clipped_objective_is_the_share_of_its_possible_gain(found, share):
    if share > 0:
        assert first_of(attained=share - 1e-6)(CLIP, passes(found)) == "attained"
    if share < 1:
        assert first_of(attained=share + 1e-6)(CLIP, passes(found)) == ""


def test_the_possible_gain_of_a_clipped_objective_ends_at_probability_one():
    batch = batch_with([1.0], [0.9])  # J* is 1 / 0.9, not 1.2
    assert first_of(attained=0.999)(batch, passes([1.0 - 1e-6])) == "attained"
    assert first_of(attained=0.999)(batch, passes([0.95])) == ""


def test_without_advantages_every_target_counts_as_reached():
    still = batch_with([0.0, 0.0], [0.25, 0.5])
    assert first_of(reached=1.0)(still, passes([0.25, 0.5])) == "reached"
    assert first_of(attained=1.0)(essay().prepare(still), passes([0.25, 0.5])) == "attained"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give at least one of reached, attained, plateau, kl"),
        ({"reached": 1.5}, "reached must be a number above 0 and at most 1, not 1.5"),
        ({"kl": "0.1"}, "kl must be a number above 0, not '0.1'"),
        ({"kl": -1.0, "tolerance": 0.0}, "kl must be.*; tolerance must be"),
    ],
)
def test_missing_or_invalid_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        first_of(**options)
