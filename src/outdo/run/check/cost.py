"""What a run will cost, computed before anything is loaded: small pure functions, in bytes, tokens and steps."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from outdo.config.engines import has_partial_rollouts, is_remote
from outdo.config.names import QUANTISED
from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import ModelFacts
from outdo.run.check import step_memory
from outdo.run.check.sequence_lengths import SequenceLengths, bound
from outdo.run.check.step_memory import FLOAT32, on_cpu

MOMENTS = {
    "adamw": ("Adam's two moments", lambda hidden: 8.0),
    "adamw8bit": ("Adam's two moments in 8 bits", lambda hidden: 2.0),
    "adafactor": ("Adafactor's means of rows and columns", lambda hidden: 2 * FLOAT32 / (hidden or 100)),
    "sgd": ("no moments", lambda hidden: 0.0),
    "polyak": ("no moments", lambda hidden: 0.0),
}
"""What an algorithm keeps, and its bytes per weight of a model with this hidden size. Any other algorithm is estimated
as AdamW."""

PHASES = ("while sampling", "while training", "while rewarding")
"""The phases of a step, which follow each other. The name of a part that exists in one of them only ends with it."""

REFERENCE, CRITIC = "reference weights", "critic with moments"

RANK = 32
"""The rank of the LoRA that a run without an adapter is compared with."""

COPY = "copy of the last finished step"
COPY_SHARE = 0.25
"""The largest share of the free main memory that the copy of a finished step may take."""

LIBRARIES = "Python and its libraries"
LIBRARY_BYTES = 640 * 2**20
"""Memory of a run whose model is next to nothing (`benchmarks/real_memory.py`): torch, transformers and others."""

ENGINE = "engine beside the trainer"
ASLEEP = 774 * 2**20
"""What an engine keeps of the trainer's device while it sleeps, measured with vLLM on one GPU
(github.com/NVIDIA-NeMo/RL/issues/223); on two GPUs it was 2.4 GiB and more."""

GATHERED_LAYERS = 3
"""Layers of a divided model that a replica holds at one time, beside the weights outside of layers, in training: one
that computes, the next one, and the copy of one that is sent. As many gradients exist."""


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


def arithmetic(recipe: Recipe, questions: int, longest: int | None = None) -> Arithmetic:
    """Compute what one step and the whole run consist of, with `questions` to train on.

    `longest` are the tokens of a prompt and an answer at most; unset, as many as the recipe allows.
    """
    train = recipe.train
    sequences, per_step = train.prompts * train.group_size, train.passes * train.minibatches
    return Arithmetic(
        prompts=train.prompts,
        group=train.group_size,
        sequences=sequences,
        tokens=sequences * (longest or longest_sequence(recipe)),
        optimiser_steps=per_step,
        optimiser_steps_in_all=recipe.steps * per_step,
        epochs=recipe.steps * train.prompts / questions,
    )


def longest_sequence(recipe: Recipe) -> int:
    """Return the tokens of the longest prompt with the longest answer."""
    return recipe.data.max_prompt_tokens + recipe.sampling.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSize:
    """An adapter and the model that it freezes."""

    trained: int  # weights of the adapter
    base: int  # bytes of the frozen weights
    quantised: int = 0  # frozen weights in 8 or 4 bits


def adapter_size(facts: ModelFacts, weights: str, trained: int | None = None, *, rank: int = RANK) -> AdapterSize:
    """Compute the size of an adapter with `trained` weights; unset, of LoRA with this rank in all linear layers.

    `weights` says how the frozen ones are stored. In a linear layer, int8 has 8 bits a weight and one float32 for each
    row, and nf4 4 bits a weight and one float32 for 64 of them; what is not a linear layer is bfloat16.
    """
    linear, total = sum(rows * columns for rows, columns in facts.layer_matrices), facts.parameters or 0
    scales = FLOAT32 * sum(rows for rows, _ in facts.layer_matrices)
    layers = {"float32": 4 * linear, "bfloat16": 2 * linear, "int8": linear + scales, "nf4": 9 * linear // 16}[weights]
    base = layers + (FLOAT32 if weights == "float32" else 2) * (total - linear)
    lora = rank * sum(rows + columns for rows, columns in facts.layer_matrices)
    quantised = linear if weights in QUANTISED else 0
    return AdapterSize(trained=lora if trained is None else trained, base=base, quantised=quantised)


def alternatives(
    facts: ModelFacts,
    recipe: Recipe,
    *,
    reference: bool,
    critic: bool = False,
    trained: int | None = None,
    lengths: SequenceLengths | None = None,
) -> dict[str, dict[str, int]]:
    """Compute the `memory` of a run that trains all weights, an adapter (LoRA), and one on quantised weights (QLoRA).

    `trained` is the number of weights of the recipe's adapter. Empty if the model's files do not tell its layers.
    """
    if facts.parameters is None or not facts.layer_matrices:
        return {}
    stored = _stored(facts, recipe)
    options = recipe.train.adapter.options if recipe.train.adapter else {}
    rank = options.get("rank", options.get("r", 8)) if recipe.train.adapter else RANK
    sizes = {name: weights and adapter_size(facts, weights, trained, rank=rank) for name, weights in stored.items()}
    return {
        name: memory(facts, recipe, reference=reference, critic=critic, adapter=size or None, lengths=lengths)
        for name, size in sizes.items()
    }


def _stored(facts: ModelFacts, recipe: Recipe) -> dict[str, Any]:
    """Return how each way to train stores frozen weights; quantised ones cannot be divided among replicas."""
    narrow = facts.dtype == "bfloat16" if recipe.weights in ("auto", *QUANTISED) else recipe.weights == "bfloat16"
    quantised = recipe.weights if recipe.weights in QUANTISED else "nf4"
    stored = {"full": None, "LoRA": "bfloat16" if narrow else "float32", "QLoRA": quantised}
    return {name: parts for name, parts in stored.items() if name != "QLoRA" or not recipe.cluster.shard}


def memory(
    facts: ModelFacts,
    recipe: Recipe,
    *,
    reference: bool,
    critic: bool = False,
    adapter: AdapterSize | None = None,
    lengths: SequenceLengths | None = None,
) -> dict[str, int]:
    """Compute the bytes of training on one device, by purpose; parts that the model's files do not tell are left out.

    `lengths` are those of the sequences; unset, the longest that the recipe allows.

    With several replicas it is the device of one of them, which holds a part of the models with `cluster.shard`.

    Sampling and the backward pass alternate, so that the cache and the activations never exist at the same time. What
    an engine in another process takes is not part of it (but see `lent`).
    """
    lengths = lengths or bound(recipe)
    permanent = {}
    if facts.parameters is not None:
        settings = {"reference": reference, "critic": critic, "hidden": facts.hidden_size}
        permanent = {LIBRARIES: LIBRARY_BYTES} if on_cpu(recipe) else {}
        permanent |= model_states(facts.parameters, recipe, adapter=adapter, **settings)
    trained, quantised = (adapter.trained, adapter.quantised) if adapter else (facts.parameters, 0)
    own: dict[str, int | None] = {
        "KV cache while sampling": step_memory.kv_cache(facts, recipe, lengths),
        "KV cache between turns while sampling": step_memory.kept_turns(facts, recipe, lengths),
        "weights in another order while sampling": step_memory.packed(facts, recipe, quantised),
        "weights in bfloat16 while sampling": step_memory.narrow_copies(recipe, trained),
        "logits while sampling": step_memory.sampled_logits(facts, recipe, lengths),
    }
    parts: dict[str, int | None] = {
        **permanent,
        **({} if is_remote(recipe.engine) else own),  # another engine samples in memory of its own
        "activations while training": step_memory.activations(facts, recipe, lengths),
        "all weights, gathered while sampling": gathered(facts, recipe, adapter, layers=facts.layers),
        "layers gathered while training": gathered(facts, recipe, adapter, layers=GATHERED_LAYERS, trained=True),
        "a chunk of logits while training": step_memory.logits(facts, recipe, lengths),
    }
    return {name: size for name, size in parts.items() if size is not None}


def model_states(
    parameters: int,
    recipe: Recipe,
    *,
    reference: bool,
    critic: bool = False,
    hidden: int | None = None,
    adapter: AdapterSize | None = None,
) -> dict[str, int]:
    """Compute the bytes that stay during the whole run for a policy with `parameters` weights, and of its gradients.

    With an adapter, reference and critic share the frozen weights, unless they are models of other folders, which are
    estimated as if they had as many weights. A processor also holds a copy of everything that changes in a step
    (`outdo.run.checkpoints.state`), unless memory is short. With `cluster.shard` the replicas divide all of it but an
    adapter, of which each has its own.
    """
    trained = parameters if adapter is None else adapter.trained
    weights = FLOAT32 * trained
    own = {REFERENCE, CRITIC} if adapter is None else _of_folders(recipe)
    of_critic = FLOAT32 * critic * (parameters if CRITIC in own else trained)
    name, bytes_per_weight = MOMENTS.get(recipe.optim.algorithm.name, MOMENTS["adamw"])
    parts = {
        "frozen weights": 0 if adapter is None else adapter.base,
        "weights" if adapter is None else "weights of the adapter": weights,
        "gradients while training": weights,
        name: round(trained * bytes_per_weight(hidden)),
        REFERENCE: FLOAT32 * parameters * (reference and REFERENCE in own),
        CRITIC: 3 * of_critic + max(0, of_critic - weights),  # it learns before the policy, whose gradients follow
    }
    if on_cpu(recipe):  # otherwise it is in main memory, not on the device
        parts[COPY] = weights + parts[name] + parts[REFERENCE] + 3 * of_critic
    divided = parts.keys() if adapter is None else {"frozen weights", *own}
    return _of_one_replica(parts, recipe, divided, ahead=_copies_ahead(recipe) * weights)


def _of_one_replica(
    parts: Mapping[str, int], recipe: Recipe, divided: Collection[str], *, ahead: int
) -> dict[str, int]:
    """Return what one replica holds of `parts`, some of which may be `divided`.

    The copies of weights to sample `ahead` are whole: the first replica has them.
    """
    sizes = {part: round(size * share_of_one(recipe)) if part in divided else size for part, size in parts.items()}
    sizes["copies of the weights, to sample ahead"] = ahead
    return {name: size for name, size in sizes.items() if size}


def _of_folders(recipe: Recipe) -> set[str]:
    """Return which models beside a policy with an adapter are those of other folders: they share no frozen weights."""
    of_critic = recipe.critic.options.get("path") if recipe.critic else None
    return {name for name, path in ((REFERENCE, recipe.reference.model), (CRITIC, of_critic)) if path is not None}


def _copies_ahead(recipe: Recipe) -> int:
    """Return how many copies of the trained weights wait for the engine, or are with it, at most."""
    ahead = recipe.train.max_staleness
    return (1 if has_partial_rollouts(recipe.engine) else ahead) + 1 if ahead else 0


def share_of_one(recipe: Recipe) -> float:
    """Return the share of the models that a device holds: with parts in main memory, a GPU holds nothing of them."""
    if not recipe.cluster.shard:
        return 1.0
    return 0.0 if recipe.cluster.shard.offload and not on_cpu(recipe) else 1 / recipe.cluster.world_size


def gathered(
    facts: ModelFacts, recipe: Recipe, adapter: AdapterSize | None, *, layers: int | None, trained: bool = False
) -> int | None:
    """Compute the bytes of `layers` whole layers of a divided policy, and of what is outside of layers.

    If it is `trained`, so many gradients exist as well, unless an adapter freezes it. None if models are not divided.
    """
    if not (step_memory.is_divided(recipe) and facts.parameters and facts.layers and layers):
        return None
    size = FLOAT32 * facts.parameters if adapter is None else adapter.base
    copies = 2 if trained and adapter is None else 1
    return copies * bytes_of_layers(size, share_in_layers(facts), layers / facts.layers)


def share_in_layers(facts: ModelFacts) -> float:
    """Return the share of a model's weights that are matrices of its layers."""
    return min(1.0, sum(rows * columns for rows, columns in facts.layer_matrices) / (facts.parameters or 1))


def bytes_of_layers(size: float, in_layers: float, share: float) -> int:
    """Return the bytes of a `share` of the layers of a model of so many bytes, and of all that is outside of layers."""
    return round(size * (1 - in_layers + in_layers * min(1.0, share)))


def lent(share: float, memory: int | None, phases: Collection[str]) -> dict[str, int]:
    """Return the bytes of a device with so much `memory` of which an engine has a `share` in these phases."""
    if not share or memory is None:
        return {}
    awake = max(0, round(share * memory) - ASLEEP)
    return {ENGINE: ASLEEP} | {f"memory lent to the engine {when}": awake for when in phases}


def peak(parts: Mapping[str, int]) -> int:
    """Return the most of `memory` that exists at one time: of what exists in one phase only, that of the largest."""
    phases = [sum(size for name, size in parts.items() if name.endswith(when)) for when in PHASES]
    return sum(parts.values()) - sum(phases) + max(phases)


def with_fitting_copy(parts: Mapping[str, int], free: int | None) -> dict[str, int]:
    """Return the parts without the copy of the last finished step, if it has no room in the `free` main memory.

    It is made after a step, whose memory the process keeps, and takes at most a share of what is left then.
    """
    others = {name: size for name, size in parts.items() if name != COPY}
    held = peak(others) - parts.get(LIBRARIES, 0)  # these are there when the free memory is read
    has_room = free is None or parts.get(COPY, 0) <= COPY_SHARE * (free - held)
    return dict(parts) if has_room else others
