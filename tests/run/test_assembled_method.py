"""From names in a recipe to functions: every name works, pieces can be exchanged, and a user's own are as good."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys import batch_of, rollout

from outdo.algorithms.adaptive import AdaptiveCoefficient
from outdo.algorithms.advantages import group_standardised
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.presets import dr_grpo, grpo
from outdo.algorithms.objectives.ratios import sequence
from outdo.algorithms.objectives.surrogates import Clip
from outdo.algorithms.objectives.weights import token_mean
from outdo.algorithms.requirements import requirements_of
from outdo.config import methods
from outdo.config.file import dump, load
from outdo.config.names import (
    ADVANTAGES,
    COMPOSED_PIECES,
    CRITICS,
    OBJECTIVES,
    STOPS,
)
from outdo.config.options import describe_method, list_pieces
from outdo.config.recipe import Recipe
from outdo.models.policy import Policy
from outdo.run.assemble.method import advantage_of, critic_of, objective_of, optimiser_of, penalty_of, piece_mistakes
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve, signature_of

BASELINES = [name for name, facts in methods.ADVANTAGES.items() if facts.subtracts_baseline]
NEEDED = ["model=m", "data.path=x.jsonl"]


def recipe(*overrides: str) -> Recipe:
    return load(None, [*NEEDED, *overrides])


def batch(*rewards: float) -> Batch:
    """One group of two-token answers, the last of them cut off."""
    tokens = {"token_ids": (5, 6), "logprobs": (-1.0, -2.0)}
    *whole, last = (rollout(2, reward, **tokens) for reward in rewards)
    return batch_of([*whole, replace(last, finish_reason=FinishReason.length)])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_named_objective_is_built_from_a_recipe(name):
    asked = recipe(f"train.objective={name}", "teachers=teacher")
    assert objective_of(asked).requires is not None
    assert requirements_of(advantage_of(asked)) is not None


@pytest.mark.parametrize("table", [OBJECTIVES, ADVANTAGES, CRITICS, STOPS, *COMPOSED_PIECES.values()])
def test_every_named_piece_exists_and_has_a_docstring(table):
    for spec in table.values():
        assert callable(resolve(spec))
        assert resolve(spec).__doc__
        assert not signature_of(spec).accepts_any


def test_methods_bring_the_advantage_they_were_published_with():
    for facts in methods.OBJECTIVES.values():
        assert {facts.published_with, *facts.also_published_with} <= set(ADVANTAGES)
    assert recipe().advantage.name == "group_standardised"
    assert recipe("train.objective=dr_grpo").advantage.name == "group_centred"
    assert recipe("train.objective=dr_grpo", "train.advantage=sign").advantage.name == "sign"
    assert recipe("train.advantage.band=0.1", "train.objective=target_essay").train.advantage.name == "sign"


def test_an_option_that_the_recipe_knows_elsewhere_is_filled_in():
    made = objective_of(recipe("train.objective=dr_grpo", "sampling.max_tokens=77"))
    whole = batch(1.0, 0.0)
    assert made.weight(whole) == dr_grpo(length=77).weight(whole)
    own = objective_of(recipe("train.objective=dr_grpo", "train.objective.length=10", "sampling.max_tokens=77"))
    assert own.weight(whole) == dr_grpo(length=10).weight(whole)


def test_pieces_of_a_preset_can_be_replaced():
    made = objective_of(
        recipe(
            'train.objective={name="grpo", clip_low=0.1, level="sequence", weight="token_mean", beta=0.5, '
            'kl_ratio=true, divergence="abs", correction=[{name="truncate", high=3.0}, "none"]}'
        )
    )
    expected = replace(grpo(clip_low=0.1, beta=0.5), level=sequence, weight=token_mean, kl_ratio=True)
    assert isinstance(made, ComposedObjective)
    assert (made.surrogate, made.level, made.weight, made.beta) == (
        expected.surrogate,
        expected.level,
        expected.weight,
        expected.beta,
    )
    away = made.divergence(torch.tensor([-1.0]), torch.zeros(1))
    assert away == 1.0
    assert made.correction(torch.zeros(2, 3), batch(1.0, 0.0).with_(old_logprobs=torch.full((2, 3), 9.0))).max() == 3.0


def test_a_kl_added_to_a_preset_is_multiplied_with_the_ratio_where_that_is_right():
    assert objective_of(recipe("train.objective={name='dapo', beta=0.1}")).kl_ratio
    assert not objective_of(recipe("train.objective={name='dapo', beta=0.1, divergence='k2'}")).kl_ratio
    assert not objective_of(recipe("train.objective={name='dapo', beta=0.1, kl_ratio=false}")).kl_ratio
    assert not objective_of(recipe("train.objective={name='grpo', beta=0.1}")).kl_ratio
    for divergence, right in (("k1", True), ("k2", False), ("abs", False)):
        options = f"beta=0.1, divergence='{divergence}'"
        assert objective_of(recipe(f"train.objective={{name='gspo', {options}}}")).kl_ratio == right
        assert not objective_of(recipe(f"train.objective={{name='grpo', {options}}}")).kl_ratio


def test_a_setting_in_the_recipe_overrides_a_convention():
    changes = "train.objective={name='grpo', kl_ratio=false, log_ratio_clamp=5.0}"
    written = objective_of(recipe("train.compat=trl", changes))
    assert (written.kl_ratio, written.log_ratio_clamp) == (False, 5.0)
    left = objective_of(recipe("train.compat=trl"))
    assert (left.kl_ratio, left.log_ratio_clamp) == (True, float("inf"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train.objective={name='target', rule='powr'}"], 'rule "powr" is not one of'),
        (["train.objective={name='tpo', eta=0.0}"], "eta must be above 0"),
        (["train.objective={name='grpo', beta={start=0.0, target=0.1}}"], "start must be a number above 0"),
        (["train.objective={name='grpo', correction={name='truncate', low=5.0, high=1.0}}"], "low <= high"),
        (["train.objective={name='grpo', surrogate={name='clip', low='x', high=0.2}}"], "low must be a number from 0"),
        (["train.stop={name='first_of'}"], "give at least one of"),
        (["train.advantage={name='pass_at_k', k=1}"], "k must be at least 2"),
        (["train.objective=ppo", "train.advantage={name='gae', ddof=2}"], "train.advantage: ddof must be 0 or 1"),
        (["train.kl_in_reward={name='k1', beta={start=0.0, target=0.1}}"], "start must be a number above 0"),
    ],
)
def test_wrong_options_of_pieces_are_reported_before_anything_is_loaded(overrides, said):
    (mistake,) = piece_mistakes(recipe(*overrides))
    assert said in mistake


def test_a_custom_piece_with_other_parameters_is_refused(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("def three(log_ratio, logprobs, advantages):\n    return advantages\n")
    with pytest.raises(UserError, match="it will be called with log_ratio, logprobs, advantages, batch"):
        recipe(f"train.objective={{name='grpo', surrogate='{path}:three'}}")


def test_a_table_makes_a_coefficient_that_follows_a_target():
    made = objective_of(recipe("train.objective={name='grpo', beta={start=0.1, target=0.2}}"))
    assert isinstance(made.beta, AdaptiveCoefficient)
    taken_off = penalty_of(recipe("train.kl_in_reward={name='k1', beta={start=0.1, target=0.2}}"))
    assert isinstance(taken_off, AdaptiveCoefficient)
    assert penalty_of(recipe("train.kl_in_reward={name='k1', beta=0.3}")) == 0.3


def test_kl_is_subtracted_before_the_estimator_and_truncated_answers_are_masked_after_it():
    asked = recipe(
        "train.kl_in_reward={name='k1', beta=1.0}", "train.mask_truncated=true", "train.advantage=group_centred"
    )
    advantage = advantage_of(asked, penalty_of(asked))
    assert requirements_of(advantage).reference
    given = batch(1.0, 0.0, 0.0)
    apart = torch.zeros(3, 3)
    apart[0, 1] = 0.5  # of one token of the first answer
    done = advantage(given.with_(old_logprobs=apart, ref_logprobs=torch.zeros(3, 3)))
    torch.testing.assert_close(done.advantages[:, 1], torch.tensor([0.5 - 0.5 / 3, -0.5 / 3, 0.0]))
    assert done.loss_mask.any(1).tolist() == [True, True, False]
    assert done.totals.sequences == 2


@pytest.mark.parametrize("name", BASELINES)
def test_kl_is_subtracted_after_the_baseline_on_request(name):
    """The second answer has no divergence, and gets the plain advantage: the KL of the first is in no mean."""
    written = "train.kl_in_reward={name='k1', beta=0.1, after_baseline=true}"
    asked = recipe(written, f"train.advantage={name}")
    given = batch(1.0, 0.0, 0.0)
    apart = torch.zeros(3, 3)
    apart[0, 1:] = torch.tensor([0.5, 0.25])
    given = given.with_(old_logprobs=apart, ref_logprobs=torch.zeros(3, 3))
    found = advantage_of(asked, penalty_of(asked))(given).advantages
    if name == "reinforce_pp_baseline":  # (r - μ) - .1 · (k to come), whitened
        plain = torch.tensor([[2 / 3 - 0.075, 2 / 3 - 0.025], [-1 / 3, -1 / 3], [-1 / 3, -1 / 3]])
        expected = (plain - plain.mean()) / plain.std()
    else:
        expected = advantage_of(recipe(f"train.advantage={name}"))(given).advantages[:, 1:].clone()
        expected[0] -= torch.tensor([0.075, 0.025])
    torch.testing.assert_close(found[:, 1:], expected)


def test_every_advantage_with_a_baseline_takes_rewards_and_groups():
    for name in set(BASELINES) - {"reinforce_pp_baseline"}:
        assert signature_of(ADVANTAGES[name]).parameters[:2] == ("rewards", "group")


def test_the_weight_of_the_critics_errors_is_a_named_piece(tmp_path):
    tiny_model(tmp_path / "model")
    policy = Policy.load(tmp_path / "model")
    for written, value in (("'sequence_sum'", 1 / 3), ("{name='constant', length=4}", 1 / 12), ("'constant'", 1 / 30)):
        settings = ["train.objective=ppo", f"train.critic={{name='head', weight={written}}}", "sampling.max_tokens=10"]
        critic = critic_of(recipe(*settings), policy)
        assert critic is not None
        assert critic.weight is not None
        assert critic.weight(batch(1.0, 0.0, 0.0)) == pytest.approx(value)
    plain = critic_of(recipe("train.objective=ppo"), policy)
    assert plain is not None
    assert plain.weight is None


def test_bypass_takes_the_ratio_to_the_engine():
    objective = objective_of(recipe("train.objective={name='ppo', bypass=true}", "train.compat=verl"))
    assert objective.bypass
    assert objective.surrogate.dual == 3.0


def test_the_schedule_of_the_policy_ends_with_the_run_although_the_critic_learns_alone_at_first():
    options = ["steps=10", "train.passes=2", "train.minibatches=3", "optim.schedule=linear"]
    critic = ["train.objective=ppo", "train.critic={name='head', warmup=4}"]
    assert optimiser_of(recipe(*options)).total == 60
    assert optimiser_of(recipe(*options, *critic)).total == 36
    assert optimiser_of(recipe(*options, critic[1])).total == 60  # grpo has no critic


def test_openrlhf_whitens_with_the_divisor_n():
    plain, theirs = (
        advantage_of(recipe(f"train.compat={library}", "train.advantage=reinforce_pp"))(batch(1.0, 0.0)).advantages
        for library in ("outdo", "openrlhf")
    )
    torch.testing.assert_close(theirs, plain * (4 / 3) ** 0.5)
    written = recipe("train.compat=openrlhf", "train.advantage={name='reinforce_pp', ddof=1}")
    torch.testing.assert_close(advantage_of(written)(batch(1.0, 0.0)).advantages, plain)
    assert "advantage: reinforce_pp (gamma = 1.0, ddof = 1)" in describe_method(written)


def test_the_conventions_of_another_library_apply_to_objective_and_advantage():
    objective = objective_of(recipe("train.compat=verl", "train.objective.beta=0"))
    assert isinstance(objective.surrogate, Clip)
    assert (objective.surrogate.dual, objective.weight) == (3.0, token_mean)
    rewards, group = torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.int64)
    for peer, eps in {"trl": 1e-4, "verl": 1e-6, "openrlhf": 1e-9, "areal": 1e-5}.items():
        filled = advantage_of(recipe(f"train.compat={peer}"))(batch(1.0, 0.0)).advantages
        torch.testing.assert_close(filled[:, 1], group_standardised(rewards, group, eps=eps), rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------------ a user's own

OWN = """
import torch


def best_only(rewards, group):  # an advantage
    best = torch.stack([rewards[group == g].max() for g in group])
    return (rewards == best).float()


def by_length(batch):  # an advantage that looks at the batch
    return batch.with_(advantages=-batch.loss_mask.sum(1, keepdim=True) * batch.loss_mask.float())
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return str(path)


def test_a_custom_advantage_may_take_rewards_or_the_batch(own):
    best = advantage_of(recipe(f"train.advantage={own}:best_only"))(batch(1.0, 0.0))
    assert best.advantages.amax(1).tolist() == [1.0, 0.0]
    length = advantage_of(recipe(f"train.advantage={own}:by_length"))(batch(1.0, 0.0))
    assert length.advantages[:, 1].tolist() == [-2.0, -2.0]


def test_a_recipe_with_pieces_of_all_kinds_is_written_and_read_again(tmp_path):
    asked = recipe(
        "train.objective={name='gspo', correction={name='mask', high=3.0}, beta={start=0.1, target=0.2}}",
        "train.kl_in_reward={name='k1', beta=0.1}",
        "train.critic={name='head', lr=1e-3}",
        "train.stop={name='first_of', attained=0.9}",
        "rewards=['exact', {name='overlong', weight=0.5, cache=16}]",
    )
    path = tmp_path / "recipe.toml"
    path.write_text(dump(asked))
    assert load(path) == asked


def test_every_piece_is_listed_with_its_options_and_the_required_ones():
    listed = "\n".join(list_pieces())
    for table in (OBJECTIVES, ADVANTAGES, CRITICS, STOPS, *COMPOSED_PIECES.values()):
        for name in table:
            assert f"\n    {name}" in listed
    assert "    dapo                  clip_low = 0.2, clip_high = 0.28\n" in listed
    assert "    dr_grpo               length = ?" in listed
    told = describe_method(recipe("train.objective=dr_grpo", "sampling.max_tokens=77"))
    assert told[0] == "objective: dr_grpo (length = 77, clip_low = 0.2, clip_high = 0.2)"


def test_the_bounds_of_a_replaced_surrogate_are_not_shown():
    higher = "train.objective={name = 'grpo', beta = 0.1, surrogate = {name = 'clip', low = 0.2, high = 0.28}}"
    shown = "objective: grpo (beta = 0.1, surrogate = {'name': 'clip', 'low': 0.2, 'high': 0.28})"
    assert describe_method(recipe(higher))[0] == shown
