"""Convert the settings of verl's PPO trainer, `verl.trainer.main_ppo`, into those of a recipe."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from outdo.extras.convert.account import converted
from outdo.extras.convert.conversion import (
    OWN_ENGINE,
    Conversion,
    Given,
    Rule,
    as_list,
    piece,
    put_epochs,
    put_evaluation,
    put_trackers,
)
from outdo.extras.convert.reading import Configuration, reading_of
from outdo.extras.convert.verl_correction import PREFIX, TEXTS, correction
from outdo.extras.convert.verl_distillation import DIVERGENCES, distillation
from outdo.extras.convert.verl_names import ACTOR, LOSS, MODEL, ROLLOUT, by_one_name, name_here
from outdo.extras.convert.verl_rewards import expanded, put_rewards

TEMPLATE = "data.apply_chat_template_kwargs"

WEIGHTS = {
    "token-mean": "token_mean",
    "token-sum": "total",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}
"""`loss_agg_mode`, and the weights of outdo."""

ADVANTAGES: Mapping[str, Any] = {
    "rloo": "leave_one_out",
    "rloo_vectorized": "leave_one_out",
    "remax": "remax",
    "opo": "length_weighted",
    "gpg": {"name": "gpg", "nonzero": True},
    "gdpo": "gdpo",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "optimal_token_baseline": {"name": "optimal_token", "zero_tail": True},
}
"""`adv_estimator`, and the advantages of outdo; gae, grpo, grpo_passk and reinforce_plus_plus have options."""

OWN_MEAN = ("sapo", "geo_mean")
"""The values of `loss_mode` whose loss has a mean of its own and no `loss_agg_mode`."""


def convert_verl(settings: Configuration | Mapping[str, Any], *, rows: int | None = None) -> Conversion:
    """Return the recipe for settings of verl, by their dotted names. `rows` is the number of training questions."""
    reading = reading_of(settings)
    written = by_one_name(reading.written)
    written |= {name: str(written[name]) for name in TEXTS if isinstance(written.get(name), int | float)}
    unread = {name_here(name): what for name, what in reading.unread.items()}
    renamed = replace(reading, written=written, unread=unread)
    return converted("verl", renamed, (_batch, partial(_steps, rows=rows), *RULES))


def _batch(c: Conversion) -> None:
    given = c.given
    prompts, update = given["data.train_batch_size"], given[f"{ACTOR}.ppo_mini_batch_size"]
    passes = given[f"{ACTOR}.ppo_epochs"]
    if min(prompts, update, passes) < 1 or prompts % update:
        c.mistakes.append(
            f"data.train_batch_size = {prompts}: has to be a multiple of {ACTOR}.ppo_mini_batch_size = {update}"
        )
        return
    c.settings |= {"train.prompts": prompts, "train.group_size": given[f"{ROLLOUT}.n"], "train.passes": passes}
    c.settings["train.minibatches"] = prompts // update
    c.updates = passes * prompts // update
    if given["algorithm.filter_groups.enable"]:
        rounds = given["algorithm.filter_groups.max_num_gen_batches"]
        c.settings["train.dynamic_sampling"] = max(1, rounds - 1) if rounds > 0 else 10
        c.remark(
            "algorithm.filter_groups.enable",
            "outdo replaces groups whose advantages are all 0, in up to train.dynamic_sampling rounds, as many as are "
            "missing; verl draws data.gen_batch_size questions each time",
        )


def _steps(c: Conversion, rows: int | None) -> None:
    if (steps := c.given["trainer.total_training_steps"]) and steps > 0:
        c.settings["steps"] = steps
    else:
        put_epochs(c, "trainer.total_epochs", rows=rows)


# ---------------------------------------------------------------------------------------------------------- objective


def _objective(c: Conversion) -> None:
    given = c.given
    mode, gae = _loss_mode(c), given["algorithm.adv_estimator"] == "gae"
    low, high = given[f"{ACTOR}.clip_ratio_low"], given[f"{ACTOR}.clip_ratio_high"]
    both = given[f"{ACTOR}.clip_ratio"]
    low, high = both if low is None else low, both if high is None else high
    if both not in (low, high):
        used = f"clip_ratio_low and clip_ratio_high in its place, here {low:g} and {high:g}"
        c.remark(f"{ACTOR}.clip_ratio", f"verl uses {used}")
    clipped = {"clip_low": low, "clip_high": high}
    options: Mapping[str, tuple[str, dict[str, Any]]] = {
        "vanilla": ("ppo" if gae else "grpo", _vanilla(c, low, high)),
        "gspo": ("gspo_token", clipped),
        "geo_mean": ("gmpo", clipped),
        "cispo": ("cispo", {"ratio_min": 1 - low, "ratio_max": 1 + high}),
        "sapo": ("sapo", {"tau_positive": given[f"{ACTOR}.tau_pos"], "tau_negative": given[f"{ACTOR}.tau_neg"]}),
        "clip_cov": ("clip_cov", {**clipped, **_covariance(c)}),
        "kl_cov": ("kl_cov", _largest_covariance(c)),
        "gpg": ("gpg", {}),
        "dppo_tv": ("dppo_tv", {"threshold": high}),
        "dppo_kl": ("dppo_kl", {"threshold": high}),
        "dro": ("dro", {"tau": given[f"{LOSS}.dro_beta"]} if given[f"{LOSS}.dro_beta"] else {}),
        "reinforce": ("reinforce", {}),
    }
    weight = {} if mode in OWN_MEAN else _weight(c)
    if mode not in options:
        c.mistakes.append(f"{LOSS}.loss_mode = {mode}: outdo converts {', '.join(options)}")
        return
    name, chosen = options[mode]
    _say_what_differs(c, mode, has_one_bound=low == high)
    c.settings["train.objective"] = {"name": name, **chosen, **weight, **_kl(c, name), **_entropy(c), **correction(c)}


def _say_what_differs(c: Conversion, mode: str, *, has_one_bound: bool) -> None:
    if mode.startswith("dppo") and not has_one_bound:
        c.remark(f"{ACTOR}.clip_ratio_low", f"{mode} of outdo has one threshold; the recipe has clip_ratio_high")
    if mode == "gspo" and f"{ACTOR}.loss_agg_mode" not in c.given.written:
        c.remark(f"{LOSS}.loss_mode", "verl 0.9 has a mean over tokens by default; before it was one over answers")
    if mode in ("clip_cov", "kl_cov"):
        c.remark(f"{LOSS}.loss_mode", "outdo chooses the tokens once per batch, verl in every micro-batch")


def _loss_mode(c: Conversion) -> str:
    """Return the loss: in verl's bypass mode `loss_type` has it, in other modes `loss_mode`."""
    mode = c.given[f"{LOSS}.loss_mode"]
    if not c.given[f"{PREFIX}.bypass_mode"]:
        return mode
    kind, modes = str(c.given[f"{PREFIX}.loss_type"]), {"ppo_clip": "vanilla", "reinforce": "reinforce"}
    if kind not in modes:
        c.mistakes.append(f"{PREFIX}.loss_type = {kind}: expected ppo_clip or reinforce")
    return modes.get(kind, "vanilla")


def _vanilla(c: Conversion, low: float, high: float) -> dict[str, Any]:
    dual = c.given[f"{ACTOR}.clip_ratio_c"]
    if dual == 3.0:  # as train.compat = "verl" has it
        return {"clip_low": low, "clip_high": high}
    return {"surrogate": piece("clip", low=low, high=high, dual=dual)}


def _covariance(c: Conversion) -> dict[str, Any]:
    names = {"share": "clip_cov_ratio", "cov_low": "clip_cov_lb", "cov_high": "clip_cov_ub"}
    return {ours: c.given[f"{LOSS}.{theirs}"] for ours, theirs in names.items()}


def _largest_covariance(c: Conversion) -> dict[str, Any]:
    share, coefficient = c.given[f"{LOSS}.kl_cov_ratio"], c.given[f"{LOSS}.ppo_kl_coef"]
    return {"percent": 100 * share, "coefficient": coefficient}


def _weight(c: Conversion) -> dict[str, Any]:
    mode, given = c.given[f"{ACTOR}.loss_agg_mode"], c.given
    if mode not in WEIGHTS:
        c.mistakes.append(f"{ACTOR}.loss_agg_mode = {mode}: expected {', '.join(WEIGHTS)}")
        return {}
    if WEIGHTS[mode] != "constant":
        return {"weight": WEIGHTS[mode]}
    length = given[f"{ACTOR}.loss_scale_factor"] or given["data.max_response_length"]
    return {"weight": piece("constant", length=int(length))}


def _kl(c: Conversion, name: str) -> dict[str, Any]:
    given = c.given
    coefficient, kind = given[f"{ACTOR}.kl_loss_coef"], str(given[f"{ACTOR}.kl_loss_type"])
    if not given[f"{ACTOR}.use_kl_loss"]:
        return {"beta": 0.0} if name == "grpo" else {}  # the published GRPO has 0.04
    if kind.endswith("+"):
        c.remark(f"{ACTOR}.kl_loss_type", "with +, verl has the gradient of k2; so does the recipe")
        kind = "k2"
    if kind not in DIVERGENCES:
        c.mistakes.append(f"{ACTOR}.kl_loss_type = {kind}: expected {', '.join(DIVERGENCES)}")
        return {}
    return {"beta": coefficient, "divergence": DIVERGENCES[kind], "kl_ratio": False}


def _entropy(c: Conversion) -> dict[str, Any]:
    bonus = c.given[f"{ACTOR}.entropy_coeff"]
    return {"entropy_bonus": bonus} if bonus else {}


# ------------------------------------------------------------------------------------------------ advantage and critic


def _advantage(c: Conversion) -> None:
    given, name = c.given, str(c.given["algorithm.adv_estimator"])
    gamma, lam = given["algorithm.gamma"], given["algorithm.lam"]
    scaled = given["algorithm.norm_adv_by_std_in_grpo"]
    chosen = {
        **ADVANTAGES,
        "gae": piece("gae", gamma=gamma, lam=lam),
        "grpo": "group_standardised" if scaled else "group_centred",
        "grpo_passk": piece("best_of_group", scale=scaled),
        "reinforce_plus_plus": piece("reinforce_pp", gamma=gamma),
    }
    if name not in chosen:
        c.mistakes.append(f"algorithm.adv_estimator = {name}: outdo converts {', '.join(sorted(chosen))}")
        return
    c.settings["train.advantage"] = chosen[name]
    if name == "gae":
        critic = {"lr": given["critic.optim.lr"], "clip": given["critic.cliprange_value"]}
        warmup, path = given["trainer.critic_warmup"], given["critic.model.path"]
        critic |= {"warmup": warmup} if warmup else {}
        critic |= {"path": path} if "critic.model.path" in given.written and path != given[f"{MODEL}.path"] else {}
        c.settings["train.critic"] = {"name": "model", **critic}


def _kl_in_reward(c: Conversion) -> None:
    given = c.given
    kind, coefficient = str(given["algorithm.kl_penalty"]), given["algorithm.kl_ctrl.kl_coef"]
    target, horizon = given["algorithm.kl_ctrl.target_kl"], given["algorithm.kl_ctrl.horizon"]
    adaptive = given["algorithm.kl_ctrl.type"] == "adaptive"
    if not given["algorithm.use_kl_in_reward"]:
        _say_where_the_kl_was(c)
        return
    if kind not in DIVERGENCES:
        c.mistakes.append(f"algorithm.kl_penalty = {kind}: expected {', '.join(DIVERGENCES)}")
        return
    if adaptive:
        answers = c.settings.get("train.prompts", 1) * c.settings.get("train.group_size", 1)
        coefficient = {"start": coefficient, "target": target, "rate": answers / max(1, horizon)}
        c.remark("algorithm.kl_ctrl.target_kl", "verl means KL per token of the response mask, outdo per trained token")
    c.settings["train.kl_in_reward"] = {"name": DIVERGENCES[kind], "beta": coefficient}


def _say_where_the_kl_was(c: Conversion) -> None:
    """Report a coefficient without its switch, which earlier versions did not have."""
    given, name = c.given, "algorithm.kl_ctrl.kl_coef"
    is_written = bool(given[name]) and name in given.written and "algorithm.use_kl_in_reward" not in given.written
    if is_written and not given[f"{ACTOR}.use_kl_loss"]:
        c.remark(
            name,
            "verl reads it only with algorithm.use_kl_in_reward = true: the recipe has no KL. Versions of early 2025 "
            "always read it if use_kl_loss is off: for these give algorithm.use_kl_in_reward=true",
        )


# ------------------------------------------------------------------------------------------------ data, rewards, model


def _data(c: Conversion) -> None:
    given = c.given
    for theirs, ours in {"train_files": "data.path", "val_files": "data.eval_path"}.items():
        files = given[f"data.{theirs}"]
        files = [expanded(file) for file in as_list(files)]
        if f"data.{theirs}" in given.written:
            c.settings[ours] = files[0] if len(files) == 1 else files
    c.settings["data.max_prompt_tokens"] = given["data.max_prompt_length"]
    c.settings["data.overlong"] = "drop" if given["data.filter_overlong_prompts"] else "refuse"
    if given["data.truncation"] != "error" and not given["data.filter_overlong_prompts"]:
        c.remark("data.truncation", "outdo never shortens a prompt; the recipe refuses a prompt that is too long")
    if "data.prompt_key" in given.written:
        c.settings["data.prompt"] = given["data.prompt_key"]
    if template := _template(given):
        c.settings["data.template"] = template
    c.settings["data.answer"] = "reward_model.ground_truth"  # where verl reads it, whatever other columns a row has
    c.settings["data.shuffle"] = given["data.shuffle"]
    if given["data.train_max_samples"] > 0:
        c.settings["data.limit"] = given["data.train_max_samples"]
    if isinstance(seed := given["data.seed"], int):
        c.settings["seed"] = seed


def _template(given: Given) -> dict[str, Any]:
    """Return the options of the chat template, which are written as a table or one by one."""
    table, prefix = given[TEMPLATE], f"{TEMPLATE}."
    by_name = {name.removeprefix(prefix): given[name] for name in given.written if name.startswith(prefix)}
    return by_name | (dict(table) if isinstance(table, Mapping) else {})


def _model(c: Conversion) -> None:
    given = c.given
    path, rank, alpha = given[f"{MODEL}.path"], given[f"{MODEL}.lora_rank"], given[f"{MODEL}.lora_alpha"]
    targets, of_megatron = given[f"{MODEL}.target_modules"], given[f"{MODEL}.lora.rank"]
    if of_megatron > 0:
        rank, alpha = of_megatron, given[f"{MODEL}.lora.alpha"]
    if f"{MODEL}.path" in given.written:
        c.settings["model"] = expanded(path) if str(path).startswith(("~", "$HOME")) else str(path)
    if rank > 0:
        c.settings["train.adapter"] = {"name": "lora", "rank": rank, "alpha": alpha, "targets": targets}
    c.settings["train.gradient_checkpointing"] = given[f"{MODEL}.enable_gradient_checkpointing"]


# ---------------------------------------------------------------------------------------------- sampling and optimiser


def _sampling(c: Conversion) -> None:
    given = c.given
    for name in ("temperature", "top_p"):
        c.settings[f"sampling.{name}"] = float(given[f"{ROLLOUT}.{name}"])
    c.settings["sampling.top_k"] = max(0, given[f"{ROLLOUT}.top_k"])
    c.settings["sampling.max_tokens"] = given["data.max_response_length"]
    if given[f"{ROLLOUT}.name"] is not None:
        c.remark(
            f"{ROLLOUT}.name",
            f'{OWN_ENGINE}, and correction = "none" to the objective if it has none',
        )


def _optimiser(c: Conversion) -> None:
    given, prefix = c.given, f"{ACTOR}.optim"
    c.settings["optim.lr"] = float(given[f"{prefix}.lr"])
    c.settings["optim.clip_norm"] = float(given[f"{ACTOR}.grad_clip"])
    if given[f"{prefix}.optimizer"] != "AdamW":
        c.remark(f"{prefix}.optimizer", "the recipe has adamw; outdo also has adamw8bit, adafactor and sgd")
    betas, decay = list(given[f"{prefix}.betas"]), float(given[f"{prefix}.weight_decay"])
    c.settings["optim.algorithm"] = piece("adamw", betas=betas, weight_decay=decay)
    if decay and f"{prefix}.weight_decay" in given.written:
        c.remark(f"{prefix}.weight_decay", "verl also applies it to biases and norms, outdo to matrices only")
    _schedule(c, prefix)


def _schedule(c: Conversion, prefix: str) -> None:
    given = c.given
    kind = given[f"{prefix}.lr_scheduler_type"]
    if kind not in ("constant", "cosine"):
        c.remark(f"{prefix}.lr_scheduler_type", "the recipe has constant; outdo also has linear and cosine")
    if kind == "cosine" and given[f"{prefix}.min_lr_ratio"]:
        c.remark(f"{prefix}.min_lr_ratio", "the cosine of outdo ends at 0")
    warmup, share = given[f"{prefix}.lr_warmup_steps"], given[f"{prefix}.lr_warmup_steps_ratio"]
    if warmup < 0 and share:
        if "steps" not in c.settings:
            c.remark(f"{prefix}.lr_warmup_steps_ratio", "left out, because the number of steps is not known")
        warmup = math.floor(share * c.settings.get("steps", 0))  # verl's schedule counts its steps, not optimiser steps
    warmup = warmup * c.updates if warmup > 0 else None
    c.settings["optim.schedule"] = piece("cosine" if kind == "cosine" else "constant", warmup=warmup or None)


def _during_the_run(c: Conversion) -> None:
    given = c.given
    if given["trainer.test_freq"] > 0:
        put_evaluation(c, "trainer.test_freq", given["trainer.test_freq"])
    if given["trainer.save_freq"] > 0:
        c.settings["checkpoint.every"] = given["trainer.save_freq"]
    if (samples := given[f"{ROLLOUT}.val_kwargs.n"]) > 1:
        c.settings["eval.samples"] = samples
    if not given[f"{ROLLOUT}.val_kwargs.do_sample"]:
        c.settings.setdefault("eval.samples", 0)  # verl evaluates the greedy answer alone
    put_trackers(c, "trainer.logger")
    if given["trainer.experiment_name"]:
        c.settings["run"] = str(given["trainer.experiment_name"])


RULES: tuple[Rule, ...] = (
    _objective,
    _advantage,
    _kl_in_reward,
    _data,
    put_rewards,
    _model,
    _sampling,
    _optimiser,
    _during_the_run,
    distillation,
)
