"""Check the method of a recipe: names of pieces, their options, and pieces that cannot work together.

Each rule yields one sentence for each mistake in a recipe; `outdo.config.rules` runs all rules.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from outdo.config import methods
from outdo.config.fields import WeightedReward
from outdo.config.methods import facts_of_advantage, facts_of_objective
from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    COEFFICIENTS,
    COMPOSED_NUMBERS,
    COMPOSED_PIECES,
    CRITICS,
    DIVERGENCES,
    OBJECTIVES,
    PLACES,
    QUANTISED,
    REWARDS,
    SCHEDULES,
    STOPS,
    ULYSSES,
)
from outdo.config.options import effective_options, needs_teacher
from outdo.config.recipe import Piece, Recipe
from outdo.config.teachers import POLICY, REFERENCE
from outdo.config.unknown_settings import listed_hint
from outdo.models.limits import DIVISIBLE_WEIGHTS
from outdo.rewards.loading import RUN_IN_WORKER, runs_in_worker
from outdo.rewards.options import reward_mistakes
from outdo.utils.errors import UserError
from outdo.utils.extras import missing_extra
from outdo.utils.imports import Signature, signature_of
from outdo.utils.options import ANYTHING, TEXT, Check, is_number, no_such_name, option_mistakes
from outdo.utils.text import counted

Rule = Callable[[Recipe], Iterator[str]]

CHECKS: Mapping[str, Check] = {
    "path": TEXT,
    "weights": (
        lambda value: (
            isinstance(value, Mapping) and all(is_number(number) and isfinite(number) for number in value.values())
        ),
        "a table of numbers",
    ),
}
"""What options of built-in pieces have to be whose defaults do not say it."""

FILLED_FROM_RECIPE = ("length", "max_tokens", "weights")
"""Options of pieces whose values come from other settings of the recipe: the longest answer, the reward weights."""

CALL_SIGNATURES = {
    "level": "log_ratio, loss_mask",
    "surrogate": "log_ratio, logprobs, advantages, batch",
    "divergence": "logprobs, ref_logprobs",
    "correction": "logprobs, batch",
    "weight": "batch",
    "divergence_weight": "batch",
    "teacher_divergence": "logits, teacher_logits, temperature",
    "entropy_weight": "batch",
    "batch_transform": "batch",
    "kl_in_reward": "logprobs, ref_logprobs",
    "algorithm": "weights",
    "schedule": "step, total",
}
"""The arguments that a user's own piece is called with, in order."""


# ------------------------------------------------------------------------------------------------- names and options


def _check_objective(recipe: Recipe) -> Iterator[str]:
    yield from objective_mistakes(recipe.train.objective)


def objective_mistakes(piece: Piece, *, key: str = "train.objective") -> Iterator[str]:
    """Yield what is wrong with an objective's name, its options, and the pieces that replace its own."""
    wrong_name = list(check_name(key, piece.name, OBJECTIVES))
    if wrong_name:
        yield from wrong_name
        return
    parameters = signature_of(OBJECTIVES.get(piece.name, piece.name)).parameters
    replaceable = [name for name in (*COMPOSED_NUMBERS, *COMPOSED_PIECES) if name not in parameters]
    replaced = {name: value for name, value in piece.options.items() if name in replaceable}
    is_composed = facts_of_objective(piece.name).is_composed
    offered = replaceable if is_composed else replaced
    yield from check_piece(key, piece, OBJECTIVES, replaceable=offered)
    yield from _batch_transform_mistakes(key, piece.name, replaced)
    if replaced and not is_composed:
        yield f"{key}.{next(iter(replaced))}: {piece.name} is not made of pieces that could be replaced"
        return
    for name, value in replaced.items():
        if name in COMPOSED_PIECES:
            yield from _check_replacement(f"{key}.{name}", name, value)


def _batch_transform_mistakes(key: str, name: str, replaced: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong between the batch transform of an objective and its other pieces."""
    if "batch_transform" in replaced and name in ("clip_cov", "kl_cov"):
        yield f"{key}.batch_transform: {name} is defined by its own batch transform, which cannot be replaced"
    marked = name == "kl_cov" or _name_of(replaced.get("batch_transform")) == "covariant"
    if _name_of(replaced.get("surrogate")) == "kl_cov" and not marked:
        yield f'{key}.surrogate: kl_cov needs batch_transform = "covariant", which marks its tokens'


def _name_of(value: Any) -> Any:
    """Return the name of a piece that is written as a name, or as a table."""
    return value.get("name") if isinstance(value, Mapping) else value


def _check_replacement(key: str, name: str, value: Any) -> Iterator[str]:
    """Check a piece that replaces that of a preset."""
    is_list = name == "correction" and isinstance(value, list | tuple)
    for item in value if is_list else [value]:
        try:
            piece = Piece.model_validate(item)
        except ValueError:
            yield f"{key}: expected a name, or a table with a name and options, found {item!r}"
            continue
        yield from check_piece(key, piece, COMPOSED_PIECES[name], called_with=CALL_SIGNATURES[name])


def _check_other_pieces(recipe: Recipe) -> Iterator[str]:
    train = recipe.train
    for key, piece, known in (
        ("train.advantage", train.advantage, ADVANTAGES),
        ("train.critic", train.critic, CRITICS),
        ("train.stop", train.stop, STOPS),
    ):
        if piece is not None:
            yield from check_piece(key, piece, known)
    if train.critic is not None and train.critic.name in CRITICS and "weight" in train.critic.options:
        yield from _check_replacement("train.critic.weight", "weight", train.critic.options["weight"])


def _check_optimiser(recipe: Recipe) -> Iterator[str]:
    called_with = CALL_SIGNATURES["algorithm"]
    yield from check_piece("optim.algorithm", recipe.optim.algorithm, ALGORITHMS, called_with=called_with)
    called_with = CALL_SIGNATURES["schedule"]
    yield from check_piece("optim.schedule", recipe.optim.schedule, SCHEDULES, called_with=called_with)
    objective = recipe.train.objective.name
    fitting = sorted(name for name, facts in methods.OBJECTIVES.items() if facts.lowest_loss_0)
    if recipe.optim.algorithm.name == "polyak" and objective in OBJECTIVES and objective not in fitting:
        yield (
            f"optim.algorithm: polyak needs a loss whose minimum is 0; {objective} has none, "
            f"{' and '.join(fitting)} have"
        )


def _check_kl_in_reward(recipe: Recipe) -> Iterator[str]:
    piece = recipe.train.kl_in_reward
    if piece is None:
        return
    yield from check_name("train.kl_in_reward", piece.name, DIVERGENCES)
    defaults = {"beta": 0.05, "after_baseline": False}
    takes = Signature(spec=piece.name, options=tuple(defaults), required=("beta",), defaults=defaults)
    yield from option_mistakes("train.kl_in_reward", piece.name, piece.options, takes, tables=COEFFICIENTS)
    name = recipe.advantage.name
    if piece.options.get("after_baseline") is True and not facts_of_advantage(name).subtracts_baseline:
        yield f"train.kl_in_reward.after_baseline: {name} subtracts no baseline from whole answers"


def _check_rewards(recipe: Recipe) -> Iterator[str]:
    for reward in recipe.rewards:
        wrong_name = list(check_name("rewards", reward.name, REWARDS))
        yield from wrong_name
        if not wrong_name:
            options, builtin = recipe.options_of(reward), reward.name in REWARDS
            signature = signature_of(REWARDS.get(reward.name, reward.name))
            yield from reward_mistakes(reward.name, options, signature, builtin=builtin)
        if reward.place is not None:
            yield from _check_place(reward, is_known=not wrong_name)


def _check_place(reward: WeightedReward, *, is_known: bool) -> Iterator[str]:
    key, place = f"rewards.{reward.name}.place", PLACES.get(str(reward.place))
    if place is None:
        expected = " or ".join(f'"{name}"' for name in PLACES)
        yield f"{key}: expected {expected}, found {reward.place!r}; leave it out for this machine"
    elif missing := missing_extra(place, key):
        yield missing
    elif is_known and not runs_in_worker(reward.name):
        in_workers = ", ".join(sorted(RUN_IN_WORKER))
        yield f"{key}: Ray places the rewards that have worker processes: file.py:name, {in_workers}"


def check_piece(
    key: str, piece: Piece, known: Mapping[str, str], *, called_with: str = "", replaceable: Collection[str] = ()
) -> Iterator[str]:
    """Check a piece's name and options, and the numbers among the parts of it that are `replaceable`.

    `called_with` names the arguments that a user's own piece receives.
    """
    wrong_name = list(check_name(key, piece.name, known))
    if wrong_name:
        yield from wrong_name
        return
    signature = signature_of(known.get(piece.name, piece.name))
    positional = [name for name in signature.required if name not in signature.options]
    is_own = piece.name not in known
    if is_own and called_with and positional and len(positional) != called_with.count(",") + 1:
        yield f"{key}: {piece.name} takes {', '.join(positional)}; it will be called with {called_with}"
    numbers = {name: value for name, value in COMPOSED_NUMBERS.items() if name in replaceable}
    takes = replace(
        signature,
        options=(*signature.options, *numbers),
        required=tuple(name for name in signature.required if name not in FILLED_FROM_RECIPE),
        defaults={**signature.defaults, **numbers},
    )
    checks = {name: ANYTHING for name in COMPOSED_PIECES if name in replaceable}
    checks |= {name: check for name, check in CHECKS.items() if not is_own and name in signature.options}
    yield from option_mistakes(
        key, piece.name, piece.options, takes, own=is_own, checks=checks, tables=COEFFICIENTS, hint=listed_hint
    )


def check_name(key: str, name: str, known: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the name of a piece: it is unknown, or the code that it names is missing."""
    if name not in known and ":" not in name:
        yield no_such_name(key, name, list(known), own="file.py:name")
        return
    spec = known.get(name, name)
    if missing := missing_extra(spec, f'{key} = "{name}"'):
        yield missing
        return
    try:
        signature_of(spec)
    except UserError as error:
        yield from (f"{key}: {mistake}" for mistake in error.problems)


# ------------------------------------------------------------------------------------- pieces that exclude each other


def _single_completion_per_question(recipe: Recipe) -> Iterator[str]:
    if recipe.train.group_size == 1 and facts_of_advantage(recipe.advantage.name).compares_group:
        yield (
            f"train.group_size = 1: {recipe.advantage.name} compares the answers to a question with each other, "
            "so nothing can be learned from a single answer; use 2 or more"
        )


def _advantage_requirements(recipe: Recipe) -> Iterator[str]:
    if recipe.advantage.name == "pass_at_k":
        k = effective_options(recipe.advantage, ADVANTAGES)["k"]
        if k > recipe.train.group_size:
            answers = counted(recipe.train.group_size, "answer")
            yield f"train.advantage.k = {k}: a group has only {answers} (train.group_size)"
    name = recipe.advantage.name
    penalty, facts = recipe.train.kl_in_reward, facts_of_advantage(name)
    if penalty is not None and facts.not_with_kl_in_reward and not penalty.options.get("after_baseline"):
        instead = "; use after_baseline" if facts.subtracts_baseline else ""
        yield f"train.kl_in_reward: {name} {facts.not_with_kl_in_reward}{instead}"


def _teachers(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each teacher that is missing, or of which nothing could be learned."""
    pieces = f"{recipe.train.objective.name} with the advantage {recipe.advantage.name}"
    if needs_teacher(recipe) and not recipe.teachers:
        yield (
            f"teachers: {pieces} learns from a teacher, and there is none; set a model with the policy's vocabulary, "
            "or the policy itself with a hint"
        )
    if recipe.teachers and recipe.attention.name == ULYSSES:
        yield f'teachers: attention = "{ULYSSES}" divides the tokens of the policy, and not those that teachers read'
    for teacher in recipe.teachers:
        if teacher.weights in QUANTISED and recipe.cluster.shard.on:
            can = " and ".join(DIVISIBLE_WEIGHTS)
            yield f"teachers: cluster.shard divides weights in {can}, and those of {teacher.name} are {teacher.weights}"
        if teacher.model == POLICY and teacher.hint is None:
            yield (
                "teachers: the policy without a hint knows nothing that it does not know as a student; set a hint, or "
                f'model = "{REFERENCE}"'
            )


def _demonstrations(recipe: Recipe) -> Iterator[str]:
    """Yield what does not work with answers that the policy has not sampled."""
    if recipe.data.demonstrations is None:
        return
    key, name = "data.demonstrations", recipe.train.objective.name
    if not facts_of_objective(name).from_teacher:
        yield (
            f"{key}: {name} learns from answers that the policy has sampled; "
            'train.objective = "gkd" learns from a teacher on any answer, `outdo sft` from the answers themselves'
        )
    if recipe.train.dynamic_sampling:
        yield f"{key}: train.dynamic_sampling compares the answers to a question, of which there is one"
    if recipe.train.max_staleness:
        yield f"{key}: the trainer's own weights score them, which train.max_staleness samples beside"
    if recipe.environment is not None:
        yield f"{key}: an answer of the data is one turn; leave the environment out"


def _discount_above_one(recipe: Recipe) -> Iterator[str]:
    """γ and λ of a built-in advantage: above 1, later tokens would count more than the next one."""
    discounts = recipe.advantage.name in ADVANTAGES and recipe.advantage.name != "iw_opd"  # its γ is no discount
    options = recipe.advantage.options if discounts else {}
    for name in ("gamma", "lam"):
        value = options.get(name, 1.0)
        if isinstance(value, int | float) and value > 1:
            yield f"train.advantage.{name} = {value}: expected a number from 0 to 1"


def _dynamic_sampling_asks_the_advantage(recipe: Recipe) -> Iterator[str]:
    name, rounds = recipe.advantage.name, recipe.train.dynamic_sampling
    reason = facts_of_advantage(name).cannot_be_asked
    if rounds and reason:
        yield (
            f"train.dynamic_sampling = {rounds}: it drops groups whose advantages are all 0, and when a group is "
            f"sampled its advantages are not known: {name} {reason}"
        )


RATIO_CAPS_OF_CORRECTIONS = {"truncate": ("high",), "mask": ("high",), "sequence_mask": ("high",)}
RATIO_CAPS_OF_OBJECTIVES = ("ratio_max", "dual")


def _ratio_cap_below_one(recipe: Recipe) -> Iterator[str]:
    """Caps on a ratio that exclude 1: they would change every token although the policy has not changed yet."""
    options = recipe.train.objective.options
    corrections = options.get("correction", ())
    corrections = corrections if isinstance(corrections, list | tuple) else [corrections]
    surrogate = options.get("surrogate")
    capped: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = []
    capped.append(("train.objective", options, RATIO_CAPS_OF_OBJECTIVES))
    if isinstance(surrogate, Mapping):
        capped.append(("train.objective.surrogate", surrogate, RATIO_CAPS_OF_OBJECTIVES))
    for correction in corrections:
        if isinstance(correction, Mapping):
            caps = RATIO_CAPS_OF_CORRECTIONS.get(str(correction.get("name")), ())
            capped.append(("train.objective.correction", correction, caps))
    for key, table, caps in capped:
        for name in caps:
            value = table.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value < 1:
                yield f"{key}.{name} = {value}: expected 1 or more, because every token's ratio is 1 at the start"


def _compat_needs_composed_objective(recipe: Recipe) -> Iterator[str]:
    compat, name = recipe.train.compat, recipe.train.objective.name
    if compat != "outdo" and not facts_of_objective(name).is_composed:
        yield f'train.compat = "{compat}": this library does not have {name}'


REFUSALS: dict[Rule, tuple[str, ...]] = {
    _check_objective: ("train.objective",),
    _check_other_pieces: ("train.advantage", "train.critic", "train.stop"),
    _check_optimiser: ("optim.algorithm", "optim.schedule"),
    _check_kl_in_reward: ("train.kl_in_reward", "train.advantage", "train.objective"),
    _check_rewards: ("rewards",),
    _single_completion_per_question: ("train.group_size", "train.advantage", "train.objective"),
    _advantage_requirements: (
        "train.advantage",
        "train.objective",
        "train.group_size",
        "train.kl_in_reward",
    ),
    _teachers: ("teachers", "train.advantage", "train.objective", "attention", "cluster.shard"),
    _demonstrations: ("data.demonstrations", "train", "environment"),
    _discount_above_one: ("train.advantage", "train.objective"),
    _ratio_cap_below_one: ("train.objective",),
    _dynamic_sampling_asks_the_advantage: ("train.dynamic_sampling", "train.advantage", "train.objective"),
    _compat_needs_composed_objective: ("train.compat", "train.objective"),
}
"""The rules that refuse a method, and the settings that each of them reads."""
