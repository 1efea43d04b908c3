"""How far float32 rounds, and which ways to compute and to sample a model are chosen, for every architecture.

    python benchmarks/ways.py [MODEL ...]

Prints a row for each architecture of `outdo.testing`, with small numbers and with those of a large model, for others
that are known to allow less, and for each MODEL, a folder. `rounding` is what outdo measures on the model; the other
columns are the distance of float32 from float64, and of the shared way from the model's own in float32 and in float64.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from engine_cases import other_model
from large_numbers import enlarged, large_model

from outdo.models.fast.forward import FastForward
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.models.probe import small_batch
from outdo.models.rounding import distance, in_float64, rounding
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.testing import ARCHITECTURES, byte_bpe_tokenizer, tiny_model
from outdo.types import Batch
from outdo.utils.errors import ModelError

EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 2}
OTHERS = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "head_dim": 8},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "head_dim": 8},
    "phi3": {},
    "olmo2": {},
    "glm4": {"head_dim": 8},
    "granite": {"logits_scaling": 0.25},
    "cohere": {"logit_scale": 3.0},
    "bloom": {"n_head": 4, "n_layer": 2},
    "gpt_oss": {"head_dim": 8, **EXPERTS},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "phimoe": {"sliding_window": 64, **EXPERTS},
    "rwkv": {"attention_hidden_size": 32, "context_length": 512},
}


def models(folders: list[str]) -> Iterator[tuple[str, Callable[[], PreTrainedModel]]]:
    """Yield a name and a function that makes the model."""
    for arch in ARCHITECTURES:
        yield arch, lambda arch=arch: tiny_model(arch=arch)[0]
        yield f"{arch}, large numbers", partial(large_model, arch)
    yield "gemma3_text, large numbers, 262,144 tokens", partial(large_model, "gemma3_text", vocab=262_144, layers=2)
    for arch, changes in OTHERS.items():
        yield arch, partial(other_model, arch, **changes)
        yield f"{arch}, large numbers", lambda arch=arch, changes=changes: enlarged(other_model(arch, **changes))
    for folder in folders:
        yield Path(folder).name, lambda folder=folder: AutoModelForCausalLM.from_pretrained(folder).eval()


def row(name: str, model: PreTrainedModel) -> str:
    """Return the row of a model in the table."""
    batch = small_batch(model.config.get_text_config().vocab_size)
    own, shared = (partial(_logprobs, model, way, batch) for way in ("padded", "shared"))
    narrow, wide = own(), in_float64(own)
    cells = [f"{float(narrow.min()):.0f}", f"{rounding(model, own):.1e}"]
    cells.append("–" if wide is None else f"{distance(wide, narrow.double()):.1e}")
    try:
        other = shared()
        both = None if wide is None else in_float64(shared)
        cells += [
            f"{distance(narrow, other):.1e}",
            "–" if wide is None or both is None else f"{distance(wide, both):.1e}",
        ]
    except Exception as error:  # the model does not allow this way
        cells += [type(error).__name__, "–"]
    try:
        policy = Policy(model, byte_bpe_tokenizer([], 264))
        cells += [policy.forward.layout, BuiltinEngine(policy).choice.mode.name]
    except ModelError:
        cells += ["refused", "–"]
    return f"| {name} | {' | '.join(cells)} |"


@torch.no_grad()
def _logprobs(model: PreTrainedModel, layout: Literal["padded", "shared"], batch: Batch) -> Tensor:
    forward = FastForward(Forward(model), layout)
    hidden, source = forward.hidden(batch)
    return forward.head(hidden[source[:, :-1][batch.loss_mask]]).float().log_softmax(-1)  # [N, V]


def main() -> None:
    """Print the table."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    print("| model | lowest log p | rounding | float32 from float64 | shared way, float32 | float64 | way | sampling |")
    print("|---|---|---|---|---|---|---|---|")
    for name, make in models(sys.argv[1:]):
        print(row(name, make()), flush=True)


if __name__ == "__main__":
    main()
