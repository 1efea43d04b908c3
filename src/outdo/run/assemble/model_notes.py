"""What a user reads about the model of a run before it starts: what is trained of it, and how it is computed."""

from outdo.config.attention import sequence_replicas
from outdo.config.recipe import Recipe
from outdo.models.policy import Policy
from outdo.models.template_header import DATE
from outdo.rewards import WeightedSum
from outdo.run.assemble.rewards import whole_notes
from outdo.utils.world import World


def model_notes(recipe: Recipe, policy: Policy, reward: WeightedSum, world: World) -> list[str]:
    """Return what is trained, how it computes, what `cluster.shard` does not do, and which date is in the prompts."""
    return [
        *_adapter_note(policy, recipe.weights),
        _attention_note(recipe, policy),
        *_modules_note(policy),
        *whole_notes(recipe, reward, world),
        *_offload_note(recipe, policy),
        *_date_note(recipe),
    ]


def _adapter_note(policy: Policy, weights: str) -> list[str]:
    """Return what is trained, if it is not the whole model."""
    if policy.base is None:
        return []
    trained = sum(weight.numel() for weight in policy.optimiser.weights.values())
    return [f"adapter: {trained:,} weights are trained; those of {policy.base.name} are frozen, in {weights}"]


def _attention_note(recipe: Recipe, policy: Policy) -> str:
    forward, share = policy.forward, sequence_replicas(recipe)
    parts = f", each sequence by {share} replicas" if share > 1 else ""
    return f"attention: {forward.description}{parts}" + (f" ({forward.reason})" if forward.reason else "")


def _modules_note(policy: Policy) -> list[str]:
    """Return the kinds of modules that outdo computes in place of the model's own, if there are any."""
    fused = policy.forward.fused
    return [f"modules that outdo computes with less memory: {', '.join(fused)}"] if fused else []


def _offload_note(recipe: Recipe, policy: Policy) -> list[str]:
    """Return a line if everything is in main memory in any case."""
    without = recipe.cluster.shard.offload and policy.device.type == "cpu"
    return ["cluster.shard.offload: has no effect on a CPU, whose memory is the main memory"] if without else []


def _date_note(recipe: Recipe) -> list[str]:
    date = recipe.data.chat_options.get(DATE)
    return [f"date in the chat template: {date}, also when the run is resumed or evaluated"] if date else []
