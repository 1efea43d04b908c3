"""The marks of methods are true, as far as their code shows, and the check of a recipe knows them."""

import tomllib
from dataclasses import fields
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from toys import batch_of, evaluate, rollout

from outdo.algorithms.advantages import Advantage, chain, compute_advantages, kl_penalty, per_token, rejection
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.objectives.divergences import k1
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.config.methods import ADVANTAGES, OBJECTIVES
from outdo.types import Batch
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve, signature_of

ROOT = Path(__file__).parents[2]

UNEVEN, RIGHT_ALIKE, WRONG_ALIKE = (1.0, 0.0, 0.5, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = spec_from_file_location("methods", ROOT / ".ci/methods.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_that_a_check_reads_has_the_marks_of_every_method(generator: ModuleType) -> None:
    text = generator.TABLE.read_text(encoding="utf-8")
    written, marked = tomllib.loads(text), generator.methods()
    for kind, rows in marked.items():
        told = tomllib.loads(generator.as_toml({kind: rows}))[kind]
        names = written[kind].keys() | told.keys()
        differing = sorted(name for name in names if written[kind].get(name) != told.get(name))
        assert not differing, f"{kind}: {', '.join(differing)}: not as marked; run `make methods`"
    assert text == generator.as_toml(marked), "another order; run `make methods`"


# ---------------------------------------------------------------------------------------------------------- advantages


def advantage(name: str) -> Advantage:
    """A named advantage, as a function of a batch."""
    function = resolve(ADVANTAGES[name].code)
    return function if signature_of(ADVANTAGES[name].code).parameters[0] == "batch" else per_token(function)


def batch(*groups: tuple[float, ...]) -> Batch:
    """Groups of answers with these rewards, and all that any advantage requires."""
    made = batch_of(*([rollout(3, reward) for reward in rewards] for rewards in groups))
    random = torch.Generator().manual_seed(0)
    old, reference, values, teacher = -torch.rand(4, *made.token_ids.shape, generator=random) - 0.1
    return made.with_(
        old_logprobs=old,
        old_sums={"collision": (2 * old).exp() + 0.1},
        ref_logprobs=reference,
        teacher_logprobs=teacher,
        values=values,
        baselines=torch.full_like(made.rewards, 0.25),
        right=made.rewards < 0.75,  # unlike the rewards, so that it is seen which of the two is read
        reward_parts={"part": made.rewards},
    )


def advantages_of(name: str, given: Batch) -> torch.Tensor:
    """The advantages of the trained tokens, [B, T]; 0 elsewhere."""
    result = compute_advantages(advantage(name), given).advantages
    assert result is not None
    return result.where(given.loss_mask, 0.0)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_that_compares_groups_depends_on_which_answers_are_in_one(name: str) -> None:
    given = batch(UNEVEN, RIGHT_ALIKE)
    other = given.with_(group=given.group.roll(2))
    assert ADVANTAGES[name].compares_group == (not advantages_of(name, given).equal(advantages_of(name, other)))


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_that_is_scaled_in_its_group_is_as_large_where_rewards_hardly_differ(name: str) -> None:
    large = advantages_of(name, batch(UNEVEN, UNEVEN))[:4].abs().max()
    small = advantages_of(name, batch(tuple(0.5 + 0.001 * reward for reward in UNEVEN), UNEVEN))[:4].abs().max()
    facts = ADVANTAGES[name]  # where nothing is compared, rewards that hardly differ are no smaller than others
    assert facts.scaled_in_group == (facts.compares_group and bool(small > large / 2))


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_baseline_is_subtracted_from_rewards_that_are_compared(name: str) -> None:
    facts = ADVANTAGES[name]
    of_rewards = signature_of(facts.code).parameters[0] == "rewards" and not facts.requires
    subtracts = (facts.compares_group and of_rewards) or name == "reinforce_pp_baseline"
    assert facts.subtracts_baseline == subtracts


def with_turn_rewards(given: Batch) -> Batch:
    """The same rewards, for a token each."""
    last = given.attention_mask.sum(1, keepdim=True) - 1 == torch.arange(given.token_ids.shape[1])
    return given.with_(token_rewards=given.rewards[:, None] * last)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_that_loses_the_rewards_of_turns_refuses_them(name: str) -> None:
    given = with_turn_rewards(batch(UNEVEN, RIGHT_ALIKE))
    if ADVANTAGES[name].loses_turn_rewards:
        with pytest.raises(UserError, match="would lose the rewards of single turns"):
            advantages_of(name, given)
    else:
        advantages_of(name, given)


def effect_of_a_small_kl(name: str) -> str:
    """What a KL in the reward of some 0.001 does to the advantages."""
    given = batch(UNEVEN, RIGHT_ALIKE, WRONG_ALIKE).with_(right=None)
    estimator = partial(rejection, threshold=1.0) if name == "rejection" else advantage(name)
    before = compute_advantages(estimator, given).advantages
    try:
        after = compute_advantages(chain(kl_penalty(k1, beta=1e-3), estimator), given).advantages
    except UserError:
        return "it is refused"
    assert before is not None
    assert after is not None
    largest = (after - before).abs().max()
    return "nothing" if largest == 0 else "small" if largest < 0.1 else "large"


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_works_with_a_kl_in_the_reward_unless_it_is_marked(name: str) -> None:
    facts, effect = ADVANTAGES[name], effect_of_a_small_kl(name)
    if effect == "large":
        assert facts.not_with_kl_in_reward or facts.scaled_in_group
    else:
        assert bool(facts.not_with_kl_in_reward) == (effect != "small")


MISSING = {
    "reference": {"ref_logprobs": None},
    "teacher": {"teacher_logprobs": None},
    "old_logprobs": {"old_logprobs": None},
    "old_sums": {"old_sums": {}},
    "values": {"values": None},
    "baselines": {"baselines": None},
    "right": {"right": None},
}
"""A batch without what each requirement names."""


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_requires_what_it_misses_when_it_is_not_there(name: str) -> None:
    given, missed = batch(UNEVEN, RIGHT_ALIKE), set()
    for requirement, without in MISSING.items():
        try:
            same = advantages_of(name, given).equal(advantages_of(name, given.with_(**without)))
        except (UserError, ValueError):
            same = False
        missed |= set() if same else {requirement}
    assert ADVANTAGES[name].requires_with({}) - {"whole_batch"} == missed


def test_the_answers_that_are_right_are_required_unless_a_threshold_is_set() -> None:
    assert requirements_of(rejection) == requirements_of(partial(rejection, threshold=None)) == Requires(right=True)
    assert requirements_of(partial(rejection, threshold=0.5)) == Requires()
    facts = ADVANTAGES["rejection"]
    assert (facts.requires_with({}), facts.requires_with({"threshold": 0.0})) == ({"right"}, set())


def test_a_check_knows_the_requirements_that_the_loop_reads() -> None:
    for facts in ADVANTAGES.values():
        required = requirements_of(resolve(facts.code))
        assert facts.requires_with({}) == {each.name for each in fields(required) if getattr(required, each.name)}


# ---------------------------------------------------------------------------------------------------------- objectives


START = -1.6
"""The log-probability of each token: four that begin the answers of a group have one of less than 1 together."""


def objective(name: str) -> Objective:
    return resolve(OBJECTIVES[name].code)(**({"length": 8} if name == "dr_grpo" else {}))


def gradient(name: str, given: Batch) -> torch.Tensor:
    """The gradient by log πθ at the start."""
    built, logprobs = objective(name), torch.full(given.token_ids.shape, START)
    return evaluate(built, logprobs, built.prepare(given))[1]


def trained(advantages: float = 0.5) -> Batch:
    """Two groups of answers without a common token, with advantages of both signs. Each policy was the same."""
    mask = torch.ones(8, 3, dtype=torch.bool)
    same = torch.full(mask.shape, START)
    signs = torch.tensor([1.0, -1.0] * 4)
    group = torch.arange(8) // 4
    return Batch.of(mask=mask, advantages=advantages * signs, group=group, old_logprobs=same, ref_logprobs=same)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_without_a_ratio_does_not_depend_on_where_the_policy_was(name: str) -> None:
    given, facts, read = trained(), OBJECTIVES[name], set()
    for field in ("old_logprobs", "rollout_logprobs"):
        other = given.with_(**{field: getattr(given, field) - 1e-4})
        read |= set() if gradient(name, given).equal(gradient(name, other)) else {field}
    if facts.is_composed:  # another one may depend on it without a ratio, as by its targets
        start = "rollout_logprobs" if facts.from_engine else "old_logprobs"
        assert read == ({start} if facts.has_ratio else set())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_of_a_method_for_polyak_is_0_at_its_minimum(name: str) -> None:
    """Its loss is 0 where nothing is to be changed, and above 0 wherever else the policy is."""
    built, given, nothing = objective(name), trained(), trained(advantages=0.0)
    start = given.old_logprobs
    assert start is not None
    assert given.advantages is not None
    random = START - 3 * torch.rand(20, *start.shape, generator=torch.Generator().manual_seed(0))
    policies = [start, start + 0.1 * given.advantages, *random]
    losses = [float(evaluate(built, logprobs, built.prepare(given))[0]) for logprobs in policies]
    without = float(evaluate(built, start, built.prepare(nothing))[0])
    assert OBJECTIVES[name].lowest_loss_0 == (abs(without) < 1e-6 < min(losses))
