"""Build the rewards of a recipe: functions, and reward models that several replicas may hold in parts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.config.names import JUDGE, REWARD_MODEL, REWARDS
from outdo.config.recipe import Piece, Recipe
from outdo.distributed.replicas import current
from outdo.models.scorer import Division
from outdo.rewards import WeightedSum, load_reward
from outdo.rewards.judge.replies import FILE as JUDGE_REPLIES
from outdo.rewards.model import RewardModel
from outdo.rewards.online_model import OnlineRewardModel
from outdo.trainer.build_method import instantiate
from outdo.trainer.replicated import RewardOnce, is_divided, scored_together


def rewards_of(
    recipe: Recipe, folder: Path | None, division: Division | None
) -> tuple[WeightedSum, list[OnlineRewardModel]]:
    """Return the weighted sum of the recipe's rewards, and those of them that keep learning.

    A `division` divides the reward models. In `folder`, that of the run, a judge keeps its replies.
    """
    rewards = [
        (load_reward([_with_cache(spec, folder)], **recipe.reward_limits.of_workers), weight)
        for spec, weight in recipe.reward_functions
    ]
    pieces = [reward for reward in recipe.rewards if reward.name == REWARD_MODEL]
    settings = {"device": recipe.device, "seed": recipe.seed}
    models = [
        (instantiate(Piece(name=REWARD_MODEL, options={**settings, **piece.options}), REWARDS)(division), piece.weight)
        for piece in pieces
    ]
    total = WeightedSum([*rewards, *models], right=recipe.eval.right)
    online = [model for model, _ in models if isinstance(model, OnlineRewardModel)]
    if (replicas := current()) is not None:
        for model in online:
            model.labels = RewardOnce(model.labels, replicas)
    return total, online


def asked_together(reward: WeightedSum) -> WeightedSum:
    """Return the reward as several replicas ask it, if there are several."""
    replicas = current()
    return reward if replicas is None else scored_together(reward, replicas)


def whole_notes(recipe: Recipe, reward: WeightedSum) -> list[str]:
    """Return a line if `cluster.shard` leaves a reward model whole."""
    models = [each for each in reward.rewards if isinstance(each, RewardModel | OnlineRewardModel)]
    if not recipe.cluster.shard or current() is None or all(map(is_divided, models)):
        return []
    why = "train.max_staleness" if recipe.train.max_staleness else "an adapter or quantised weights"
    return [f"cluster.shard: a reward model with {why} is whole on each replica"]


def _with_cache(spec: Mapping[str, Any], folder: Path | None) -> Mapping[str, Any]:
    """Return a reward with its options; a judge keeps its replies in the folder of the run."""
    if spec["name"] != JUDGE or folder is None:
        return spec
    return {"cache": str(folder / JUDGE_REPLIES), **spec}
