"""The objective of a recipe for OpenRLHF's flags: ratio and clip, the mean, the KL and the correction."""

from typing import Any

from outdo.extras.convert.conversion import Conversion, piece


def put_objective(c: Conversion) -> None:
    """Set the objective and its options."""
    given, kind = c.given, c.given["policy_loss_type"]
    low, high = c.pair("eps_clip_low_high", (given["eps_clip"], given["eps_clip"]))
    gae = given["advantage_estimator"] == "gae"
    options: dict[str, Any] = {"clip_low": low, "clip_high": high}
    if kind == "gspo":
        name = "gspo"
    elif kind == "ppo":
        name = "ppo" if gae else "grpo"
        if given["dual_clip"] is not None:
            options = {"surrogate": piece("clip", low=low, high=high, dual=given["dual_clip"])}
        options["weight"] = _weight(c)
    else:
        c.mistakes.append(f"policy_loss_type = {kind}: expected ppo or gspo")
        return
    if given["use_kl_loss"]:
        options |= {"beta": given["init_kl_coef"], **_divergence(c)}
    elif name == "grpo":
        options["beta"] = 0.0  # the published GRPO has 0.04
    if given["entropy_loss_coef"]:
        options["entropy_bonus"] = given["entropy_loss_coef"]
    if correction := _correction(c, kind):
        options["correction"] = correction
    c.settings["train.objective"] = {"name": name, **options}


def _weight(c: Conversion) -> str:
    mode = c.given["loss_agg_mode"]
    if mode == "seq-mean-token-mean":
        return "sequence_mean"
    if mode != "token-mean":
        c.mistakes.append(f"loss_agg_mode = {mode}: expected token-mean or seq-mean-token-mean")
    return "token_mean"


def _divergence(c: Conversion) -> dict[str, Any]:
    """Return the divergence of the loss. OpenRLHF's unbiased gradient is that of k3 times the ratio, for each k.

    It clamps this ratio at 10, and no value there; `train.compat` has its limit of 10 on the value instead.
    """
    given = c.given
    if not given["unbiased_gradient"]:
        return {"divergence": given["kl_estimator"], "kl_ratio": False}
    return {"divergence": "k3", "kl_ratio": True}


def _correction(c: Conversion, kind: str) -> Any | None:
    """Return the correction for the engine's probabilities: that of three flags since 0.11, and of a type before."""
    given = c.given
    level, mode, gating = (given[f"is_correction_{name}"] for name in ("level", "mode", "gating"))
    if level == "off" and not given["enable_vllm_is_correction"]:
        return None
    if kind == "gspo":
        c.remark("policy_loss_type", "OpenRLHF then takes its ratio to the engine's probabilities, outdo to π_old's")
        return None
    if gating != "ratio":
        c.remark("is_correction_gating", "outdo has no such correction; the recipe has none")
        return None
    low, high = c.pair("vllm_is_truncated_threshold", (0.5, 5.0))
    wanted = given["vllm_is_correction_type"] if level == "off" else f"{level} {mode}"
    corrections = {
        "tis": piece("truncate", low=low, high=high),
        "token clip": piece("truncate", low=low, high=high),
        "icepop": piece("mask", low=low, high=high),
        "token mask": piece("mask", low=low, high=high),
        "seq-mask-tis": piece("sequence_mask", low=low, high=high),
        "seq mask": piece("sequence_mask", low=low, high=high),
    }
    if wanted in corrections:
        return corrections[wanted]
    if level == "off":
        c.mistakes.append(f"vllm_is_correction_type = {wanted}: expected tis, icepop or seq-mask-tis")
    else:
        c.mistakes.append(
            f"is_correction_level = {level}, is_correction_mode = {mode}: expected token or seq with mask, or token "
            "with clip"
        )
    return None
