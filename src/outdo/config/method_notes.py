"""Settings of a method that have no effect, and combinations that differ from the published ones.

Each rule yields one sentence for each such setting; `outdo.config.rules` runs all rules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outdo.config.methods import facts_of_advantage, facts_of_objective
from outdo.config.names import OBJECTIVES
from outdo.config.options import (
    is_of_surrogate,
    needs_reference,
    needs_teacher,
    samples_elsewhere,
    starts_from_the_engine,
)
from outdo.config.recipe import Recipe

NoteRule = Callable[[Recipe, Mapping[str, Any]], Iterator[str]]
"""A rule reads the recipe and the options that its objective runs with, as `effective_options` returns them."""

WITHOUT_LEVEL = ("vespo", "dro")
CLIP_OPTIONS = ("clip_low", "clip_high", "dual", "ratio_max")


def _one_optimiser_step_per_batch(recipe: Recipe) -> bool:
    """Return whether each batch gets a single optimiser step, so that π_old is the policy itself."""
    return recipe.train.passes == 1 and recipe.train.minibatches == 1


def _without_later_steps(recipe: Recipe, options: Mapping[str, Any]) -> Iterator[str]:
    objective = recipe.train.objective
    bounds = [name for name in CLIP_OPTIONS if options.get(name) is not None and "surrogate" not in options]
    is_1 = _one_optimiser_step_per_batch(recipe) and not (
        starts_from_the_engine(objective) and samples_elsewhere(recipe)
    )
    if bounds and is_1 and facts_of_objective(objective.name).is_composed:
        yield f"one update per batch and one minibatch: the ratio is 1, so {' and '.join(bounds)} cannot take effect"
    if recipe.train.passes == 1 and recipe.train.stop is not None:
        yield "train.stop has no effect: with train.passes = 1 there is no later pass to leave out"
    if recipe.train.passes == 1 and facts_of_objective(objective.name).lowest_loss_0:
        name = objective.name
        yield f"train.passes = 1: {name} is made for several passes; in one pass few tokens reach their targets"


def _options_of_a_replaced_surrogate(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    options = recipe.train.objective.options
    if "surrogate" in options:
        for name in options:
            if is_of_surrogate(name):
                yield f"train.objective.{name} has no effect: its surrogate is replaced"


def _level_without_effect(recipe: Recipe, options: Mapping[str, Any]) -> Iterator[str]:
    surrogate = options.get("surrogate", recipe.train.objective.name)
    name = surrogate.get("name") if isinstance(surrogate, Mapping) else surrogate
    if "level" in recipe.train.objective.options and name in WITHOUT_LEVEL and options.get("beta", 0.0) == 0:
        yield f"train.objective.level has no effect: {name} computes its own ratio"


def _objective_without_ratio(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    name, options = recipe.train.objective.name, recipe.train.objective.options
    facts = facts_of_objective(name)
    weighted = options.get("bypass") and options.get("correction", "none") != "none"
    has_none = facts.is_composed and not facts.has_ratio and "surrogate" not in options
    if has_none and not weighted and not _one_optimiser_step_per_batch(recipe):
        yield f"{name} has no ratio: after the first optimiser step of a batch its gradient is that of another policy"


def _echo_without_environment(recipe: Recipe, options: Mapping[str, Any]) -> Iterator[str]:
    if options.get("echo") and recipe.environment is None:
        yield "train.objective.echo has no effect: without an environment nothing answers the policy"


def _unused_reference(recipe: Recipe, options: Mapping[str, Any]) -> Iterator[str]:
    reference = recipe.reference
    settings = {"model": reference.model, "sync.every": reference.sync and reference.sync.every}
    pieces = (recipe.train.objective, recipe.advantage)
    # Code of the user may use a reference.
    has_own_code = any(":" in f"{piece.name} {piece.options}".replace("': ", "") for piece in pieces)
    for name, value in settings.items():
        if value is not None and not has_own_code and not needs_reference(recipe, options):
            yield f"reference.{name} = {value} has no effect: the method does not use a reference (beta is 0)"


def _unused_teachers(recipe: Recipe, options: Mapping[str, Any]) -> Iterator[str]:
    pieces = (recipe.train.objective, recipe.advantage)
    has_own_code = any(":" in piece.name for piece in pieces)
    if recipe.teachers and not needs_teacher(recipe) and not has_own_code:
        yield (
            "teachers have no effect: neither the objective (teacher_beta is 0) nor the advantage learns from them; "
            "see teachers.md"
        )
    if "teacher_divergence" in recipe.train.objective.options and not needs_teacher(recipe):
        yield "train.objective.teacher_divergence has no effect: teacher_beta is 0"


def _kl_twice_or_never(recipe: Recipe, options: Mapping[str, Any]) -> Iterator[str]:
    beta = options.get("beta", 0.0)
    if recipe.train.kl_in_reward is not None and beta != 0:
        yield f"KL counts twice: in the loss with beta = {beta}, and in the reward with train.kl_in_reward"
    for name in ("divergence", "divergence_weight", "kl_ratio"):
        if name in recipe.train.objective.options and beta == 0:
            yield f"train.objective.{name} has no effect: beta is 0"
    if "entropy_weight" in options and not options.get("entropy_bonus"):
        yield "train.objective.entropy_weight has no effect: there is no entropy_bonus"


def _kl_scaled_up(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    """Estimators for which a group whose rewards are all equal is as large as any other, whatever the beta."""
    penalty, name, options = recipe.train.kl_in_reward, recipe.advantage.name, recipe.advantage.options
    dropped = recipe.train.dynamic_sampling > 0  # such groups
    scales = facts_of_advantage(name).scaled_in_group and options.get("scale", True) and not options.get("band")
    if penalty is not None and scales and not dropped and not penalty.options.get("after_baseline"):
        yield (
            f"train.kl_in_reward: where all rewards of a group are equal, {name} makes advantages of full size of the "
            "KL alone, whatever its beta; use leave_one_out, or after_baseline = true"
        )


def _divergence_with_another_gradient(recipe: Recipe, options: Mapping[str, Any]) -> Iterator[str]:
    """Estimators of KL whose gradient in the loss is not the one that users expect."""
    divergence = options.get("divergence", "k3")
    name = divergence.get("name") if isinstance(divergence, Mapping) else divergence
    times_ratio = options.get("kl_ratio", recipe.train.objective.name != "grpo" and name != "k2")
    if options.get("beta", 0.0) != 0 and name == "k1" and not times_ratio:
        yield "train.objective.divergence: k1 in the loss without its ratio has no gradient in expectation"
    if options.get("beta", 0.0) != 0 and name == "k2" and times_ratio:
        yield "train.objective.divergence: k2 times the ratio has the gradient of no divergence; use k3"


def _not_as_published(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    name, chosen = recipe.train.objective.name, recipe.train.advantage
    facts = facts_of_objective(name)
    published = (facts.published_with, *facts.also_published_with)
    if name in OBJECTIVES and chosen is not None and chosen.name not in published:
        yield f"{name} was published with the advantage {facts.published_with}, not {chosen.name}"
    if name == "dapo" and (recipe.train.dynamic_sampling == 0 or not recipe.train.mask_truncated):
        yield "dapo was published with train.dynamic_sampling and train.mask_truncated = true as well"


def _correction_of_the_built_in_engine(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    options = recipe.train.objective.options
    correction = options.get("correction", "none")
    is_of_tokens = "off_policy_rows" not in str(correction) and correction != "none"
    if is_of_tokens and not starts_from_the_engine(recipe.train.objective) and not samples_elsewhere(recipe):
        yield "train.objective.correction: the built-in engine samples with the trained weights, so the ratio is 1"


def _nothing_corrects_for_older_weights(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    train = recipe.train
    is_composed = facts_of_objective(train.objective.name).is_composed
    without = train.objective.options.get("correction") == "none" or not is_composed
    if train.max_staleness and without and not starts_from_the_engine(train.objective):
        ahead = f"train.max_staleness = {train.max_staleness}"
        yield f"{ahead}: nothing corrects for the older weights, as {train.objective.name} has no correction here"


def _tokens_that_are_never_sampled(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    """Filters of the built-in engine, which reports log-probabilities before them; vLLM refuses them."""
    sampling = recipe.sampling
    filters = {"top_p": sampling.top_p < 1, "top_k": sampling.top_k > 0, "min_p": sampling.min_p > 0}
    for name in (name for name, is_set in filters.items() if is_set and recipe.engine.name == "builtin"):
        yield (
            f"sampling.{name} = {getattr(sampling, name):g}: answers do not come from the policy that is trained, but "
            f"from its likelier tokens; log-probabilities are those before {name}, so that no correction and no metric "
            "of sampling/* sees the difference"
        )


def _unused_critic(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    name = recipe.advantage.name
    if recipe.train.critic is not None and "values" not in recipe.advantage_requires and ":" not in name:
        yield f"train.critic has no effect: {name} does not use values"


def _rewards_of_turns(recipe: Recipe, _: Mapping[str, Any]) -> Iterator[str]:
    name = recipe.advantage.name
    if recipe.environment is not None and facts_of_advantage(name).loses_turn_rewards:
        yield (
            f"{name} compares whole episodes: rewards that the environment gives when they have ended count, and one "
            "that it gives for a turn (Reply.reward) ends the run"
        )


NOTES: Sequence[NoteRule] = (
    _without_later_steps,
    _options_of_a_replaced_surrogate,
    _level_without_effect,
    _objective_without_ratio,
    _echo_without_environment,
    _unused_reference,
    _unused_teachers,
    _kl_twice_or_never,
    _kl_scaled_up,
    _divergence_with_another_gradient,
    _not_as_published,
    _correction_of_the_built_in_engine,
    _nothing_corrects_for_older_weights,
    _tokens_that_are_never_sampled,
    _unused_critic,
    _rewards_of_turns,
)
