"""Small models whose numbers are as large as those of large models, so that float32 rounds as much."""

import torch
from torch import nn
from transformers import PreTrainedModel

from outdo.testing import tiny_model

INTO_THE_SUM = ("o_proj", "down_proj", "c_proj", "dense.weight", "dense_4h_to_h", "out_proj")
CENTRED = ("Gemma", "Qwen3_5")  # whose norms store the distance of their weight from 1
QUERIES = ("q_proj.weight", "q_norm.weight", "c_attn.weight", "query_key_value.weight")


def large_model(arch: str, *, vocab: int = 264, layers: int = 6) -> PreTrainedModel:
    """A model of `outdo.testing` with sharp attention, hidden states of 1e5 and logits that span some 60 nats."""
    model, _ = tiny_model(arch=arch, vocab=vocab, layers=layers)
    return enlarged(model, sharper=10.0)


@torch.no_grad()
def enlarged(
    model: PreTrainedModel, *, sharper: float = 1.0, hidden: float = 1e4, span: float = 80.0
) -> PreTrainedModel:
    """The same model with larger weights."""
    for name, weight in model.named_parameters():
        if name.endswith(QUERIES):
            queries = weight[:, : weight.shape[1] // 3] if "c_attn" in name else weight
            _multiply(queries, sharper, centred=type(model).__name__.startswith(CENTRED) and "norm" in name)
        if weight.dim() == 2 and any(each in name for each in INTO_THE_SUM):
            weight.mul_(hidden)
    ids = torch.arange(40)[None] * 5 % model.config.get_text_config().vocab_size
    logprobs = model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.log_softmax(-1)
    norms = [each for each in model.modules() if "Norm" in type(each).__name__ and hasattr(each, "weight")]
    _multiply(norms[-1].weight, span / -float(logprobs.min()), centred=type(model).__name__.startswith(CENTRED))
    return model


def _multiply(weight: torch.Tensor | nn.Parameter, factor: float, *, centred: bool) -> None:
    """Multiply a weight; with `centred` it is stored as its distance from 1."""
    weight.copy_((weight + 1) * factor - 1 if centred else weight * factor)
