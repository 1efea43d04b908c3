"""The bytes that exist in one phase of a step only: small pure functions of lengths, recipe and the model's files."""

import math

from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import ModelFacts
from outdo.models.limits import LOGIT_BYTES, LOGIT_COLUMNS, PACKED_BYTES
from outdo.rollouts.engines.limits import ACCELERATOR_BLOCK, CPU_BLOCK, EPISODE_CACHE_BYTES, SEQUENCES_AT_A_TIME
from outdo.run.check.sequence_lengths import SequenceLengths, largest_micro_batch

FLOAT32 = 4
"""Bytes. Weights, gradients, optimiser, cache and logits are float32 on the CPU; autocast on a GPU needs less."""

BFLOAT16 = 2
"""Bytes of a number."""

LOGIT_BUFFERS = 2
"""Buffers of logits: the logits, and what is computed from them."""

SAMPLED_LOGIT = 4 + 4 + 8
"""Bytes of a logit while a token is drawn: the logit, its probability, and the sum of probabilities in float64."""

DEFAULT_TOKENS = 16384
"""Tokens computed at once, assumed where the run has yet to find how many fit."""

ACTIVATIONS_PER_LAYER = 30
"""Numbers kept per token and layer for the backward pass, in units of the hidden size, where the matrices of a layer do
not tell: 25 to 31 were counted in Qwen3 models with feed-forward layers of three and four times the hidden size."""

DENSE = range(4, 17)
"""Matrices of a layer that is no mixture of experts: a mixture has those of each expert, or stores them as one."""

READ_AGAIN = 3
"""Matrices of a layer that read the hidden state which the one before them reads: of keys, of values, and one of two
before the gate."""

LEAST_ROWS = 6
"""Rows of all matrices of a layer that has a feed-forward part, in units of the hidden size; attention has 2 to 4."""


def on_cpu(recipe: Recipe) -> bool:
    return recipe.device in ("auto", "cpu")


def is_divided(recipe: Recipe) -> bool:
    return bool(recipe.cluster.shard) and recipe.cluster.world_size > 1


def _is_narrow(recipe: Recipe) -> bool:
    """Return whether products are in bfloat16."""
    return recipe.precision == "bfloat16" or (recipe.precision == "auto" and not on_cpu(recipe))


def _rows(recipe: Recipe, lengths: SequenceLengths) -> int:
    """Return the answers that are sampled at the same time, on one replica: those of a step, or of an evaluation."""
    answers = max(recipe.train.prompts * recipe.train.group_size, lengths.evaluated)
    return min(-(-answers // recipe.cluster.world_size), SEQUENCES_AT_A_TIME)


def kv_cache(facts: ModelFacts, recipe: Recipe, lengths: SequenceLengths) -> int | None:
    """Compute the bytes of what layers keep of all sequences sampled at once.

    That is keys and values, in whole blocks, of each sequence at its longest; and the states of layers that have one.
    """
    block = CPU_BLOCK if on_cpu(recipe) else ACCELERATOR_BLOCK
    tokens = -(-lengths.longest // block) * block
    rows = _rows(recipe, lengths)
    keys_values = _product(FLOAT32 * rows * tokens, facts.kv_numbers)
    return None if keys_values is None else keys_values + FLOAT32 * rows * facts.state_numbers


def kept_turns(facts: ModelFacts, recipe: Recipe, lengths: SequenceLengths) -> int | None:
    """Compute the bytes of keys and values that are kept between the turns of episodes; None for single answers."""
    if recipe.environment is None or (every := kv_cache(facts, recipe, lengths)) is None:
        return None
    return min(every, EPISODE_CACHE_BYTES)


def sampled_logits(facts: ModelFacts, recipe: Recipe, lengths: SequenceLengths) -> int | None:
    """Compute the bytes of the logits of one token of each answer, and of what is computed to draw it."""
    return _product(SAMPLED_LOGIT * _rows(recipe, lengths), facts.vocab_size)


def packed(facts: ModelFacts, recipe: Recipe, quantised: int = 0) -> int | None:
    """Compute the bytes of the copies of the weights in the order in which a processor reads them.

    The `quantised` ones are not copied, nor any if products are in bfloat16.
    """
    if facts.parameters is None or not on_cpu(recipe) or _is_narrow(recipe):
        return None
    weights = FLOAT32 * (facts.parameters - quantised)
    return weights if weights <= PACKED_BYTES else 0


def narrow_copies(recipe: Recipe, trained: int | None) -> int | None:
    """Compute the bytes of bfloat16 copies of `trained` weights, which autocast keeps while answers are sampled.

    A divided model has none.
    """
    return _product(BFLOAT16, trained) if _is_narrow(recipe) and not is_divided(recipe) else None


def activations(facts: ModelFacts, recipe: Recipe, lengths: SequenceLengths) -> int | None:
    """Estimate the bytes that the current micro-batches keep for their backward pass.

    Attention keeps the keys and values of a shared prompt once for each answer. Gradient checkpointing keeps one hidden
    state per layer, and everything of one layer at a time.
    """
    micro, hidden, layers = largest_micro_batch(lengths, recipe), facts.hidden_size, facts.layers
    if micro is None or hidden is None or layers is None:
        return None
    of_layer = micro.tokens * numbers_of_layer(facts, hidden, layers)
    keys_values = micro.repeated * (facts.kv_numbers or 0)
    if recipe.train.gradient_checkpointing:
        of_one = of_layer + keys_values // (facts.attention_layers or 1)
        return FLOAT32 * (micro.tokens * layers * hidden + of_one)
    return FLOAT32 * (layers * of_layer + keys_values)


def numbers_of_layer(facts: ModelFacts, hidden: int, layers: int) -> int:
    """Return how many numbers a layer keeps of each token for the backward pass.

    Where `fused_modules` computes norms and a gated MLP, that is the result of each matrix, and what each reads: the
    queries, keys and values read the same, and so do the two matrices before the gate. Attention keeps a copy of its
    result, and of keys and values behind those of the prompt. For other layers it is twice the result of each matrix,
    as it is and as the next function makes it, and three hidden states for the sums and norms. Norms of queries and
    keys keep what they read, and in other layers also what they make.
    """
    rows = sum(rows for rows, _ in facts.layer_matrices) // layers
    columns = sum(columns for _, columns in facts.layer_matrices) // layers
    if len(facts.layer_matrices) // layers not in DENSE or rows < LEAST_ROWS * hidden:
        return ACTIVATIONS_PER_LAYER * hidden
    heads, kv_heads, size = facts.heads or 0, facts.kv_heads or 0, facts.head_dim or 0
    normed = (heads + kv_heads) * size * facts.normed_heads
    if facts.lean:
        return rows + columns - READ_AGAIN * hidden + (heads + 2 * kv_heads) * size + normed
    return 2 * rows + 3 * hidden + 2 * normed


def logits(facts: ModelFacts, recipe: Recipe, lengths: SequenceLengths) -> int | None:
    """Compute the bytes of the logits that exist at one time in training."""
    micro = largest_micro_batch(lengths, recipe)
    tokens = micro.tokens if micro else DEFAULT_TOKENS
    limit = LOGIT_BYTES["cpu" if on_cpu(recipe) else recipe.device]
    least = max(limit, FLOAT32 * LOGIT_COLUMNS * tokens)
    whole = _product(FLOAT32 * tokens, facts.vocab_size)
    return None if whole is None else LOGIT_BUFFERS * min(whole, least)


def _product(*factors: int | None) -> int | None:
    """Return the product; `None` where a factor is not known."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None
