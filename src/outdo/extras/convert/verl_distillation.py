"""The teachers of a recipe for verl's `distillation`, and what the policy learns from them."""

import re
from collections.abc import Mapping
from typing import Any

from outdo.extras.convert.conversion import Conversion, piece, put_scaled_loss
from outdo.extras.convert.verl_names import ACTOR, DISTILLATION, ROLLOUT, TEACHERS
from outdo.extras.convert.verl_rewards import expanded

DIVERGENCES = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
"""verl's estimators of the KL of a token, and those of outdo."""

TOP = ("forward_kl_topk", "forward_kl_topk_tail")
SIGNED = ("kl", "k1")
"""The estimators whose negative is log π_T - log π."""

OF_OBJECTIVE = ("weight", "correction", "bypass")
"""Options of an objective that verl's loss from the teachers has too."""


def distillation(c: Conversion) -> None:
    """Set the teachers, and the loss from them, alone or beside that of the rewards."""
    given, objective = c.given, c.settings.get("train.objective")
    if not given["distillation.enabled"] or objective is None:
        return
    mode, alone = str(given[f"{DISTILLATION}.loss_mode"]), not given[f"{DISTILLATION}.use_task_rewards"]
    if mistake := _mistake(c, mode, alone=alone):
        c.mistakes.append(f"{DISTILLATION}.{mistake}")
        return
    _bounds(c, mode)
    if alone:
        for key in ("train.advantage", "train.critic", "train.kl_in_reward"):
            c.settings.pop(key, None)
        objective = {name: value for name, value in objective.items() if name in OF_OBJECTIVE}
    teachers = _teachers(c)
    if given[f"{DISTILLATION}.use_policy_gradient"]:
        _as_advantage(c, mode, objective, alone=alone)
    elif mode in TOP:
        _over_the_vocabulary(c, piece("forward_kl", **_top(c, mode, teachers)), objective, alone=alone)
    elif isinstance(teachers, list):
        c.remark(f"{DISTILLATION}.loss_mode", "of several teachers outdo compares the whole distributions, not a token")
        _over_the_vocabulary(c, "reverse_kl", objective, alone=alone)
    else:
        _of_the_sampled_token(c, DIVERGENCES[mode], objective, alone=alone)


def _mistake(c: Conversion, mode: str, *, alone: bool) -> str | None:
    """Return what is wrong with the settings of the loss, or with a value that verl refuses too; None if nothing is."""
    coefficient = c.given[f"{DISTILLATION}.distillation_loss_coef"]
    if mode not in (*DIVERGENCES, *TOP):
        return f"loss_mode = {mode}: expected {', '.join((*DIVERGENCES, *TOP))}"
    if mode in SIGNED and not c.given[f"{DISTILLATION}.use_policy_gradient"]:
        return f"loss_mode = {mode}: verl has it only with use_policy_gradient = true"
    if not alone and coefficient <= 0:
        return f"distillation_loss_coef = {coefficient}: expected a number above 0"
    return None


def _as_advantage(c: Conversion, mode: str, objective: Mapping[str, Any], *, alone: bool) -> None:
    """Set δ = log π_T - log π as advantage, alone or beside that of the rewards."""
    given = c.given
    low, high = given[f"{DISTILLATION}.clip_ratio_low"], given[f"{DISTILLATION}.clip_ratio_high"]
    if mode not in SIGNED:
        c.remark(f"{DISTILLATION}.loss_mode", "as an advantage outdo has k1 alone, and the recipe has it")
    if c.updates > 1:
        c.remark(
            f"{DISTILLATION}.use_policy_gradient", "verl takes log π of the policy at each update, outdo at the first"
        )
    if alone:
        c.settings["train.objective"] = {"name": "grpo", "clip_low": low, "clip_high": high, "beta": 0.0, **objective}
        c.settings["train.advantage"] = "distillation"
        return
    if c.settings.get("train.advantage") != "group_standardised":
        c.remark("algorithm.adv_estimator", "beside a teacher outdo has rewards that are standardised in their group")
        c.settings.pop("train.critic", None)
    for name, bound in (("clip_ratio_low", low), ("clip_ratio_high", high)):
        if bound != given[f"{ACTOR}.{name}"]:
            c.remark(f"{DISTILLATION}.{name}", f"outdo clips both losses as one; the recipe has that of {ACTOR}")
    coefficient = given[f"{DISTILLATION}.distillation_loss_coef"]
    c.settings["train.advantage"] = {"name": "mopd", "alpha": 1 / coefficient}
    put_scaled_loss(c, f"{DISTILLATION}.distillation_loss_coef", coefficient)


def _over_the_vocabulary(c: Conversion, divergence: Any, objective: Mapping[str, Any], *, alone: bool) -> None:
    if alone:
        c.settings["train.objective"] = {"name": "gkd", "teacher_divergence": divergence, **objective}
        return
    coefficient = c.given[f"{DISTILLATION}.distillation_loss_coef"]
    c.settings["train.objective"] = {**objective, "teacher_beta": coefficient, "teacher_divergence": divergence}


def _of_the_sampled_token(c: Conversion, divergence: str, objective: Mapping[str, Any], *, alone: bool) -> None:
    """Set the KL of the sampled token as a term of the loss: from the reference, which is the teacher."""
    given, teacher = c.given, c.settings.pop("teachers", None)
    if teacher is not None:
        c.settings["reference.model"] = teacher
    c.remarks.append("the teacher is reference.model, because the loss is an estimate of the KL from it")
    coefficient = 1.0 if alone else given[f"{DISTILLATION}.distillation_loss_coef"]
    term = {"beta": coefficient, "divergence": divergence, "kl_ratio": False}
    if alone:
        c.settings["train.objective"] = {"name": "grpo", "surrogate": "nothing", **objective, **term}
        c.settings["train.advantage"] = "reward"  # which pushes nothing there
        return
    for name in (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"):
        if given[name]:
            c.remark(name, "outdo has one reference, and in the recipe it is the teacher")
    c.settings["train.objective"] = {**objective, **term}


def _top(c: Conversion, mode: str, teachers: Any) -> dict[str, Any]:
    """Return the options of the divergence of the teacher's first tokens."""
    if mode == "forward_kl_topk":
        c.remark(
            f"{DISTILLATION}.loss_mode", "in outdo all other tokens are one more outcome, as in forward_kl_topk_tail"
        )
    name = f"{TEACHERS}.teacher_model.inference.temperature"
    temperature = c.given[name] if isinstance(teachers, str) else None
    differs = temperature not in (None, c.given[f"{ROLLOUT}.temperature"])
    options = {"teacher_temperature": temperature} if differs else {}
    return {"top": c.given[f"{DISTILLATION}.topk"], **options}


def _bounds(c: Conversion, mode: str) -> None:
    """Report the limits that verl sets."""
    loss, least = c.given[f"{DISTILLATION}.loss_max_clamp"], c.given[f"{DISTILLATION}.log_prob_min_clamp"]
    if loss is not None:
        c.remark(f"{DISTILLATION}.loss_max_clamp", "outdo does not clamp the divergence of a token")
    if mode in TOP and least is not None:
        c.remark(f"{DISTILLATION}.log_prob_min_clamp", "outdo does not clamp log-probabilities")


def _teachers(c: Conversion) -> Any:
    """Set the teachers and return them: a path, or several as tables; verl drops `teacher_model` beside others."""
    given = c.given
    names = [match[1] for name in given.written if (match := re.fullmatch(rf"{TEACHERS}\.([^.]+)\.model_path", name))]
    named = [name for name in names if name != "teacher_model"] or names
    paths = {name: expanded_model(given[f"{TEACHERS}.{name}.model_path"]) for name in named}
    if not paths:
        c.incomplete.append("teachers: the model that the policy learns from; nothing that was read says it")
        return None
    if len(paths) == 1:
        (c.settings["teachers"],) = paths.values()
        return c.settings["teachers"]
    keys = {name: given[f"{TEACHERS}.{name}.key"] for name in paths}
    c.settings["teachers"] = [{"model": path, "name": str(keys[name] or name)} for name, path in paths.items()]
    c.remark(
        "distillation.teacher_key", "outdo reads the name of a row's teacher in its column teacher: add it to the data"
    )
    return c.settings["teachers"]


def expanded_model(path: Any) -> str:
    """Return a folder with that of the user in the place of ~ and $HOME, or a name of the Hub as it is."""
    return expanded(path) if str(path).startswith(("~", "$HOME")) else str(path)
