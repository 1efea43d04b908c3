"""The reward models of a recipe, as memory and seconds of a plan depend on them."""

from collections.abc import Sequence

from outdo.config.fields import Shard
from outdo.config.recipe import Recipe
from outdo.extras.plan.shapes import Shape, shape_of
from outdo.extras.plan.workload import RewardWork
from outdo.models.inspect_folder import REWARD_MODEL, ModelFacts, inspect_folder
from outdo.run.check.reward_memory import RewardSize, reward_models, reward_size
from outdo.utils.errors import ModelError, UserError


def planned_rewards(recipe: Recipe, policy: Shape) -> tuple[list[RewardSize], list[str]]:
    """Return the reward models of a recipe, divided where that is possible, and what was assumed of them.

    A path may be a folder, or like the model of a plan a published model or a size.
    """
    cluster = recipe.cluster.model_copy(update={"shard": Shard(on=True)})
    divided = recipe.model_copy(update={"device": "cuda", "cluster": cluster})
    sizes, assumed = [], []
    for piece in reward_models(divided):
        path = str(piece.options.get("path"))
        facts = _facts(path)
        if facts is None:
            assumed.append(f"reward model {path}: as large as the policy, because there is no such folder here")
        sizes.append(reward_size(piece, facts or policy.facts, divided))
    return sizes, assumed


def _facts(path: str) -> ModelFacts | None:
    """Return the sizes of a reward model, if they are known."""
    try:
        facts = inspect_folder(path, REWARD_MODEL)
        if facts.parameters is not None:
            return facts
    except ModelError:
        pass  # it may be a name that only a plan knows
    try:
        return shape_of(path)[0].facts
    except UserError:
        return None


def reward_work(sizes: Sequence[RewardSize], recipe: Recipe) -> tuple[RewardWork, ...]:
    """Return what reward models compute for each token of a step: 2 FLOPs for a weight, and three times as many for
    each token that they learn from.
    """
    options = [piece.options for piece in reward_models(recipe.model_copy(update={"device": "cuda"}))]
    work = []
    for size, settings in zip(sizes, options, strict=True):
        refreshed = settings.get("steps", 8) * size.batch / (settings.get("every", 1) * recipe.train.prompts)
        learned = 3 * refreshed if size.trained else 0.0
        work.append(RewardWork(2.0 * (size.facts.parameters or 0) * (1 + learned), size.divided))
    return tuple(work)
