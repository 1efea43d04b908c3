"""Convert the flags of OpenRLHF's `train_ppo_ray` into the settings of a recipe.

The rules have the names of OpenRLHF before 0.10. Those of later versions are translated before, and translated back in
what the user reads.
"""

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from outdo.extras.convert.account import converted, table_of
from outdo.extras.convert.conversion import (
    NOT_COMPLETE,
    OWN_ENGINE,
    RESULTS_COUNT,
    Conversion,
    Rule,
    as_list,
    piece,
    put_epochs,
    put_evaluation,
)
from outdo.extras.convert.openrlhf_objective import put_objective
from outdo.extras.convert.reading import Configuration, data_source, reading_of
from outdo.utils.text import counted

ADVANTAGES = {
    "reinforce": "reinforce_pp",
    "rloo": "leave_one_out",
    "reinforce_baseline": "reinforce_pp_baseline",
    "group_norm": "group_standardised",
    "dr_grpo": "group_centred",
}
WHITENED = ("gae", "reinforce", "reinforce_baseline")
"""The values of `advantage_estimator` for which OpenRLHF reads `no_advantage_std_norm`."""

AFTER_BASELINE = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""The values of `advantage_estimator` with which OpenRLHF subtracts the KL from tokens, after the baseline."""

WITHOUT_DEFAULT = {"generate_max_len": None, "prompt_max_len": None}
"""The flags that OpenRLHF 0.10 no longer has."""


def convert_openrlhf(settings: Configuration | Mapping[str, Any], *, rows: int | None = None) -> Conversion:
    """Return the recipe for flags of OpenRLHF, by their names. `rows` is the number of training questions."""
    reading, table = reading_of(settings), table_of("openrlhf")
    since_0_10: Mapping[str, str] = table["renamed"]
    earlier = {new: old for old, new in since_0_10.items()}
    names = {name: earlier.get(_without_backend(name), name) for name in (*reading.written, *reading.unread)}
    is_later = any("." in name for name in names)
    renamed = _with_earlier_names(reading, names)
    conversion = converted(
        "OpenRLHF",
        renamed,
        (partial(_batch, rows=rows), *RULES),
        other_defaults=table["defaults_since_0_10"] | WITHOUT_DEFAULT if is_later else {},
    )
    written_as = {new: old for old, new in names.items()}
    conversion.account = {written_as.get(name, name): end for name, end in conversion.account.items()}
    if is_later:
        for sentences in (conversion.remarks, conversion.mistakes, conversion.incomplete, *conversion.asides.values()):
            sentences[:] = [_renamed(sentence, since_0_10) for sentence in sentences]
    return conversion


def _with_earlier_names(reading: Configuration, names: Mapping[str, str]) -> Configuration:
    written = {names[name]: value for name, value in reading.written.items()}
    unread = {names[name]: what for name, what in reading.unread.items()}
    if unread.pop("use_wandb", None):  # a key, which no recipe has
        written["use_wandb"] = "a key"
    return replace(reading, written=_with_correction(written), unread=unread)


def _without_backend(name: str) -> str:
    """Return the name of a flag with `ds`, in whose place the versions after 0.11 have `fsdp`."""
    return re.sub(r"^fsdp\.", "ds.", name)


def _with_correction(written: dict[str, Any]) -> dict[str, Any]:
    """Return the flags with both bounds and the type of the correction.

    A number alone is the upper bound. `use_icepop` of a version before 0.10 is a type now.
    """
    name = "vllm_is_truncated_threshold"
    bounds = as_list(written.get(name))
    if len(bounds) == 1 and isinstance(bounds[0], int | float):
        written = {**written, name: [0.0, *bounds]}
    if written.get("use_icepop") is True:
        written = {**written, "vllm_is_correction_type": "icepop"}
        del written["use_icepop"]
    return written


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a remark with the names of later versions: that at its beginning, and inside those that are no words."""
    start = re.match(r"\w+", text)
    first = start[0] if start else ""
    rest = re.sub(r"(?<![\w.])\w*_\w*", lambda match: names.get(match[0], match[0]), text[len(first) :])
    return names.get(first, first) + rest


def _batch(c: Conversion, rows: int | None) -> None:
    given = c.given
    prompts, group = given["rollout_batch_size"], given["n_samples_per_prompt"]
    completions, update = prompts * group, given["train_batch_size"]
    passes = given["max_epochs"]
    if min(completions, update, passes) < 1 or completions % update:
        c.mistakes.append(f"train_batch_size = {update}: does not divide the {completions} answers of a batch")
        return
    c.settings |= {"train.prompts": prompts, "train.group_size": group, "train.passes": passes}
    c.settings["train.minibatches"] = completions // update
    c.updates = passes * completions // update
    if completions // update > 1:
        c.remark("train_batch_size", "OpenRLHF divides the answers into minibatches, outdo keeps groups whole")
    if completions // update > prompts:
        c.mistakes.append(f"train_batch_size = {update}: less than a group of {counted(group, 'answer')}")
    if given["max_samples"] < 1e8:
        c.settings["data.limit"] = int(given["max_samples"])
        rows = c.settings["data.limit"] if rows is None else min(rows, c.settings["data.limit"])
    put_epochs(c, "num_episodes", rows=rows)
    if given["dynamic_filtering"]:
        c.settings["train.dynamic_sampling"] = 10
        c.remark("dynamic_filtering_reward_range", "outdo replaces groups whose advantages are all 0")


def _advantage(c: Conversion) -> None:
    given, name = c.given, c.given["advantage_estimator"]
    gamma, lam = given["gamma"], given["lambd"]
    without_deviation = given["no_advantage_std_norm"]
    if name == "gae":
        c.settings["train.advantage"] = piece("gae", gamma=gamma, lam=lam, whiten=False if without_deviation else None)
        c.settings["train.critic"] = _critic(c)
    elif name not in ADVANTAGES:
        c.mistakes.append(f"advantage_estimator = {name}: expected gae, {', '.join(ADVANTAGES)}")
        return
    elif name == "reinforce":
        c.settings["train.advantage"] = piece("reinforce_pp", gamma=gamma)
    else:
        c.settings["train.advantage"] = ADVANTAGES[name]
    if without_deviation:
        c.remark("no_advantage_std_norm", _without_deviation(name))
    _kl_in_reward(c, name)


def _critic(c: Conversion) -> dict[str, Any]:
    """Return the critic of GAE, and report where it starts from another model than OpenRLHF's."""
    given = c.given
    critic = {"name": "model", "lr": given["critic_learning_rate"], "clip": given["value_clip"]}
    if given["freezing_actor_steps"] > 0:
        critic["warmup"] = given["freezing_actor_steps"]
    path, model = given["critic_pretrain"], given["reward_pretrain"]
    agent = given["agent_func_path"]
    if path and path != given["pretrain"]:
        critic["path"] = path
        c.remark(
            "critic_pretrain",
            "outdo's critic starts from a causal language model with the policy's vocabulary, and with values of 0; "
            "if this is a reward model (a sequence classifier), name the model that it was made of, or leave path out",
        )
    elif model and not (path or agent or given["remote_rm_url"]):
        c.remark(
            "critic_pretrain",
            f"OpenRLHF's critic then starts from the reward model {model}, outdo's from the policy, with values of 0",
        )
    return critic


def _without_deviation(estimator: str) -> str:
    if estimator not in WHITENED:
        return f"OpenRLHF does not read it with {estimator}, and the recipe has what it computes"
    if estimator == "gae":
        return "OpenRLHF still subtracts the mean of all tokens; whiten = false of the recipe leaves that out too"
    return (
        "OpenRLHF then only subtracts the mean of all tokens; "
        f"{ADVANTAGES[estimator]} of outdo always divides by their deviation too"
    )


def _kl_in_reward(c: Conversion, estimator: str) -> None:
    given = c.given
    beta, target, horizon = given["init_kl_coef"], given["kl_target"], given["kl_horizon"]
    if given["use_kl_loss"] or not beta:
        return
    if target:
        answers = given["rollout_batch_size"] * given["n_samples_per_prompt"]
        beta = {"start": beta, "target": target, "rate": answers / max(1, horizon)}
        c.remark("kl_target", "OpenRLHF means KL per answer, outdo per trained token")
    after = {"after_baseline": True} if estimator in AFTER_BASELINE else {}
    c.settings["train.kl_in_reward"] = {"name": given["kl_estimator"], "beta": beta, **after}


def _data(c: Conversion) -> None:
    given = c.given
    if given["prompt_data"] is not None:
        c.settings["data.path"] = _mixed(c, _sources(given["prompt_data"], given["prompt_split"]))
    if given["eval_dataset"] is not None:
        c.settings["data.eval_path"] = _sources(given["eval_dataset"], given["eval_split"])
    c.settings["data.prompt"] = given["input_key"]
    if given["label_key"]:
        c.settings["data.answer"] = given["label_key"]
    if not given["apply_chat_template"]:
        c.settings["data.template"] = str(given["input_template"] or "{}").replace("{}", "{prompt}")
    if given["prompt_max_len"] is not None:
        c.settings["data.max_prompt_tokens"] = given["prompt_max_len"]
    if "prompt_max_len" in given.written:
        c.remark("prompt_max_len", "OpenRLHF shortens a longer prompt, outdo drops its question")


def _sources(names: Any, split: Any) -> str | list[str]:
    """Return the data set, or the list of those with commas between them, as `data.path` names them.

    OpenRLHF reads the folder FOLDER of "NAME@FOLDER", which mostly is that of the configuration with this name.
    """
    sources = []
    for source in str(names).split(","):
        name, _, folder = source.strip().partition("@")
        sources.append(data_source(name.strip(), split or "train", folder.strip() or None))
    return sources[0] if len(sources) == 1 else sources


def _mixed(c: Conversion, sources: str | list[str]) -> Any:
    """Return the training data with the weights of `prompt_data_probs`, and report what differs for several sets."""
    probabilities = c.given["prompt_data_probs"]
    if isinstance(sources, str):
        if probabilities is not None:
            c.remark("prompt_data_probs", "it has no effect with one data set")
        return sources
    if "data.limit" in c.settings:
        c.remark("max_samples", "outdo limits each data set, OpenRLHF each and all of them together")
    if probabilities is None:
        return sources
    try:
        weights = [float(weight) for weight in str(probabilities).split(",")]
    except ValueError:
        weights = []
    if len(weights) != len(sources) or not all(0 < weight < math.inf for weight in weights):
        c.mistakes.append(
            f"prompt_data_probs = {probabilities}: expected {counted(len(sources), 'number')} above 0 with commas "
            "between them, one for each data set of prompt_data"
        )
        return sources
    c.remark("prompt_data_probs", "OpenRLHF draws the data set of each question, outdo has the shares in every batch")
    return [{"path": source, "weight": weight} for source, weight in zip(sources, weights, strict=True)]


def _rewards(c: Conversion) -> None:
    given = c.given
    model, remote = given["reward_pretrain"], given["remote_rm_url"]
    rewards: list[Any] = []
    if model and not remote:  # OpenRLHF loads no reward model beside a function or a service
        rewards += [{"name": "reward_model", "path": path.strip()} for path in str(model).split(",")]
    if len(rewards) > 1:
        c.remark("reward_pretrain", "the rewards are added up; set the weight of each")
    if remote:
        c.remark(
            "remote_rm_url",
            "write its function for outdo, f(completion, answer), as docs/rewards.md describes, and name it in rewards",
        )
        c.incomplete.append(f"rewards: the function or the service {remote} of remote_rm_url")
        rewards.append(f"{NOT_COMPLETE}{remote}")
    _penalise_long_answers(c, rewards)
    if rewards:
        c.settings["rewards"] = rewards[0] if len(rewards) == 1 else rewards
    low, high = c.pair("reward_clip_range", (-10, 10))
    if model or (low, high) != (-10, 10):
        c.remarks.append(f"reward_clip_range = [{low}, {high}]: a reward function of outdo limits its own values")


def _penalise_long_answers(c: Conversion, rewards: list[Any]) -> None:
    given = c.given
    if given["overlong_buffer_len"]:
        factor = float(given["overlong_penalty_factor"])
        rewards.append({"name": "overlong", "weight": factor, "cache": int(given["overlong_buffer_len"])})
        if given["agent_func_path"]:
            c.remark("overlong_buffer_len", RESULTS_COUNT)


def _environment(c: Conversion) -> None:
    """Report what samples in another manner, with what outdo has for it."""
    given = c.given
    if path := given["agent_func_path"]:
        name = _environment_class(Path(str(path)))
        c.settings["environment"] = f"{path}:{name}" if name else f"{NOT_COMPLETE}the class in {path}"
        c.settings.setdefault("rewards", "environment")
        if name:
            c.remark("agent_func_path", "outdo runs OpenRLHF's environments unchanged; see docs/environments.md")
        else:
            c.incomplete.append(f"environment: the class in {path} that has the methods reset and step")
    if given["async_train"]:
        c.remark("async_train", "outdo samples ahead with train.max_staleness (docs/staleness.md)")


def _environment_class(path: Path) -> str | None:
    """Return the class of a file that is an environment of OpenRLHF; None if the file is not here or has none."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        methods = [getattr(part, "name", "") for part in node.body] if isinstance(node, ast.ClassDef) else []
        if {"reset", "step"} <= {*methods} and isinstance(node, ast.ClassDef):
            return node.name
    return None


def _model(c: Conversion) -> None:
    given = c.given
    if given["pretrain"]:
        c.settings["model"] = given["pretrain"]
    rank, alpha, targets = given["lora_rank"], given["lora_alpha"], given["target_modules"]
    if rank > 0:
        c.settings["train.adapter"] = {"name": "lora", "rank": rank, "alpha": alpha, "targets": targets}
        if given["load_in_4bit"]:
            c.settings["weights"] = "nf4"
        if given["lora_dropout"]:
            c.remark("lora_dropout", "outdo trains without dropout")
    if given["bf16"] or given["param_dtype"] == "bf16":
        c.settings["precision"] = "bfloat16"
    elif given["param_dtype"] is not None:
        c.remark("param_dtype", "outdo trains in bfloat16 or float32; set precision")
    c.settings["train.gradient_checkpointing"] = given["gradient_checkpointing"]


def _optimiser(c: Conversion) -> None:
    given = c.given
    for name in ("temperature", "top_p"):
        c.settings[f"sampling.{name}"] = float(given[name])
    c.settings["sampling.max_tokens"] = _longest_answer(c)
    c.settings["optim.lr"] = float(given["actor_learning_rate"])
    c.settings["optim.clip_norm"] = float(given["max_norm"])
    betas, eps, decay = list(given["adam_betas"]), float(given["adam_eps"]), float(given["l2"])
    c.settings["optim.algorithm"] = piece("adamw", betas=betas, eps=eps, weight_decay=decay)
    if given["optim"] != "adam":
        c.remark("optim", "outdo has no such optimiser; the recipe has adamw with the options of Adam")
    _schedule(c)


def _longest_answer(c: Conversion) -> int:
    """Return the limit of an answer. Versions from 0.9.10 on limit prompt and answer together unless it is set."""
    given, either = c.given, ("max_new_tokens", "generate_max_len")
    if limit := next((given[name] for name in either if given.written.get(name)), None):
        return int(limit)
    if "max_len" not in given.written and given["generate_max_len"] is not None:
        return given["generate_max_len"]
    c.remark("max_len", "OpenRLHF limits prompt and answer together, the recipe the answer; set sampling.max_tokens")
    return given["max_len"]


def _schedule(c: Conversion) -> None:
    given, kind = c.given, str(c.given["lr_scheduler"])
    if kind == "cosine_with_min_lr":
        least = float(given["min_lr_ratio"])
        if least:
            c.remark("lr_scheduler", f"OpenRLHF's cosine ends at {least:g} times the learning rate, outdo's at 0")
    elif kind not in ("cosine", "linear", "constant", "constant_with_warmup"):
        c.remark("lr_scheduler", "outdo has constant, linear and cosine; the recipe has constant")
    name = next((known for known in ("cosine", "linear") if kind.startswith(known)), "constant")
    if "steps" not in c.settings:
        c.remark("lr_warmup_ratio", "left out, because the number of steps is not known")
    warmup = math.ceil(given["lr_warmup_ratio"] * c.settings.get("steps", 0) * c.updates)
    c.settings["optim.schedule"] = piece(name, warmup=warmup or None)


def _during_the_run(c: Conversion) -> None:
    given = c.given
    if given["eval_steps"] > 0 and put_evaluation(c, "eval_steps", given["eval_steps"]):
        c.settings["eval.samples"] = given["eval_n_samples_per_prompt"]
        if given["eval_temperature"] != 1:
            c.remark("eval_temperature", "outdo samples the answers to held-out questions at temperature 1")
    if given["save_steps"] > 0:
        c.settings["checkpoint.every"] = given["save_steps"]
    if track := [name for name in ("wandb", "tensorboard") if given[f"use_{name}"]]:
        c.settings["track"] = track
    if given["vllm_num_engines"]:
        c.remark("vllm_num_engines", OWN_ENGINE)
    c.settings["seed"] = given["seed"]


RULES: tuple[Rule, ...] = (
    put_objective,
    _advantage,
    _data,
    _rewards,
    _environment,
    _model,
    _optimiser,
    _during_the_run,
)
