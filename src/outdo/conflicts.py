"""Settings that cannot work together, settings that do nothing together, and pieces that do not exist.

Each rule is a short generator of sentences. A rule of `REFUSALS` says what is wrong; a rule of `NOTES` says which
setting has no effect, and why. The keys a refusal reads stand beside it: it does not judge a setting that is wrong
in itself.
"""

import difflib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from outdo.errors import Mistakes
from outdo.recipe import ADVANTAGES, GROUP_RELATIVE, OBJECTIVES, REWARDS, Piece, Recipe
from outdo.signatures import Signature, did_you_mean, signature_of

Rule = Callable[[Recipe], Iterator[str]]


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


def effective_options(piece: Piece, known: Mapping[str, str]) -> dict[str, Any]:
    """The options a piece runs with: the defaults its source writes as literals, then the recipe's."""
    signature = signature_of(known.get(piece.name, piece.name))
    return {name: signature.defaults.get(name) for name in signature.options} | dict(piece.options)


# ------------------------------------------------------------------------------------------------------------- pieces


def _objective(recipe: Recipe) -> Iterator[str]:
    yield from _piece("train.objective", recipe.train.objective, OBJECTIVES, given=0)


def _advantage(recipe: Recipe) -> Iterator[str]:
    yield from _piece("train.advantage", recipe.train.advantage, ADVANTAGES, given=2)


def _rewards(recipe: Recipe) -> Iterator[str]:
    for reward in recipe.rewards:
        yield from _missing("rewards", reward.name, REWARDS)


def _piece(key: str, piece: Piece, known: Mapping[str, str], given: int) -> Iterator[str]:
    """A piece that is called with `given` arguments and its options."""
    missing = list(_missing(key, piece.name, known))
    if missing:
        yield from missing
        return
    signature = signature_of(known.get(piece.name, piece.name))
    for name, value in piece.options.items():
        yield from _option(f"{key}.{name}", value, name, signature)
    if not signature.accepts_any:
        for name in signature.required[given:]:
            if name not in piece.options:
                yield f"{key}.{name}: required by {piece.name}"


def _missing(key: str, name: str, known: Mapping[str, str]) -> Iterator[str]:
    if name not in known and ":" not in name:
        hint = did_you_mean(name, list(known)) or f"; expected {', '.join(known)} or file.py:name"
        yield f'{key}: nothing is called "{name}"{hint}'
        return
    try:
        signature_of(known.get(name, name))
    except Mistakes as error:
        yield from (f"{key}: {mistake}" for mistake in error.mistakes)


def _option(key: str, value: Any, name: str, signature: Signature) -> Iterator[str]:
    if name in signature.options:
        yield from _unlike_default(key, value, signature.defaults.get(name))
    elif not signature.accepts_any:
        known = f"it takes {', '.join(signature.options)}" if signature.options else "it takes no options"
        near = difflib.get_close_matches(name, signature.options, n=1)
        yield f"{key}: unknown option; {f'did you mean {near[0]}?' if near else known}"


def _unlike_default(key: str, value: Any, default: Any) -> Iterator[str]:
    """A value whose kind is not that of the default, where the default has a plain one."""
    match default, value:
        case (bool(), bool()) | (str(), str()):
            return
        case bool(), _:
            yield f"{key}: expected true or false, found {value!r}"
        case str(), _:
            yield f"{key}: expected text such as {default!r}, found {value!r}"
        case (int() | float(), bool()):
            yield f"{key}: expected a number such as {default}, found {value!r}"
        case (int() | float(), int() | float()):
            if not (math.isfinite(value) and value >= min(default, 0)):
                yield f"{key}: expected a finite number that is not negative, found {value}"
        case (int() | float(), _):
            yield f"{key}: expected a number such as {default}, found {value!r}"


# ----------------------------------------------------------------------------------------------------------- refusals


def _nothing_to_compare(recipe: Recipe) -> Iterator[str]:
    if recipe.train.group == 1 and recipe.train.advantage.name in GROUP_RELATIVE:
        yield (
            f"train.group = 1: {recipe.train.advantage.name} compares the answers of one question with each other, "
            "so that a single answer teaches nothing; use 2 or more"
        )


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
    _objective: ("train.objective",),
    _advantage: ("train.advantage",),
    _rewards: ("rewards",),
    _nothing_to_compare: ("train.group", "train.advantage"),
    _identical_answers: ("sampling.temperature",),
    _minibatches_need_questions: ("train.minibatches", "train.prompts"),
    _held_out_questions: ("data.path", "data.eval_path", "data.eval_rows", "data.limit", "eval.every"),
    _the_best_is_measured: ("eval.best", "eval.greedy", "eval.samples"),
    _template: ("data.path", "data.template", "data.system"),
}


# -------------------------------------------------------------------------------------------------------------- notes


def optimiser_steps(recipe: Recipe) -> int:
    """Optimiser steps of the whole run."""
    return recipe.steps * recipe.train.updates * recipe.train.minibatches


def _clip_cannot_bind(recipe: Recipe) -> Iterator[str]:
    options = effective_options(recipe.train.objective, OBJECTIVES)
    bounds = [name for name in ("clip_low", "clip_high") if name in options]
    if bounds and recipe.train.updates == 1 and recipe.train.minibatches == 1:
        yield f"one update per batch and one minibatch: the ratio is 1, so {' and '.join(bounds)} cannot bind"


def _no_reference(recipe: Recipe) -> Iterator[str]:
    every, options = recipe.train.reference_every, effective_options(recipe.train.objective, OBJECTIVES)
    if every is not None and options.get("beta", 1) == 0:
        yield f"train.reference_every = {every} has no effect: beta is 0, so there is no reference"


def _never_at_full_rate(recipe: Recipe) -> Iterator[str]:
    total = optimiser_steps(recipe)
    if recipe.optim.warmup >= total:
        yield f"optim.warmup = {recipe.optim.warmup}: the run has {total} optimiser steps, so optim.lr is never reached"


def _later_than_the_end(recipe: Recipe) -> Iterator[str]:
    for key, every, only in (
        ("eval.every", recipe.eval.every, "evaluated only before and after the run"),
        ("checkpoint.every", recipe.checkpoint.every, "saved only at the end"),
    ):
        if every > recipe.steps:
            yield f"{key} = {every}: the run has {recipe.steps} steps, so it is {only}"


def _weights_without_effect(recipe: Recipe) -> Iterator[str]:
    weight = recipe.rewards[0].weight
    if len(recipe.rewards) == 1 and weight not in (0, 1) and recipe.train.advantage.name == "group_standardised":
        yield f"rewards: of a single reward's weight {weight} only the sign counts: group_standardised undoes the size"
    for reward in recipe.rewards:
        if reward.weight == 0:
            yield f"rewards: {reward.name} has the weight 0: it is measured and teaches nothing"


NOTES: tuple[Rule, ...] = (
    _clip_cannot_bind,
    _no_reference,
    _never_at_full_rate,
    _later_than_the_end,
    _weights_without_effect,
)
