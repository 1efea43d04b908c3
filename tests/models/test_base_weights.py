"""Frozen weights in two bytes compute the same bits as in four; in 8 and 4 bits no layer cuts the gradient."""

from pathlib import Path
from typing import Any

import pytest
import torch
from policy_cases import WithoutBackward, frozen_numbers, two_groups
from torch import Tensor

from outdo.algorithms.objectives.presets import grpo
from outdo.algorithms.vocabulary_sums import token_collision
from outdo.models.adapter import adapter_config, attach, trained_weights
from outdo.models.base_weights import Weights
from outdo.models.critic import own_model
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import tiny_model
from outdo.types import Request
from outdo.utils.errors import ModelError
from outdo.utils.rng import Stream

LORA = adapter_config("lora", r=4, lora_alpha=8)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose files are bfloat16."""
    folder = tmp_path_factory.mktemp("models") / "base"
    model, tokenizer = tiny_model(hidden=64)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of it after two steps."""
    policy = Policy.load(base, adapter=LORA, optimiser=OptimiserSettings(lr=0.05))
    for _ in range(2):
        policy.update(two_groups(), grpo(beta=0.0))
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    policy.save(folder)
    return folder


def bytes_of(policy: Policy) -> int:
    """The bytes of all weights; those of torchao say how many they would have in float32."""
    weights: list[Any] = list(policy.model.parameters())
    return sum(each.qdata.nbytes + each.scale.nbytes if hasattr(each, "qdata") else each.nbytes for each in weights)


@pytest.mark.parametrize(
    ("precision", "settings"),
    [
        ("float32", {}),
        ("bfloat16", {"gradient_checkpointing": True}),
        pytest.param("bfloat16", {"attention": "padded"}, marks=pytest.mark.release),
    ],
)
def test_a_base_in_bfloat16_trains_samples_and_scores_with_the_same_bits(adapter: Path, precision, settings):
    def outcome(weights: Weights) -> tuple[list[Tensor], list[tuple[int, ...]], int]:
        chosen = OptimiserSettings(lr=0.01)
        policy = Policy.load(adapter, weights=weights, optimiser=chosen, precision=precision, **settings)
        engine = BuiltinEngine(policy, seed=1)
        requests = [Request(token_ids=(5, 6, 7), stream=Stream("test", n, "q", 0), max_tokens=6) for n in range(4)]
        sampled = [each.token_ids for each in engine.generate(requests, SamplingParams())]
        reference = frozen(policy)
        critic = own_model(policy)
        for _ in range(2):
            policy.update(two_groups(), grpo(beta=0.0))
        batch = two_groups()
        scored = [each(batch) for each in (policy.logprobs, reference.logprobs, critic.values)]
        collision = policy.measure(batch, {"collision": token_collision}).sums["collision"]
        return [*scored, collision, *trained_weights(policy.model).values()], sampled, bytes_of(policy)

    (four, four_sampled, four_bytes), (two, two_sampled, two_bytes) = outcome("float32"), outcome("bfloat16")
    assert all(a.equal(b) for a, b in zip(four, two, strict=True))
    assert four_sampled == two_sampled
    assert two_bytes < 0.6 * four_bytes


def test_the_adapter_on_a_base_in_bfloat16_is_float32(base: Path):
    policy = Policy.load(base, adapter=LORA, weights="bfloat16")
    assert {weight.dtype for weight in trained_weights(policy.model).values()} == {torch.float32}
    assert policy.dtype == torch.float32
    stored = {weight.dtype for name, weight in policy.model.named_parameters() if name.endswith("base_layer.weight")}
    assert stored == {torch.bfloat16}
    assert all(norm.dtype == torch.float32 for name, norm in policy.model.named_parameters() if "norm" in name)


@pytest.mark.parametrize(("weights", "part"), [("int8", 0.5), ("nf4", 0.4)])
def test_a_quantised_base_is_frozen_and_its_adapter_trained(base: Path, weights: Weights, part: float):
    policy = Policy.load(base, adapter=LORA, weights=weights, optimiser=OptimiserSettings(lr=0.01))
    assert bytes_of(policy) < part * bytes_of(Policy.load(base, adapter=LORA))
    before = frozen_numbers(policy.model)
    reference, start = frozen(policy), policy.logprobs(two_groups())
    engine = BuiltinEngine(policy, seed=1)
    engine.generate([Request(token_ids=(5, 6), stream=Stream("t", 0, "q", 0), max_tokens=4)], SamplingParams())
    for _ in range(3):
        policy.update(two_groups(), grpo(beta=0.0))
    assert reference.logprobs(two_groups()).equal(start)
    assert (policy.logprobs(two_groups()) - start).abs().max() > 0.01
    assert all(weight.equal(before[name]) for name, weight in frozen_numbers(policy.model).items())


def test_a_layer_of_8_bits_computes_with_its_rounded_weight_and_keeps_no_copy_of_it(base: Path):
    layer: Any = load_model(base, weights="int8").get_submodule("model.layers.0.self_attn.q_proj")
    plain: Any = load_model(base).get_submodule("model.layers.0.self_attn.q_proj")
    x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    rounded = layer.weight.dequantize()
    steps = plain.weight.abs().amax(1, keepdim=True) / 127
    assert ((rounded - plain.weight).abs() <= 0.51 * steps).all()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        y = layer(x)
    assert not kept
    torch.testing.assert_close(y, x @ rounded.T)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, rounded.sum(0).expand_as(x))


@pytest.mark.parametrize("weights", ["int8", "nf4"])
def test_a_quantised_base_takes_the_fast_way(adapter: Path, weights: Weights):
    forward = Policy.load(adapter, weights=weights).forward
    assert (forward.layout, forward.reason) == ("shared", "")


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "nf4"])
def test_a_base_with_a_number_that_is_not_finite_is_refused_however_it_is_stored(tmp_path: Path, weights: Weights):
    model, tokenizer = tiny_model(hidden=64)
    model.get_parameter("model.layers.0.mlp.up_proj.weight").data[3, 4] = float("nan")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"up_proj\.weight holds .* numbers that are not finite"):
        load_model(tmp_path, weights=weights)


@pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported(), reason="bitsandbytes cuts the gradient on AVX-512 BF16 alone"
)
@pytest.mark.filterwarnings("ignore:bitsandbytes.*autograd kernel was not registered:UserWarning")
def test_a_quantised_base_that_cuts_the_gradient_is_refused(base: Path):
    model = load_model(base, weights="nf4")
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = True  # as bitsandbytes sets it on processors with AVX-512 BF16
    attach(model, LORA)
    with pytest.raises(ModelError, match="the gradient of its first layer is wrong: by autograd the derivative is"):
        Policy(model, load_tokenizer(base))


def test_a_layer_without_a_backward_pass_is_found(base: Path):
    model = load_model(base)
    attach(model, LORA)
    model.get_submodule("model.layers.0.mlp.down_proj.base_layer").__class__ = WithoutBackward
    with pytest.raises(ModelError, match="the gradient of its first layer is wrong"):
        Policy(model, load_tokenizer(base))
