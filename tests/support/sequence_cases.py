"""What replicas that share sequences check together; two of them run all checks in processes that are started once."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from engine_cases import other_model
from policy_cases import ALL_TERMS, prepared, updated
from torch import Tensor

from outdo.algorithms.objectives.presets import grpo, gspo
from outdo.distributed.lockstep import LockstepReplicas, sequence_group
from outdo.distributed.replicas import Replicas
from outdo.models.policy import Policy
from outdo.testing import tiny_model

Make = Callable[[], Policy]
OBJECTIVES = {
    "all terms": ALL_TERMS,
    "gspo": replace(gspo(), entropy_bonus=0.01),
    "grpo": grpo(beta=0.1),
}


def in_groups(replicas: Replicas, count: int | None = None) -> LockstepReplicas:
    """The replicas, of which `count` share each sequence."""
    return LockstepReplicas(replicas, sequence_group(replicas, count or len(replicas)))


def policy(arch: str = "qwen3", *, dtype: torch.dtype = torch.float32, pool: object = None, **how: object) -> Policy:
    """A tiny policy of an architecture; with equal arguments, an equal one. `num_...` change the shape of its model."""
    shape = {name: how.pop(name) for name in list(how) if name.startswith("num_")}
    model, tokenizer = tiny_model(arch="qwen3" if shape else arch)
    if shape:
        model = other_model(arch, **shape)
    return Policy(model.to(dtype), tokenizer, pool=pool, **how)  # type: ignore[arg-type]


def assert_same_update(replicas: Replicas, arch: str, objective: object, bound: float, **how: object) -> None:
    """Scores, metrics and the gradient of an update are those of one process."""
    alone, parts = (policy(arch, pool=pool, **how) for pool in (None, in_groups(replicas)))
    batch = prepared(policy=policy(arch, **how))
    for entropy in ("none", "value"):
        expected, found = (each.measure(batch, entropy=entropy) for each in (alone, parts))  # type: ignore[arg-type]
        assert_close(found.logprobs, expected.logprobs, bound)
        if expected.entropy is not None and found.entropy is not None:
            assert_close(found.entropy, expected.entropy, bound)
    (found, mine), (expected, theirs) = (updated(each, batch, objective) for each in (parts, alone))  # type: ignore[arg-type]
    assert_close(mine, theirs, bound)
    assert found.metrics == pytest.approx(expected.metrics, rel=10 * bound, abs=10 * bound)
    for name, values in expected.tokens.items():
        assert_close(found.tokens[name], values, bound)


def assert_close(found: Tensor, expected: Tensor, bound: float) -> None:
    """As vectors they are at most `bound` apart, relative to the length of the expected one."""
    gap, length = float((found.double() - expected.double()).norm()), float(expected.double().norm())
    assert gap <= bound * max(length, 1e-6), f"{gap / max(length, 1e-6):.2g} apart"


# ------------------------------------------------------------------------------------------------ checks of two replicas


def updates_of_all_objectives(replicas: Replicas) -> None:
    """Also of a ratio of whole sequences, and with the gradient of entropies."""
    for objective in OBJECTIVES.values():
        assert_same_update(replicas, "qwen3", objective, 1e-6)


def updates_in_float64(replicas: Replicas) -> None:
    """In float64 nothing but the order of sums is left."""
    for arch in ("qwen3", "gemma2"):
        assert_same_update(replicas, arch, ALL_TERMS, 1e-12, dtype=torch.float64)


def updates_of_other_architectures(replicas: Replicas) -> None:
    """Sliding windows, capped scores, learned positions, one head of keys and values, experts."""
    for arch in ("mistral", "gemma2", "gpt2"):
        assert_same_update(replicas, arch, ALL_TERMS, 1e-6)
    assert_same_update(replicas, "qwen3", ALL_TERMS, 1e-6, num_key_value_heads=1)
    assert_same_update(replicas, "qwen3_moe", ALL_TERMS, 1e-6, num_experts=4, num_experts_per_tok=2)
