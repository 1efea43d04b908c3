"""What replicas that share sequences check together; two of them run all checks in processes that are started once."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from divided_cases import saved_model
from engine_cases import other_model, rollout
from policy_cases import ALL_TERMS, prepared, updated
from replica_cases import _random_shares, shared
from thread_cases import crowd, different_results, update_of, wide_policy
from torch import Tensor

from outdo.algorithms.advantages import gae
from outdo.algorithms.objectives.presets import grpo, gspo
from outdo.algorithms.vocabulary_sums import detached_entropy, token_collision, token_entropy
from outdo.extras.replicas import ulysses
from outdo.extras.replicas.lockstep import LockstepReplicas
from outdo.extras.replicas.replicas import Replicas
from outdo.extras.replicas.sharding import DividingReplicas
from outdo.models.adapter import adapter_config
from outdo.models.bundle import Models
from outdo.models.policy import Policy
from outdo.models.scorer import token_scores
from outdo.run.assemble.micro_batch_size import count_saved
from outdo.testing import tiny_model
from outdo.types import Batch, Group, Prompt
from outdo.utils.errors import ModelError, OutdoError, WorkerError
from outdo.utils.sharded_tensors import whole
from outdo.utils.world import ALONE, World

OBJECTIVES = {"all terms": ALL_TERMS, "gspo": replace(gspo(), entropy_bonus=0.01), "grpo": grpo(beta=0.1)}


def in_groups(replicas: Replicas, count: int | None = None) -> LockstepReplicas:
    """The replicas, of which `count` share each sequence."""
    return LockstepReplicas(timeout=replicas.timeout, share=count or len(replicas))


def divided_in_groups(replicas: Replicas, count: int | None = None) -> DividingReplicas:
    """The same, with weights that all of them divide."""
    return DividingReplicas(timeout=replicas.timeout, device=torch.device("cpu"), share=count or len(replicas))


def policy(arch: str = "qwen3", *, dtype: torch.dtype = torch.float32, world: World = ALONE, **how: Any) -> Policy:
    """A tiny policy of an architecture; with equal arguments, an equal one. `num_...` change the shape of its model."""
    shape = {name: how.pop(name) for name in list(how) if name.startswith("num_")}
    model, tokenizer = tiny_model(arch="qwen3" if shape else arch)
    if shape:
        model = other_model(arch, **shape)
    return Policy(model.to(dtype), tokenizer, world=world, **how)  # type: ignore[arg-type]


def assert_same_update(replicas: Replicas, arch: str, objective: object, bound: float, **how: Any) -> None:
    """Scores, metrics and the gradient of an update are those of one process."""
    alone, parts = (policy(arch, world=world, **how) for world in (ALONE, in_groups(replicas)))
    batch = prepared(policy=policy(arch, **how))
    for sums in ({}, {"entropy": token_entropy, "collision": token_collision}):
        expected, found = (each.measure(batch, sums) for each in (alone, parts))
        assert_close(found.logprobs, expected.logprobs, bound)
        for name in sums:
            assert_close(found.sums[name], expected.sums[name], bound)
    (found, mine), (expected, theirs) = (updated(each, batch, objective) for each in (parts, alone))  # type: ignore[arg-type]
    assert_close(mine, theirs, bound)
    assert found.metrics == pytest.approx(expected.metrics, rel=10 * bound, abs=10 * bound)
    for name, values in expected.tokens.items():
        assert_close(found.tokens[name], values, bound)


def assert_close(found: Tensor, expected: Tensor, bound: float) -> None:
    """As vectors they are at most `bound` apart, relative to the length of the expected one."""
    gap, length = float((found.double() - expected.double()).norm()), float(expected.double().norm())
    assert gap <= bound * max(length, 1e-6), f"{gap / max(length, 1e-6):.2g} apart"


# ----------------------------------------------------------------------------------------------- checks of two replicas


def updates_of_all_objectives(replicas: Replicas) -> None:
    """Also of a ratio of whole sequences, and with the gradient of entropies."""
    for objective in OBJECTIVES.values():
        assert_same_update(replicas, "qwen3", objective, 1e-6)


def updates_of_other_architectures(replicas: Replicas) -> None:
    """Sliding windows, capped scores, learned positions, one head of keys and values, sinks, experts."""
    for arch in ("mistral", "gemma2", "gpt2"):
        assert_same_update(replicas, arch, ALL_TERMS, 1e-6)
    assert_same_update(replicas, "qwen3", ALL_TERMS, 1e-6, num_key_value_heads=1)
    assert_same_update(replicas, "granite_swa", ALL_TERMS, 1e-6, num_key_value_heads=2)
    # Each replica multiplies fewer rows by an expert, which rounds in another way.
    assert_same_update(replicas, "qwen3_moe", ALL_TERMS, 1e-5, num_experts=4, num_experts_per_tok=2)


def equal_gradients_with_two_threads(replicas: Replicas) -> None:
    """The gradient has the same bits each time, though very many answers take the last state of their prompt."""
    made = wide_policy(world=in_groups(replicas))
    compute = update_of(made, crowd(made, answers=512), grpo(beta=0.0))
    torch.set_num_threads(2)
    try:
        assert different_results(compute, 20) == 1
    finally:
        torch.set_num_threads(1)


def given_routes_are_replayed(replicas: Replicas) -> None:
    """Each replica replays the experts of its own tokens."""
    shape: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
    alone, parts = (policy("qwen3_moe", world=world, **shape) for world in (ALONE, in_groups(replicas)))
    assert alone.forward.routers is not None
    batch = prepared()
    first = torch.arange(batch.token_ids.numel()).view(batch.token_ids.shape) % 3
    routes = torch.stack([first, first + 1], -1)[:, :, None].expand(-1, -1, 2, -1).to(torch.int8)  # [B, T, R, k]
    replayed = batch.with_(routes=routes)
    assert_close(parts.logprobs(replayed), alone.logprobs(replayed), 1e-6)
    assert not alone.logprobs(batch).allclose(alone.logprobs(replayed))


def batches_of_any_shape(replicas: Replicas) -> None:
    """Also of fewer tokens than a part has, so that one replica predicts none of them."""
    _random_shares(replicas, lambda made, _: shared(made, in_groups(replicas)), 12)
    alone, parts = (policy(world=world) for world in (ALONE, in_groups(replicas)))
    prompt, rollouts = Prompt(id="0", text="", token_ids=(5, 6)), (rollout((7, 8), 1.0), rollout((9,), 0.0))
    batch = prepared([Group(prompt=prompt, rollouts=rollouts)])
    assert_close(updated(parts, batch)[1], updated(alone, batch)[1], 1e-6)


def models_beside_the_policy(replicas: Replicas) -> None:
    """Reference and critic, of whole weights, divided ones and adapters, compute and learn as in one process."""
    folder = saved_model(replicas, "whole")
    adapter = adapter_config("lora", r=4, lora_alpha=8)
    for how in ({}, {"adapter": adapter}):
        for world in (in_groups(replicas), divided_in_groups(replicas)):
            alone, parts = (
                Models.of(Policy.load(folder, device="cpu", world=each, **how), grpo(beta=0.1), advantage=gae)  # type: ignore[arg-type]
                for each in (ALONE, world)
            )
            assert parts.is_divided == (isinstance(world, DividingReplicas) and not how)
            assert_same_models(alone, parts)


def assert_same_models(alone: Models, parts: Models) -> None:
    """Two steps of two sets of models have the same metrics, and the same weights after them."""
    batch = prepared()
    batch = batch.with_(returns=torch.rand(batch.token_ids.shape, generator=torch.Generator().manual_seed(1)))
    for _ in range(2):
        assert alone.reference is not None
        assert parts.reference is not None
        assert_close(parts.policy.logprobs(batch), alone.policy.logprobs(batch), 1e-5)
        assert_close(parts.reference.logprobs(batch), alone.reference.logprobs(batch), 1e-5)
        found, expected = (
            models.update(batch.with_(values=models.critic.values(batch)), grpo(beta=0.1)).metrics  # type: ignore[union-attr]
            for models in (parts, alone)
        )
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name in ("policy", "critic"):
        of_alone, of_parts = (getattr(models, name).optimiser.weights for models in (alone, parts))
        for key, weight in whole(dict(of_parts)).items():
            torch.testing.assert_close(weight, of_alone[key], rtol=0, atol=3e-6)


def half_of_the_activations(replicas: Replicas) -> None:
    """What a replica keeps for the backward pass is half of what one process keeps, with and without checkpointing."""
    for how in ({}, {"gradient_checkpointing": True}):
        alone, parts = (kept(world, **how) for world in (ALONE, in_groups(replicas)))
        assert parts <= 0.55 * alone, f"{parts / alone:.3f}"


def kept(world: World, **how: Any) -> int:
    """The bytes that the forward pass of two long answers keeps for the backward pass, without the weights."""
    model, tokenizer = tiny_model(hidden=128, layers=4)
    made = Policy(model, tokenizer, world=world, **how)  # type: ignore[arg-type]
    forward = made.scoring.model_forward  # type: ignore[attr-defined]
    answers = [tuple(5 + (7 * place) % 200 for place in range(length)) for length in (500, 400)]
    batch = Batch.of_tokens([(5, 6, 7)] * 2, answers, group=[0, 0])
    with torch.enable_grad(), count_saved(model) as count:
        scores = token_scores(forward, batch, {"entropy": detached_entropy})
    del scores
    return count.bytes


def models_that_have_no_parts(replicas: Replicas) -> None:
    """Heads that cannot be divided, convolutions, another mixture of tokens, frequencies of the whole row."""
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    for arch, shape, words in (
        ("qwen3", {"num_attention_heads": 3, "num_key_value_heads": 3}, "its 3 attention heads cannot be divided by 2"),
        ("lfm2", {"full_attn_idxs": [1]}, "its Lfm2ShortConv reads tokens that other replicas have"),
        ("llama", {"rope_parameters": dynamic}, r"its rotary embedding \(dynamic\) depends on the longest sequence"),
    ):
        with pytest.raises(ModelError, match=words):
            Policy(other_model(arch, **shape), tiny_model()[1], world=in_groups(replicas))
    with pytest.raises(ModelError, match="attention cannot be replaced"):
        policy(world=in_groups(replicas), attention="padded")


def a_wrong_exchange_is_found_at_the_start(replicas: Replicas) -> None:
    """A few tokens are compared with one process, as the library of a device may be wrong."""
    made, world = policy(), in_groups(replicas)
    world.check_forward(made.forward)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ulysses, "_exchanged", lambda parts, group: parts)
        with pytest.raises(ModelError, match="2 replicas compute other log-probabilities of a sequence than one does"):
            world.check_forward(made.forward)


# ----------------------------------------------------------------------------------------- faults, and four replicas


def memory_runs_out_in_a_part(replicas: Replicas) -> None:
    """The replica says so and ends, and the one that waits for it in the middle of a layer does not hang."""
    made = policy(world=in_groups(replicas))
    if replicas.first:
        with pytest.raises(WorkerError, match="another replica ended, or does not answer"):
            made.update(prepared(), ALL_TERMS)
        return

    def scarce(*arguments: object, **options: object) -> None:
        raise MemoryError("scarce")

    made.model.model.layers[1].forward = scarce  # type: ignore[union-attr]
    with pytest.raises(OutdoError, match="memory does not suffice on this replica"):
        made.update(prepared(), ALL_TERMS)
    os._exit(0)


def a_part_is_never_computed(replicas: Replicas) -> None:
    """A replica that hangs is given up after the timeout, by those that share a sequence with it too."""
    made = policy(world=in_groups(replicas))
    if replicas.first:
        with pytest.raises(WorkerError, match="another replica ended, or does not answer"):
            made.logprobs(prepared())
        Path("gave-up").touch()
        return
    while not Path("gave-up").exists():
        time.sleep(0.1)


def pairs_and_fours(replicas: Replicas) -> None:
    """Two groups of two, and one of four with fewer heads of keys and values; of whole weights and of divided ones."""
    for count in (2, 4):
        for arch in ("qwen3", "gemma2"):
            alone, parts = policy(arch), policy(arch, world=in_groups(replicas, count))
            batch = prepared(policy=alone)
            assert_close(parts.logprobs(batch), alone.logprobs(batch), 1e-6)
            (found, mine), (expected, theirs) = (updated(each, batch) for each in (parts, alone))
            assert_close(mine, theirs, 1e-6)
            assert found.metrics == pytest.approx(expected.metrics, rel=1e-5, abs=1e-5)
        alone, *others = (
            Models.of(
                Policy.load(saved_model(replicas, "whole"), device="cpu", world=world), grpo(beta=0.1), advantage=gae
            )
            for world in (ALONE, in_groups(replicas, count), divided_in_groups(replicas, count))
        )
        assert_same_models(alone, others[0])
        alone = Models.of(Policy.load("whole", device="cpu"), grpo(beta=0.1), advantage=gae)
        assert_same_models(alone, others[1])
        _random_shares(replicas, lambda made, _, count=count: shared(made, in_groups(replicas, count)), 20)
