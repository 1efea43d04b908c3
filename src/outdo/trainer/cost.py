"""What a run will cost, worked out before anything is loaded: small pure functions, in bytes, tokens and steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import ModelFacts

FLOAT32 = 4
"""Bytes. Weights, gradients, optimiser, cache and logits are float32 on the CPU; autocast on a GPU needs less."""

MOMENTS = {
    "adamw": ("Adam's two moments", lambda hidden: 8.0),
    "adamw8bit": ("Adam's two moments in 8 bits", lambda hidden: 2.0),
    "adafactor": ("Adafactor's means of rows and columns", lambda hidden: 2 * FLOAT32 / (hidden or 100)),
}
"""What an algorithm keeps, and its bytes for each weight of a model with so large a hidden state; any other algorithm
is taken to be like AdamW."""

ROWS_AT_ONCE = 256
"""Sequences the built-in engine samples at a time."""

LOGITS = 2
"""Buffers of logits: themselves, and what is made of them."""

LOGIT_BYTES, LOGIT_COLUMNS = {"cpu": 8 << 20, "mps": 256 << 20, "cuda": 256 << 20}, 256
"""Of one buffer, by the device; but it holds at least so many columns of the vocabulary."""

PACKED = 2**30
"""Bytes of weights up to which a processor samples from a copy in the order in which it reads them."""

DEFAULT_TOKENS = 16384
"""Tokens computed at once, where the run is going to find how many."""

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
    sequences, per_step = train.prompts * train.group_size, train.passes * train.minibatches
    return Arithmetic(
        prompts=train.prompts,
        group=train.group_size,
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
    standing = {}
    if facts.parameters is not None:
        standing = kept(facts.parameters, recipe, reference=reference, critic=critic, hidden=facts.hidden_size)
    parts: dict[str, int | None] = {
        **standing,
        "KV cache while sampling": kv_cache(facts, recipe),
        "weights in another order while sampling": packed(facts, recipe),
        "activations while training": activations(facts, recipe),
        "a chunk of logits": logits(facts, recipe),
    }
    return {name: size for name, size in parts.items() if size is not None}


def kept(
    parameters: int, recipe: Recipe, *, reference: bool, critic: bool = False, hidden: int | None = None
) -> dict[str, int]:
    """Bytes of what is there throughout a run, for a policy of so many weights; each worker has its own gradient."""
    one = FLOAT32 * parameters
    name, each = MOMENTS.get(recipe.optim.algorithm.name, MOMENTS["adamw"])
    parts = {
        "weights": one,
        "gradients": one * workers(recipe),
        name: round(parameters * each(hidden)),
        "reference weights": one if reference else 0,
        "critic with gradients and moments": 4 * one if critic else 0,
    }
    return {name: size for name, size in parts.items() if size}


def workers(recipe: Recipe) -> int:
    """Processes that compute at the same time; one, where outdo is going to choose."""
    return recipe.workers or 1


def peak(parts: Mapping[str, int]) -> int:
    """The most of `memory` that is there at one time."""
    sampling = sum(size for name, size in parts.items() if name.endswith("while sampling"))
    return sum(parts.values()) - min(sampling, parts.get("activations while training", 0))


def kv_cache(facts: ModelFacts, recipe: Recipe) -> int | None:
    """Bytes of the keys and values of all sequences that are sampled at once, each at its longest."""
    rows = min(recipe.train.prompts * recipe.train.group_size, ROWS_AT_ONCE)
    return _times(2 * FLOAT32 * rows * longest_sequence(recipe), facts.layers, facts.kv_heads, facts.head_dim)


def packed(facts: ModelFacts, recipe: Recipe) -> int | None:
    """Bytes of the copy of the weights in the order in which a processor reads them, one for each worker."""
    one = _times(FLOAT32, facts.parameters)
    if one is None or recipe.device not in ("auto", "cpu"):
        return None
    return workers(recipe) * one if one <= PACKED else 0


def activations(facts: ModelFacts, recipe: Recipe) -> int | None:
    """Bytes that the micro-batches under way keep for their backward pass: a rough figure.

    Recomputing keeps one hidden state for each layer, and of one layer at a time all of it.
    """
    layers = facts.layers
    if layers is not None:
        numbers = (
            layers + ACTIVATIONS_PER_LAYER if recipe.train.gradient_checkpointing else layers * ACTIVATIONS_PER_LAYER
        )
        return _times(FLOAT32 * numbers, micro_batch(recipe), facts.hidden_size)
    return None


def micro_batch(recipe: Recipe) -> int | None:
    """Tokens computed at once, by all workers together; `None` where the run is going to find them.

    A sequence is never cut, so one of them may exceed `train.micro_batch_tokens`.
    """
    longest, tokens = longest_sequence(recipe), recipe.train.micro_batch_tokens
    if tokens == "auto":
        return None
    return min(workers(recipe) * max(longest, tokens), recipe.train.prompts * recipe.train.group_size * longest)


def logits(facts: ModelFacts, recipe: Recipe) -> int | None:
    """Bytes of the logits that exist at one time."""
    tokens = (micro_batch(recipe) or DEFAULT_TOKENS) // workers(recipe)
    room = LOGIT_BYTES["cpu" if recipe.device in ("auto", "cpu") else recipe.device]
    least = max(room, FLOAT32 * LOGIT_COLUMNS * tokens)
    whole = _times(FLOAT32 * tokens, facts.vocab_size)
    return None if whole is None else LOGITS * workers(recipe) * min(whole, least)


def _times(*factors: int | None) -> int | None:
    """The product; `None` where a factor is not known."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None
