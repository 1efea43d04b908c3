"""Build the rewards of a recipe: functions, and reward models that several replicas may hold in parts."""

from collections.abc import Sequence
from pathlib import Path

from outdo.config.fields import WeightedReward
from outdo.config.names import ENVIRONMENT_REWARD, PLACES
from outdo.config.recipe import Recipe
from outdo.rewards import WeightedSum
from outdo.rewards.base import Reward
from outdo.rewards.context import RewardContext
from outdo.rewards.first_rank import FirstRankReward
from outdo.rewards.limits import WorkerLimits
from outdo.rewards.loading import open_reward
from outdo.rewards.types import RewardInput
from outdo.utils.extras import load_extra
from outdo.utils.reward_names import REWARD_MODEL
from outdo.utils.world import ALONE, World


def weights_of_parts(reward: WeightedSum) -> dict[str, float]:
    """Return the weight of each part of the reward by its name; what an environment gives is added as it is."""
    return {ENVIRONMENT_REWARD: 1.0} | dict(zip(reward.names, reward.weights, strict=True))


def rewards_of(
    recipe: Recipe, folder: Path | None, world: World, *, tried_first: Sequence[RewardInput] = ()
) -> WeightedSum:
    """Return the weighted sum of the recipe's rewards, reward models last.

    In `folder`, that of the run, a reward keeps what a resumed run needs. For `tried_first` see `WeightedSum`.
    """
    together = ALONE if recipe.train.max_staleness else world  # a thread of the first replica asks them alone
    limits = WorkerLimits(**recipe.reward_limits.of_workers)
    context = RewardContext(limits=limits, folder=folder, world=together)
    pieces = sorted(recipe.rewards, key=lambda piece: piece.name == REWARD_MODEL)
    rewards = [_opened(recipe, piece, context) for piece in pieces]
    for reward in rewards:
        if reward.labels is not None and len(world) > 1:
            reward.labels = FirstRankReward(reward.labels, world)
    weights = [piece.weight for piece in pieces]
    total = WeightedSum(list(zip(rewards, weights, strict=True)), right=recipe.eval.right)
    total.tried_first = tried_first
    return total


def _opened(recipe: Recipe, piece: WeightedReward, context: RewardContext) -> Reward:
    options = recipe.options_of(piece)
    if piece.place is None:
        return open_reward(piece.name, options, context)
    placed = load_extra(PLACES[piece.place], f"rewards.{piece.name}.place")
    return placed({"name": piece.name, **options}, **recipe.reward_limits.of_workers)


def start_placed(total: WeightedSum, world: World) -> list[str]:
    """Start the rewards that a cluster places, on the first replica; return a line for each."""
    return [f"rewards: {line}" for line in total.start()] if world.first else []


def whole_notes(recipe: Recipe, reward: WeightedSum, world: World) -> list[str]:
    """Return a line if `cluster.shard` leaves a reward model whole."""
    models = sum(piece.name == REWARD_MODEL for piece in recipe.rewards)
    divided = sum(part.is_divided for part in reward.rewards)
    if not recipe.cluster.shard or len(world) == 1 or divided == models:
        return []
    why = "train.max_staleness" if recipe.train.max_staleness else "an adapter or quantised weights"
    return [f"cluster.shard: a reward model with {why} is whole on each replica"]
