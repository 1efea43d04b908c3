"""The plain forward pass computes what a model itself does, and the chosen one computes what the plain one does."""

from pathlib import Path

import pytest
import torch
from engine_cases import STATEFUL, apart, gradient, other_model, ragged
from torch import Tensor
from transformers import PreTrainedModel

from outdo.models import onednn
from outdo.models.choose_forward import choose_forward
from outdo.models.forward import Forward
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.probe import TOLERANCE, Probe
from outdo.models.scorer import BatchSizes, Scorer, token_scores
from outdo.testing import ARCHITECTURES, tiny_model
from outdo.types import Batch
from outdo.utils.errors import ModelError

OTHERS = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "head_dim": 8},
    "olmo2": {},
    "phi3": {},
    "cohere": {"logit_scale": 3.0},
    "bloom": {"n_head": 4, "n_layer": 2},
}
OTHERS |= {name: shape for name, shape in STATEFUL.items() if name not in ARCHITECTURES}
MODELS = [*ARCHITECTURES, *OTHERS]


def model_of(name: str, dtype: torch.dtype) -> PreTrainedModel:
    model = other_model(name, **OTHERS[name]) if name in OTHERS else tiny_model(arch=name)[0]
    return model.to(dtype)


def scores_and_gradient(forward: Forward) -> tuple[Tensor, Tensor]:
    """Log-probabilities [B, T] of a ragged batch, and the gradient of a sum of them."""
    batch, scorer = ragged(), Scorer(forward, BatchSizes())
    scores = scorer.scores(batch)
    weights = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(0))
    (weights * scores.logprobs).sum().backward()
    return scores.logprobs.detach(), gradient(scorer)


@pytest.mark.parametrize("name", MODELS)
def test_the_chosen_forward_pass_computes_what_the_plain_one_does(name):
    compare_with_plain(model_of(name, torch.float32), 5e-5)


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("name", [name for name in MODELS if "_moe" not in name])  # experts have no float64 products
def test_in_float64_they_are_equal(name):
    compare_with_plain(model_of(name, torch.float64), 1e-10)


def compare_with_plain(model: PreTrainedModel, tolerance: float) -> None:
    chosen = choose_forward(model)
    plain = Forward(model, plain_head=chosen.plain_head)
    (found, of_found), (expected, of_expected) = map(scores_and_gradient, (chosen, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    assert apart(of_found, of_expected) < tolerance


@pytest.mark.release
def test_plain_padded_and_shared_give_equal_log_probabilities_of_a_real_model(smollm2: Path):
    """Text of four answers to each of two questions, at lengths that differ."""
    model, tokenizer = load_model(smollm2), load_tokenizer(smollm2)
    shared = choose_forward(model)
    assert shared.layout == "shared"
    questions = [tokenizer.encode(text) for text in ("What is 12 + 30?", "Name a city on a river, and the river.")]
    answers = ("42", "Forty-two, as 12 and 30 are 42.", "Cologne, on the Rhine", "I do not know.")
    batch = Batch.of_tokens(
        [question for question in questions for _ in answers],
        [tokenizer.encode(answer) for _ in questions for answer in answers],
        group=[number for number in range(len(questions)) for _ in answers],
    )
    with torch.no_grad():
        expected = token_scores(Forward(model), batch).logprobs
        for forward in (shared, shared.padded()):
            found = token_scores(forward, batch).logprobs
            torch.testing.assert_close(found, expected, rtol=0, atol=shared.tolerance(TOLERANCE))
    assert (expected < 0)[batch.loss_mask].all()


def test_a_forward_pass_that_computes_something_else_has_a_fault():
    model = model_of("llama", torch.float32)
    probe = Probe(model)
    assert not probe.fault(Forward(model))
    other = model_of("llama", torch.float32)
    other.model.norm.weight.data.mul_(1.001)
    assert "differ by" in probe.fault(Forward(other))


@pytest.mark.skipif(not onednn.available(), reason="torch has no oneDNN for this processor")
@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_a_library_that_computes_something_else_leaves_the_model_its_own_operators(monkeypatch, attention):
    """A wrong product shows in float32 alone: in float64 oneDNN computes nothing."""
    right = onednn._by_onednn
    monkeypatch.setattr("outdo.models.onednn._by_onednn", lambda x, weight, bias: right(x, weight, bias) * 1.001)
    forward = choose_forward(model_of("llama", torch.float32), attention)
    assert type(forward) is Forward
    assert "with outdo's operators its log-probabilities differ by" in forward.reason
    with pytest.raises(ModelError, match=r"gradient_checkpointing = true: outdo's operators do not compute this model"):
        choose_forward(model_of("llama", torch.float32), attention, gradient_checkpointing=True)


def test_what_needs_the_fast_ways_is_refused_without_them_and_the_rest_is_plain(monkeypatch):
    monkeypatch.setattr("outdo.models.choose_forward.fast", lambda spec: None)
    model = model_of("llama", torch.float32)
    for setting in ({"attention": "shared"}, {"compile": True}, {"gradient_checkpointing": True}):
        with pytest.raises(ModelError, match=r"needs outdo\.models\.fast, which this installation of outdo does not"):
            choose_forward(model, **setting)
    forward = choose_forward(model)
    assert type(forward) is Forward
    assert forward.plain_head
    assert forward.reason == "this installation of outdo does not have outdo.models.fast"


def test_choosing_a_way_computes_few_rows():
    """Some architectures take a second for each row on a CPU (Kimi-Linear, without its kernels)."""
    model = other_model("qwen3_moe", num_experts=4, num_experts_per_tok=2, head_dim=8, moe_intermediate_size=16)
    rows: list[int] = []
    with model.base_model.register_forward_pre_hook(
        lambda module, args, options: rows.append(len(options["input_ids"])), with_kwargs=True
    ):
        choose_forward(model)
    assert sum(rows) <= 28
