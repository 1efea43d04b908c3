"""Settings that cannot work together, and settings that do nothing together. `piece_conflicts` judges the pieces.

Each rule is a short generator of sentences. A rule of `REFUSALS` says what is wrong; a rule of `NOTES` says which
setting has no effect, and why. The keys a refusal reads stand beside it: it does not judge a setting that is wrong
in itself.
"""

from collections.abc import Collection, Iterator

from outdo.config import method_rules
from outdo.config.method_rules import Rule
from outdo.config.recipe import Recipe


def conflicts(recipe: Recipe, *, broken: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """What is wrong with a recipe whose settings are each well typed, and which of them have no effect.

    `broken` holds dotted keys that are wrong already: rules that read them are left out.
    Returns `(mistakes, notes)`, one sentence each, beginning with the key.
    """

    judged = [rule for rule, reads in REFUSALS.items() if not set(reads) & set(broken)]
    mistakes = [sentence for rule in judged for sentence in rule(recipe)]
    if mistakes or broken:
        return mistakes, []
    return [], [sentence for rule in NOTES for sentence in rule(recipe)]


# ----------------------------------------------------------------------------------------------------------- refusals


def _identical_answers(recipe: Recipe) -> Iterator[str]:
    if recipe.sampling.temperature == 0:
        yield (
            "sampling.temperature = 0: the answers to a question would all be the same, and nothing could be learned; "
            "use a positive temperature such as 1.0"
        )


def _minibatches_need_questions(recipe: Recipe) -> Iterator[str]:
    if recipe.train.minibatches > recipe.train.prompts:
        yield (
            f"train.minibatches = {recipe.train.minibatches}: a minibatch holds whole groups, and there are only "
            f"train.prompts = {recipe.train.prompts} of them"
        )


def _held_out_questions(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if data.eval_path is not None and data.eval_rows:
        yield f"data.eval_rows = {data.eval_rows}: has no effect beside data.eval_path; give one of the two"
    if recipe.eval.every and data.eval_path is None and not data.eval_rows:
        yield (
            f"eval.every = {recipe.eval.every}: there is nothing to evaluate on; give data.eval_path, "
            "or data.eval_rows to hold some rows out"
        )
    if data.limit is not None and data.eval_rows >= data.limit:
        yield f"data.eval_rows = {data.eval_rows}: no row of data.limit = {data.limit} is left to train on"


def _the_best_is_measured(recipe: Recipe) -> Iterator[str]:
    measured = {"greedy": recipe.eval.greedy, "sampled": recipe.eval.samples > 0}
    if not measured[recipe.eval.best]:
        how = {"greedy": "eval.greedy is false", "sampled": "eval.samples is 0"}[recipe.eval.best]
        yield f'eval.best = "{recipe.eval.best}": {how}, so that this accuracy is never measured'


def _template(recipe: Recipe) -> Iterator[str]:
    template = recipe.data.template
    if template is None:
        return
    if "{prompt}" not in template:
        yield "data.template: it needs {prompt}, or every question would read the same"
    if ("{system}" in template) != (recipe.data.system is not None):
        yield "data.system: with a template, the system message stands where {system} is; give both or neither"


REFUSALS: dict[Rule, tuple[str, ...]] = {
    **method_rules.REFUSALS,
    _identical_answers: ("sampling.temperature",),
    _minibatches_need_questions: ("train.minibatches", "train.prompts"),
    _held_out_questions: ("data.path", "data.eval_path", "data.eval_rows", "data.limit", "eval.every"),
    _the_best_is_measured: ("eval.best", "eval.greedy", "eval.samples"),
    _template: ("data.path", "data.template", "data.system"),
}


# -------------------------------------------------------------------------------------------------------------- notes


def optimiser_steps(recipe: Recipe) -> int:
    """Optimiser steps of the whole run."""
    return recipe.steps * recipe.train.passes * recipe.train.minibatches


def _never_at_full_rate(recipe: Recipe) -> Iterator[str]:
    total = optimiser_steps(recipe)
    warmup = recipe.optim.schedule.warmup
    if warmup >= total:
        yield f"optim.schedule.warmup = {warmup}: the run has {total} optimiser steps, so optim.lr is never reached"


def _never_down_to_zero(recipe: Recipe) -> Iterator[str]:
    fewer = {"train.stop": recipe.train.stop is not None, "train.dynamic_sampling": recipe.train.dynamic_sampling > 0}
    why = " and ".join(key for key, given in fewer.items() if given)
    if recipe.optim.schedule.name != "constant" and why:
        yield f'optim.schedule = "{recipe.optim.schedule.name}": {why} may leave steps out; only those taken count'


def _later_than_the_end(recipe: Recipe) -> Iterator[str]:
    for key, every, only in (
        ("eval.every", recipe.eval.every, "evaluated only before and after the run"),
        ("checkpoint.every", recipe.checkpoint.every, "saved only at the end"),
    ):
        if every > recipe.steps:
            yield f"{key} = {every}: the run has {recipe.steps} steps, so it is {only}"


def _weights_without_effect(recipe: Recipe) -> Iterator[str]:
    weight = recipe.rewards[0].weight
    if len(recipe.rewards) == 1 and weight not in (0, 1) and recipe.advantage.name == "group_standardised":
        yield f"rewards: of a single reward's weight {weight} only the sign counts: group_standardised undoes the size"
    for reward in recipe.rewards:
        if reward.weight == 0:
            yield f"rewards: {reward.name} has the weight 0: it is measured and teaches nothing"


NOTES: tuple[Rule, ...] = (
    *method_rules.NOTES,
    _never_at_full_rate,
    _never_down_to_zero,
    _later_than_the_end,
    _weights_without_effect,
)
