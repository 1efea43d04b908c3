"""A configuration of verl becomes a recipe with the numbers of verl, and the loss of its formula."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import batch_of, rollout

from outdo.config.file import load
from outdo.extras.convert.sources import read_verl
from outdo.extras.convert.verl import ACTOR, LOSS, MODEL, OWN_MEAN, WEIGHTS, convert_verl
from outdo.extras.convert.verl_rewards import BUFFER, OTHER_BUFFERS
from outdo.extras.convert.written import written_recipe
from outdo.run.assemble.method import advantage_of, objective_of
from outdo.types import TokenScores
from outdo.utils.errors import UserError

NEEDED = {f"{MODEL}.path": "m", "data.train_files": "gsm8k/x.parquet", "actor_rollout_ref.rollout.n": 4}
GRPO = NEEDED | {"algorithm.adv_estimator": "grpo", "data.train_batch_size": 256}


def recipe_of(written: dict[str, Any], folder: Path, **options: Any) -> Any:
    conversion = convert_verl(written, **options)
    assert conversion.mistakes == []
    path = folder / "recipe.toml"
    path.write_text(written_recipe(conversion, "Converted."), encoding="utf-8")
    return load(path)


@pytest.mark.parametrize("mode", ["vanilla", *OWN_MEAN, "cispo", "clip_cov", "kl_cov", "gpg", "dppo_tv"])
@pytest.mark.parametrize("agg", WEIGHTS)
def test_every_loss_and_mean_loads(mode: str, agg: str, tmp_path: Path) -> None:
    recipe_of(GRPO | {f"{LOSS}.loss_mode": mode, f"{ACTOR}.loss_agg_mode": agg}, tmp_path)


def test_a_default_of_verl_that_is_not_the_one_of_outdo_is_written(tmp_path: Path) -> None:
    recipe = recipe_of(NEEDED, tmp_path, rows=7473)
    assert recipe.data.answer == "reward_model.ground_truth"  # which verl reads, whatever other columns a row has
    assert recipe.train.compat == "verl"
    assert recipe.train.objective.model_dump() == {
        "name": "ppo",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "weight": "token_mean",
    }
    assert recipe.train.advantage.model_dump() == {"name": "gae", "gamma": 1.0, "lam": 1.0}
    assert recipe.train.critic.model_dump() == {"name": "model", "lr": 1e-5, "clip": 0.5}
    assert (recipe.train.prompts, recipe.train.minibatches) == (1024, 4)
    assert recipe.steps == 30 * 7
    assert recipe.sampling.max_tokens == 512
    assert recipe.optim.algorithm.options["weight_decay"] == 0.01


def test_only_clip_ratio_is_told_to_have_no_effect(tmp_path: Path) -> None:
    conversion = convert_verl(GRPO | {f"{ACTOR}.clip_ratio": 0.3, f"{ACTOR}.clip_ratio_high": 0.28})
    assert conversion.settings["train.objective"]["clip_low"] == 0.2
    used = "verl uses clip_ratio_low and clip_ratio_high in its place, here 0.2 and 0.28"
    assert f"{ACTOR}.clip_ratio = 0.3: {used}" in conversion.remarks


def test_all_mistakes_are_reported_at_once_with_the_nearest_name() -> None:
    written = GRPO | {f"{ACTOR}.ppo_mini_bach_size": 8, f"{LOSS}.loss_mode": "own", f"{ACTOR}.loss_agg_mode": "mean"}
    mistakes = convert_verl(written).mistakes
    assert [mistake.split(":")[0] for mistake in mistakes] == [
        f"{ACTOR}.loss_agg_mode = mean",
        f"{LOSS}.loss_mode = own",
        f"{ACTOR}.ppo_mini_bach_size",
    ]
    assert mistakes[-1].endswith("did you mean ppo_mini_batch_size?")
    (wrong,) = convert_verl(GRPO | {f"{ACTOR}.optim.lr": "fast"}).mistakes
    assert wrong == f'{ACTOR}.optim.lr: expected a number, found "fast"'


def test_yaml_and_overrides_are_read_as_hydra_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "defaults:\n  - ppo_trainer\n  - _self_\nactor_rollout_ref:\n  actor:\n    optim: {lr: 3e-6}\n"
        "    ppo_epochs: 2\n  rollout: {n: '${data.n}', response_length: '${oc.env:LENGTH}'}\ndata: {n: 6}\n",
        encoding="utf-8",
    )
    overrides = ["+data.train_files=['a.parquet', \"b.parquet\"]", "algorithm.adv_estimator=grpo", "~data.n"]
    overrides += ["actor_rollout_ref.actor.ppo_epochs=3", "trainer.logger=[console,wandb]", "data.custom=null"]
    reading = read_verl(path, overrides)
    written = reading.written
    assert written["data.train_files"] == ["a.parquet", "b.parquet"]
    assert written[f"{ACTOR}.ppo_epochs"] == 3
    assert written["trainer.logger"] == ["console", "wandb"]
    assert written["data.custom"] is None
    assert reading.unread == {
        "actor_rollout_ref.rollout.n": "${data.n}",
        "actor_rollout_ref.rollout.response_length": "$LENGTH",
    }
    assert convert_verl(written | {f"{MODEL}.path": "m"}).settings["optim.lr"] == 3e-6


def test_the_command_in_a_shell_script_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "set -x\nexport NAME=Qwen/Qwen2.5-0.5B\nfiles=\"['$HOME/a.parquet', 'b.parquet']\"\n"
        "python3 -m verl.trainer.main_ppo \\\n    algorithm.adv_estimator=grpo \\\n"
        '    data.train_files="$files" \\\n    actor_rollout_ref.model.path=$NAME \\\n'
        "    actor_rollout_ref.rollout.n=${N:-5} $@ 2>&1 | tee log.txt\n",
        encoding="utf-8",
    )
    reading = read_verl(path, ["actor_rollout_ref.rollout.n=8"])
    assert reading.written == {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": [f"{Path.home()}/a.parquet", "b.parquet"],
        f"{MODEL}.path": "Qwen/Qwen2.5-0.5B",
        "actor_rollout_ref.rollout.n": 8,
    }
    assert (reading.remarks, reading.unread, reading.missing) == ([], {}, [])
    path.write_text("echo nothing\n", encoding="utf-8")
    with pytest.raises(UserError, match="no command was found that starts"):
        read_verl(path, [])


# ------------------------------------------------------------------------------------------------------------ the loss


def masked(values: torch.Tensor, mask: torch.Tensor, mode: str, length: int) -> torch.Tensor:
    """The means of `agg_loss` in verl/trainer/ppo/core_algos.py, for one micro-batch on one device."""
    if mode == "token-mean":
        return (values * mask).sum() / mask.sum()
    rows = mask.sum(1) > 0
    sums = (values * mask).sum(1)
    if mode == "seq-mean-token-mean":
        sums = sums / mask.sum(1).clamp(min=1)
    return sums.sum() / rows.sum() / (length if mode == "seq-mean-token-sum-norm" else 1)


def loss_of_verl(case: dict[str, torch.Tensor], given: dict[str, Any], length: int) -> torch.Tensor:
    """GRPO's advantage, the loss "vanilla", and the KL loss of verl, written from its core_algos.py.

    `compute_grpo_outcome_advantage`: (r - mean) / (std + 1e-6) in each group, or r - mean.
    `compute_policy_loss_vanilla`: max of the two products, at most -c Â where Â < 0, with log ρ clamped to ±20.
    `kl_penalty`: k3 clamped to ±10, k2, k1.
    """
    rewards = case["rewards"].view(-1, 4)
    advantage = rewards - rewards.mean(1, keepdim=True)
    if given.get("algorithm.norm_adv_by_std_in_grpo", True):
        advantage = advantage / (rewards.std(1, keepdim=True) + 1e-6)
    advantage = advantage.view(-1, 1)
    low, high = given.get(f"{ACTOR}.clip_ratio_low", 0.2), given.get(f"{ACTOR}.clip_ratio_high", 0.2)
    ratio = (case["now"] - case["old"]).clamp(-20, 20).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
    capped = torch.minimum(loss, -advantage * given.get(f"{ACTOR}.clip_ratio_c", 3.0))
    mode = given.get(f"{ACTOR}.loss_agg_mode", "token-mean")
    total = masked(torch.where(advantage < 0, capped, loss), case["mask"], mode, length)
    total = total - given.get(f"{ACTOR}.entropy_coeff", 0) * masked(case["entropy"], case["mask"], mode, length)
    if given.get(f"{ACTOR}.use_kl_loss"):
        d = case["now"] - case["ref"]
        kinds = {"low_var_kl": ((-d).exp() + d - 1).clamp(-10, 10), "kl": d, "mse": d.square() / 2}
        kl = kinds[given.get(f"{ACTOR}.kl_loss_type", "low_var_kl")]
        total = total + given.get(f"{ACTOR}.kl_loss_coef", 0.001) * masked(kl, case["mask"], mode, length)
    return total


LOSSES: dict[str, dict[str, Any]] = {
    "GRPO on GSM8K and MATH": {f"{ACTOR}.use_kl_loss": True},
    "DAPO": {f"{ACTOR}.clip_ratio_low": 0.2, f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.clip_ratio_c": 10.0},
    "Dr. GRPO": {"algorithm.norm_adv_by_std_in_grpo": False, f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"},
    "answers": {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean", f"{ACTOR}.entropy_coeff": 0.01},
    "sums": {
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum",
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_type": "mse",
    },
    "k1": {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "kl", f"{ACTOR}.kl_loss_coef": 0.1},
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_recipe_has_the_loss_of_verls_formula(name: str, tmp_path: Path) -> None:
    given = LOSSES[name]
    recipe = recipe_of(GRPO | given | {"data.max_response_length": 7}, tmp_path)
    random = torch.Generator().manual_seed(3)
    batch = batch_of(
        [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(7, 0.0)],
        [rollout(2, 0.0), rollout(5, 1.0), rollout(3, 0.0), rollout(1, 1.0)],
    )
    shape = batch.token_ids.shape

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=random)

    old = -normal().abs()
    case = {"old": old, "now": old + 0.6 * normal(), "entropy": normal().abs(), "rewards": batch.rewards}
    case["now"][:, 2] += 4.0  # far enough for the dual clip
    case |= {"ref": case["now"] + 0.8 * normal(), "mask": batch.loss_mask.float()}
    case["ref"][:, 1] += 4.0  # far enough for the limit of k3
    batch = batch.with_(old_logprobs=old, ref_logprobs=case["ref"], rollout_logprobs=old)
    mine, its = (case["now"].clone().requires_grad_() for _ in range(2))
    objective: Any = objective_of(recipe)
    prepared = objective.prepare(advantage_of(recipe)(batch))
    ours = objective(TokenScores(logprobs=mine, sums={"entropy": case["entropy"]}), prepared).loss
    theirs = loss_of_verl(case | {"now": its}, given, 7)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    (gradient,), (expected,) = torch.autograd.grad(ours, mine), torch.autograd.grad(theirs, its)
    torch.testing.assert_close(gradient, expected * batch.loss_mask, rtol=1e-5, atol=1e-6)
    assert expected.abs().max() > 1e-3


# ------------------------------------------------------------------------------------------------------- the correction

RC = "algorithm.rollout_correction"
TOKEN_TIS = {"name": "truncate", "level": "token", "high": 2.0}


def rejection(level: str, estimator: str, high: float, **low: float) -> dict[str, Any]:
    return {"name": "reject", "level": level, "estimator": estimator, **low, "high": high}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rollout_is": "token"}, TOKEN_TIS),
        ({"rollout_is": "token", "rollout_is_threshold": 2}, TOKEN_TIS),
        (
            {"rollout_is": "sequence", "rollout_is_threshold": "0.5_2"},
            {"name": "mask", "level": "sequence", "low": 0.5, "high": 2.0},
        ),
        (
            {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"},
            rejection("geometric", "k1", math.log(1.001), low=math.log(0.999)),
        ),
        (
            {"rollout_rs": "token_k1", "rollout_rs_threshold": 2},
            rejection("token", "k1", math.log(2), low=-math.log(2)),
        ),
        (
            {"rollout_is": "token", "rollout_rs": "seq_sum_k2, seq_max_k3", "rollout_rs_threshold": "0.2,0.01"},
            [TOKEN_TIS, rejection("sequence", "k2", 0.2), rejection("max", "k3", 0.01)],
        ),
    ],
)
def test_the_rollout_correction_becomes_one_or_several_corrections(
    given: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    recipe = recipe_of(GRPO | {f"{RC}.{name}": value for name, value in given.items()}, tmp_path)
    assert recipe.train.objective.options["correction"] == expected
    objective_of(recipe)


def test_a_hydra_text_with_two_bounds_is_read_as_two(tmp_path: Path) -> None:
    written = read_verl(None, [f"{RC}.rollout_is=token", f"{RC}.rollout_is_threshold='0.5_2'"]).written
    options = recipe_of(GRPO | written, tmp_path).train.objective.options
    assert options["correction"] == {"name": "mask", "level": "token", "low": 0.5, "high": 2.0}


def test_the_bypass_mode(tmp_path: Path) -> None:
    """Its ppo_clip has no weights but those of the ratio; its reinforce has them."""
    given = {f"{RC}.bypass_mode": True, f"{RC}.rollout_is": "token"}
    clip = recipe_of(GRPO | given, tmp_path).train.objective
    assert clip.name == "grpo"
    assert clip.options["bypass"]
    assert "correction" not in clip.options
    plain = recipe_of(GRPO | given | {f"{RC}.loss_type": "reinforce"}, tmp_path)
    assert plain.train.objective.name == "reinforce"
    assert plain.train.objective.options["correction"] == TOKEN_TIS
    objective: Any = objective_of(plain)
    assert objective.bypass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rollout_is": "answer"}, f"{RC}.rollout_is = answer: expected token or sequence"),
        ({"bypass_mode": True, "loss_type": "gspo"}, f"{RC}.loss_type = gspo: expected ppo_clip or reinforce"),
        (
            {"rollout_is": "token", "rollout_is_threshold": "2_0.5"},
            f"{RC}.rollout_is_threshold = 2_0.5: expected a number above 0, or two with a _ between them",
        ),
        (
            {"rollout_rs": "token", "rollout_rs_threshold": 2.0},
            f"{RC}.rollout_rs = token: expected one of token, seq_sum, seq_mean, seq_max with _k1, _k2 or _k3 after it",
        ),
        (
            {"rollout_rs": "token_k3", "rollout_rs_threshold": "0.5_2.0"},
            f"{RC}.rollout_rs_threshold = 0.5_2.0: expected a number above 0 for token_k3",
        ),
        (
            {"rollout_rs": "token_k3"},
            f"{RC}.rollout_rs_threshold = : expected one threshold, or one for each name of rollout_rs",
        ),
    ],
)
def test_a_correction_that_cannot_be_read_is_a_mistake(given: dict[str, Any], said: str) -> None:
    assert convert_verl(GRPO | {f"{RC}.{name}": value for name, value in given.items()}).mistakes == [said]


@pytest.mark.parametrize(("modes", "weight"), [([], "token_mean"), (["seq-mean-token-mean"], "sequence_mean")])
def test_gspo_has_the_mean_of_verl_0_9(modes: list[str], weight: str, tmp_path: Path) -> None:
    written = GRPO | {f"{LOSS}.loss_mode": "gspo"} | {f"{ACTOR}.loss_agg_mode": mode for mode in modes}
    assert recipe_of(written, tmp_path).train.objective.options["weight"] == weight
    said = [each for each in convert_verl(written).remarks if each.startswith(f"{LOSS}.loss_mode")]
    assert len(said) == (not modes)


def test_dro_has_the_beta_of_verl(tmp_path: Path) -> None:
    recipe = recipe_of(GRPO | {f"{LOSS}.loss_mode": "dro", f"{LOSS}.dro_beta": 0.3}, tmp_path)
    assert (recipe.train.objective.name, recipe.train.objective.options["tau"]) == ("dro", 0.3)


def test_a_name_that_verl_has_is_no_typing_error() -> None:
    name = "actor_rollout_ref.rollout.multi_turn.max_tool_response_length"
    conversion = convert_verl(GRPO | {name: 512})
    assert conversion.mistakes == []
    assert conversion.account[name] == "remark"
    assert any("multi_turn.max_tool_response_length" in names for names in conversion.asides.values())


@pytest.mark.parametrize("name", [f"{ACTOR}.optim.total_training_steps", "critic.optim.total_training_steps"])
@pytest.mark.parametrize("value", [-1, 300])
def test_the_steps_of_an_optimiser_which_verls_trainer_sets_are_not_those_of_the_recipe(name: str, value: int) -> None:
    assert "steps" not in convert_verl(GRPO | {name: value}).settings


def test_a_setting_of_the_critic_is_not_taken_for_one_of_the_policy() -> None:
    critic = {"critic.grad_clip": 0.3, "critic.ppo_max_token_len_per_gpu": 98_304}
    assert convert_verl(GRPO | critic).settings == convert_verl(GRPO).settings


@pytest.mark.parametrize("later_is_null", [True, False])
def test_a_null_under_another_name_hides_no_value(later_is_null: bool) -> None:
    """verl's own files have both names of a setting, and null or a default under the one that is not used."""
    names = {
        f"{ACTOR}.optim.lr_scheduler_type": ("cosine", f"{ACTOR}.optim.warmup_style", None),
        "reward.reward_model.enable": (True, "reward_model.enable", False),
        "custom_reward_function.path": ("score.py", "reward.custom_reward_function.path", None),
    }
    used = {name: value for name, (value, _, _) in names.items()}
    unused = {other: value for _, other, value in names.values()}
    written = used | unused if later_is_null else unused | used
    settings = convert_verl(GRPO | written).settings
    assert settings["optim.schedule"] == "cosine"
    assert [reward for reward in settings["rewards"] if "score.py" in reward]
    assert [reward for reward in settings["rewards"] if "name" in reward]


@pytest.mark.parametrize(
    "words",
    [
        ["+data.apply_chat_template_kwargs.enable_thinking=False"],
        ["+data.apply_chat_template_kwargs={enable_thinking:False}"],
        ['data.apply_chat_template_kwargs={"enable_thinking": false}'],
    ],
)
def test_options_of_the_chat_template_are_in_the_recipe(words: list[str], tmp_path: Path) -> None:
    recipe = recipe_of(GRPO | read_verl(None, words).written, tmp_path)
    assert recipe.data.template == {"enable_thinking": False}


def test_an_adapter_in_the_words_of_megatron_is_in_the_recipe(tmp_path: Path) -> None:
    of_megatron = {f"{MODEL}.lora.rank": 8, f"{MODEL}.lora_rank": 0, f"{MODEL}.lora_alpha": 16}
    adapter = recipe_of(GRPO | of_megatron, tmp_path).train.adapter
    assert adapter.options == {"rank": 8, "alpha": 32, "targets": "all-linear"}


@pytest.mark.parametrize("table", [BUFFER, *OTHER_BUFFERS])
def test_the_penalty_for_long_answers_is_read_under_each_of_its_names(table: str) -> None:
    rewards = convert_verl(
        GRPO | {f"{table}.enable": True, f"{table}.len": 64, f"{table}.penalty_factor": 0.5}
    ).settings
    assert rewards["rewards"] == ["last_number", {"name": "overlong", "weight": 0.5, "cache": 64}]


def test_a_setting_of_an_environment_is_not_said_to_be_one_of_trl() -> None:
    (remark,) = [each for each in convert_verl(GRPO | {"env.max_steps": 5}).remarks if each.startswith("env.max_steps")]
    assert "TRL" not in remark
