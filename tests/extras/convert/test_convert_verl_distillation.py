"""verl's distillation becomes teachers, with the loss of its formula."""

import tomllib
from itertools import product

import pytest
import torch
from odd_values import ODD
from toys import batch_of, rollout

from outdo.config.file import load
from outdo.extras.convert.account import table_of
from outdo.extras.convert.verl import ACTOR, MODEL, convert_verl
from outdo.extras.convert.verl_distillation import DIVERGENCES, SIGNED
from outdo.extras.convert.verl_names import DISTILLATION, TEACHERS
from outdo.extras.convert.written import written_recipe
from outdo.run.assemble.method import advantage_of, objective_of
from outdo.types import TokenScores

ONE = {f"{TEACHERS}.teacher_model.model_path": "t"}
NEEDED = {f"{MODEL}.path": "m", "data.train_files": "gsm8k/x.parquet", "distillation.enabled": True}
NEEDED |= {"actor_rollout_ref.rollout.n": 4, "algorithm.adv_estimator": "grpo"}
ALONE = NEEDED | ONE | {f"{DISTILLATION}.use_task_rewards": False}
AS_ADVANTAGE = {f"{DISTILLATION}.loss_mode": "k1", f"{DISTILLATION}.use_policy_gradient": True}


def recipe_of(written, folder):
    conversion = convert_verl(written)
    assert conversion.mistakes == []
    path = folder / "recipe.toml"
    path.write_text(written_recipe(conversion, "Converted."), encoding="utf-8")
    return load(path)


def said(written, name):
    return [remark for remark in convert_verl(written).remarks if remark.startswith(name)]


def made_up():
    """Return a batch with log-probabilities of π_old and of a teacher, and log π near π_old. [B, T]"""
    random = torch.Generator().manual_seed(3)
    batch = batch_of([rollout(4, 1.0), rollout(2, 0.0)], [rollout(3, 0.5), rollout(1, 1.0)])
    old, teacher, moved = (torch.randn(batch.token_ids.shape, generator=random) for _ in range(3))
    old, teacher = -old.abs(), -teacher.abs()
    batch = batch.with_(old_logprobs=old, ref_logprobs=teacher, teacher_logprobs=teacher)
    return batch, (old + 0.2 * moved).requires_grad_()


def loss_of(recipe, batch, logprobs):
    objective = objective_of(recipe)
    return objective(TokenScores(logprobs=logprobs, sums={}), objective.prepare(advantage_of(recipe)(batch))).loss


@pytest.mark.parametrize("mode", [mode for mode in DIVERGENCES if mode not in SIGNED])
def test_an_estimate_of_the_kl_is_a_term_with_the_teacher_as_reference(mode, tmp_path):
    recipe = recipe_of(ALONE | {f"{DISTILLATION}.loss_mode": mode}, tmp_path)
    assert (recipe.reference.model, recipe.teachers) == ("t", ())
    batch, logprobs = made_up()
    d = logprobs - batch.ref_logprobs
    estimate = {"k1": d, "k2": d**2 / 2, "abs": d.abs(), "k3": ((-d).exp() - 1 + d).clamp(-10, 10)}[DIVERGENCES[mode]]
    expected = estimate.where(batch.loss_mask, 0.0).sum() / batch.loss_mask.sum()
    torch.testing.assert_close(loss_of(recipe, batch, logprobs), expected)


def test_the_sampled_token_as_advantage_is_clipped_as_the_loss_of_ppo(tmp_path):
    recipe = recipe_of(ALONE | AS_ADVANTAGE | {f"{DISTILLATION}.clip_ratio_low": 0.1}, tmp_path)
    batch, logprobs = made_up()
    advantage, ratio = batch.teacher_logprobs - batch.old_logprobs, (logprobs - batch.old_logprobs).exp()
    least = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.2))
    least = torch.where(advantage < 0, torch.minimum(least, -3 * advantage), least)  # verl's dual clip
    expected = least.where(batch.loss_mask, 0.0).sum() / batch.loss_mask.sum()
    torch.testing.assert_close(loss_of(recipe, batch, logprobs), expected)


def test_the_teachers_first_tokens_are_a_divergence_over_the_vocabulary(tmp_path):
    written = ALONE | {f"{DISTILLATION}.loss_mode": "forward_kl_topk_tail", f"{DISTILLATION}.topk": 8}
    recipe = recipe_of(written | {f"{TEACHERS}.teacher_model.inference.temperature": 0.5}, tmp_path)
    divergence = {"name": "forward_kl", "top": 8, "teacher_temperature": 0.5}
    assert recipe.train.objective.options == {"teacher_divergence": divergence, "weight": "token_mean"}
    assert (recipe.train.objective.name, [teacher.model for teacher in recipe.teachers]) == ("gkd", ["t"])
    assert not said(written, f"{DISTILLATION}.loss_mode")
    assert said(written | {f"{DISTILLATION}.loss_mode": "forward_kl_topk"}, f"{DISTILLATION}.loss_mode")


def test_beside_the_rewards_the_advantage_is_a_sum_and_the_optimiser_allows_for_it(tmp_path):
    written = NEEDED | ONE | AS_ADVANTAGE | {f"{DISTILLATION}.distillation_loss_coef": 0.5}
    recipe = recipe_of(written, tmp_path)
    assert recipe.train.advantage.model_dump() == {"name": "mopd", "alpha": 2.0}
    assert (recipe.optim.clip_norm, recipe.optim.algorithm.options["eps"]) == (2.0, 2e-8)
    other = written | {"algorithm.adv_estimator": "gae", f"{DISTILLATION}.clip_ratio_high": 0.3}
    assert "standardised in their group" in said(other, "algorithm.adv_estimator")[0]
    assert "clips both losses as one" in said(other, f"{DISTILLATION}.clip_ratio_high")[0]
    assert recipe_of(other, tmp_path).train.critic is None


def test_the_reference_is_the_teacher_or_what_it_was(tmp_path):
    written = NEEDED | ONE | {f"{DISTILLATION}.distillation_loss_coef": 0.3, f"{ACTOR}.use_kl_loss": True}
    assert "one reference" in said(written, f"{ACTOR}.use_kl_loss")[0]
    recipe = recipe_of(written, tmp_path)
    assert (recipe.train.objective.options["beta"], recipe.train.objective.options["divergence"]) == (0.3, "k3")


def test_verl_drops_its_first_teacher_beside_others(tmp_path):
    several = {f"{TEACHERS}.{name}.{what}": f"{name}-{what}" for name in ("a", "b") for what in ("key", "model_path")}
    recipe = recipe_of(ALONE | several | {f"{DISTILLATION}.loss_mode": "forward_kl_topk"}, tmp_path)
    assert [(teacher.name, teacher.model) for teacher in recipe.teachers] == [
        ("a-key", "a-model_path"),
        ("b-key", "b-model_path"),
    ]
    recipe = recipe_of(ALONE | several, tmp_path)
    assert recipe.train.objective.options["teacher_divergence"] == "reverse_kl"


def test_what_verl_refuses_is_refused():
    modes = [{f"{DISTILLATION}.loss_mode": mode} for mode in ("k1", "jsd")]
    assert [convert_verl(ALONE | mode).mistakes[0].partition(":")[2] for mode in modes] == [
        " verl has it only with use_policy_gradient = true",
        f" expected {', '.join(DIVERGENCES)}, forward_kl_topk, forward_kl_topk_tail",
    ]
    assert convert_verl(NEEDED).incomplete[0].startswith("teachers: the model that the policy learns from")


def test_earlier_names_are_read_and_without_the_switch_nothing_is(tmp_path):
    earlier = NEEDED | {"distillation.teacher_model.model_path": "t", f"{DISTILLATION}.use_policy_loss": False}
    assert convert_verl(earlier).settings == convert_verl(ALONE).settings
    off = convert_verl(ALONE | {"distillation.enabled": False})
    assert "teachers" not in off.settings
    assert "reference.model" not in off.settings
    assert any("distillation.enabled" in heading for heading in off.asides)


@pytest.mark.parametrize("branch", [{}, AS_ADVANTAGE, {f"{DISTILLATION}.loss_mode": "forward_kl_topk"}])
def test_an_odd_value_of_distillation_is_a_mistake_or_a_recipe(branch):
    names = [f"{DISTILLATION}.{name}" for name in table_of("verl")["defaults"]["distillation"]["distillation_loss"]]
    further = ("inference.temperature", "key", "model_path")
    names += ["distillation.enabled", "distillation.teacher_key", f"{DISTILLATION}.loss_max_clamp"]
    names += [f"{TEACHERS}.{teacher}.{name}" for teacher in ("teacher_model", "a", "b") for name in further]
    for name, value in product(names, ODD):
        conversion = convert_verl(NEEDED | ONE | branch | {name: value})
        if not conversion.mistakes:
            tomllib.loads(written_recipe(conversion, "Converted."))
        assert name in conversion.account
