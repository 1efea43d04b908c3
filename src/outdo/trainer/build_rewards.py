"""Build the rewards of a recipe: functions, and reward models that several replicas may hold in parts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.config.names import JUDGE, REWARD_MODEL, REWARDS
from outdo.config.recipe import Piece, Recipe
from outdo.models.scorer import Division
from outdo.rewards import WeightedSum, load_reward
from outdo.rewards.judge.replies import FILE as JUDGE_REPLIES
from outdo.rewards.model import RewardModel
from outdo.rewards.online_model import OnlineRewardModel
from outdo.trainer.build_method import instantiate
from outdo.trainer.ray_rewards import RayReward
from outdo.trainer.replicated import RewardOnce, is_divided
from outdo.utils.world import World


def rewards_of(
    recipe: Recipe, folder: Path | None, division: Division | None, world: World
) -> tuple[WeightedSum, list[OnlineRewardModel]]:
    """Return the weighted sum of the recipe's rewards, and those of them that keep learning.

    A `division` divides the reward models. In `folder`, that of the run, a judge keeps its replies.
    """
    limits = recipe.reward_limits.of_workers
    rewards = [
        (_placed(spec, limits) if piece.place else load_reward([_with_cache(spec, folder)], **limits), piece.weight)
        for piece, spec in recipe.reward_specs
    ]
    pieces = [reward for reward in recipe.rewards if reward.name == REWARD_MODEL]
    settings = {"device": recipe.device, "seed": recipe.seed}
    models = [
        (instantiate(Piece(name=REWARD_MODEL, options={**settings, **piece.options}), REWARDS)(division), piece.weight)
        for piece in pieces
    ]
    total = WeightedSum([*rewards, *models], right=recipe.eval.right)
    online = [model for model, _ in models if isinstance(model, OnlineRewardModel)]
    for model in online if len(world) > 1 else ():
        model.labels = RewardOnce(model.labels, world)
    return total, online


def _placed(spec: Mapping[str, Any], limits: Mapping[str, Any]) -> WeightedSum:
    return WeightedSum([(RayReward(spec, **limits), 1.0)])


def start_placed(total: WeightedSum, world: World) -> list[str]:
    """Start the rewards that Ray places, on the first replica; return a line for each."""
    if not world.first:
        return []
    sums = [each for each in total.rewards if isinstance(each, WeightedSum)]
    placed = [reward for each in sums for reward in each.rewards if isinstance(reward, RayReward)]
    for reward in placed:
        reward.start()
    return [f"rewards: {reward.name} in an actor on {reward.node} (Ray)" for reward in placed]


def whole_notes(recipe: Recipe, reward: WeightedSum, world: World) -> list[str]:
    """Return a line if `cluster.shard` leaves a reward model whole."""
    models = [each for each in reward.rewards if isinstance(each, RewardModel | OnlineRewardModel)]
    if not recipe.cluster.shard or len(world) == 1 or all(map(is_divided, models)):
        return []
    why = "train.max_staleness" if recipe.train.max_staleness else "an adapter or quantised weights"
    return [f"cluster.shard: a reward model with {why} is whole on each replica"]


def _with_cache(spec: Mapping[str, Any], folder: Path | None) -> Mapping[str, Any]:
    """Return a reward with its options; a judge keeps its replies in the folder of the run."""
    if spec["name"] != JUDGE or folder is None:
        return spec
    return {"cache": str(folder / JUDGE_REPLIES), **spec}
