"""Rounding is told from mistakes, on models with small numbers and on models with those of large ones."""

from functools import partial
from pathlib import Path

import pytest
import torch
from engine_cases import SHARED, other_model
from large_numbers import enlarged, large_model
from torch import Tensor
from transformers import PreTrainedModel

from outdo.models import probe
from outdo.models.choose_forward import choose_forward
from outdo.models.fast.forward import FastForward
from outdo.models.fast.layout import Rule
from outdo.models.fast.packed import Packed
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.models.probe import next_logprobs, small_batch
from outdo.models.rounding import distance, in_float64, rounding, tolerance
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.fast.kv_cache import KVCache
from outdo.testing import byte_bpe_tokenizer, tiny_model

EXPERTS = {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "head_dim": 8}
OTHERS = [pytest.param(arch, marks=pytest.mark.release) for arch in SHARED if arch not in ("qwen3", "gemma2")]
LARGE = pytest.mark.parametrize("arch", ["qwen3", "gemma2", *OTHERS])
WRONG = [
    ("bloom", {"n_head": 4, "n_layer": 2}),
    ("gpt_oss", {"head_dim": 8, "num_experts_per_tok": 1, "num_local_experts": 2}),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    ("lfm2", {"layer_types": ["conv", "full_attention"], "initializer_range": 0.015}),
    ("phimoe", {"sliding_window": 64, "num_experts_per_tok": 1, "num_local_experts": 2}),
    ("roberta", {"is_decoder": True}),
]


def logprobs(forward: Forward) -> Tensor:
    """Log-probabilities [N, V] of the tokens on which models are tried."""
    return next_logprobs(forward, small_batch(forward.model.config.get_text_config().vocab_size))


def sampling_of(model: PreTrainedModel) -> str:
    policy = Policy(model, byte_bpe_tokenizer([], model.config.vocab_size))
    return BuiltinEngine(policy).choice.mode.name


def without_sinks(query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> tuple[Tensor, Tensor, Tensor, Rule]:
    return query, key, value, rule._replace(sinks=None)


@LARGE
def test_a_model_with_the_numbers_of_a_large_one_takes_the_fast_way(arch):
    model = large_model(arch)
    own, shared = logprobs(Forward(model)), logprobs(FastForward(Forward(model), "shared"))
    assert own.min() < -40
    assert (own - shared).abs().max() > 2e-5  # some 2e-6 in a model with small numbers
    forward = choose_forward(model)
    assert (forward.layout, forward.reason) == ("shared", "")
    assert sampling_of(model) == "continuous batching"


@pytest.mark.release
def test_the_real_model_takes_the_fast_way(smollm2: Path):
    policy = Policy.load(smollm2, device="cpu")
    assert (policy.forward.layout, policy.forward.reason) == ("shared", "")
    assert BuiltinEngine(policy).choice.mode.name == "continuous batching"
    assert 1e-6 < policy.forward.rounding < 1e-4


@pytest.mark.release
def test_a_vocabulary_of_262144_tokens_takes_the_fast_way():
    model = large_model("gemma3_text", vocab=262_144, layers=2)
    assert choose_forward(model).layout == "shared"


@pytest.mark.parametrize(("arch", "changes"), WRONG)
def test_each_wrong_way_that_is_known_is_refused_with_large_numbers_too(arch, changes, monkeypatch):
    """As if outdo knew neither the convolutions of LFM2 nor the attention sinks of gpt-oss."""
    monkeypatch.setattr("outdo.models.fast.forward.STATEFUL", ())
    attend = Packed.attend
    monkeypatch.setattr(Packed, "attend", lambda row, *qkv_and_rule: attend(row, *without_sinks(*qkv_and_rule)))
    forward = choose_forward(enlarged(other_model(arch, **changes)))
    assert forward.layout == "padded"
    assert forward.reason


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("exact", [True, False], ids=["float64", "float32"])
def test_attention_that_is_a_little_wrong_is_refused(monkeypatch, large, exact):
    """Three parts in 100,000 are seen in float64, and one in twenty among the rounding of float32."""
    if not exact:
        monkeypatch.setattr(probe, "in_float64", lambda compute: None)
    attend = Packed.attend

    def a_little_wrong(row: Packed, query: Tensor, *rest: object) -> Tensor:
        return attend(row, query * (1.00003 if exact else 1.05), *rest)

    monkeypatch.setattr(Packed, "attend", a_little_wrong)
    model = large_model("qwen3") if large else tiny_model()[0]
    assert choose_forward(model).layout == "padded"


@LARGE
def test_a_cache_that_forgets_is_noticed_with_large_numbers_too(monkeypatch, arch):
    attend = KVCache.attend

    def forget(cache: KVCache, query: Tensor, key: Tensor, value: Tensor, rule: object) -> Tensor:
        return attend(cache, query, key, value * 0, rule)

    monkeypatch.setattr(KVCache, "attend", forget)
    assert sampling_of(large_model(arch)) == "model.generate"


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_model_that_float64_cannot_compute_takes_the_fast_way_by_its_own_rounding(large):
    """torch multiplies the matrices of a mixture of experts in float32 and less only."""
    model = other_model("qwen3_moe", **EXPERTS)
    model = enlarged(model) if large else model
    assert in_float64(partial(logprobs, Forward(model))) is None
    assert choose_forward(model).layout == "shared"


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@LARGE
def test_rounding_is_of_the_size_of_the_distance_from_float64(arch, large):
    model = large_model(arch) if large else tiny_model(arch=arch)[0]
    own = partial(logprobs, Forward(model))
    wide = in_float64(own)
    assert wide.dtype == torch.float64
    apart = distance(wide, own().double())
    assert apart / 4 < rounding(model, own, own()) < 12 * apart


def test_what_changes_a_tensor_in_place_changes_it_in_float64_too():
    total = torch.zeros(3)

    def compute() -> Tensor:
        mine = torch.zeros(3, dtype=torch.float32)
        mine += torch.ones(3)
        mine[0] = 5.0
        mine.mul_(torch.full((3,), 2.0))
        torch.add(mine, 1.0, out=mine)
        total.add_(1.0)  # it was there before: float32, and changed all the same
        return mine

    found = in_float64(compute)
    assert found.tolist() == [11.0, 3.0, 3.0]
    assert total.tolist() == [1.0, 1.0, 1.0]


def test_a_distance_counts_what_is_sampled():
    """By hand: p = (3/4, 1/4, 0), moved by 0.1, 0.2 and 40 nats."""
    expected = torch.tensor([[0.75, 0.25, 0.0]]).log()
    actual = expected + torch.tensor([[0.1, -0.2, 0.0]])
    assert distance(expected, actual) == pytest.approx(0.75 * 0.1 + 0.25 * 0.2)
    expected, actual = torch.tensor([[0.0, -80.0]]), torch.tensor([[0.0, -120.0]])
    assert distance(expected, actual) < 1e-30


def test_a_small_model_keeps_the_tolerance_that_was_measured_on_small_ones():
    """The least wrong way to sample that is known was 1.3e-3 nats wrong, in a small model."""
    forward = choose_forward(other_model("llama", initializer_range=0.02))
    assert forward.tolerance(1e-3) == 1e-3
    assert tolerance(1e-3, 4e-4) == pytest.approx(4e-3)
