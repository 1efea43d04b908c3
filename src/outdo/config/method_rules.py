"""Pieces that do not exist, options they do not take, and pieces that cannot or need not stand together.

Each rule is a short generator of sentences about a recipe; see `outdo.config.rules`, which runs them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    BLIND_TO_PENALTY,
    CALL_SIGNATURES,
    COEFFICIENTS,
    CRITICS,
    DEFAULT_ADVANTAGE,
    DIVERGENCES,
    FILLED_FROM_RECIPE,
    FORMULA,
    FORMULA_NUMBERS,
    GROUP_RELATIVE,
    NOT_COMPOSED,
    OBJECTIVES,
    REWARDS,
    STOPS,
    WITH_CRITIC,
    WITH_REFERENCE,
    WITHOUT_RATIO,
)
from outdo.config.options import effective_options, needs_reference
from outdo.config.recipe import Piece, Recipe
from outdo.config.unknown_settings import listed_hint, other_libraries
from outdo.utils.errors import UserError, did_you_mean, nearest
from outdo.utils.imports import Signature, signature_of

Rule = Callable[[Recipe], Iterator[str]]


# ------------------------------------------------------------------------------------------------ names and options


def _objective(recipe: Recipe) -> Iterator[str]:
    yield from objective_mistakes(recipe.train.objective)


def objective_mistakes(piece: Piece, *, key: str = "train.objective") -> Iterator[str]:
    """What is wrong with an objective's name, its options, and the pieces that they exchange."""
    missing = list(_missing(key, piece.name, OBJECTIVES))
    if missing:
        yield from missing
        return
    own = signature_of(OBJECTIVES.get(piece.name, piece.name)).parameters
    exchangeable = (FORMULA.keys() | FORMULA_NUMBERS.keys()) - set(own)
    exchanged = {name: value for name, value in piece.options.items() if name in exchangeable}
    options = {name: value for name, value in piece.options.items() if name not in exchangeable}
    yield from _piece(key, Piece(name=piece.name, options=options), OBJECTIVES)
    if "batch_transform" in exchanged and piece.name in ("clip_cov", "kl_cov"):
        yield f"{key}.batch_transform: {piece.name} is its own batch transform; without it, no method is left"
    if exchanged and piece.name in NOT_COMPOSED:
        yield f"{key}.{next(iter(exchanged))}: {piece.name} is not made of pieces that could be exchanged"
        return
    for name, value in exchanged.items():
        yield from _overridden(f"{key}.{name}", name, value)


def _overridden(key: str, name: str, value: Any) -> Iterator[str]:
    """A piece or a number that stands in the place of a preset's."""
    if name in FORMULA_NUMBERS:
        yield from _number(key, name, value, FORMULA_NUMBERS[name])
        return
    several = name == "correction" and isinstance(value, list | tuple)
    for each in value if several else [value]:
        try:
            piece = Piece.model_validate(each)
        except ValueError:
            yield f"{key}: expected a name, or a table with a name and options, found {each!r}"
            continue
        yield from _piece(key, piece, FORMULA[name], takes=CALL_SIGNATURES[name])


def _pieces(recipe: Recipe) -> Iterator[str]:
    train = recipe.train
    for key, piece, known in (
        ("train.advantage", train.advantage, ADVANTAGES),
        ("train.critic", train.critic, CRITICS),
        ("train.stop", train.stop, STOPS),
    ):
        if piece is not None:
            yield from _piece(key, piece, known)


def _algorithm(recipe: Recipe) -> Iterator[str]:
    yield from _piece("optim.algorithm", recipe.optim.algorithm, ALGORITHMS, takes=CALL_SIGNATURES["algorithm"])


def _penalty(recipe: Recipe) -> Iterator[str]:
    penalty = recipe.train.kl_in_reward
    if penalty is None:
        return
    yield from _missing("train.kl_in_reward", penalty.name, DIVERGENCES)
    if "beta" not in penalty.options:
        yield f'train.kl_in_reward.beta: required; write {{name = "{penalty.name}", beta = 0.05}}'
    for name, value in penalty.options.items():
        if name == "beta":
            yield from _number("train.kl_in_reward.beta", name, value, 0.05)
        else:
            yield f"train.kl_in_reward.{name}: unknown option; it takes beta"


def _rewards(recipe: Recipe) -> Iterator[str]:
    for reward in recipe.rewards:
        missing = list(_missing("rewards", reward.name, REWARDS))
        yield from missing
        if not missing and (reward.options or reward.name in REWARDS):
            yield from _piece(f"rewards.{reward.name}", Piece(name=reward.name, options=reward.options), REWARDS)


def _piece(key: str, piece: Piece, known: Mapping[str, str], *, takes: str = "") -> Iterator[str]:
    """A piece's name and options; `takes` is what one of the user's own will be called with."""
    missing = list(_missing(key, piece.name, known))
    if missing:
        yield from missing
        return
    signature = signature_of(known.get(piece.name, piece.name))
    positional = [name for name in signature.required if name not in signature.options]
    if takes and positional and piece.name not in known and len(positional) != takes.count(",") + 1:
        yield f"{key}: {piece.name} takes {', '.join(positional)}; it will be called with {takes}"
    for name, value in piece.options.items():
        yield from _option(f"{key}.{name}", value, name, signature)
    for name in signature.required:
        if name in signature.options and name not in piece.options and name not in FILLED_FROM_RECIPE:
            yield f"{key}.{name}: required by {piece.name}"


def _missing(key: str, name: str, known: Mapping[str, str]) -> Iterator[str]:
    if name not in known and ":" not in name:
        renamed = other_libraries()["renamed_pieces"].get(name)
        hint = f"; it is now {renamed}" if renamed in known else did_you_mean(name, list(known))
        hint = hint or f"; expected {', '.join(known)} or file.py:name"
        yield f'{key}: nothing is called "{name}"{hint}'
        return
    try:
        signature_of(known.get(name, name))
    except UserError as error:
        yield from (f"{key}: {mistake}" for mistake in error.problems)


def _option(key: str, value: Any, name: str, signature: Signature) -> Iterator[str]:
    if name in signature.options:
        yield from _number(key, name, value, signature.defaults.get(name))
    elif not signature.accepts_any:
        similar = nearest(name, signature.options)
        accepted = f"it takes {', '.join(signature.options)}" if signature.options else "it takes no options"
        yield f"{key}: unknown option; {f'did you mean {similar}?' if similar else listed_hint(key) or accepted}"


def _number(key: str, name: str, value: Any, default: Any) -> Iterator[str]:
    """A value like the default; a table where a coefficient may follow a target."""
    if name in COEFFICIENTS and isinstance(value, Mapping):
        signature = signature_of(COEFFICIENTS[name])
        for option, inner in value.items():
            yield from _option(f"{key}.{option}", inner, option, signature)
        yield from (f"{key}.{option}: required" for option in signature.required if option not in value)
    else:
        yield from _unlike_default(key, value, default)


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
        case (int(), float()):
            yield f"{key}: expected a whole number such as {default}, found {value}"
        case (int() | float(), int() | float()):
            if not (math.isfinite(value) and value >= min(default, 0)):
                yield f"{key}: expected a finite number that is not negative, found {value}"
        case tuple(), _:
            yield from _unlike_each(key, value, default)
        case (int() | float(), _):
            yield f"{key}: expected a number such as {default}, found {value!r}"


def _unlike_each(key: str, value: Any, defaults: tuple[Any, ...]) -> Iterator[str]:
    if not isinstance(value, list | tuple) or len(value) != len(defaults):
        yield f"{key}: expected a list such as {list(defaults)}, found {value!r}"
        return
    for each, default in zip(value, defaults, strict=True):
        yield from _unlike_default(key, each, default)


# --------------------------------------------------------------------------------------------------------- refusals


def _nothing_to_compare(recipe: Recipe) -> Iterator[str]:
    if recipe.train.group_size == 1 and recipe.advantage.name in GROUP_RELATIVE:
        yield (
            f"train.group_size = 1: {recipe.advantage.name} compares the answers of one question with each other, "
            "so that a single answer teaches nothing; use 2 or more"
        )


def _estimator(recipe: Recipe) -> Iterator[str]:
    if recipe.advantage.name == "pass_at_k":
        k = effective_options(recipe.advantage, ADVANTAGES)["k"]
        if k > recipe.train.group_size:
            yield f"train.advantage.k = {k}: a group has only {recipe.train.group_size} answers (train.group_size)"
    name, reference = recipe.advantage.name, recipe.reference
    if name in BLIND_TO_PENALTY and recipe.train.kl_in_reward is not None:
        yield f"train.kl_in_reward: {name} {BLIND_TO_PENALTY[name]}"
    if name in WITH_REFERENCE and reference.model is None:
        yield f"reference.model: {name} learns from a teacher; without one it is the policy itself, and teaches nothing"
    if name in WITH_REFERENCE and reference.sync is not None:
        yield f"reference.sync: the reference of {name} is its teacher, and not to be overwritten"


def _discounts(recipe: Recipe) -> Iterator[str]:
    """γ and λ of a built-in advantage: above 1 the far future would weigh more than the next token."""
    options = recipe.advantage.options if recipe.advantage.name in ADVANTAGES else {}
    for name in ("gamma", "lam"):
        value = options.get(name, 1.0)
        if isinstance(value, int | float) and value > 1:
            yield f"train.advantage.{name} = {value}: expected a number from 0 to 1"


def _no_difference(recipe: Recipe) -> Iterator[str]:
    name = recipe.advantage.name
    relative = name in GROUP_RELATIVE - {"gdpo"} or name == "remax" or ":" in name
    if recipe.train.dynamic_sampling and not relative:
        rounds = recipe.train.dynamic_sampling
        yield f"train.dynamic_sampling = {rounds}: {name} also learns from answers that are all rewarded alike"


RATIO_CAPS = {"truncate": ("high",), "mask": ("high",), "sequence_mask": ("high",)}
OWN_CAPS = ("ratio_max", "dual")


def _caps_below_one(recipe: Recipe) -> Iterator[str]:
    """Bounds on a ratio that exclude 1: they would bend every token although the policy has not moved."""
    options = recipe.train.objective.options
    corrections = options.get("correction", ())
    several = corrections if isinstance(corrections, list | tuple) else [corrections]
    named = [
        ("train.objective.correction", each, RATIO_CAPS.get(str(each.get("name")), ()))
        for each in several
        if isinstance(each, Mapping)
    ]
    surrogate = options.get("surrogate")
    inner = surrogate if isinstance(surrogate, Mapping) else {}
    capped = [("train.objective", options, OWN_CAPS), ("train.objective.surrogate", inner, OWN_CAPS), *named]
    for key, table, caps in capped:
        for name in caps:
            value = table.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value < 1:
                yield f"{key}.{name} = {value}: a cap below 1 cuts every token, although its ratio is 1 at the start"


def _no_like(recipe: Recipe) -> Iterator[str]:
    if recipe.train.compat != "outdo" and recipe.train.objective.name in NOT_COMPOSED:
        yield f'train.compat = "{recipe.train.compat}": {recipe.train.objective.name} is not a method that it has'


REFUSALS: dict[Rule, tuple[str, ...]] = {
    _objective: ("train.objective",),
    _pieces: ("train.advantage", "train.critic", "train.stop"),
    _algorithm: ("optim.algorithm",),
    _penalty: ("train.kl_in_reward",),
    _rewards: ("rewards",),
    _nothing_to_compare: ("train.group_size", "train.advantage", "train.objective"),
    _estimator: ("train.advantage", "train.objective", "train.group_size", "train.kl_in_reward", "reference.model"),
    _discounts: ("train.advantage", "train.objective"),
    _caps_below_one: ("train.objective",),
    _no_difference: ("train.dynamic_sampling", "train.advantage", "train.objective"),
    _no_like: ("train.compat", "train.objective"),
}


# ------------------------------------------------------------------------------------------------------------ notes


CLIP_OPTIONS = ("clip_low", "clip_high", "dual", "ratio_max")


def _once(recipe: Recipe) -> bool:
    """One update per batch, so that π_old is the policy itself."""
    return recipe.train.passes == 1 and recipe.train.minibatches == 1


def _one_update(recipe: Recipe) -> Iterator[str]:
    options = effective_options(recipe.train.objective, OBJECTIVES)
    bounds = [name for name in CLIP_OPTIONS if options.get(name) is not None and "surrogate" not in options]
    if bounds and _once(recipe) and recipe.train.objective.name not in NOT_COMPOSED:
        yield f"one update per batch and one minibatch: the ratio is 1, so {' and '.join(bounds)} cannot bind"
    if recipe.train.passes == 1 and recipe.train.stop is not None:
        yield "train.stop has no effect: with train.passes = 1 there is no second pass that could be left out"
    if recipe.train.passes == 1 and recipe.train.objective.name == "target":
        yield "train.passes = 1: a single step brings few tokens to their targets; target is made for several"


def _idle_options(recipe: Recipe) -> Iterator[str]:
    options = recipe.train.objective.options
    mine = [name for name in options if name not in FORMULA and name not in (*FORMULA_NUMBERS, "length")]
    for name in mine if "surrogate" in options else ():
        yield f"train.objective.{name} has no effect: the surrogate it belongs to is exchanged"


def _uncorrected(recipe: Recipe) -> Iterator[str]:
    name = recipe.train.objective.name
    if name in WITHOUT_RATIO and not _once(recipe):
        yield f"{name} has no ratio: after the first optimiser step of a batch its gradient is that of another policy"


def _no_reference(recipe: Recipe) -> Iterator[str]:
    reference = recipe.reference
    given = {"model": reference.model, "sync.every": reference.sync and reference.sync.every}
    own = ":" in recipe.train.objective.name or ":" in recipe.advantage.name  # what it needs, its file knows
    for name, value in given.items():
        if value is not None and not own and not needs_reference(recipe):
            yield f"reference.{name} = {value} has no effect: nothing asks for a reference (beta is 0)"


def _kl_twice_or_never(recipe: Recipe) -> Iterator[str]:
    options = effective_options(recipe.train.objective, OBJECTIVES)
    beta = options.get("beta", 0.0)
    if recipe.train.kl_in_reward is not None and beta != 0:
        yield f"KL counts twice: beta = {beta} in the loss, and train.kl_in_reward takes it off the reward"
    for name in ("divergence", "kl_ratio"):
        if name in recipe.train.objective.options and beta == 0:
            yield f"train.objective.{name} has no effect: beta is 0"
    if "entropy_weight" in options and not options.get("entropy_bonus"):
        yield "train.objective.entropy_weight has no effect: there is no entropy_bonus"


def _placement_of_kl(recipe: Recipe) -> Iterator[str]:
    """Estimators whose gradient in the loss is not what one puts them there for."""
    options = effective_options(recipe.train.objective, OBJECTIVES)
    divergence = options.get("divergence", "k3")
    name = divergence.get("name") if isinstance(divergence, Mapping) else divergence
    times_ratio = options.get("kl_ratio", recipe.train.objective.name != "grpo" and name != "k2")
    if options.get("beta", 0.0) != 0 and name == "k1" and not times_ratio:
        yield "train.objective.divergence: k1 in the loss without its ratio has no gradient in expectation"
    if options.get("beta", 0.0) != 0 and name == "k2" and times_ratio:
        yield "train.objective.divergence: k2 times the ratio has the gradient of no divergence; take k3"


def _not_as_published(recipe: Recipe) -> Iterator[str]:
    name, asked = recipe.train.objective.name, recipe.train.advantage
    published = DEFAULT_ADVANTAGE.get(name, "group_standardised")
    if name in OBJECTIVES and asked is not None and asked.name != published:
        yield f"{name} was published with the advantage {published}, not {asked.name}"
    if name == "dapo" and (recipe.train.dynamic_sampling == 0 or not recipe.train.mask_truncated):
        yield "dapo is published with train.dynamic_sampling and train.mask_truncated = true as well"


def _engine_is_the_policy(recipe: Recipe) -> Iterator[str]:
    correction = recipe.train.objective.options.get("correction", "none")
    if "off_policy_rows" not in str(correction) and correction != "none":
        yield "train.objective.correction: the built-in engine samples from the trainer's own weights; its ratio is 1"


def _critic_for_nothing(recipe: Recipe) -> Iterator[str]:
    if (
        recipe.train.critic is not None
        and recipe.advantage.name not in WITH_CRITIC
        and ":" not in recipe.advantage.name
    ):
        yield f"train.critic has no effect: {recipe.advantage.name} asks for no values"


NOTES: Sequence[Rule] = (
    _one_update,
    _idle_options,
    _uncorrected,
    _no_reference,
    _kl_twice_or_never,
    _placement_of_kl,
    _not_as_published,
    _engine_is_the_policy,
    _critic_for_nothing,
)
