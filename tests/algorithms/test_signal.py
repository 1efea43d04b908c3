"""Which groups teach anything is what the advantage says, whatever it compares."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import rollout

from outdo.algorithms.advantages import (
    Advantage,
    best_of_group,
    chain,
    compute_advantages,
    gae,
    gdpo,
    group_centred,
    group_standardised,
    kl_penalty,
    max_rl,
    pass_at_k,
    per_token,
    rejection,
    remax,
    reward,
    turn_centred,
    turn_to_go,
    without_truncated,
)
from outdo.algorithms.advantages.signal import cannot_be_asked, groups_with_signal, signal_of
from outdo.algorithms.objectives.divergences import k1
from outdo.config.methods import ADVANTAGES
from outdo.config.recipe import Piece, Recipe
from outdo.run.assemble.method import advantage_of
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout


def group(*rollouts: Rollout, baseline: float | None = None) -> Group:
    return Group(prompt=Prompt(id="7", text="?", token_ids=(1,)), rollouts=rollouts, baseline=baseline)


def two_turns(first: float, last: float, **fields: object) -> Rollout:
    """An episode with a token of the environment between its two turns, and a reward for each of these."""
    mask = (True, True, False, True)
    return rollout(4, first + last, mask=mask, token_rewards=(0.0, first, 0.0, last), **fields)


def parts(a: float, b: float) -> Rollout:
    return rollout(2, a + b, reward_parts={"a": a, "b": b})


def verdict(value: bool | None, paid: float) -> Rollout:
    return rollout(2, paid, right=value)


EQUAL, DIFFERENT = group(rollout(2, 1.0), rollout(3, 1.0)), group(rollout(2, 1.0), rollout(3, 0.0))
TURNS = group(two_turns(1.0, 0.0), two_turns(0.0, 1.0))
CUT = {"finish_reason": FinishReason.length}
CASES: list[tuple[Advantage, Group, bool]] = [
    (per_token(group_standardised), EQUAL, False),
    (per_token(group_standardised), DIFFERENT, True),
    (per_token(group_standardised), group(rollout(1, 0.3), rollout(1, 0.1 + 0.2)), False),  # a rounding error apart
    (per_token(group_standardised), group(rollout(1, 5000.0), rollout(1, 5000.004)), True),
    (per_token(group_standardised), group(rollout(1, 1.0)), False),
    (per_token(group_standardised), group(rollout(1, 1.0), rollout(1, 0.0, status="failed")), False),
    (per_token(group_standardised), group(rollout(1, 0.0, status="failed")), False),
    (per_token(group_standardised), group(), False),
    (per_token(group_standardised), group(rollout(2, 1.0), rollout(0, 1.0)), False),
    (per_token(group_standardised), TURNS, False),
    (turn_to_go, TURNS, True),
    (turn_to_go, group(two_turns(1.0, 0.0), two_turns(1.0, 0.0)), False),
    (turn_centred, TURNS, True),
    (gdpo, group(parts(1.0, 0.0), parts(0.0, 1.0), parts(0.5, 0.5)), False),  # standardised, the parts cancel
    (partial(gdpo, weights={"a": 1.0, "b": 2.0}), group(parts(1.0, 0.0), parts(0.0, 1.0)), True),
    (gdpo, group(parts(1.0, 0.0), parts(1.0, 0.0)), False),
    (per_token(pass_at_k), group(*[verdict(False, paid) for paid in (0.1, 0.2, 0.3, 0.4)]), False),
    (per_token(pass_at_k), group(*[verdict(right, 1.0) for right in (True, False, False, False)]), True),
    (per_token(pass_at_k), group(*[verdict(right, 1.0) for right in (True, False)]), False),  # fewer than k = 4
    (rejection, group(verdict(False, 0.2), verdict(False, 0.9)), False),
    (rejection, group(verdict(True, 1.0), verdict(True, 1.0)), True),
    (per_token(best_of_group), group(rollout(1, 1.0), rollout(1, 1.0), rollout(1, 0.0)), False),  # two share the best
    (per_token(max_rl), group(rollout(1, -1.0), rollout(1, 1.0)), False),  # their mean is 0
    (per_token(reward), EQUAL, True),
    (per_token(reward), group(rollout(1, 0.0), rollout(1, 0.0)), False),
    (remax, group(rollout(1, 1.0), baseline=0.0), True),
    (remax, group(rollout(1, 1.0), rollout(1, 1.0), baseline=1.0), False),
    (
        chain(per_token(group_standardised), without_truncated),
        group(rollout(1, 1.0, **CUT), rollout(1, 0.0, **CUT)),
        False,
    ),
    (lambda batch: batch.with_(advantages=batch.loss_mask.float() * 0.3), EQUAL, True),  # of a user
]


@pytest.mark.parametrize(("advantage", "made", "expected"), CASES)
def test_a_group_teaches_if_its_advantage_is_not_0(advantage: Advantage, made: Group, expected: bool) -> None:
    assert groups_with_signal(advantage, [made]) == [expected]
    if made.rollouts:
        assert signal_of(compute_advantages(advantage, Batch.from_groups([made]))).tolist() == [expected]


def made_by_a_recipe(name: str) -> Advantage:
    """The advantage of a recipe that names it, without options."""
    recipe = Recipe.model_construct(
        train=Recipe.model_fields["train"].annotation.model_construct(advantage=Piece(name=name))
    )
    return advantage_of(recipe)


def test_the_check_of_a_recipe_knows_why_an_advantage_cannot_be_asked() -> None:
    asked = {name: cannot_be_asked(made_by_a_recipe(name)) for name in ADVANTAGES}
    assert {name: facts.cannot_be_asked for name, facts in ADVANTAGES.items()} == asked
    assert {name for name, reason in asked.items() if reason} == {
        "gae",
        "reinforce_pp",
        "distillation",
        "iw_opd",
        "mopd",
        "rlsd",
        "optimal_token",
    }


@st.composite
def answers(draw: st.DrawFn, size: int) -> Group:
    """A group of episodes of two turns, with verdicts and a baseline; some without a reward."""
    rewards = st.sampled_from([0.0, 0.25, 1.0])
    made = []
    for _ in range(size):
        first, last = draw(rewards), draw(rewards)
        status = draw(st.sampled_from(["ok", "ok", "ok", "failed"]))
        made.append(two_turns(first, last, right=draw(st.booleans()), status=status))
    return group(*made, baseline=draw(rewards))


few_examples = settings(max_examples=15)  # of each advantage


CAN_BE_ASKED = {name for name, facts in ADVANTAGES.items() if not facts.cannot_be_asked}


@pytest.mark.parametrize("name", sorted(CAN_BE_ASKED - {"gdpo", "reinforce_pp_baseline"}))
@few_examples
@given(data=st.data())
def test_a_group_asked_alone_teaches_what_it_teaches_in_its_batch(name: str, data: st.DataObject) -> None:
    """Of `reinforce_pp_baseline` this is not so: it subtracts the mean of all tokens of the batch afterwards."""
    groups = data.draw(st.lists(answers(4), min_size=1, max_size=4))
    advantage = made_by_a_recipe(name)
    together = signal_of(compute_advantages(advantage, Batch.from_groups(groups)))
    assert groups_with_signal(advantage, groups) == together.tolist()


@few_examples
@given(data=st.data())
def test_parts_asked_alone_teach_what_they_teach_in_their_batch(data: st.DataObject) -> None:
    value = st.sampled_from([0.0, 0.25, 1.0])
    sizes = st.lists(st.builds(parts, value, value), min_size=2, max_size=4)
    groups = [group(*members) for members in data.draw(st.lists(sizes, min_size=1, max_size=4))]
    together = signal_of(compute_advantages(gdpo, Batch.from_groups(groups)))
    assert groups_with_signal(gdpo, groups) == together.tolist()


def test_what_needs_a_model_or_other_groups_cannot_be_asked() -> None:
    with pytest.raises(ValueError, match="needs values, which sampled groups do not have yet"):
        groups_with_signal(gae, [EQUAL])
    penalised = chain(kl_penalty(k1, beta=0.1), per_token(group_centred))
    assert "needs reference and old_logprobs" in cannot_be_asked(penalised)
    assert cannot_be_asked(per_token(group_centred)) == ""


def test_advantages_of_rounding_size_are_none_in_a_batch() -> None:
    batch = Batch.from_groups([EQUAL, DIFFERENT])
    advantages = torch.tensor([1e-9, -1e-9, 1.0, -1.0])[:, None] * batch.loss_mask
    assert signal_of(batch.with_(advantages=advantages)).tolist() == [False, True]
    assert signal_of(Batch.from_groups([])).tolist() == []
