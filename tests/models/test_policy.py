"""Policy.update: the same loss and gradient however the work is cut up, and a true account of what was done."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_cases import apart, fresh, ragged, ragged_groups, requests, rollout, tokens
from policy_cases import ADVANTAGE, ALL_TERMS, double, prepared, updated, weights
from torch import Tensor
from transformers import AutoModelForCausalLM

from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.presets import grpo
from outdo.algorithms.objectives.surrogates import clip
from outdo.algorithms.objectives.weights import Weight, sequence_mean, token_mean
from outdo.algorithms.vocabulary_sums import token_entropy
from outdo.models import onednn
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Group, TokenScores, Update
from outdo.utils.errors import NonFiniteWeightsError

BUDGETS = (1, 40, 100, 10_000)  # one row at a time; groups cut; groups whole; everything at once


# ------------------------------------------------------------------------------------------- however the work is cut up


@pytest.mark.parametrize(
    ("make", "weight", "tolerance"),
    [
        (lambda work: fresh(batch_sizes=work), token_mean, 1e-5),
        (lambda work: double(fresh("gpt_neox", batch_sizes=work)), sequence_mean, 1e-10),
        (lambda work: fresh("mamba", batch_sizes=work), sequence_mean, 1e-5),
    ],
    ids=["float32", "float64", "padded"],
)
def test_loss_and_gradient_do_not_depend_on_the_token_budget(
    make: Callable[[BatchSizes], Policy], weight: Weight, tolerance: float
):
    objective = ComposedObjective(surrogate=clip(low=0.1, high=0.1), beta=0.1, entropy_bonus=0.01, weight=weight)
    batch = prepared(policy=make(BatchSizes()))
    whole, expected = updated(make(BatchSizes()), batch, objective)
    for budget in BUDGETS[:-1]:
        update, found = updated(make(BatchSizes(micro_batch_tokens=budget, chunk=13)), batch, objective)
        assert apart(found, expected) < tolerance
        for name in ("loss", "loss/policy", "loss/divergence", "loss/entropy"):
            assert update.metrics[name] == pytest.approx(whole.metrics[name], rel=tolerance, abs=tolerance)
        for name, values in update.tokens.items():
            torch.testing.assert_close(values, whole.tokens[name], rtol=10 * tolerance, atol=10 * tolerance)


def test_loss_and_gradient_do_not_depend_on_the_order_of_sequences():
    tolerance = 1e-10
    batch = prepared(policy=double(fresh("gpt_neox")))
    whole, expected = updated(double(fresh("gpt_neox")), batch)
    order = torch.tensor([9, 7, 8, 6, 3, 0, 2, 1, 5, 4])  # groups and rows within them; rows of a group stay neighbours
    update, found = updated(double(fresh("gpt_neox")), batch.rows(order))
    assert apart(found, expected) < tolerance
    assert update.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=tolerance)
    torch.testing.assert_close(update.tokens["push"], whole.tokens["push"][order], rtol=0, atol=tolerance)


@pytest.mark.parametrize(("arch", "recompute"), [("qwen3", True), ("mamba", False)])  # the last is padded
def test_onednn_changes_only_the_last_digits(arch, recompute, monkeypatch):
    ask, asked = onednn._by_onednn, []
    monkeypatch.setattr(onednn, "_by_onednn", lambda *how, **more: asked.append(1) or ask(*how, **more))

    def done() -> tuple[Update, Tensor]:
        made = fresh(arch)
        return updated(Policy(made.model, made.tokenizer, gradient_checkpointing=recompute), batch, ALL_TERMS)

    batch = prepared(policy=fresh(arch))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    asked.clear()
    whole, expected = done()
    assert not asked
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    update, found = done()
    assert asked or not onednn.X86
    assert apart(found, expected) < 1e-5
    assert update.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-5)
    for name in ("logprobs", "entropy", "push"):
        torch.testing.assert_close(update.tokens[name], whole.tokens[name], rtol=1e-5, atol=1e-5)


def test_padding_of_the_flat_row_changes_nothing(monkeypatch):
    batch = prepared()
    whole, expected = updated(fresh(), batch, ALL_TERMS)
    monkeypatch.setattr(onednn, "pad_to_bucket", lambda rows: rows + 200)
    update, found = updated(fresh(), batch, ALL_TERMS)
    assert apart(found, expected) < 1e-5
    for name in ("logprobs", "entropy", "push"):
        torch.testing.assert_close(update.tokens[name], whole.tokens[name], rtol=1e-5, atol=1e-5)


def test_minibatches_are_optimiser_steps_of_their_own():
    batch = prepared()
    policy, by_hand = fresh(batch_sizes=BatchSizes(minibatches=2)), fresh()
    update, _ = updated(policy, batch)
    steps = [by_hand.update(part, ALL_TERMS) for part in batch.minibatches(2)]
    assert (policy.version, by_hand.version) == (2, 2)
    assert torch.equal(weights(policy), weights(by_hand))
    assert update.metrics["loss"] == pytest.approx(sum(step.metrics["loss"] for step in steps) / 2)
    for name, values in update.tokens.items():
        assert values.shape == batch.token_ids.shape, name


def test_refused_and_empty_optimiser_steps_are_counted():
    batch = prepared()
    advantages = batch.advantages.clone()
    for part, value in zip(batch.group.unique().tensor_split(4), (torch.nan, torch.nan, 0.0, 1.0), strict=True):
        advantages[torch.isin(batch.group, part)] = value
    policy = fresh(batch_sizes=BatchSizes(minibatches=4))
    metrics = policy.update(batch.with_(advantages=advantages), grpo(beta=0.0)).metrics
    assert (metrics["updates/refused"], metrics["updates/empty"], policy.version) == (2, 1, 1)
    assert all(map(math.isfinite, metrics.values()))
    others = [
        fresh().update(batch.with_(advantages=advantages).minibatches(4)[part], grpo(beta=0.0)) for part in (2, 3)
    ]
    for name in ("loss", "grad_norm"):  # those of the two that were not refused
        expected = sum(update.metrics[name] for update in others) / 2
        assert metrics[name] == pytest.approx(expected, rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize("failed", [0, 3], ids=["first", "last"])
def test_a_minibatch_with_nothing_to_train_on_is_skipped_and_rows_keep_their_order(failed):
    groups = ragged_groups()
    for number in {failed, failed ^ 1}:  # a whole half of the four groups
        lost = [rollout(each.token_ids, status="failed") for each in groups[number].rollouts]
        groups[number] = Group(prompt=groups[number].prompt, rollouts=tuple(lost))
    batch = prepared(groups)
    policy = fresh(batch_sizes=BatchSizes(minibatches=2))
    update = policy.update(batch, ALL_TERMS)
    assert policy.version == 1
    alone = fresh().update(batch.minibatches(2)[1 - failed // 2], ALL_TERMS)
    for name in ("loss", "grad_norm", "learning_rate"):
        assert update.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-5), name
    for name, values in update.tokens.items():
        assert values.shape == batch.token_ids.shape, name
        assert not values[~batch.loss_mask].any(), name
    torch.testing.assert_close(update.tokens["logprobs"], fresh().logprobs(batch), rtol=0, atol=1e-5)


def test_a_microbatch_with_nothing_to_train_on_adds_nothing():
    """All of group 0 failed; with a budget of one token it fills micro-batches of its own."""
    groups = ragged_groups()
    lost = [rollout(each.token_ids, status="failed") for each in groups[0].rollouts]
    groups[0] = Group(prompt=groups[0].prompt, rollouts=tuple(lost))
    batch = prepared(groups)
    whole, expected = updated(fresh(), batch)
    update, found = updated(fresh(batch_sizes=BatchSizes(micro_batch_tokens=1)), batch)
    assert apart(found, expected) < 1e-5
    assert update.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-5)


# ---------------------------------------------------------------------------------------------------- the account of it


def test_push_is_minus_the_derivative_of_the_loss():
    batch = prepared()
    update, _ = updated(fresh(batch_sizes=BatchSizes(micro_batch_tokens=40)), batch)
    logprobs = update.tokens["logprobs"].clone().requires_grad_()
    ALL_TERMS(TokenScores(logprobs=logprobs, sums={"entropy": update.tokens["entropy"]}), batch).loss.backward()
    torch.testing.assert_close(update.tokens["push"], -logprobs.grad)
    assert (update.tokens["push"] != 0)[batch.loss_mask].float().mean() > 0.9


def test_log_probabilities_ratios_and_entropies_are_those_before_the_step():
    batch, before = prepared(), fresh()
    update, _ = updated(fresh(optimiser=OptimiserSettings(lr=0.1)), batch)
    torch.testing.assert_close(update.tokens["logprobs"], before.logprobs(batch), rtol=0, atol=5e-6)
    torch.testing.assert_close(update.tokens["log_ratio"], update.tokens["logprobs"] - batch.old_logprobs)
    entropy = before.scores(batch, {"entropy": token_entropy}).sums["entropy"].detach()
    torch.testing.assert_close(update.tokens["entropy"], entropy, rtol=0, atol=1e-5)
    assert (update.tokens["entropy"][batch.loss_mask] > 0).all()


def test_clipped_is_where_an_advantage_pushes_nothing():
    batch = prepared()
    update, _ = updated(fresh(), batch, grpo(clip_low=0.1, clip_high=0.2, beta=0.1))
    ratio, advantages = update.tokens["log_ratio"].exp(), batch.advantages
    gone = ((advantages > 0) & (ratio > 1.2)) | ((advantages < 0) & (ratio < 0.9))
    assert torch.equal(update.tokens["clipped"], gone & batch.loss_mask)
    assert gone.any()
    assert update.tokens["push"][update.tokens["clipped"]].abs().min() > 0  # what is left there is the divergence's


@pytest.mark.parametrize(("arch", "budget"), [("qwen3", 1), ("qwen3", 100), ("mamba", 40)])
def test_a_single_pass_needs_no_forward_pass_for_the_old_policy(arch, budget):
    """Without `old_logprobs` the update is the same, to the bit, as with those computed beforehand.

    Where no group is idle, that is: idle ones are computed apart, and with other neighbours last bits may change.
    """
    batch, results = ADVANTAGE(ragged()), []
    batch = batch.with_(advantages=batch.advantages + 0.5 * batch.loss_mask)
    for separate in (False, True):
        policy = fresh(arch, batch_sizes=BatchSizes(micro_batch_tokens=budget), optimiser=OptimiserSettings(lr=1e-2))
        given = batch.with_(old_logprobs=policy.logprobs(batch)) if separate else batch
        policy.update(given, grpo(beta=0))
        results.append(weights(policy))
    assert torch.equal(*results)
    assert not torch.equal(results[0], weights(fresh(arch)))


# ----------------------------------------------------------------------------------------------------- what it leads to


def test_the_log_probabilities_of_a_big_group_are_computed_within_the_token_budget(monkeypatch):
    """A forward of its own is no reason to need more memory than the update that follows."""
    policy, sizes = fresh(batch_sizes=BatchSizes(micro_batch_tokens=40)), []
    whole = policy.forward.hidden
    monkeypatch.setattr(policy.forward, "hidden", lambda micro: sizes.append(micro.token_ids.numel()) or whole(micro))
    policy.logprobs(ragged())
    assert max(sizes) <= 40


def test_a_saved_policy_is_an_ordinary_model_folder(tmp_path: Path):
    policy = fresh(optimiser=OptimiserSettings(lr=1e-2))
    policy.update(prepared(), grpo(beta=0.1))
    policy.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([tokens(20, 0)])
    assert torch.equal(loaded(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    again, asked = Policy.load(tmp_path, device="cpu"), requests((1, 9), siblings=2)
    assert again.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    answers = [BuiltinEngine(each).generate(asked, SamplingParams()) for each in (policy, again)]
    assert [x.logprobs for x in answers[0]] == [x.logprobs for x in answers[1]]


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    policy = fresh()
    with torch.no_grad():
        policy.model.lm_head.weight[7, 3] = torch.inf
    with pytest.raises(
        NonFiniteWeightsError, match=r"not saved after 0 optimiser steps: lm_head.weight holds 1 of 8,448"
    ):
        policy.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
