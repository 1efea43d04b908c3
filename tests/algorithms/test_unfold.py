"""Episodes of several conversations: nothing of one conversation depends on what another one says, or on its place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from conversation_cases import Key, Played, Talk, batched, by_name, played
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import evaluate

from outdo.algorithms.advantages import (
    Advantage,
    baseline_first,
    chain,
    compute_advantages,
    distillation,
    gae,
    gdpo,
    group_centred,
    group_standardised,
    iw_opd,
    kl_penalty,
    leave_one_out,
    length_weighted,
    mopd,
    optimal_token,
    pass_at_k,
    per_token,
    reinforce_pp,
    reinforce_pp_baseline,
    rejection,
    remax,
    rlsd,
    to_go,
    tree,
    turn_to_go,
    without_truncated,
)
from outdo.algorithms.objectives import corrections, presets, weights
from outdo.algorithms.objectives.base import ComposedObjective, Objective
from outdo.algorithms.objectives.batch_transforms import high_entropy
from outdo.algorithms.objectives.divergences import k1
from outdo.algorithms.objectives.target.objective import target, target_essay
from outdo.algorithms.objectives.target.tpo import tpo
from outdo.config.names import ADVANTAGES, OBJECTIVES
from outdo.types import Batch
from outdo.utils.imports import resolve, signature_of

# ----------------------------------------------------------------------------------------------------- the properties

BY_CONVERSATION: dict[str, Advantage] = {
    **{
        name: per_token(resolve(code))
        for name, code in ADVANTAGES.items()
        if signature_of(code).parameters[0] == "rewards"
    },
    "pass_at_k": per_token(partial(pass_at_k, k=2)),
    "gdpo": gdpo,
    "gae": partial(gae, gamma=0.9, lam=0.8, whiten=False),
    "gae of turns": partial(gae, gamma=0.9, lam=0.8, whiten=False, turns=True),
    "to_go": to_go,
    "kl_penalty after the baseline": chain(baseline_first(leave_one_out), kl_penalty(k1, beta=0.5), to_go),
    "kl_penalty, per token": chain(kl_penalty(k1, beta=0.5), partial(gae, gamma=0.9, lam=0.8, whiten=False)),
    "tree": tree,
    "tree, shrunk and scaled": partial(tree, shrink=1.0, scale=True),
    "turn_to_go": partial(turn_to_go, gamma=0.9),
    "optimal_token": optimal_token,
    "remax": remax,
    "distillation": distillation,
    "iw_opd": iw_opd,
    "mopd": mopd,
    "rlsd": rlsd,
    "rejection": rejection,
    "without_truncated": chain(per_token(leave_one_out), without_truncated),
}
"""Advantages of a token that do not know how many other conversations there are."""

OF_THE_EPISODE: dict[str, Advantage] = {
    "length_weighted": length_weighted,  # by the length of the episode
    "reinforce_pp": partial(reinforce_pp, gamma=0.9),  # whitened over all tokens of the batch
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gae, whitened": partial(gae, gamma=0.9, lam=0.8),
    "kl_penalty": chain(kl_penalty(k1, beta=0.5), per_token(group_standardised)),  # the KL of the whole episode
    "kl_penalty, in a tree": chain(kl_penalty(k1, beta=0.5), partial(tree, scale=True)),
    "kl_penalty, turn by turn": chain(kl_penalty(k1, beta=0.5), turn_to_go),
}
"""Advantages in which an episode, or the batch, counts with all of its tokens."""


def by_token(objective: ComposedObjective) -> ComposedObjective:
    """The objective without a denominator: those of most weights are the tokens of an episode or of the batch."""
    return replace(objective, weight=weights.total)


def at_token_level() -> dict[str, Objective]:
    """The objectives whose term of a token depends on this token alone, and those with targets by context."""
    made: dict[str, Objective] = {
        "target": target(reduction="sum", hold=True),
        "target, alone in its context": target(reduction="sum", merge="none", loss="squared"),
        "target_essay": target_essay(),
        "off-policy tokens": by_token(replace(presets.grpo(beta=0.0), correction=corrections.truncate())),
    }
    for name in (
        *("grpo", "grpo_clip", "ppo", "dapo", "bnpo", "cispo", "sapo", "dppo_tv", "dppo_kl", "prime_rl"),
        *("prime_rl_ipo", "dro", "reinforce", "reinforce_pp", "rloo", "remax", "opo", "gpg", "distillation", "gkd"),
    ):
        made[name] = by_token(getattr(presets, name)())
    return made | {
        "dr_grpo": by_token(presets.dr_grpo(length=8)),
        "rejection": by_token(presets.likelihood()),
    }


AT_TOKEN_LEVEL = at_token_level()
AS_A_WHOLE: dict[str, Objective] = {
    **{
        name: getattr(presets, name)()
        for name in ("gspo", "gspo_token", "luspo", "gmpo", "rloo_clip", "vespo", "clip_cov", "kl_cov", "dapo", "grpo")
    },
    "tpo": tpo(),
    "high entropy": replace(presets.dapo(), batch_transform=high_entropy(share=0.4)),
    "off-policy rows": replace(presets.dapo(), correction=corrections.off_policy_rows(limit=0.05)),
    "off-policy sequences": replace(presets.dapo(), correction=corrections.sequence_mask(low=0.9, high=1.1)),
    "rejected sequences": replace(presets.dapo(), correction=corrections.reject(high=0.03, level="max")),
    "prompt_mean": replace(presets.grpo(), weight=weights.prompt_mean),
}
"""Objectives in which an answer counts as a whole, or the batch does: the answer is the episode."""


def test_the_tables_have_every_advantage_and_every_objective_of_a_recipe() -> None:
    assert {"turn_centred", *ADVANTAGES} == {"turn_centred", *BY_CONVERSATION, *OF_THE_EPISODE} & set(ADVANTAGES) | {
        "turn_centred"
    }
    assert set(OBJECTIVES) == {*AT_TOKEN_LEVEL, *AS_A_WHOLE} & set(OBJECTIVES)


def permuted(talks: tuple[Talk, ...], random: Random) -> tuple[Talk, ...]:
    return (talks[0], *random.sample(talks[1:], len(talks) - 1))


def changed(talks: tuple[Talk, ...], random: Random) -> tuple[Talk, ...]:
    """Drop some further conversations, let others go on, and exchange their places."""
    further = [each for each in permuted(talks, random)[1:] if random.random() < 0.6]
    longer = [replace(each, turns=(*each.turns, 2)) if random.random() < 0.5 else each for each in further]
    return (talks[0], *longer)


def in_all_episodes(
    groups: Sequence[Sequence[Played]], change: Callable[[tuple[Talk, ...], Random], tuple[Talk, ...]], random: Random
) -> list[list[Played]]:
    return [[replace(each, talks=change(each.talks, random)) for each in group] for group in groups]


Measured = tuple[Batch, list[list[Key]]]
Names = Sequence[tuple[int, int]]
"""Conversations: the number of the episode, and the name in it."""


def advantages_of(advantage: Advantage, batch: Batch, keys: Sequence[Sequence[Key]]) -> dict[Key, float]:
    filled = compute_advantages(advantage, batch)
    return by_name(filled.advantages, filled, keys)


def pushes_of(objective: Objective, batch: Batch, keys: Sequence[Sequence[Key]]) -> dict[Key, float]:
    batch = objective.prepare(compute_advantages(per_token(group_centred), batch))
    _, gradient = evaluate(objective, batch.values, batch)
    return by_name(gradient, batch, keys)


def assert_same(before: Mapping[Key, float], after: Mapping[Key, float], names: Names, what: str) -> None:
    """Equal values of the tokens of some conversations."""
    common = [key for key in before if key[:2] in names and key in after]
    for key in common:
        assert before[key] == pytest.approx(after[key], rel=1e-9, abs=1e-9), (what, key)


def names_in(groups: Sequence[Sequence[Played]], *others: Sequence[Sequence[Played]]) -> Names:
    """The conversations that are in all of these episodes, with the same turns."""
    talks = [
        {(episode.number, talk) for group in each for episode in group for talk in episode.talks}
        for each in (groups, *others)
    ]
    return [(number, talk.name) for number, talk in set.intersection(*talks)]


@settings(max_examples=25)
@given(groups=played(), random=st.randoms(use_true_random=False))
def test_what_is_computed_of_a_token_does_not_depend_on_other_conversations(
    groups: list[list[Played]], random: Random
) -> None:
    other = in_all_episodes(groups, changed, random)
    names, before, after = names_in(groups, other), batched(groups), batched(other)
    for name, advantage in BY_CONVERSATION.items():
        assert_same(advantages_of(advantage, *before), advantages_of(advantage, *after), names, name)
    for name, objective in AT_TOKEN_LEVEL.items():
        assert_same(pushes_of(objective, *before), pushes_of(objective, *after), names, name)


@settings(max_examples=25)
@given(groups=played(), random=st.randoms(use_true_random=False))
def test_nothing_depends_on_the_places_of_further_conversations_in_the_row(
    groups: list[list[Played]], random: Random
) -> None:
    other = in_all_episodes(groups, permuted, random)
    names, before, after = names_in(groups), batched(groups), batched(other)
    for name, advantage in OF_THE_EPISODE.items():
        assert_same(advantages_of(advantage, *before), advantages_of(advantage, *after), names, name)
    for name, objective in AS_A_WHOLE.items():
        assert_same(pushes_of(objective, *before), pushes_of(objective, *after), names, name)
