"""Bytes of the reward models of a run, computed before any of them is loaded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outdo.config.fields import Piece
from outdo.config.names import QUANTISED
from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import REWARD_MODEL as CLASSIFIER
from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.models.limits import DIVISIBLE_WEIGHTS
from outdo.models.weight_headers import ADAPTER_WEIGHTS
from outdo.run.check import cost
from outdo.run.check.step_memory import DEFAULT_TOKENS, numbers_of_layer
from outdo.utils.errors import ModelError
from outdo.utils.reward_names import REWARD_MODEL

BATCH = 16
"""Prompts of an optimiser step of a refresh, unless the recipe says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSize:
    """A reward model of a run."""

    facts: ModelFacts
    weights: int  # bytes
    trained: int  # weights that a refresh trains; 0: the run does not train it
    divided: bool  # whether `cluster.shard` divides it among the replicas
    batch: int = BATCH  # prompts of an optimiser step of a refresh


def reward_models(recipe: Recipe) -> Iterator[Piece]:
    """Yield the reward models of a recipe that compute on the device of the policy."""
    for reward in recipe.rewards:
        device = reward.options.get("device", recipe.device)
        if reward.name == REWARD_MODEL and (
            device in ("auto", recipe.device) or (device == "cpu" and cost.on_cpu(recipe))
        ):
            yield reward


def reward_sizes(recipe: Recipe) -> list[RewardSize]:
    """Return the sizes of the reward models that have a sound folder; they are 0 before a model is downloaded."""
    sizes = []
    for piece in reward_models(recipe):
        try:
            facts = inspect_folder(str(piece.options.get("path")), CLASSIFIER)
        except ModelError:
            continue  # `outdo check` has it among the errors
        sizes.append(reward_size(piece, facts, recipe))
    return sizes


def reward_size(piece: Piece, facts: ModelFacts, recipe: Recipe) -> RewardSize:
    """Return the size of a reward model, with the weights of its adapter if it has one."""
    stored, batch = _stored(piece, facts), piece.options.get("batch")
    adapter = (facts.adapter / ADAPTER_WEIGHTS).stat().st_size if facts.adapter else 0
    trained = adapter // cost.FLOAT32 if facts.adapter else facts.parameters or 0
    whole = facts.adapter is not None or stored in QUANTISED
    return RewardSize(
        facts=facts,
        weights=cost.adapter_size(facts, stored, 0).base + adapter,
        trained=trained if "labels" in piece.options else 0,
        divided=recipe.cluster.shard.on and not (whole or recipe.train.max_staleness),
        batch=batch if isinstance(batch, int) and batch > 0 else BATCH,
    )


def _stored(piece: Piece, facts: ModelFacts) -> str:
    """Return how a reward model is stored: as `base_weights` says, or in float32 without an adapter in bfloat16."""
    asked = piece.options.get("base_weights", "auto")
    if asked in (*DIVISIBLE_WEIGHTS, *QUANTISED):  # anything else is refused when the pieces are built
        return str(asked)
    return "bfloat16" if facts.adapter is not None and facts.dtype == "bfloat16" else "float32"


def reward_memory(sizes: Sequence[RewardSize], recipe: Recipe, longest: int | None = None) -> dict[str, int]:
    """Compute the bytes that reward models take of one device, by purpose.

    A model that learns has gradients and Adam's two moments; a processor also holds a copy of its weights and moments
    (`outdo.run.checkpoints.state`). Models compute one after the other, while the policy does nothing. `longest` are
    the tokens of a prompt and an answer at most; unset, as many as the recipe allows.
    """
    memory = {"reward models": 0, "gradients and moments of reward models": 0, "copy of the last finished step": 0}
    phases: list[dict[str, int]] = [{}]
    for size in sizes:
        share = cost.share_of_one(recipe) if size.divided else 1.0
        memory["reward models"] += round(size.weights * share)
        memory["gradients and moments of reward models"] += round(3 * cost.FLOAT32 * size.trained * share)
        memory["copy of the last finished step"] += round(3 * cost.FLOAT32 * size.trained * share) * cost.on_cpu(recipe)
        phases.append(_computing(size, recipe, longest or cost.longest_sequence(recipe)))
    parts = memory | max(phases, key=lambda parts: sum(parts.values()))
    return {name: bytes_ for name, bytes_ in parts.items() if bytes_}


def with_rewards(parts: Mapping[str, int], rewards: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of a run by purpose, with those of its reward models."""
    return {name: parts.get(name, 0) + rewards.get(name, 0) for name in {**parts, **rewards}}


def _computing(size: RewardSize, recipe: Recipe, longest: int) -> dict[str, int]:
    """Return the bytes that exist while a reward model scores and learns."""
    facts, parts = size.facts, {}
    if size.trained and facts.layers and facts.hidden_size:
        numbers = facts.layers * numbers_of_layer(facts, facts.hidden_size, facts.layers)
        activations = cost.FLOAT32 * numbers * _tokens(size, recipe, longest)
        parts["activations of a reward model while rewarding"] = activations
    if size.divided and recipe.cluster.world_size > 1 and facts.layers:
        layers = cost.bytes_of_layers(size.weights, cost.share_in_layers(facts), cost.GATHERED_LAYERS / facts.layers)
        parts["layers of a reward model gathered while rewarding"] = layers * (1 + bool(size.trained))
    return parts


def _tokens(size: RewardSize, recipe: Recipe, longest: int) -> int:
    """Return the tokens that a refresh computes at once: the answers to one prompt or more, each at its longest."""
    group = recipe.train.group_size * (longest + 1)
    prompts = -(-size.batch // (recipe.cluster.world_size if size.divided else 1))
    return min(max(group, DEFAULT_TOKENS), prompts * group)
