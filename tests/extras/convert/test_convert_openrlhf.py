"""The flags of OpenRLHF become a recipe with its numbers, and the loss of its formula."""

from pathlib import Path
from typing import Any

import pytest
import torch
from toys import batch_of, rollout

from outdo.algorithms.objectives.weights import sequence_mean, token_mean
from outdo.config.file import load
from outdo.extras.convert.account import table_of
from outdo.extras.convert.openrlhf import ADVANTAGES, convert_openrlhf
from outdo.extras.convert.sources import read_openrlhf
from outdo.extras.convert.written import written_recipe
from outdo.run.assemble.method import advantage_of, objective_of
from outdo.types import TokenScores

NEEDED = {"pretrain": "m", "prompt_data": "x.jsonl", "advantage_estimator": "group_norm", "n_samples_per_prompt": 4}
NEEDED |= {"reward_pretrain": "rm"}


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
    reading = read_openrlhf(path, ["--eps-clip=0.3"])
    assert reading.written == {
        "pretrain": "m",
        "use_kl_loss": True,
        "adam_betas": [0.9, 0.98],
        "init_kl_coef": 1e-3,
        "eps_clip": 0.3,
    }
    assert (reading.remarks, reading.unread, reading.missing) == ([], {}, [])


def test_mistakes_are_reported_at_once() -> None:
    written = NEEDED | {"actor_learning_rte": 1e-6, "policy_loss_type": "dpo", "train_batch_size": 300}
    assert convert_openrlhf(written).mistakes == [
        "train_batch_size = 300: does not divide the 4096 answers of a batch",
        "policy_loss_type = dpo: expected ppo or gspo",
        "actor_learning_rte: OpenRLHF has no such setting; did you mean actor_learning_rate?",
    ]


def remark_about(name: str, written: dict[str, Any]) -> str:
    """Return what is said of a setting; nothing is an empty text."""
    remarks = [each for each in convert_openrlhf(written).remarks if each.startswith(f"{name} = ")]
    return "".join(remarks)


@pytest.mark.parametrize(("more", "answers"), [({}, 512), ({"n_samples_per_prompt": 4}, 2048)])
def test_the_adaptive_kl_is_steered_by_the_answers_of_a_batch(
    more: dict[str, Any], answers: int, tmp_path: Path
) -> None:
    written = {"pretrain": "m", "prompt_data": "x.jsonl", "reward_pretrain": "rm", "rollout_batch_size": 512}
    written |= {"kl_target": 0.1} | more
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
    gae = {name: value for name, value in NEEDED.items() if name != "reward_pretrain"} | {"advantage_estimator": "gae"}
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
    case["ref"][:, 1] += 4.0  # far enough for the limit of each k
    batch = batch.with_(old_logprobs=old, ref_logprobs=case["ref"], rollout_logprobs=old)
    mine, its = (case["now"].clone().requires_grad_() for _ in range(2))
    objective: Any = objective_of(recipe)
    ours = objective(TokenScores(logprobs=mine), objective.prepare(advantage_of(recipe)(batch))).loss
    theirs = loss_of_openrlhf(case | {"now": its}, given)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    (gradient,), (expected,) = torch.autograd.grad(ours, mine), torch.autograd.grad(theirs, its)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert expected.abs().max() > 1e-3


def test_the_names_since_0_10_mean_what_the_earlier_ones_mean(tmp_path: Path) -> None:
    table = table_of("openrlhf")
    earlier = {
        "pretrain": "m",
        "prompt_data": "openai/gsm8k@main",
        "rollout_batch_size": 128,
        "n_samples_per_prompt": 8,
        "train_batch_size": 512,
        "advantage_estimator": "group_norm",
        "use_kl_loss": True,
        "init_kl_coef": 1e-3,
        "kl_estimator": "k3",
        "actor_learning_rate": 5e-7,
        "eps_clip_low_high": [0.2, 0.28],
        "max_new_tokens": 512,
        "apply_chat_template": True,
        "bf16": True,
        "lora_rank": 8,
        "use_wandb": "KEY",
    }
    later = {table["renamed"].get(name, name): value for name, value in earlier.items() if name != "bf16"}
    before, after = convert_openrlhf(earlier, rows=1000), convert_openrlhf(later, rows=1000)
    assert before.mistakes == after.mistakes == []
    assert before.settings.pop("data.max_prompt_tokens") == 1024  # the limit that later versions do not have
    assert after.settings == before.settings
    assert after.settings["data.path"] == "openai/gsm8k/main:train"
    assert after.settings["precision"] == "bfloat16"
    assert after.remarks == [
        "train.batch_size = 512: OpenRLHF divides the answers into minibatches, outdo keeps groups whole",
        'actor.lr_scheduler = "cosine_with_min_lr": '
        "OpenRLHF's cosine ends at 0.1 times the learning rate, outdo's at 0",
    ]


def test_a_flag_of_fsdp_is_read_as_that_of_deepspeed() -> None:
    conversion = convert_openrlhf({"fsdp.param_dtype": "bf16", "fsdp.lora.rank": 8, "actor.model_name_or_path": "m"})
    assert conversion.settings["precision"] == "bfloat16"
    assert conversion.settings["train.adapter"]["rank"] == 8


def test_mistakes_have_the_names_that_are_written() -> None:
    written = {"data.prompt_dataset": "x.jsonl", "train.batch_size": 300, "rollout.n_samples_per_promt": 4}
    assert convert_openrlhf(written).mistakes == [
        "train.batch_size = 300: does not divide the 1024 answers of a batch",
        "rollout.n_samples_per_promt: OpenRLHF has no such setting; did you mean rollout.n_samples_per_prompt?",
    ]


def test_an_answer_without_a_limit_of_its_own_has_that_of_prompt_and_answer(tmp_path: Path) -> None:
    written = {"actor.model_name_or_path": "m", "data.prompt_dataset": "x.jsonl", "reward.model_name_or_path": "rm"}
    recipe = recipe_of(written, tmp_path)
    assert recipe.sampling.max_tokens == 2048
    said = convert_openrlhf({"data.max_len": 4096}).remarks
    assert any(each.startswith("data.max_len = 4096: OpenRLHF limits prompt and answer together") for each in said)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"enable_vllm_is_correction": True}, {"name": "truncate", "low": 0.0, "high": 2.0}),
        (
            {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": 3},
            {"name": "truncate", "low": 0.0, "high": 3.0},
        ),
        ({"algo.advantage.is_correction_enable": True}, {"name": "truncate", "low": 0.5, "high": 5.0}),
        (
            {
                "enable_vllm_is_correction": True,
                "vllm_is_truncated_threshold": [0.5, 5.0],
                "use_icepop": True,
            },
            {"name": "mask", "low": 0.5, "high": 5.0},
        ),
        (
            {"algo.advantage.is_correction_enable": True, "algo.advantage.is_correction_type": "icepop"},
            {"name": "mask", "low": 0.5, "high": 5.0},
        ),
        ({"algo.advantage.is_correction_level": "token"}, {"name": "mask", "low": 0.5, "high": 5.0}),
        (
            {
                "algo.advantage.is_correction_level": "token",
                "algo.advantage.is_correction_mode": "clip",
                "algo.advantage.is_correction_threshold": 4,
            },
            {"name": "truncate", "low": 0.0, "high": 4.0},
        ),
        ({"algo.advantage.is_correction_level": "seq"}, {"name": "sequence_mask", "low": 0.5, "high": 5.0}),
    ],
)
def test_the_correction_of_each_version(flags: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    names = table_of("openrlhf")["renamed"] if any("." in name for name in flags) else {}
    recipe = recipe_of({names.get(name, name): value for name, value in NEEDED.items()} | flags, tmp_path)
    assert recipe.train.objective.options["correction"] == expected
    objective_of(recipe)


def test_the_mean_over_answers_and_the_unbiased_gradient_are_not_undone_by_compat(tmp_path: Path) -> None:
    """`compat("openrlhf")` has the loss of earlier versions: a mean over tokens, and a KL without the ratio."""
    flags = {"use_kl_loss": True, "loss_agg_mode": "seq-mean-token-mean", "unbiased_gradient": True}
    objective: Any = objective_of(recipe_of(NEEDED | flags, tmp_path))
    assert objective.weight is sequence_mean
    assert objective.kl_ratio
    assert objective.divergence_weight is token_mean  # of its KL alone


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_unbiased_gradient_of_the_kl_is_that_of_openrlhfs_formula(estimator: str, tmp_path: Path) -> None:
    """`compute_approx_kl` of OpenRLHF 0.11: for each estimator the gradient of ρ d² / 2, with ρ as a constant."""
    flags = {"use_kl_loss": True, "kl_estimator": estimator, "unbiased_gradient": True, "init_kl_coef": 0.5}
    objective: Any = objective_of(recipe_of(NEEDED | flags, tmp_path))
    batch = batch_of([rollout(4, 0.0), rollout(1, 0.0)], [rollout(2, 0.0), rollout(5, 0.0)])
    random = torch.Generator().manual_seed(5)
    old, step, apart = (torch.randn(batch.token_ids.shape, generator=random) for _ in range(3))
    now = (old + 0.3 * step).requires_grad_()
    batch = batch.with_(old_logprobs=old, ref_logprobs=old + apart, rollout_logprobs=old)
    batch = batch.with_(advantages=torch.zeros_like(old))
    (gradient,) = torch.autograd.grad(objective(TokenScores(logprobs=now), batch).loss, now)
    ratio, d = (now - old).exp().detach(), now - batch.ref_logprobs
    theirs = 0.5 * (ratio * d.square() / 2 * batch.loss_mask).sum() / batch.loss_mask.sum()
    (expected,) = torch.autograd.grad(theirs, now)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert expected.abs().max() > 1e-3


def test_several_reward_models_are_several_rewards(tmp_path: Path) -> None:
    recipe = recipe_of(NEEDED | {"reward_pretrain": "first,second"}, tmp_path)
    assert [each.options["path"] for each in recipe.rewards] == ["first", "second"]


def test_a_flag_of_an_earlier_version_is_told_with_the_defaults_that_differ() -> None:
    start = "flash_attn: of OpenRLHF before 0.9, which had other defaults"
    (remark,) = [each for each in convert_openrlhf(NEEDED | {"flash_attn": True}).remarks if each.startswith(start)]
    assert remark.endswith("give them: value_clip = 0.2 (now 0.5), lambd = 0.95 (now 1.0)")


def test_a_cosine_that_ends_above_0_stays_a_cosine() -> None:
    assert convert_openrlhf(NEEDED | {"lr_scheduler": "cosine_with_min_lr"}).settings["optim.schedule"] == "cosine"


def test_an_environment_of_openrlhf_runs_unchanged(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("class Game:\n    def reset(self): ...\n    def step(self): ...\n", encoding="utf-8")
    conversion = convert_openrlhf(NEEDED | {"agent_func_path": str(agent)})
    assert conversion.settings["environment"] == f"{agent}:Game"
    assert any("outdo runs OpenRLHF's environments unchanged" in remark for remark in conversion.remarks)


def test_a_reward_model_does_not_stand_in_for_a_function_that_is_named_beside_it() -> None:
    conversion = convert_openrlhf(NEEDED | {"remote_rm_url": "score.py"})
    assert conversion.settings["rewards"] == "not complete: score.py"
    assert conversion.incomplete == ["rewards: the function or the service score.py of remote_rm_url"]
