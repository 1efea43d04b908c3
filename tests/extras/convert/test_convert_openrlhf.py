"""The flags of OpenRLHF become a recipe with its numbers, and the loss of its formula."""

from pathlib import Path
from typing import Any

import pytest
import torch
from toys import batch_of, rollout

from outdo.config.file import load
from outdo.extras.convert.conversion import written_recipe
from outdo.extras.convert.openrlhf import ADVANTAGES, convert_openrlhf
from outdo.extras.convert.reading import openrlhf_settings
from outdo.run.build.method import advantage_of, objective_of
from outdo.types import TokenScores

NEEDED = {"pretrain": "m", "prompt_data": "x.jsonl", "advantage_estimator": "group_norm", "n_samples_per_prompt": 4}


def recipe_of(written: dict[str, Any], folder: Path, **options: Any) -> Any:
    conversion = convert_openrlhf(written, **options)
    assert conversion.mistakes == []
    path = folder / "recipe.toml"
    path.write_text(written_recipe(conversion, "Converted."), encoding="utf-8")
    return load(path)


@pytest.mark.parametrize("estimator", ["gae", *ADVANTAGES])
@pytest.mark.parametrize("more", [{}, {"use_kl_loss": True, "kl_estimator": "k3"}, {"policy_loss_type": "gspo"}])
def test_every_method_loads(estimator: str, more: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(NEEDED | {"advantage_estimator": estimator} | more, tmp_path)
    assert (recipe.train.kl_in_reward is None) == ("use_kl_loss" in more)
    assert recipe.train.compat == "openrlhf"


def test_flags_and_scripts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        'ray job submit --address="http://127.0.0.1:8265" \\\n  --runtime-env-json=\'{"working_dir": "/w"}\' \\\n'
        "  -- python3 -m openrlhf.cli.train_ppo_ray \\\n  --pretrain m --use_kl_loss \\\n"
        "  --adam_betas 0.9 0.98 \\\n  --init_kl_coef 1e-3\n",
        encoding="utf-8",
    )
    written, remarks = openrlhf_settings(path, ["--eps-clip=0.3"])
    assert written == {
        "pretrain": "m",
        "use_kl_loss": True,
        "adam_betas": [0.9, 0.98],
        "init_kl_coef": 1e-3,
        "eps_clip": 0.3,
    }
    assert remarks == []


def test_mistakes_are_reported_at_once() -> None:
    written = NEEDED | {"n_samples_per_promt": 4, "policy_loss_type": "dpo", "train_batch_size": 300}
    assert convert_openrlhf(written).mistakes == [
        "train_batch_size = 300: does not divide the 4096 answers of a batch",
        "policy_loss_type = dpo: expected ppo or gspo",
        "n_samples_per_promt: OpenRLHF has no such setting; did you mean n_samples_per_prompt?",
    ]


def remark_about(name: str, written: dict[str, Any]) -> str:
    """Return what is said of a setting; nothing is an empty text."""
    remarks = [each for each in convert_openrlhf(written).remarks if each.startswith(f"{name} = ")]
    return "".join(remarks)


@pytest.mark.parametrize(("more", "answers"), [({}, 512), ({"n_samples_per_prompt": 4}, 2048)])
def test_the_adaptive_kl_is_steered_by_the_answers_of_a_batch(
    more: dict[str, Any], answers: int, tmp_path: Path
) -> None:
    written = {"pretrain": "m", "prompt_data": "x.jsonl", "rollout_batch_size": 512, "kl_target": 0.1} | more
    beta = recipe_of(written, tmp_path).train.kl_in_reward.options["beta"]
    assert beta == {"start": 0.01, "target": 0.1, "rate": answers / 10_000}


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo"])
def test_no_advantage_std_norm_changes_no_method_for_which_openrlhf_does_not_read_it(
    estimator: str, tmp_path: Path
) -> None:
    written = NEEDED | {"advantage_estimator": estimator, "no_advantage_std_norm": True}
    assert recipe_of(written, tmp_path).train.advantage.name == ADVANTAGES[estimator]
    assert f"OpenRLHF does not read it with {estimator}" in remark_about("no_advantage_std_norm", written)


@pytest.mark.parametrize("estimator", ["reinforce", "reinforce_baseline"])
def test_a_deviation_that_outdo_always_divides_by_is_reported(estimator: str, tmp_path: Path) -> None:
    written = NEEDED | {"advantage_estimator": estimator, "no_advantage_std_norm": True}
    assert recipe_of(written, tmp_path).train.advantage.name == ADVANTAGES[estimator]
    always = f"{ADVANTAGES[estimator]} of outdo always divides by their deviation too"
    assert always in remark_about("no_advantage_std_norm", written)
    assert remark_about("no_advantage_std_norm", written | {"no_advantage_std_norm": False}) == ""


def test_gae_without_the_deviation_is_not_whitened(tmp_path: Path) -> None:
    written = NEEDED | {"advantage_estimator": "gae", "no_advantage_std_norm": True}
    assert recipe_of(written, tmp_path).train.advantage.options["whiten"] is False
    assert "whiten = false of the recipe leaves that out too" in remark_about("no_advantage_std_norm", written)


def test_a_critic_that_starts_from_another_model_than_in_openrlhf_is_reported(tmp_path: Path) -> None:
    gae = NEEDED | {"advantage_estimator": "gae"}
    scored = gae | {"reward_pretrain": "scorer"}
    assert "starts from the reward model scorer, outdo's from the policy" in remark_about("critic_pretrain", scored)
    for same in (gae, scored | {"remote_rm_url": "f.py"}, scored | {"agent_func_path": "a.py"}):
        assert remark_about("critic_pretrain", same) == ""
    assert "path" not in recipe_of(scored, tmp_path).train.critic.options


def test_the_path_of_a_critic_has_to_be_a_language_model(tmp_path: Path) -> None:
    written = NEEDED | {"advantage_estimator": "gae", "critic_pretrain": "scorer"}
    assert recipe_of(written, tmp_path).train.critic.options["path"] == "scorer"
    assert "causal language model with the policy's vocabulary" in remark_about("critic_pretrain", written)
    assert remark_about("critic_pretrain", written | {"critic_pretrain": "m"}) == ""


def test_several_data_sets_become_a_list_and_their_probabilities_weights(tmp_path: Path) -> None:
    several = NEEDED | {"prompt_data": "a/b, c.jsonl", "eval_dataset": "d/e,f/g", "eval_split": "test"}
    recipe = recipe_of(several, tmp_path)
    assert [(each.path, each.weight) for each in recipe.data.path] == [("a/b:train", None), ("c.jsonl", None)]
    assert [each.path for each in recipe.data.eval_path] == ["d/e:test", "f/g:test"]
    recipe = recipe_of(several | {"prompt_data_probs": "0.75,0.25"}, tmp_path)
    assert [(each.path, each.weight) for each in recipe.data.path] == [("a/b:train", 0.75), ("c.jsonl", 0.25)]
    assert "OpenRLHF each and all of them together" in remark_about("max_samples", several | {"max_samples": 100})


@pytest.mark.parametrize("probabilities", ["0.5", "0.5,x", "1,0", "nan,1", True])
def test_probabilities_that_do_not_fit_the_data_sets_are_a_mistake(probabilities: Any) -> None:
    written = NEEDED | {"prompt_data": "a/b,c/d", "prompt_data_probs": probabilities}
    assert [each.partition(", one")[0].partition(": ")[2] for each in convert_openrlhf(written).mistakes] == [
        "expected 2 numbers above 0 with commas between them"
    ]


def test_the_probability_of_one_data_set_is_told_to_have_no_effect(tmp_path: Path) -> None:
    written = NEEDED | {"prompt_data_probs": "1.0"}
    assert [each.path for each in recipe_of(written, tmp_path).data.path] == ["x.jsonl"]
    assert remark_about("prompt_data_probs", written) == "prompt_data_probs = 1.0: it has no effect with one data set"


def loss_of_openrlhf(case: dict[str, torch.Tensor], given: dict[str, Any]) -> torch.Tensor:
    """GRPO of OpenRLHF, written from its source.

    `compute_advantages` of openrlhf/trainer/ppo_utils/experience_maker.py: (r - mean) / (std + 1e-9) in each group.
    `PolicyLoss` and `compute_approx_kl` of openrlhf/models: max of the two products, log ρ clamped to ±20, a mean over
    all tokens; k3 or k2 within ±10, a mean over all tokens, times init_kl_coef.
    """
    rewards, mask = case["rewards"].view(-1, 4), case["mask"]
    advantage = rewards - rewards.mean(1, keepdim=True)
    if given["advantage_estimator"] == "group_norm":
        advantage = advantage / (rewards.std(1, keepdim=True) + 1e-9)
    advantage = advantage.view(-1, 1)
    low, high = given.get("eps_clip_low_high", (0.2, 0.2))
    ratio = (case["now"] - case["old"]).clamp(-20, 20).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
    if "dual_clip" in given:
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * given["dual_clip"]), loss)
    d = case["now"] - case["ref"]
    kl = {"k1": d, "k2": d.square() / 2, "k3": (-d).exp() - 1 + d}[given["kl_estimator"]].clamp(-10, 10)
    return ((loss + given["init_kl_coef"] * kl) * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    "given",
    [
        {"advantage_estimator": "group_norm", "kl_estimator": "k3", "init_kl_coef": 1e-2},
        {"advantage_estimator": "dr_grpo", "kl_estimator": "k2", "init_kl_coef": 0.1, "eps_clip_low_high": [0.2, 0.28]},
        {"advantage_estimator": "group_norm", "kl_estimator": "k1", "init_kl_coef": 0.1, "dual_clip": 2.0},
    ],
    ids=["group_norm", "dr_grpo", "dual_clip"],
)
def test_the_recipe_has_the_loss_of_openrlhfs_formula(given: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(NEEDED | given | {"use_kl_loss": True}, tmp_path)
    random = torch.Generator().manual_seed(4)
    batch = batch_of(
        [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(6, 0.0)],
        [rollout(2, 0.0), rollout(5, 1.0), rollout(3, 0.0), rollout(1, 1.0)],
    )

    def normal() -> torch.Tensor:
        return torch.randn(batch.token_ids.shape, generator=random)

    old = -normal().abs()
    case = {"old": old, "now": old + 0.6 * normal(), "rewards": batch.rewards, "mask": batch.loss_mask.float()}
    case["now"][:, 2] += 4.0  # far enough for the dual clip
    case["ref"] = case["now"] + 0.8 * normal()
    batch = batch.with_(old_logprobs=old, ref_logprobs=case["ref"], rollout_logprobs=old)
    mine, its = (case["now"].clone().requires_grad_() for _ in range(2))
    objective: Any = objective_of(recipe)
    ours = objective(TokenScores(logprobs=mine), objective.prepare(advantage_of(recipe)(batch))).loss
    theirs = loss_of_openrlhf(case | {"now": its}, given)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    (gradient,), (expected,) = torch.autograd.grad(ours, mine), torch.autograd.grad(theirs, its)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert expected.abs().max() > 1e-3
