"""The method in TRL's settings: loss, clip, KL, entropy bonus, engine correction, advantage and reference."""

from typing import Any

from outdo.extras.convert.conversion import OWN_ENGINE, Conversion, piece

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""The values of `loss_type` that are PPO's clip."""

ADVANTAGES = {
    "group": "group_standardised",
    "true": "group_standardised",
    "batch": "batch_standardised",
    "none": "group_centred",
    "false": "group_centred",
}


def objective(c: Conversion) -> None:
    """Set the objective with all options that TRL would train with."""
    given, kind = c.given, c.given["loss_type"]
    options: dict[str, Any] = {}
    if kind in CLIPPED:
        options = _clip(c)
    elif kind == "cispo":
        options = {"ratio_max": _cispo_maximum(c)}
    elif kind == "sapo":
        options = {"tau_positive": given["sapo_temperature_pos"], "tau_negative": given["sapo_temperature_neg"]}
    elif kind == "vespo":
        options = {f"{of}_positive": given[f"vespo_{of}_pos"] for of in ("k", "lambda")}
        options |= {f"{of}_negative": given[f"vespo_{of}_neg"] for of in ("k", "lambda")}
    else:
        c.mistakes.append(f"loss_type = {kind}: expected {', '.join(CLIPPED)}, cispo, sapo or vespo")
        return
    level = given["importance_sampling_level"]
    if level != ("sequence" if kind == "luspo" else "token"):
        options["level"] = level
    c.settings["train.objective"] = {"name": kind, **options, **_kl(c, kind), **_entropy(c), **_engine(c, kind)}
    _mean(c, kind)


def _mean(c: Conversion, kind: str) -> None:
    """Report where TRL's mean depends on how a batch is split."""
    if kind == "bnpo" and c.given["gradient_accumulation_steps"] > 1:
        c.remark("loss_type", "TRL takes a mean over the tokens of each micro-batch, outdo over those of the minibatch")
    if kind in ("dapo", "cispo", "vespo") and c.settings.get("train.minibatches", 1) > 1:
        c.remark("loss_type", "TRL divides by the mean number of tokens of the batch's minibatches, outdo by its own")


def _clip(c: Conversion) -> dict[str, Any]:
    low, high, delta = c.given["epsilon"], c.given["epsilon_high"], c.given["delta"]
    high = low if high is None else high
    if delta is None:
        return {"clip_low": low, "clip_high": high}
    if delta < 1 + high:
        c.remark("delta", f"below 1 + {high:g} TRL cuts the ratio of good answers at {delta:g} too; outdo does not")
    return {"surrogate": piece("clip", low=low, high=high, dual=max(1.0, delta))}


def _cispo_maximum(c: Conversion) -> float:
    given = c.given
    maximum = given["epsilon"] if given["epsilon_high"] is None else given["epsilon_high"]
    if maximum >= 1:
        return maximum
    c.remark(
        "epsilon_high",
        f"in TRL's CISPO this is the largest ratio itself: {maximum:g} would multiply every gradient by {maximum:g}, "
        "which outdo refuses; the recipe has 5, the value of ScaleRL",
    )
    return 5.0


def _kl(c: Conversion, kind: str) -> dict[str, Any]:
    beta, times_ratio = c.given["beta"], c.given["use_bias_correction_kl"]
    if beta == 0:
        return {"beta": 0.0} if kind == "grpo" else {}  # the published GRPO has 0.04
    return {"beta": beta, "kl_ratio": bool(times_ratio)}


def _entropy(c: Conversion) -> dict[str, Any]:
    given, bonus = c.given, c.given["entropy_coef"]
    adaptive = {"target": "entropy_target", "step": "entropy_coef_delta", "low": "entropy_coef_min"}
    adaptive |= {"high": "entropy_coef_max"}
    options: dict[str, Any] = {}
    if given["use_adaptive_entropy"]:
        options["entropy_bonus"] = {"start": bonus, **{name: given[theirs] for name, theirs in adaptive.items()}}
        c.remark("use_adaptive_entropy", "TRL changes the coefficient after each optimiser step, outdo after each step")
    elif bonus:
        options["entropy_bonus"] = bonus
    if given["top_entropy_quantile"] < 1:
        options["batch_transform"] = piece("high_entropy", share=given["top_entropy_quantile"])
        if bonus:
            c.remark("entropy_coef", "TRL gives the bonus to the uncertain tokens only, outdo to all of them")
    return options


def _engine(c: Conversion, kind: str) -> dict[str, Any]:
    """Return the corrections for answers that the policy has not sampled itself."""
    given, corrections = c.given, []
    if given["off_policy_mask_threshold"] is not None:
        by = "rollout" if given["use_vllm"] else "old"
        corrections.append(piece("off_policy_rows", limit=given["off_policy_mask_threshold"], by=by))
    high, low = given["vllm_importance_sampling_clip_max"], given["vllm_importance_sampling_clip_min"]
    high = given["vllm_importance_sampling_cap"] or high
    mode, wanted = given["vllm_importance_sampling_mode"], given["vllm_importance_sampling_correction"]
    if not given["use_vllm"]:
        return {"correction": corrections[0]} if corrections else {}
    c.remark("use_vllm", OWN_ENGINE)
    if wanted:
        level, _, what = mode.partition("_")
        bounds = {"low": low or 0.0, "high": 1e9 if high is None else high}
        corrections.append(piece(what, level=level, **bounds))
        if kind == "vespo":
            c.remark(
                "vllm_importance_sampling_mode", "TRL multiplies it into VESPO's W; in outdo it is a factor of the loss"
            )
    return {"correction": corrections[0] if len(corrections) == 1 else corrections or "none"}


def advantage(c: Conversion) -> None:
    """Set the advantage."""
    scale, aggregation = c.given["scale_rewards"], c.given["multi_objective_aggregation"]
    if scale not in ADVANTAGES:
        c.mistakes.append(f"scale_rewards = {scale}: expected group, batch or none")
        return
    c.settings["train.advantage"] = "gdpo" if aggregation == "normalize_then_sum" else ADVANTAGES[scale]


def reference(c: Conversion) -> None:
    """Set how often the reference follows the policy."""
    given = c.given
    every, mix, wanted = given["ref_model_sync_steps"], given["ref_model_mixup_alpha"], given["sync_ref_model"]
    if wanted and given["beta"] != 0:
        c.settings["reference.sync"] = {"every": c.steps_of(every), "mix": mix}
