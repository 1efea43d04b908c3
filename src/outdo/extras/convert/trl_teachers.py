"""The method in the settings of TRL's trainers with teachers: divergence, teachers, hints, and their means."""

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any

from outdo.extras.convert.conversion import (
    NOT_COMPLETE,
    OWN_ENGINE,
    Conversion,
    Rule,
    as_list,
    piece,
    put_no_reward,
    put_scaled_loss,
)
from outdo.extras.convert.trl_objective import advantage, objective

OWN_ANSWERS = "in outdo all answers are the policy's own"
COLUMN = (
    "the column privileged_context: outdo reads it from the data; where the script makes it, write into the hint the "
    "column that it makes it of"
)
SIBLINGS = "right"
"""The place of a hint for another right answer of the group."""


# ---------------------------------------------------------------------------------------------- the whole distribution


def _divergence(c: Conversion, name: str, **options: Any) -> Any:
    """Return the divergence of TRL's β, or α: 0 the forward KL, 1 the reverse KL."""
    beta = c.given[name]
    if not 0 <= beta <= 1:
        c.mistakes.append(f"{name} = {beta}: expected a number from 0 to 1")
    if 0 < beta < 1:
        return piece("jensen_shannon", beta=beta, **options)
    return piece("forward_kl" if beta == 0 else "reverse_kl", **options)


def distillation(c: Conversion) -> None:
    """Set the method of `DistillationTrainer`, also with the settings that it had while it was experimental."""
    put_no_reward(c, "the trainer has none")
    _on_policy(c)
    top = _first_tokens(c) if c.given["loss_top_k"] else None
    c.settings["train.objective"] = piece("gkd", teacher_divergence=_divergence(c, "beta", top=top))


def gkd(c: Conversion) -> None:
    """Set the method of `GKDTrainer`."""
    given = c.given
    put_no_reward(c, "the trainer has none")
    _on_policy(c)
    c.settings["train.objective"] = piece("gkd", teacher_divergence=_divergence(c, "beta"))
    if given["temperature"] != 1:
        c.remark(
            "temperature",
            "GKDTrainer samples with it, and compares the distributions at 1; outdo does both at sampling.temperature",
        )
    c.remarks.append(
        "the mean of the loss: GKDTrainer divides by the number of tokens of the data's answers, also where the policy "
        "has sampled others; outdo by that of the answers that it compares"
    )


def iw_opd(c: Conversion) -> None:
    """Set the method of `IWOPDTrainer`."""
    given, kind = c.given, c.given["distillation_objective"]
    put_no_reward(c, "the trainer has none")
    _on_policy(c)
    if kind == "iw_opd":
        c.settings["train.objective"] = "distillation"
        c.settings["train.advantage"] = {"name": "iw_opd", "gamma": given["iw_opd_gamma"]}
    elif kind == "jsd":
        top = _first_tokens(c) if given["loss_top_k"] else None
        c.settings["train.objective"] = piece("gkd", teacher_divergence=_divergence(c, "beta", top=top))
    else:
        c.mistakes.append(f"distillation_objective = {kind}: expected iw_opd or jsd")
    c.remarks.append(
        "the mean of the loss: IWOPDTrainer divides by the number of tokens of the data's answers, also where the "
        "policy has sampled others; outdo by that of the answers that it compares"
    )


def _on_policy(c: Conversion) -> None:
    if c.given["lmbda"] < 1:
        share = f"{{column = ..., share = {1 - c.given['lmbda']:g}}}"
        if c.given["seq_kd"]:
            c.remark("seq_kd", "outdo generate writes the teacher's answers into a file: their column is `completion`")
        c.remark(
            "lmbda",
            f"the other batches have answers of the data; set data.demonstrations = {share} to the column that has "
            f"them as texts: {OWN_ANSWERS} without it",
        )


def _first_tokens(c: Conversion) -> int:
    """Return `loss_top_k`, and report which tokens TRL takes."""
    top = c.given["loss_top_k"]
    if c.given["beta"] > 0:
        c.remark("loss_top_k", "TRL takes the policy's first tokens too, outdo only the teacher's")
    if c.given["loss_add_tail"] is False:
        c.remark("loss_add_tail", "in outdo all other tokens are one more outcome")
    return top


# -------------------------------------------------------------------------------------------- the policy as its teacher


def sdft(c: Conversion) -> None:
    """Set the method of `SDFTTrainer`."""
    given = c.given
    put_no_reward(c, "the trainer has none")
    _self_distillation(c)
    if given["generate_from_teacher"]:
        c.remark("generate_from_teacher", f"{OWN_ANSWERS}, sampled without the hint")
    if given["num_loss_tokens_to_skip"]:
        c.remark("num_loss_tokens_to_skip", "outdo trains on all tokens of an answer")


def sdpo(c: Conversion) -> None:
    """Set the method of `SDPOTrainer`: self-distillation, the policy gradient, or a sum of both."""
    given, weight = c.given, c.given["distillation_weight"]
    if not 0 <= weight <= 1:
        c.mistakes.append(f"distillation_weight = {weight}: expected a number from 0 to 1")
    elif weight == 1:
        _self_distillation(c)
    else:
        _with_policy_gradient(c, weight)
    if given["beta"]:
        c.remark("beta", "SDPOTrainer takes it and does not use it")


def _self_distillation(c: Conversion) -> None:
    """Set a loss of the teachers alone, whose mean is over answers."""
    if c.given["mask_truncated_completions"]:
        c.remark("mask_truncated_completions", "TRL's mean counts the answers that it masks, outdo's does not")
    if c.given["distillation_mode"] == "sampled_token":
        c.settings["train.objective"] = {"name": "distillation", **_bounded_ratio(c), "weight": "sequence_mean"}
    else:
        divergence = _divergence_of_mode(c)
        c.settings["train.objective"] = {
            "name": "gkd",
            "teacher_divergence": divergence,
            "weight": "sequence_mean",
        }


def _with_policy_gradient(c: Conversion, weight: float) -> None:
    """Set (1 - weight) times the policy's loss plus weight times the teachers'. `put_scaled_loss` does the rest."""
    given = c.given
    objective(c)
    advantage(c)
    loss = c.settings.get("train.objective")
    if loss is None:
        return
    for name in ("beta", "kl_ratio"):  # which the trainer does not use
        loss.pop(name, None)
    if given["loss_type"] == "grpo":
        loss["beta"] = 0.0
    if given["loss_type"] == "dapo":
        c.remark("loss_type", "SDPOTrainer divides by the tokens of the micro-batch, outdo by those of the minibatch")
    if weight == 0:
        return
    if given["loss_type"] != "grpo":
        c.remark(
            "distillation_weight", "TRL's mean of the divergence is over answers, outdo's is that of the policy's loss"
        )
    if given["distillation_mode"] == "sampled_token":
        if c.settings.get("train.advantage") not in (None, "group_standardised"):
            c.remark("scale_rewards", "outdo's mopd standardises rewards in their group")
        c.settings["train.advantage"] = {"name": "mopd", "alpha": (1 - weight) / weight}
        put_scaled_loss(c, "distillation_weight", weight)
    else:
        loss["teacher_beta"] = weight / (1 - weight)
        loss["teacher_divergence"] = _divergence_of_mode(c)
        put_scaled_loss(c, "distillation_weight", 1 - weight)


def _divergence_of_mode(c: Conversion) -> Any:
    given, mode = c.given, c.given["distillation_mode"]
    if c.updates > 1 and given["distillation_is_clip"] is not None:
        c.remark("distillation_is_clip", "TRL multiplies the divergence by the ratio, up to this; outdo does not")
    if mode == "full_logits":
        return _divergence(c, "distillation_alpha")
    if mode != "topk_logits":
        c.mistakes.append(f"distillation_mode = {mode}: expected sampled_token, full_logits or topk_logits")
        return None
    top = given["distillation_topk"]
    if top is None:
        c.mistakes.append("distillation_topk: topk_logits needs it")
    c.remark("distillation_topk", "TRL takes the policy's first tokens, outdo the teacher's")
    if not given["distillation_add_tail"]:
        c.remark("distillation_add_tail", "in outdo all other tokens are one more outcome, in TRL they are left out")
    return _divergence(c, "distillation_alpha", top=top)


def _bounded_ratio(c: Conversion) -> dict[str, Any]:
    """Return the surrogate whose ratio has TRL's bound, where a batch has several updates and so a ratio."""
    bound = c.given["distillation_is_clip"]
    if c.updates == 1:
        return {}
    c.remarks.append("the advantage of a token: TRL takes log π of the policy at each update, outdo at the first")
    return {} if bound is None else {"surrogate": {"name": "cispo", "ratio_max": max(1.0, bound)}}


# ------------------------------------------------------------------------------------------------------------- teachers


def put_other_teacher(c: Conversion) -> None:
    """Set a teacher that is another model."""
    given = c.given
    if given["use_vllm"]:
        c.remark("use_vllm", OWN_ENGINE)
    if given["use_teacher_server"] or given["teacher_model_server_url"]:
        c.incomplete.append("teachers: the model of the server; outdo reads the answers with the teacher itself")
        return
    if path := given["teacher_model_name_or_path"]:
        c.settings["teachers"] = path
    if path and (weights := _weights_of_teacher(c)):
        c.settings["teachers"] = {"model": path, "weights": weights}


WEIGHTS = {"load_in_4bit": "nf4", "load_in_8bit": "int8", "dtype": "bfloat16"}
"""Arguments of a teacher's `from_pretrained`, the first of which counts, and how outdo stores its weights then."""
SAME = ("dtype", "torch_dtype", "attn_implementation", "trust_remote_code", "device_map", "quantization_config")


def _weights_of_teacher(c: Conversion) -> str | None:
    """Return how the teacher's weights are stored; None for as its files are, or more exactly."""
    options = c.given["teacher_model_init_kwargs"]
    if isinstance(options, str):  # as on a command line
        try:
            options = json.loads(options)
        except ValueError as error:
            c.mistakes.append(f"teacher_model_init_kwargs: expected JSON: {error}")
    if not isinstance(options, Mapping):
        return None
    quantised = options.get("quantization_config")
    options = {**options, **(quantised if isinstance(quantised, Mapping) else {})}
    if others := [name for name in options if name not in (*WEIGHTS, *SAME)]:
        c.remark("teacher_model_init_kwargs", f"{', '.join(others)}: no counterpart")
    dtype = str(options.get("dtype", options.get("torch_dtype"))).rpartition(".")[2]
    if dtype == "float16":
        c.remark("teacher_model_init_kwargs", "outdo stores a teacher in float32 or bfloat16; left at auto")
    chosen = {**options, "dtype": dtype == "bfloat16"}
    return next((weights for name, weights in WEIGHTS.items() if chosen.get(name) is True), None)


KINDS = {"base": "reference", "ema": "reference", "live": "policy"}


def put_own_teacher(c: Conversion) -> None:
    """Set the policy as its own teacher, with a hint."""
    given, kind = c.given, c.given["teacher_model_kind"]
    if given["use_vllm"]:
        c.remark("use_vllm", OWN_ENGINE)
    if given["distillation_weight"] == 0:
        return
    hint = _hint_of_answers(c) if "reprompt_template" in given.defaults else _hint_of_rows(c)
    if kind not in KINDS:
        c.mistakes.append(f"teacher_model_kind = {kind}: expected base, live or ema")
        return
    c.settings["teachers"] = {"model": KINDS[kind], "hint": hint}
    if kind == "ema":
        _put_average(c)
    if kind == "live" and c.updates > 1:
        c.remark("teacher_model_kind", "TRL's teacher changes with each update, outdo's before each batch")
    if given["use_teacher_server"]:
        c.remark("use_teacher_server", "outdo reads the answers with the policy itself")


def _put_average(c: Conversion) -> None:
    if "train.adapter" in c.settings:
        c.remark("teacher_model_kind", "outdo does not average adapters; the teacher is the policy at the start")
        return
    every, rate = c.given["teacher_sync_steps"], c.given["teacher_update_rate"]
    c.settings["reference.sync"] = {"every": c.steps_of(every), "mix": rate}
    if c.updates > 1:
        c.remark("teacher_sync_steps", f"TRL counts optimiser steps, of which a step of outdo has {c.updates}")


def _hint_of_rows(c: Conversion) -> str:
    """Return SDFT's prompt of the teacher."""
    c.remarks.append(COLUMN)
    return _template(c, "teacher_prompt_template", {"prompt": "{prompt}", "privileged_context": "{privileged_context}"})


def _hint_of_answers(c: Conversion) -> str:
    """Return SDPO's prompt of the teacher: the question, a right answer of the group, and what the row says."""
    given = c.given
    parts = {"prompt": "{prompt}", "solution": "", "feedback": ""}
    if given["use_successful_as_teacher"]:
        parts["solution"] = _template(c, "solution_template", {"successful_previous_attempt": f"{{{SIBLINGS}}}"})
        _right_answers(c)
    if given["include_environment_feedback"]:
        parts["feedback"] = _template(c, "feedback_template", {"feedback_raw": "{privileged_context}"})
        c.remarks.append(COLUMN)
        if given["use_successful_as_teacher"]:
            c.remark(
                "include_environment_feedback",
                "outdo teaches only where there are a right answer and feedback, TRL also where there is one of them",
            )
    return _template(c, "reprompt_template", parts)


def _right_answers(c: Conversion) -> None:
    """Set which answers are right, and report where TRL takes others."""
    given = c.given
    rewards = as_list(c.settings.get("rewards"))
    names = [str(reward if isinstance(reward, str) else reward["name"]).rpartition(":")[2] for reward in rewards]
    if names:
        c.settings["eval.right"] = names[0]
    if len(names) > 1:
        c.remark("success_reward_threshold", f"TRL compares the sum of the rewards with it, outdo {names[0]} with 1")
    elif given["success_reward_threshold"] != 1:
        c.remark("success_reward_threshold", "in outdo an answer is right from a reward of 1 on")
    if not given["dont_reprompt_on_self_success"]:
        c.remark("dont_reprompt_on_self_success", "in outdo the hint has another answer than that which is taught")
    if given["remove_thinking_from_demonstration"]:
        c.remark("remove_thinking_from_demonstration", "outdo's hint has the whole answer")


def _template(c: Conversion, name: str, places: Mapping[str, str]) -> str:
    """Return a template of TRL, which `str.format` fills, with outdo's places in it."""
    parts = list[str]()
    try:
        fields = [*Formatter().parse(c.given[name])]
    except ValueError as error:
        c.mistakes.append(f"{name}: expected a template of str.format: {error}")
        return ""
    for text, field, spec, conversion in fields:
        parts.append(text)
        if field is not None and (field not in places or spec or conversion):
            c.incomplete.append(f"{name}: what stands for {{{field}}}; write it into the hint of the teacher")
            parts.append(f"{NOT_COMPLETE}{field}")
        elif field is not None:
            parts.append(places[field])
    return "".join(parts)


METHODS: Mapping[str, tuple[Rule, Rule]] = {
    "DistillationTrainer": (distillation, put_other_teacher),
    "GKDTrainer": (gkd, put_other_teacher),
    "SDFTTrainer": (sdft, put_own_teacher),
    "SDPOTrainer": (sdpo, put_own_teacher),
    "IWOPDTrainer": (iw_opd, put_other_teacher),
}
"""The rules of each trainer for its method and its teachers; they read what the other rules have set."""
