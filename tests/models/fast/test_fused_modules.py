"""Modules with fewer operators compute what the model's own do: values, gradients, and no more memory."""

import pytest
import torch
from engine_cases import STATEFUL, VOCABULARY, apart, gradient, other_model, ragged
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.models.choose_forward import choose_forward
from outdo.models.fast.fused_modules import modules_of
from outdo.models.forward import Forward
from outdo.models.logprobs import sequence_logprobs as sequence_logprobs_of
from outdo.models.scorer import BatchSizes, Scorer, sequence_logprobs

ALL = ("norm", "mlp", "attention")
CHOSEN = {
    "llama": ALL,
    "mistral": ALL,
    "qwen2": ALL,
    "qwen3": ALL,
    "smollm3": ALL,
    "gemma": ("norm", "attention"),  # gelu
    "gemma2": ("norm", "attention"),
    "gemma3_text": ("norm", "attention"),
    "olmo2": ("norm", "mlp"),  # its attention normalises all heads together
    "lfm2": ALL,
    "qwen3_5_text": ALL,  # gates what attention reads, and rotates a part of each head
    "glm": ("norm",),  # rotates a part of each head, and has one product for gate and up
    "gpt2": (),
}


def uneven(arch: str) -> PreTrainedModel:
    """A model whose norms do not all have the weights that they begin with."""
    model = other_model(arch, **STATEFUL.get(arch, {}))
    source = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(weight, 0.2, 1.5, generator=source)
    return model


def with_and_without(forward: Forward) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Log-probabilities and gradient of a batch, with the fused modules and with the model's own."""
    batch, found = ragged(), []
    for fused in (forward.fused, ()):
        forward.fused = fused
        forward.model.zero_grad()
        scores = Scorer(forward, BatchSizes()).scores(batch)
        scores.logprobs.square().sum().backward()
        found.append((scores.logprobs.detach(), gradient(Scorer(forward, BatchSizes()))))
    return found[0], found[1]


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("arch", CHOSEN)
def test_the_modules_of_usual_layers_are_fused_and_their_gradients_are_the_models(arch):
    forward = choose_forward(uneven(arch).double())
    assert forward.fused == CHOSEN[arch]
    fused, own = with_and_without(forward)
    torch.testing.assert_close(fused[0], own[0], rtol=0, atol=1e-10)
    assert apart(fused[1], own[1]) < 1e-10


def test_in_bfloat16_products_they_differ_by_rounding_alone():
    fused, own = with_and_without(choose_forward(uneven("qwen3"), precision="bfloat16"))
    torch.testing.assert_close(fused[0], own[0], rtol=0, atol=0.1)
    assert apart(fused[1], own[1]) < 0.1 * float(own[1].abs().max())


FAR = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}
OTHERS = {
    "ministral3": {"rope_parameters": FAR | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0}, "head_dim": 8},
    "olmo": {"clip_qkv": 8.0},
}


@pytest.mark.parametrize("arch", OTHERS)
def test_modules_whose_rule_a_few_tokens_do_not_show_are_left_alone(arch):
    """Ministral 3 scales queries of far positions; OLMo clips large ones."""
    model = other_model(arch, **OTHERS[arch])
    rare = VOCABULARY - 1  # not among the tokens on which models are compared
    token_ids = [*range(2, 200), rare, 3, 4]
    model.model.embed_tokens.weight.data[rare].mul_(0).add_(torch.linspace(-9, 9, 32))
    model.model.layers[0].self_attn.q_proj.weight.data.add_(torch.linspace(-1, 1, 32))
    forward = choose_forward(model)
    assert forward.layout == "shared"
    assert "attention" not in forward.fused
    assert "mlp" in forward.fused
    own = sequence_logprobs_of(model(torch.tensor([token_ids])).logits, torch.tensor([token_ids]))[0, 1:]
    torch.testing.assert_close(torch.tensor(sequence_logprobs(forward, [token_ids])[0]), own, rtol=0, atol=1e-4)


class Centred(nn.Module):
    """A norm by name, which computes something else."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)


Centred.__name__ = "CentredRMSNorm"


def test_a_norm_of_another_formula_is_left_alone():
    model = other_model("llama")
    model.model.norm = Centred(32)
    forward = choose_forward(model)
    assert forward.fused == ALL
    assert model.model.norm not in dict(modules_of(model, "norm", ()))


def test_a_kind_of_module_that_changes_log_probabilities_is_left_alone(monkeypatch):
    model = other_model("llama")
    mlp = type(model.model.layers[0].mlp)
    plain = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda self, x: 1.01 * plain(self, x))
    forward = choose_forward(model)
    assert forward.layout == "shared"
    assert forward.fused == ("norm", "attention")


def test_a_graph_keeps_less():
    forward = choose_forward(other_model("llama"))
    kept = [kept_bytes(forward)]
    forward.fused = ()
    kept.append(kept_bytes(forward))
    assert kept[0] < 0.85 * kept[1]


def kept_bytes(forward: Forward) -> int:
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, _ = forward.hidden(ragged())
    assert hidden.requires_grad
    return sum(found.values())
