"""Find settings that cannot work together, and settings that have no effect.

A rule of `REFUSALS` yields a sentence for each mistake, a rule of `NOTES` for each setting without effect. The rules
for the method of a recipe are in `method_rules` and `method_notes`. Each refusal is listed with the settings that it
reads: it does not run if one of them is wrong in itself.
"""

import re
from collections.abc import Collection, Iterator

from outdo.config import method_notes, method_rules
from outdo.config.adapters import (
    check_adapter,
    divided_adapter,
    mixed_reference,
    unmerged_bias,
    weights_in_few_bytes,
)
from outdo.config.attention import check_attention
from outdo.config.engines import check_engine, has_partial_rollouts, is_remote
from outdo.config.environments import check_environment, kind_of
from outdo.config.extras import check_extras
from outdo.config.inputs import check_inputs
from outdo.config.method_rules import Rule
from outdo.config.names import (
    AGENT,
    ALGORITHMS,
    CRITICS,
    ENVIRONMENT_REWARD,
    OBJECTIVES,
    TRACKER_CHECK,
)
from outdo.config.options import effective_options
from outdo.config.recipe import Recipe
from outdo.rewards.right import right_rule
from outdo.utils.errors import did_you_mean
from outdo.utils.extras import load_extra, missing_extra
from outdo.utils.machine import cores, main_memory
from outdo.utils.reward_names import REWARD_MODEL, name_and_source, unique_names
from outdo.utils.secrets import find_secrets
from outdo.utils.text import counted

_BEST = re.compile(r"(?:(?P<set>[\w-]+)/)?(?P<kind>greedy|sampled)(?:_reward|_rewards/(?P<part>.+)/mean)?")
"""The numbers of an evaluation that can decide which one is the best."""

_FIELD = re.compile(r"(?<![\w\\{}])\{[^\W\d]\w*\}(?!\})")
"""What looks like a field of a template: not the braces of LaTeX, as in `\\boxed{x}`, and not doubled ones."""

ON_WHOLE_WEIGHTS = ("adafactor", "adamw8bit")
"""Optimisers that torch or bitsandbytes cannot run on a part of a weight."""

LOWEST_TEMPERATURE = 0.01
"""At a lower one vLLM samples at 0.01, and near 1e-38 logits divided by it are infinite."""

BYTES_OF_AN_ID = 8
"""Of a token in main memory; everything else that is kept of it takes more."""


def conflicts(recipe: Recipe) -> tuple[list[str], list[str]]:
    """Return what is wrong with a recipe whose settings are each valid, and which of them have no effect.

    Returns `(mistakes, notes)`: one sentence for each, which begins with the key. A recipe with mistakes has no notes.
    """
    mistakes = refusals(recipe)
    return mistakes, [] if mistakes else notes(recipe)


def refusals(recipe: Recipe, *, broken: Collection[str] = ()) -> list[str]:
    """Return what cannot work together, one sentence for each, which begins with the key.

    `broken` holds the dotted keys of settings that are wrong in themselves, or of parts of them, as `rewards.0`: rules
    that read them do not run.
    """

    def is_broken(setting: str) -> bool:
        return any(key == setting or key.startswith(f"{setting}.") for key in broken)

    rules = [rule for rule, reads in REFUSALS.items() if not any(map(is_broken, reads))]
    return [sentence for rule in rules for sentence in rule(recipe)]


def notes(recipe: Recipe) -> list[str]:
    """Return which settings of a recipe without mistakes have no effect, and what else is unusual about it."""
    options = effective_options(recipe.train.objective, OBJECTIVES)
    of_the_method = [sentence for rule in method_notes.NOTES for sentence in rule(recipe, options)]
    return of_the_method + [sentence for rule in NOTES for sentence in rule(recipe)]


# ----------------------------------------------------------------------------------------------------------- refusals


def _greedy_sampling(recipe: Recipe) -> Iterator[str]:
    if recipe.sampling.temperature < LOWEST_TEMPERATURE:
        yield (
            f"sampling.temperature = {recipe.sampling.temperature:g}: all answers to a question would be the same, so "
            f"nothing could be learned; use {LOWEST_TEMPERATURE} or more, such as 1.0"
        )


def _more_minibatches_than_questions(recipe: Recipe) -> Iterator[str]:
    if recipe.train.minibatches > recipe.train.prompts:
        yield (
            f"train.minibatches = {recipe.train.minibatches}: a minibatch consists of whole groups, of which there "
            f"are only train.prompts = {recipe.train.prompts}"
        )


def _more_answers_than_memory(recipe: Recipe) -> Iterator[str]:
    train, tokens = recipe.train, recipe.sampling.max_tokens
    answers, memory = train.prompts * train.group_size, main_memory()
    if answers * tokens * BYTES_OF_AN_ID > memory:
        yield (
            f"train.prompts = {train.prompts:,} times train.group_size = {train.group_size:,} are {answers:,} answers "
            f"of up to sampling.max_tokens = {tokens:,} tokens, more than the {memory / 2**30:,.0f} GiB of this "
            "machine hold"
        )


def _held_out_questions(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if data.eval_path is not None and data.eval_rows:
        yield f"data.eval_rows = {data.eval_rows}: has no effect together with data.eval_path; set only one of them"
    if recipe.eval.every and data.eval_path is None and not data.eval_rows:
        yield (
            f"eval.every = {recipe.eval.every}: there are no held-out questions; set data.eval_path, "
            "or data.eval_rows to hold out some rows"
        )
    if data.limit is not None and data.eval_rows >= data.limit:
        yield f"data.eval_rows = {data.eval_rows}: no row of data.limit = {data.limit} remains to train on"


def _streamed_questions(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if not any(source.streaming for source in data.path):
        return
    if any(source.curriculum for source in data.path):
        yield "data.path: curriculum, not with streaming; the questions of a curriculum are in memory"
    if data.eval_rows:
        yield f"data.eval_rows = {data.eval_rows}: not with streaming; name the held-out questions by data.eval_path"
    if data.select is not None:
        yield "data.select: not with streaming, because the pass rates of all questions would be in memory"


def _best_not_measured(recipe: Recipe) -> Iterator[str]:
    best = f'eval.best = "{recipe.eval.best.name}"'
    measured = {"greedy": recipe.eval.greedy, "sampled": recipe.eval.samples > 0}
    sets = [file.set for file in recipe.data.eval_path or () if file.set]
    parsed = _BEST.fullmatch(recipe.eval.best.name)
    if parsed is None:
        yield (
            f"{best}: expected greedy, sampled, greedy_reward or greedy_rewards/NAME/mean, for a set that has a name "
            "after its name, as in gsm8k/greedy"
        )
        return
    if parsed["set"] and parsed["set"] not in sets:
        named = f"the sets are {', '.join(dict.fromkeys(sets))}" if sets else "data.eval_path names no set"
        yield f"{best}: no held-out set is called {parsed['set']}; {named}"
    if not measured[parsed["kind"]]:
        why = {"greedy": "eval.greedy is false", "sampled": "eval.samples is 0"}[parsed["kind"]]
        yield f"{best}: {why}, so these answers are never evaluated"
    if parsed["part"]:
        yield from (f"{best}: {mistake}" for mistake in _no_such_part(recipe, parsed["part"]))
    if recipe.eval.best.patience and not recipe.eval.every:
        yield f"eval.best.patience = {recipe.eval.best.patience}: needs evaluations during the run; set eval.every"


def _no_such_part(recipe: Recipe, part: str) -> Iterator[str]:
    """Yield what is wrong if a number of the evaluation is to be that of a part which the reward does not have."""
    parts = unique_names([name_and_source(reward.name) for reward in recipe.rewards])
    parts += (ENVIRONMENT_REWARD,) * (recipe.environment is not None and ENVIRONMENT_REWARD not in parts)
    if len(parts) < 2:
        yield "the reward has one part, whose mean is greedy_reward or sampled_reward"
    elif part not in parts:
        hint = did_you_mean(part, parts) or f"; expected {' or '.join(parts)}"
        yield f"no part of the reward is called {part}{hint}"


def _sampling_ahead(recipe: Recipe) -> Iterator[str]:
    ahead = f"train.max_staleness = {recipe.train.max_staleness}"
    if not recipe.train.max_staleness:
        return
    if not is_remote(recipe.engine):
        yield (
            f"{ahead}: needs an engine with a copy of the weights, because the trainer changes its own meanwhile: "
            'engine = {name = "builtin", processes = 1}, {name = "vllm", python = "path"} or {name = "vllm", url = ...}'
        )
    if any(reward.name == REWARD_MODEL and "labels" in reward.options for reward in recipe.rewards):
        yield f"{ahead}: a reward model with `labels` learns after each step, so rewards would depend on speed"


def _partial_rollouts(recipe: Recipe) -> Iterator[str]:
    if not has_partial_rollouts(recipe.engine):
        return
    partial, staleness = "engine.partial_rollouts = true", recipe.train.max_staleness
    if staleness < 2:
        yield (
            f"{partial}: needs train.max_staleness = 2 or more, found {staleness}: an answer has as many parts, each "
            "sampled with newer weights than the one before"
        )
    if recipe.environment is not None:
        yield f"{partial}: an environment asks for the turns of an answer one after the other; leave one of them out"


def _divided_optimiser(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for an algorithm that needs whole weights, where each replica trains a part of them."""
    name = recipe.optim.algorithm.name
    divided = recipe.cluster.shard and recipe.cluster.world_size > 1 and recipe.train.adapter is None
    if divided and name in ON_WHOLE_WEIGHTS:
        can = ", ".join(name for name in ALGORITHMS if name not in ON_WHOLE_WEIGHTS)
        yield f'optim.algorithm = "{name}": does not work on a divided model (cluster.shard = true); {can} do'


def _turns_of_an_agent(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for an advantage that compares turns which several conversations do not have in common."""
    is_agent = recipe.environment is not None and kind_of(recipe.environment) == AGENT
    if is_agent and recipe.advantage.name == "turn_centred":
        yield (
            "train.advantage: turn_centred compares turns with turns, and an agent decides how many conversations and "
            "turns it has; use turn_to_go"
        )


def _trackers(recipe: Recipe) -> Iterator[str]:
    if not recipe.track:
        return
    if missing := missing_extra(TRACKER_CHECK, "track"):
        yield missing
    else:
        yield from load_extra(TRACKER_CHECK, "track")(recipe.track)


def _template(recipe: Recipe) -> Iterator[str]:
    template = recipe.data.prompt_template
    if template is None:
        return
    if "{prompt}" not in template:
        yield "data.template: expected {prompt} in it; without it every prompt would be the same"
    if ("{system}" in template) != (recipe.data.system is not None):
        yield "data.system: a template needs {system} at the place of the system message; set both or neither"


def _secrets(recipe: Recipe) -> Iterator[str]:
    for key in find_secrets(recipe.model_dump(mode="json")):
        yield (
            f"{key}: looks like a secret, and a recipe is written into the run folder and the model card; "
            'name its place instead: {env = "NAME"} or {file = "path"}'
        )


def _curriculum_without_a_verdict(recipe: Recipe) -> Iterator[str]:
    has_levels = any(source.curriculum for source in recipe.data.path)
    if (
        has_levels
        and recipe.eval.right is None
        and right_rule([reward.name for reward in recipe.rewards]).reward is None
    ):
        yield 'data.path: a curriculum counts right answers, and right is not defined; use rewards = "reasoning_gym"'


REFUSALS: dict[Rule, tuple[str, ...]] = {
    **method_rules.REFUSALS,
    check_adapter: ("train.adapter",),
    mixed_reference: ("train.adapter", "reference.sync"),
    weights_in_few_bytes: ("weights", "compile"),
    divided_adapter: ("cluster.shard", "train.adapter", "weights"),
    check_engine: ("engine", "sampling.top_p", "sampling.top_k", "sampling.min_p"),
    check_attention: ("attention", "cluster.replicas"),
    check_extras: ("train.max_staleness", "cluster.replicas"),
    check_environment: ("environment", "rewards", "data.template"),
    check_inputs: ("data.inputs", "engine", "attention", "environment"),
    _greedy_sampling: ("sampling.temperature",),
    _more_minibatches_than_questions: ("train.minibatches", "train.prompts"),
    _more_answers_than_memory: ("train.prompts", "train.group_size", "sampling.max_tokens"),
    _held_out_questions: ("data.path", "data.eval_path", "data.eval_rows", "data.limit", "eval.every"),
    _streamed_questions: ("data.path", "data.eval_rows", "data.select"),
    _best_not_measured: ("eval.best", "eval.greedy", "eval.samples", "eval.every", "data.path", "data.eval_path"),
    _sampling_ahead: ("train.max_staleness", "engine", "rewards"),
    _partial_rollouts: ("train.max_staleness", "engine", "environment"),
    _divided_optimiser: ("optim.algorithm", "cluster.shard", "cluster.replicas", "train.adapter"),
    _turns_of_an_agent: ("environment", "train.advantage", "train.objective"),
    _trackers: ("track",),
    _curriculum_without_a_verdict: ("data.path", "rewards", "eval.right"),
    _template: ("data.path", "data.template", "data.system"),
    _secrets: (),
}


# -------------------------------------------------------------------------------------------------------------- notes


def optimiser_steps(recipe: Recipe) -> int:
    """Return the number of the policy's optimiser steps in the whole run: none while only the critic learns."""
    critic = recipe.critic if "values" in recipe.advantage_requires else None
    alone = critic.options.get("warmup", 0) if critic is not None and critic.name in CRITICS else 0
    return max(0, recipe.steps - alone) * recipe.train.passes * recipe.train.minibatches


def _warmup_as_long_as_the_run(recipe: Recipe) -> Iterator[str]:
    total = optimiser_steps(recipe)
    warmup = recipe.optim.schedule.options.get("warmup", 0)
    if isinstance(warmup, int) and warmup >= total:
        length = counted(total, "optimiser step")
        yield f"optim.schedule.warmup = {warmup}: the run has {length}, so optim.lr is never reached"


def _schedule_with_fewer_steps(recipe: Recipe) -> Iterator[str]:
    fewer = {"train.stop": recipe.train.stop is not None, "train.dynamic_sampling": recipe.train.dynamic_sampling > 0}
    why = " and ".join(key for key, is_fewer in fewer.items() if is_fewer)
    if recipe.optim.schedule.name != "constant" and why:
        yield (
            f'optim.schedule = "{recipe.optim.schedule.name}": the run may have fewer optimiser steps ({why}), '
            "so the learning rate may end above 0"
        )


def _braces_in_the_template(recipe: Recipe) -> Iterator[str]:
    fields = dict.fromkeys(_FIELD.findall(recipe.data.prompt_template or ""))
    if others := [field for field in fields if field not in ("{prompt}", "{system}")]:
        left = ", ".join(others)
        yield f"data.template: only {{prompt}} and {{system}} are replaced; every prompt has {left} as it is"


def _divided_among_one(recipe: Recipe) -> Iterator[str]:
    if recipe.cluster.shard and recipe.cluster.world_size == 1:
        yield "cluster.shard = true: has no effect with cluster.replicas = 1"


def _later_than_the_last_step(recipe: Recipe) -> Iterator[str]:
    for key, every, only in (
        ("eval.every", recipe.eval.every, "evaluated only before and after the run"),
        (
            "checkpoint.every",
            recipe.checkpoint.every.steps,
            "saved only at the end, at a best evaluation and every ten minutes",
        ),
    ):
        if every > recipe.steps:
            yield f"{key} = {every}: the run has {counted(recipe.steps, 'step')}, so it is {only}"


def _weight_of_a_single_reward(recipe: Recipe) -> Iterator[str]:
    weight, penalty = recipe.rewards[0].weight, recipe.train.kl_in_reward
    alone = len(recipe.rewards) == 1 and recipe.environment is None  # an environment may add rewards
    with_kl = penalty is not None and not penalty.options.get("after_baseline")  # the weight sets them against the KL
    if alone and weight not in (0, 1) and recipe.advantage.name == "group_standardised" and not with_kl:
        yield (
            f"rewards: the weight {weight} of a single reward has no effect except for its sign, "
            "because group_standardised divides by the deviation"
        )


def _weight_0(recipe: Recipe) -> Iterator[str]:
    verdicts = recipe.eval.right or right_rule([piece.name for piece in recipe.rewards]).reward
    reads_verdicts = "right" in recipe.advantage_requires
    for reward in recipe.rewards:
        if reward.weight == 0 and not (reads_verdicts and reward.name == verdicts):
            yield f"rewards: {reward.name} has the weight 0: it is only watched, and nothing is learned from it"


def _more_threads_than_cores(recipe: Recipe) -> Iterator[str]:
    if recipe.threads is not None and recipe.threads > (there := cores()):
        yield (
            f"threads = {recipe.threads}: this process may use {counted(there, 'core')}, and more threads wait for "
            "each other; a step takes several times as long"
        )


NOTES: tuple[Rule, ...] = (
    _more_threads_than_cores,
    _warmup_as_long_as_the_run,
    _schedule_with_fewer_steps,
    _later_than_the_last_step,
    _weight_of_a_single_reward,
    _weight_0,
    _divided_among_one,
    unmerged_bias,
    _braces_in_the_template,
)
