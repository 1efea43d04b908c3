"""A configuration of TRL that `outdo convert` has made a recipe of has the loss and the gradients of TRL itself."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from trl_cases import LONGEST, SIZE, Outcome, inputs_of, loss_of, made_up, outdo, trainer_options

from outdo.config.file import load
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.written import written_recipe
from outdo.run.assemble.method import advantage_of, objective_of

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "grpo of the paper": {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    "grpo": {"loss_type": "grpo", "beta": 0.04},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"epsilon_high": 0.28, "mask_truncated_completions": True},
    "bnpo": {"loss_type": "bnpo", "scale_rewards": "batch"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3},
    "luspo by token": {"loss_type": "luspo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo", "sapo_temperature_neg": 1.5},
    "vespo": {"loss_type": "vespo", "vespo_k_neg": 2.5},
    "two sides": {"delta": 1.5},
    "uncertain tokens": {"loss_type": "grpo", "top_entropy_quantile": 0.3},
    "entropy bonus": {"entropy_coef": 0.01},
    "off-policy answers": {"off_policy_mask_threshold": 0.05, "use_vllm": True},
    "vllm": {"use_vllm": True},
    "vllm by token": {
        "use_vllm": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_min": 0.5,
        "vllm_importance_sampling_clip_max": None,
    },
}
TOLERANCE = 1e-5
"""Relative and absolute: the loss and the gradients are numbers of about 1 here, computed in float32."""


def of_recipe(written: dict[str, Any], folder: Path, case: Any) -> Outcome:
    given = {
        "model_name_or_path": "m",
        "dataset_name": "x.jsonl",
        "reward_funcs": ["accuracy_reward"],
        "num_generations": SIZE,
        "num_iterations": 2,
    }
    given |= {"per_device_train_batch_size": len(case.batch), "max_completion_length": LONGEST}
    conversion = convert_trl(given | written)
    assert not conversion.mistakes
    path = folder / "recipe.toml"
    path.write_text(written_recipe(conversion, "A configuration of TRL."), encoding="utf-8")
    recipe = load(path)
    return outdo(objective_of(recipe), case, advantage_of(recipe))


def of_trl(trainer: Any, written: dict[str, Any], case: Any) -> Outcome:
    """Give TRL's trainer the options that its constructor would take from these settings."""
    options = {name: value for name, value in written.items() if name not in ("epsilon", "epsilon_high")}
    low = written.get("epsilon", 0.2)
    options |= {"epsilon_low": low, "epsilon_high": written.get("epsilon_high", low)}
    options.setdefault("loss_type", "dapo")
    if options.get("entropy_coef"):
        options["_entropy_bonus_enabled"] = True
    with trainer_options(trainer, **options):
        return loss_of(trainer, case, inputs_of(trainer, case, engine=bool(written.get("use_vllm"))))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_recipe_has_the_loss_of_trl(grpo_trainer: Any, name: str, tmp_path: Path) -> None:
    written, case = CONFIGURATIONS[name], made_up()
    if name == "dapo":  # some answers that do not end
        ids = case.batch.token_ids.clone()
        ends = case.batch.attention_mask.sum(1) - 1
        ids[torch.arange(len(ids)), ends] = grpo_trainer.eos_token_ids[0]
        truncated = torch.zeros(len(ids), dtype=torch.bool)
        truncated[2] = True
        ids[2, ends[2]] = 10
        case = made_up()
        case = type(case)(
            batch=case.batch.with_(token_ids=ids, truncated=truncated), logprobs=case.logprobs, entropy=case.entropy
        )
    ours, theirs = of_recipe(written, tmp_path, case), of_trl(grpo_trainer, written, case)
    for mine, its in zip(ours, theirs, strict=True):
        assert its.isfinite().all()
        torch.testing.assert_close(mine, its, rtol=TOLERANCE, atol=TOLERANCE)
    assert not math.isclose(float(theirs[0]), 0.0, abs_tol=1e-4)


def test_another_configuration_has_another_loss(grpo_trainer: Any, tmp_path: Path) -> None:
    """The comparison above can fail: no two of the configurations have the same gradient."""
    case = made_up()
    plain = of_trl(grpo_trainer, {}, case)
    for name in ("grpo", "dr_grpo", "gspo", "cispo", "two sides", "vllm"):
        ours = of_recipe(CONFIGURATIONS[name], tmp_path, case)
        assert (ours[1] - plain[1]).abs().max() > 10 * TOLERANCE, name
