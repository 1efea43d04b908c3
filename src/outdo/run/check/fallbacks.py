"""Warn where a model loses the fast way to compute it or to sample from it: at a run's start, and in `outdo check`.

A check loads no model. It makes a small one of the same architecture, with random weights, and lets it choose: the
architecture decides, not the weights.
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase

from outdo.config.names import BUILTIN_ENGINE
from outdo.config.recipe import Recipe
from outdo.models.forward import Forward
from outdo.models.inspect_folder import ModelFacts
from outdo.models.loading import config_of
from outdo.models.policy import Policy
from outdo.models.text_part import auto_class
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.modes import SamplingChoice
from outdo.utils.text import one_line

LAYERS = 8
"""The most layers of the small model; as few as have all kinds of layers that the model has."""
VOCABULARY = 1024
MOST_WEIGHTS = 500_000_000
"""Larger models are not tried before they are loaded: two layers of a model of 8 billion weights are as many."""


def fallback_warnings(forward: Forward, choice: SamplingChoice | None) -> list[str]:
    """Return a sentence for each fast way that a model does not allow, with what this costs.

    `choice` is that of the built-in engine; None if another one samples.
    """
    warnings: list[str] = []
    if forward.layout == "padded" and forward.reason != "as requested":
        warnings.append(
            f"attention: padded ({forward.reason}); each prompt is computed once for every answer instead of once for "
            "its group, and shorter answers are padded to the longest"
        )
    if choice is not None and not choice.mode.continuous:
        reason = f" ({'; '.join(choice.faults)})" if choice.faults else ""
        cause = "" if forward.reason != "as requested" else ', which needs other attention than `attention = "padded"`'
        warnings.append(
            f"sampling: {choice.mode.name}{reason}, without continuous batching{cause}; sampling takes twice as long "
            'or more (docs/models.md), and answers depend on their batch; `engine = "vllm"` may be faster'
        )
    elif choice is not None and choice.faults and not choice.mode.captured:
        faults = "; ".join(choice.faults)
        warnings.append(f"sampling: {faults}; the host starts each operation of a step instead")
    return warnings


class Prediction(NamedTuple):
    """How a run will compute its model, as far as it is known before the model is loaded."""

    warnings: Sequence[str] = ()  # the `fallback_warnings` of the run
    notes: Sequence[str] = ()  # why there is no prediction
    padded: bool = False  # whether each answer is computed with its prompt


def predict(recipe: Recipe, facts: ModelFacts, tokenizer: PreTrainedTokenizerBase) -> Prediction:
    """Predict the `fallback_warnings` of a run by a small model of the same architecture, with random weights."""
    unknown = f"how {facts.architecture or facts.name} is computed is known when it is loaded"
    try:
        config = _small(config_of(facts))
        auto = auto_class(AutoModelForCausalLM, config)
        with torch.device("meta"):
            size = sum(weight.numel() for weight in auto.from_config(config).parameters())
        if size > MOST_WEIGHTS:
            return Prediction(notes=[f"{unknown}: two of its layers are too large to be tried before"])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = auto.from_config(config, dtype=torch.float32).eval()
        policy = Policy(model, tokenizer, attention="padded" if recipe.attention.name == "padded" else "auto")
        sampled_here = recipe.engine.name == BUILTIN_ENGINE
        choice = BuiltinEngine(policy).choice if sampled_here else None
        return Prediction(fallback_warnings(policy.forward, choice), padded=policy.forward.layout == "padded")
    except Exception as error:  # a small model of an unusual architecture may not be possible; the run itself may be
        return Prediction(notes=[f"{unknown}: a small one cannot be made ({one_line(str(error))})"])


def _small(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of a model with the same kinds of layers, fewer layers and a small vocabulary."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    kinds: list[str] = getattr(text, "layer_types", None) or [""]
    count = 1 + max(kinds.index(kind) for kind in kinds)
    text.num_hidden_layers = min(text.num_hidden_layers, max(2, min(count, LAYERS)))
    if getattr(text, "layer_types", None):
        text.layer_types = kinds[: text.num_hidden_layers]
    text.vocab_size = min(text.vocab_size, VOCABULARY)
    text.pad_token_id = text.bos_token_id = text.eos_token_id = None
    return small
