"""Kernels of `transformers` over the flat row, compared with outdo's attention on padded views."""

from typing import Any

import pytest
import torch
from engine_cases import other_model, ragged
from torch import Tensor
from torch.nn.attention import flex_attention as of_torch
from transformers import PreTrainedModel
from transformers.integrations import flex_attention as of_transformers

from outdo.models.choose_forward import choose_forward
from outdo.models.fast import kernels
from outdo.models.forward import Forward
from outdo.models.scorer import token_scores
from outdo.utils.errors import ModelError

MODELS = {
    "grouped heads": ("qwen3", {"head_dim": 8}),
    "a window": ("mistral", {"sliding_window": 8}),
    "a soft cap": ("gemma2", {"sliding_window": 8, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
}


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch):
    """FlexAttention without generated code: torch has no code for its backward pass on a CPU, and refuses one."""
    monkeypatch.setattr(of_transformers, "WrappedFlexAttention", lambda training: lambda: of_torch.flex_attention)
    monkeypatch.setattr(of_torch, "_validate_device", lambda query, key, value: None)


def flash_attention(query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **options: Any) -> Tensor:
    """What FlashAttention computes of sequences of different lengths: [1, n, heads, d] -> [1, n, heads, d].

    The last query of a sequence reads its last key.
    """
    assert options["is_causal"]
    assert options["attn_implementation"] == "flash_attention_2"
    ends = zip(options["cu_seq_lens_q"].tolist(), options["cu_seq_lens_k"].tolist(), strict=True)
    outputs, (first_query, first_key) = [], next(ends)
    for last_query, last_key in ends:
        assert last_query - first_query <= options["max_length_q"]
        assert last_key - first_key <= options["max_length_k"]
        q = query[0, first_query:last_query].transpose(0, 1)  # [heads, L, d]
        k, v = (
            each[0, first_key:last_key].transpose(0, 1).repeat_interleave(query.shape[2] // key.shape[2], 0)
            for each in (key, value)
        )
        scores = q @ k.transpose(1, 2) * options["softmax_scale"]
        if options["softcap"] is not None:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        distance = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
        unread = (distance < 0) | (distance >= (options["sliding_window"] or 10**9))
        outputs.append((scores.masked_fill(unread, -torch.inf).softmax(-1) @ v).transpose(0, 1))
        first_query, first_key = last_query, last_key
    return torch.cat(outputs)[None]


def scores_and_gradient(forward: Forward) -> tuple[Tensor, Tensor]:
    forward.model.zero_grad()
    scores = token_scores(forward, ragged()).logprobs
    scores.square().sum().backward()
    return scores.detach(), torch.cat([each.grad.flatten() for each in forward.model.parameters()])


def model_of(kind: str) -> PreTrainedModel:
    arch, changes = MODELS[kind]
    return other_model(arch, **changes)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("kind", "kernel"), [*((kind, "flash_attention_2") for kind in MODELS), ("a soft cap", "flex_attention")]
)
def test_a_kernel_computes_the_values_and_the_gradient_of_the_usual_attention(
    kind: str, kernel: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kernels, "_flash_attention_forward", flash_attention)
    model = model_of(kind)
    expected = scores_and_gradient(choose_forward(model))
    forward = choose_forward(model, kernel)
    assert (forward.layout, forward.kernel) == ("shared", kernel)
    found = scores_and_gradient(forward)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=2e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=2e-4)


def test_flash_attention_is_the_kernel_of_bfloat16_on_cuda_where_it_is_installed(monkeypatch: pytest.MonkeyPatch):
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert kernels.kernel_for(cuda, autocast=True) == "sdpa"
    monkeypatch.setattr(kernels, "is_flash_attn_2_available", lambda: True)
    assert kernels.kernel_for(cuda, autocast=True) == "flash_attention_2"
    assert kernels.kernel_for(cuda, autocast=False) == "sdpa"  # it has no float32
    assert kernels.kernel_for(cpu, autocast=True) == "sdpa"


def test_a_kernel_that_does_not_work_is_an_error_if_it_is_named_and_a_note_if_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
):
    model = model_of("grouped heads")
    with pytest.raises(ModelError, match='attention = "flash_attention_2": does not work here'):
        choose_forward(model, "flash_attention_2")

    def wrong(query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **options: Any) -> Tensor:
        return flash_attention(query, key, value, attention_mask, **options) * 1.5

    monkeypatch.setattr(kernels, "_flash_attention_forward", wrong)
    monkeypatch.setattr("outdo.models.fast.choice.kernel_for", lambda device, autocast: "flash_attention_2")
    forward = choose_forward(model)
    assert (forward.layout, forward.kernel) == ("shared", "sdpa")
    assert forward.reason.startswith("without flash_attention_2: its log-probabilities differ by ")


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flex_attention"])
def test_a_kernel_that_has_no_attention_sinks_is_not_taken(kernel: str):
    """FlexAttention has them on an accelerator alone."""
    model = other_model("granite_swa", bos_token_id=None)
    with pytest.raises(ModelError, match=f'"{kernel}": does not work here .*[aA]ttention sinks'):
        choose_forward(model, kernel)
