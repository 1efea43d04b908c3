"""What a run will cost, worked out before anything is loaded: small pure functions, in bytes, tokens and steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outdo.model_folder import ModelFacts
from outdo.recipe import Recipe

FLOAT32 = 4
"""Bytes. Weights, gradients, optimiser, cache and logits are float32 on the CPU; autocast on a GPU needs less."""

ROWS_AT_ONCE = 256
"""Sequences the built-in engine samples at a time."""

LOGITS_AT_ONCE = 1024
"""Tokens whose logits exist at a time."""

LOGITS_COPIES = 3
"""The logits, their logarithmic softmax, and its gradient."""

ACTIVATIONS_PER_LAYER = 30
"""Numbers kept per token and layer for the backward pass, in units of the hidden size: 25 to 31 were counted in
Qwen3 models with feed-forward layers of three and four times the hidden size, without gradient checkpointing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """A run in numbers."""

    prompts: int  # questions per step
    group: int  # answers per question
    sequences: int  # per step
    tokens: int  # per step, at most: prompts and answers
    optimiser_steps: int  # per step
    optimiser_steps_in_all: int
    epochs: float  # passes over the training questions in the whole run


def arithmetic(recipe: Recipe, questions: int) -> Arithmetic:
    """What one step and the whole run consist of, with `questions` to train on."""
    train = recipe.train
    sequences, per_step = train.prompts * train.group, train.updates * train.minibatches
    return Arithmetic(
        prompts=train.prompts,
        group=train.group,
        sequences=sequences,
        tokens=sequences * longest_sequence(recipe),
        optimiser_steps=per_step,
        optimiser_steps_in_all=recipe.steps * per_step,
        epochs=recipe.steps * train.prompts / questions,
    )


def longest_sequence(recipe: Recipe) -> int:
    """Tokens of the longest prompt with the longest answer."""
    return recipe.data.max_prompt_tokens + recipe.sampling.max_tokens


def memory(facts: ModelFacts, recipe: Recipe, *, reference: bool, critic: bool = False) -> dict[str, int]:
    """Bytes by what they are for, in training on one device; parts the model's files say too little about are left out.

    Sampling and the backward pass take turns, so that the cache and the activations never stand side by side.
    """
    parts: dict[str, int | None] = {
        "weights": weights(facts),
        "gradients": weights(facts),
        "Adam's two moments": _times(2, weights(facts)),
        "reference weights": weights(facts) if reference else None,
        "critic with gradients and moments": _times(4, weights(facts)) if critic else None,
        "KV cache while sampling": kv_cache(facts, recipe),
        "activations while training": activations(facts, recipe),
        "a chunk of logits": logits(facts, recipe),
    }
    return {name: size for name, size in parts.items() if size is not None}


def peak(parts: Mapping[str, int]) -> int:
    """The most of `memory` that is there at one time."""
    cache, acts = parts.get("KV cache while sampling", 0), parts.get("activations while training", 0)
    return sum(parts.values()) - min(cache, acts)


def weights(facts: ModelFacts) -> int | None:
    """Bytes of one copy of the weights."""
    return _times(FLOAT32, facts.parameters)


def kv_cache(facts: ModelFacts, recipe: Recipe) -> int | None:
    """Bytes of the keys and values of all sequences that are sampled at once, each at its longest."""
    rows = min(recipe.train.prompts * recipe.train.group, ROWS_AT_ONCE)
    return _times(2 * FLOAT32 * rows * longest_sequence(recipe), facts.layers, facts.kv_heads, facts.head_dim)


def activations(facts: ModelFacts, recipe: Recipe) -> int | None:
    """Bytes that one micro-batch keeps for its backward pass: a rough figure."""
    return _times(FLOAT32 * ACTIVATIONS_PER_LAYER * micro_batch(recipe), facts.layers, facts.hidden_size)


def micro_batch(recipe: Recipe) -> int:
    """Tokens of the largest micro-batch: a sequence is never cut, so one of them may exceed `train.micro_tokens`."""
    longest = longest_sequence(recipe)
    return max(longest, min(recipe.train.micro_tokens, recipe.train.prompts * recipe.train.group * longest))


def logits(facts: ModelFacts, recipe: Recipe) -> int | None:
    """Bytes of the logits that exist at one time."""
    return _times(LOGITS_COPIES * FLOAT32 * min(LOGITS_AT_ONCE, micro_batch(recipe)), facts.vocab_size)


def _times(*factors: int | None) -> int | None:
    """The product; `None` where a factor is not known."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None
