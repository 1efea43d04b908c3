"""`outdo train --dry-run`: sample and score one group, and show it."""

from outdo.algorithms.advantages.base import Advantage
from outdo.algorithms.advantages.signal import cannot_be_asked, groups_with_signal
from outdo.config.fields import Shard
from outdo.config.recipe import Recipe
from outdo.run.assemble.assemble import assemble_run
from outdo.run.assemble.method import advantage_of_rewards
from outdo.run.assemble.rewards import weights_of_parts
from outdo.run.check.preflight import Report
from outdo.run.display import Display
from outdo.types import Group, Sampled
from outdo.utils.text import counted, excerpt


def run_dry(report: Report, display: Display) -> int:
    """Build the run of a checked recipe in one process, and show the answers to its first question; write nothing."""
    recipe = report.recipe
    run = assemble_run(in_one_process(recipe), facts=report.facts, questions=report.questions, display=display)
    try:
        for note in run.notes:
            display.note(note)
        for warning in run.warnings:
            display.warn(warning)
        with display.working("sampling one group"):
            sampled = Sampled.of(run.sampling.sampler(run.models.policy, run.data.prompts.take(1), step=1))
        advantage = advantage_of_rewards(recipe, weights_of_parts(run.reward))
        for group in sampled.groups:
            _show(group, display)
            display.say(f"the group: {_signal(recipe.advantage.name, advantage, group)}")
    finally:
        run.close()
    display.say("dry run: nothing was trained, and nothing was written")
    return 0


def in_one_process(recipe: Recipe) -> Recipe:
    """Return the recipe for one process that samples the groups of a step, without replacing any."""
    one_process = recipe.cluster.model_copy(update={"replicas": 1, "shard": Shard(on=False)})
    alone = recipe.attention.model_copy(update={"options": {}})  # as one process computes the sequences
    one_round = recipe.train.model_copy(update={"dynamic_sampling": 0})
    return recipe.model_copy(update={"cluster": one_process, "train": one_round, "attention": alone})


def _show(group: Group, display: Display) -> None:
    prompt = group.prompt
    display.say(f"question {prompt.id}: {excerpt(str(prompt.text))}")
    if prompt.answer is not None:
        display.say(f"reference answer: {excerpt(str(prompt.answer))}")
    for number, rollout in enumerate(group.rollouts, 1):
        reward = f"reward {rollout.reward:.3f}" if rollout.scored else rollout.status
        right = {True: ", right", False: ", wrong", None: ""}[rollout.right]
        parts = ", ".join(f"{name} {value:.3f}" for name, value in rollout.reward_parts.items() if value is not None)
        described = f"{reward}{right}" + (f" ({parts})" if len(rollout.reward_parts) > 1 else "")
        ended = "" if not rollout.truncated else ", cut off"
        display.say(f"answer {number}: {described}, {counted(rollout.sampled_tokens, 'token')}{ended}")
        display.say(excerpt(rollout.text))


def _signal(name: str, advantage: Advantage, group: Group) -> str:
    """Say whether the policy would learn from the rewards of a group."""
    if not any(rollout.scored for rollout in group.rollouts):
        return "no answer has a reward, so it would teach nothing"
    if reason := cannot_be_asked(advantage):
        return f"what it would teach is known in a step: the advantage {name} {reason}"
    if groups_with_signal(advantage, [group])[0]:
        return f"it would teach something: the advantage {name} is not 0 for all of its answers"
    return f"it would teach nothing: the advantage {name} is 0 for all of its answers"
