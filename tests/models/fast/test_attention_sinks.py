"""Attention sinks in the shared layout: a score of each head for no token, which is trained."""

from typing import Any

import pytest
import torch
from engine_cases import apart, begun, next_turn, other_model, ragged, requests, scorer
from transformers import PreTrainedModel

from outdo.models.choose_forward import choose_forward
from outdo.models.fast.attention import attention
from outdo.models.fast.forward import FastForward
from outdo.models.fast.layout import Rule
from outdo.models.fast.packed import pack
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.models.probe import influence
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import byte_bpe_tokenizer

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt_oss": {"sliding_window": 8, "head_dim": 8, "num_experts_per_tok": 1, "num_local_experts": 2},
    "granite_swa": {"sliding_window": 8, "bos_token_id": None},
    "mimo_v2_flash": {"sliding_window": 8, "head_dim": 8, "v_head_dim": 6}  # sinks in one of its two layers
    | {"mlp_layer_types": ["dense", "dense"]},
}


def model_of(arch: str) -> PreTrainedModel:
    """A tiny model whose sinks take half of the attention of some heads, and little of others'."""
    model = other_model(arch, **FAMILIES[arch])
    model.set_experts_implementation("eager")  # the other one has no float64
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):
            weight.data = torch.linspace(-3, 3, len(weight))
    return model


def policy_of(arch: str, dtype: torch.dtype = torch.float32) -> Policy:
    return Policy(model_of(arch).to(dtype), byte_bpe_tokenizer([], 264))


@pytest.mark.parametrize("arch", FAMILIES)
def test_models_with_attention_sinks_take_the_fast_ways(arch: str):
    policy = policy_of(arch)
    assert (policy.forward.layout, policy.forward.reason) == ("shared", "")
    assert BuiltinEngine(policy).choice.mode.name == "continuous batching"


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("arch", FAMILIES)
def test_log_probabilities_and_all_gradients_are_those_of_the_plain_way(arch: str):
    policy, batch = policy_of(arch, torch.float64), ragged()
    weights = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    computed = []
    for layout in ("padded", "shared"):
        policy.forward.model.zero_grad()
        scores = scorer(policy, layout).scores(batch)
        (weights * scores.logprobs).sum().backward()
        named = policy.forward.model.named_parameters()
        computed.append((scores.logprobs.detach(), {name: weight.grad for name, weight in named}))
    (expected, of_expected), (logprobs, gradients) = computed
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-10)
    assert any(name.endswith("sinks") and gradient.any() for name, gradient in gradients.items())
    for name, gradient in gradients.items():
        assert gradient.norm() == of_expected[name].norm() == 0 or apart(gradient, of_expected[name]) < 1e-10, name


def test_a_sequence_reads_nothing_of_another_one():
    """The derivative of a hidden state by the embedding of a token that it does not read is exactly 0."""
    model, batch = model_of("granite_swa"), ragged()
    packed, forward = pack(batch), FastForward(Forward(model, plain_head=True), "shared")
    is_answer = packed.positions >= batch.prompt_lengths[packed.rows]
    for row in range(len(batch)):
        of_row = is_answer & (packed.rows == row)
        of_prompt = ~is_answer & (batch.group[packed.rows] == batch.group[row])
        if not of_row.any():
            continue
        derivative = influence(
            model, lambda rows=of_row: forward.flat(packed.token_ids, packed.positions, packed)[rows]
        )
        reads = derivative[0].abs().sum(-1) > 0
        assert reads[of_row].all()
        assert reads[of_prompt].any()
        assert not reads[~of_row & ~of_prompt].any()


def test_tokens_depend_neither_on_the_batch_nor_on_what_is_cached():
    """In two turns of episodes, each answer is that of a request alone, to the bit."""
    policy, sampling = policy_of("granite_swa"), SamplingParams(max_tokens=12)
    asked = [*requests((3, 60), siblings=2, limit=lambda index: 12 - 5 * (index % 2)), *begun((5,), limit=12)]
    engine = BuiltinEngine(policy)
    answers = engine.generate(asked, sampling)
    following = next_turn(asked[-1], answers[-1], written=3)
    (further,) = engine.generate([following], sampling)
    for request, answer in zip([*asked[::2], following], [*answers[::2], further], strict=True):
        (alone,) = BuiltinEngine(policy, choice=engine.choice).generate([request], sampling)
        assert (alone.token_ids, alone.logprobs) == (answer.token_ids, answer.logprobs)


def test_a_model_that_has_keys_beside_those_of_its_tokens_runs_padded():
    """DeepSeek V4 compresses keys in some of its layers; in the others it has sinks alone."""
    sizes = {"n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "sliding_window": 8}
    reasons = {
        "sliding_attention": "",
        "compressed_sparse_attention": "it attends to other keys than one of each token",
    }
    for kind, reason in reasons.items():
        model = other_model("deepseek_v4", layer_types=[kind], num_hidden_layers=1, **sizes)
        assert choose_forward(model).reason == reason


def test_a_soft_cap_and_sinks_together_are_left_to_the_model():
    query = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="it has a soft cap and attention sinks"):
        attention(query, query, query, None, Rule(0.5, softcap=2.0, sinks=torch.zeros(2)))
