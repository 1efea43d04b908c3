"""What the tests of this folder are made of: tiny policies, and batches of ragged groups."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from outdo.models.fast.forward import FastForward
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes, Scorer
from outdo.testing import tiny_model
from outdo.types import Batch, Completion, FinishReason, Group, Prompt, Request, Rollout
from outdo.utils.rng import Stream

SHARED = ("qwen3", "llama", "mistral", "gemma2", "gemma3_text", "gpt2", "gpt_neox")
SHARED += ("lfm2", "qwen3_5_text", "bailing_hybrid", "bamba")
VOCABULARY = 264

CONVOLUTIONS = ["conv", "full_attention"]
DELTA_NETS: dict[str, object] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
LATENT: dict[str, object] = {
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "dense"],
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MAMBA: dict[str, object] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_expand": 2,
}
STATEFUL: dict[str, dict[str, object]] = {  # families of models with a state, for `other_model`
    "lfm2": {"layer_types": CONVOLUTIONS, "conv_bias": True},
    "lfm2_moe": EXPERTS | {"num_dense_layers": 0, "layer_types": CONVOLUTIONS},
    "lfm3": {"layer_types": ["conv", "sliding_attention", "full_attention"], "num_hidden_layers": 3}
    | {"sliding_window": 8, "bos_token_id": None},
    "qwen3_5_text": DELTA_NETS | {"head_dim": 8},
    "qwen3_5_moe_text": DELTA_NETS | EXPERTS | {"head_dim": 8, "shared_expert_intermediate_size": 32},
    "qwen3_next": DELTA_NETS | {"head_dim": 8, "num_experts": 0},
    "olmo_hybrid": DELTA_NETS | {"linear_num_value_heads": 2, "linear_allow_neg_eigval": True},
    "kimi_linear": LATENT | {"linear_num_heads": 4, "linear_head_dim": 8},
    "bailing_hybrid": LATENT | {"linear_num_heads": 4, "linear_head_dim": 8, "kda_lower_bound": -2.0},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8, "expand": 2},
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "granitemoehybrid": MAMBA
    | {"layer_types": ["mamba", "attention"], "num_local_experts": 0, "shared_intermediate_size": 64},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64, "head_dim": 8},
    "nemotron_h": {"layers_block_type": ["mamba", "mlp", "attention"], "num_hidden_layers": 3, "head_dim": 8}
    | {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1, "num_key_value_heads": 4}
    | {"n_mamba_heads": 4, "mamba_headdim": 16, "mamba_ngroups": 2, "mamba_d_state": 8}
    | {"attention_head_dim": 16, "attention_hidden_size": 64, "use_mem_rope": True},
}


def fresh(arch: str = "qwen3", **how: object) -> Policy:
    """A policy of its own, to be changed at will."""
    return Policy(*tiny_model(arch=arch), **how)


@cache
def shared(
    arch: str = "qwen3", *, dtype: torch.dtype = torch.float32, sharpness: float = 1.0, hidden: int = 32
) -> Policy:
    """A policy that many tests read and none changes. `sharpness` multiplies its logits, as training does."""
    model, tokenizer = tiny_model(arch=arch, hidden=hidden)
    if sharpness != 1:
        model.model.norm.weight.data.mul_(sharpness)
    return Policy(model.to(dtype), tokenizer)


def other_model(arch: str, **changes: object) -> PreTrainedModel:
    """A tiny model of an architecture that `outdo.testing` does not know."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "eos_token_id": 0,
        "pad_token_id": 1,
    }
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(arch, **shape | changes)).eval()


def scorer(policy: Policy, layout: Literal["padded", "shared"]) -> Scorer:
    """The same weights; the padded layout is that of the plain forward pass."""
    plain = Forward(policy.model, plain_head=policy.forward.plain_head)
    return Scorer(plain if layout == "padded" else FastForward(plain, layout), BatchSizes())


def tokens(length: int, seed: int) -> tuple[int, ...]:
    """Random tokens, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, VOCABULARY, (length,), generator=generator).tolist())


def rollout(token_ids: Sequence[int], reward: float = 0.0, **changes: object) -> Rollout:
    fields = {
        "token_ids": tuple(token_ids),
        "loss_mask": (True,) * len(token_ids),
        "logprobs": (-1.0,) * len(token_ids),
        "text": "",
        "reward": reward,
        "finish_reason": FinishReason.stop,
        "policy_version": 0,
    }
    return Rollout(**fields | changes)


def ragged_groups() -> list[Group]:
    """A prompt of one token, an empty completion, two groups with equal prompts, a group of one, a failed reward."""
    same = tokens(12, 1)
    shapes = [(tokens(1, 0), (3, 7, 0, 1)), (same, (20, 2)), (same, (5, 9, 9)), (tokens(9, 2), (11,))]
    groups = []
    for number, (prompt, lengths) in enumerate(shapes):
        rollouts = [
            rollout(
                tokens(length, 10 * number + index),
                reward=float(index % 2),
                temperature=0.7 if number == 2 else 1.0,
                status="failed" if (number, index) == (2, 1) else "ok",
            )
            for index, length in enumerate(lengths)
        ]
        groups.append(Group(prompt=Prompt(id=str(number), text="", token_ids=prompt), rollouts=tuple(rollouts)))
    return groups


def ragged() -> Batch:
    return Batch.from_groups(ragged_groups())


def requests(
    lengths: Sequence[int] = (1, 3, 17, 63, 64, 90),
    *,
    siblings: int = 4,
    limit: Callable[[int], int] = lambda index: 30,
) -> list[Request]:
    """`siblings` requests for each of several prompts; request i may have `limit(i)` tokens."""
    prompts = [(number, tokens(length, 100 + number)) for number, length in enumerate(lengths)]
    asked = [(number, prompt, sample) for number, prompt in prompts for sample in range(siblings)]
    return [
        Request(token_ids=prompt, stream=Stream("test", 1, str(number), sample), max_tokens=limit(index))
        for index, (number, prompt, sample) in enumerate(asked)
    ]


def next_turn(request: Request, answer: Completion, *, written: int) -> Request:
    """The request for the turn after an answer and `written` tokens of an environment."""
    following = tokens(written, seed=len(request.token_ids))
    return replace(
        request,
        token_ids=(*request.token_ids, *answer.token_ids, *following),
        position=request.position + len(answer.token_ids),
    )


def begun(lengths: Sequence[int], *, limit: int = 20) -> list[Request]:
    """The first requests of two episodes of each of several prompts."""
    return [
        replace(each, prompt_length=len(each.token_ids), episode=each.stream)
        for each in requests(lengths, siblings=2, limit=lambda index: limit - 3 * (index % 3))
    ]


def gradient(policy: Policy | Scorer) -> Tensor:
    """The gradient of all weights as one vector; the weights' own is cleared."""
    model = policy.forward.model
    found = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    return torch.cat(found)


def apart(found: Tensor, expected: Tensor) -> float:
    """How far two gradients are apart, relative to their length."""
    return float((found - expected).norm() / expected.norm())


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
