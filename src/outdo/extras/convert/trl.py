"""Convert the settings of TRL's `GRPOTrainer`, or of a trainer with teachers, into a recipe that trains with the same
numbers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from outdo.extras.convert.account import NEEDED, converted
from outdo.extras.convert.conversion import (
    NOT_COMPLETE,
    RESULTS_COUNT,
    Conversion,
    Given,
    Rule,
    as_list,
    piece,
    put_epochs,
    put_evaluation,
    put_trackers,
)
from outdo.extras.convert.reading import Configuration, data_source, reading_of
from outdo.extras.convert.trl_objective import advantage, objective, reference
from outdo.extras.convert.trl_rewards import put_rewards
from outdo.extras.convert.trl_teachers import METHODS
from outdo.extras.convert.trl_trainers import GRPO, NOT_HERE, table_of_trainer, trainer_of
from outdo.utils.errors import UserError
from outdo.utils.text import counted

SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
EARLIER_NAMES = {
    "torch_dtype": "dtype",
    "evaluation_strategy": "eval_strategy",
    "ema_update_rate": "teacher_update_rate",
}
"""Settings that TRL has had under another name."""

CHAT = (
    "if the column of the prompt holds text, and no messages, TRL applies no chat template to it; outdo applies the "
    'model\'s, unless the recipe has data.template = "{prompt}"'
)


def convert_trl(
    settings: Configuration | Mapping[str, Any], *, processes: int = 1, rows: int | None = None
) -> Conversion:
    """Return the recipe for settings of a trainer's configuration, `ModelConfig` and `ScriptArguments`, by their names.

    Further names are the arguments of the trainer, such as `reward_funcs` and `train_dataset`. `processes` is the
    number of processes that TRL is started with, `rows` the number of training questions, which turns epochs into
    steps.
    """
    reading = reading_of(settings)
    reading = replace(reading, written={EARLIER_NAMES.get(name, name): v for name, v in reading.written.items()})
    if "scale_rewards" in reading.written:  # also true and false
        scale = str(reading.written["scale_rewards"]).lower()
        reading = replace(reading, written={**reading.written, "scale_rewards": scale})
    trainer = reading.trainer or trainer_of([*reading.written, *reading.unread])
    if trainer in NOT_HERE:
        raise UserError([f"{trainer}: {NOT_HERE[trainer]}"])
    first = (
        partial(_batch, processes=processes, trainer=trainer),
        partial(_steps, rows=rows),
        partial(_held_out, rows=rows),
    )
    if trainer == GRPO:
        return converted("TRL", reading, (*first, *METHOD, *RULES))
    if not reading.trainer:
        reading.remarks.append(f"the trainer: {trainer}, which has these settings; nothing that was read names one")
    needed = {name: what for name, what in NEEDED.items() if name != "rewards" or trainer == "SDPOTrainer"}
    return converted(
        "TRL",
        reading,
        (*first, *RULES, *METHODS[trainer]),
        table=table_of_trainer(trainer),
        shown=f"TRL's {trainer}",
        needed={**needed, "teachers": "the model that the policy learns from"},
    )


# ----------------------------------------------------------------------------------------------- batch and its passes


def _batch(c: Conversion, processes: int, trainer: str) -> None:
    given = c.given
    in_parallel = given["per_device_train_batch_size"] * processes
    per_update = in_parallel * given["gradient_accumulation_steps"]
    per_generation = given["steps_per_generation"] or given["gradient_accumulation_steps"]
    generated = in_parallel * per_generation
    if trainer != "IWOPDTrainer":  # which counts questions by this name, as many as the other settings say
        generated = given["generation_batch_size"] or generated
    group, passes = given["num_generations"], given["num_iterations"]
    if not all(isinstance(number, int) and number > 0 for number in (per_update, generated, group, passes)):
        c.mistakes.append("the settings of the batch: expected whole numbers above 0")
        return
    batch = max(generated, per_update)
    if batch % group or batch % per_update:
        started = counted(processes, "process", plural="processes")
        c.mistakes.append(
            f"num_generations = {group}: the {counted(batch, 'answer')} of a batch have to be a multiple of it, and of "
            f"the {counted(per_update, 'answer')} of an optimiser step; has TRL {started}? see --processes"
        )
        return
    minibatches = batch // per_update
    c.settings |= {"train.prompts": batch // group, "train.group_size": group, "train.passes": passes}
    c.settings["train.minibatches"] = minibatches
    c.updates = minibatches * passes
    if minibatches > 1:
        c.remark("steps_per_generation", "TRL divides the answers at random into minibatches, outdo keeps groups whole")
    if minibatches > batch // group:
        c.mistakes.append(f"num_generations = {group}: an optimiser step would get less than a group of answers")


def _steps(c: Conversion, rows: int | None) -> None:
    longest = c.given["max_steps"]
    if longest <= 0:
        put_epochs(c, "num_train_epochs", rows=rows, whole=math.ceil)
        return
    c.settings["steps"] = c.steps_of(longest)
    if c.updates > 1:
        c.remark("max_steps", f"TRL counts optimiser steps, of which a step of outdo has {c.updates}")


# ------------------------------------------------------------------------------------------------- data, rewards, model


def _data(c: Conversion) -> None:
    given = c.given
    train, test = given["dataset_train_split"], given["dataset_test_split"]
    name, config, mixture = given["dataset_name"], given["dataset_config"], given["datasets"]
    path = given["train_dataset"]
    if path is None and mixture:
        path = [_mixed(table) for table in as_list(mixture)]
    elif path is None and name is not None:
        path = data_source(name, train, config)
    if path:
        c.settings["data.path"] = path
    held_out = given["eval_dataset"]
    if held_out is None and name is not None and given["eval_strategy"] != "no":
        held_out = data_source(name, test, config)
    if held_out is not None:
        c.settings["data.eval_path"] = held_out
    _prompts(c)


def _prompts(c: Conversion) -> None:
    """Set what open-r1 names of a prompt, and the longest one."""
    given = c.given
    for theirs, ours in {"system_prompt": "data.system", "dataset_prompt_column": "data.prompt"}.items():
        if given[theirs]:  # of open-r1
            c.settings[ours] = str(given[theirs])
    longest = _longest_prompt(given)
    if longest is None:
        c.settings["data.overlong"] = "refuse"
        c.remarks.append(
            "the length of prompts: TRL has no limit; outdo refuses those above data.max_prompt_tokens, 512 by default"
        )
    else:
        c.settings["data.max_prompt_tokens"] = longest


def _longest_prompt(given: Given) -> int | None:
    """Return the tokens of the longest prompt, also where a trainer limits a prompt with its answer; None: no limit."""
    if given["max_prompt_length"] is not None or "max_length" not in given.defaults or given["max_length"] is None:
        return given["max_prompt_length"]
    return given["max_length"] - (given["max_completion_length"] or 0)


ROWS = ("data.prompt", "data.system", "data.template", "data.limit", "eval.rows")
"""What a script makes of its rows, by the names of outdo."""


def _rows_of_script(c: Conversion) -> None:
    c.settings |= {name: c.given[name] for name in ROWS if c.given[name] is not None}
    if "data.path" in c.settings and "data.prompt" not in c.settings:
        c.remarks.append(f"the prompts: {CHAT}")


def _held_out(c: Conversion, rows: int | None) -> None:
    count = c.given["data.eval_rows"]
    if count is None:
        return
    if count < 1 and rows is not None:
        count = math.ceil(count * rows)
    if count < 1:
        share = f"{count:g} of all rows"
        c.incomplete.append(f"data.eval_rows = {share}; --rows N writes it")
        count = f"{NOT_COMPLETE}{share}"
    c.settings["data.eval_rows"] = count


def _mixed(table: Any) -> str:
    if not isinstance(table, Mapping):
        return str(table)
    return data_source(table.get("path"), table.get("split", "train"), table.get("name"))


def _adapter(c: Conversion) -> None:
    options = c.given["peft_config"]
    options = options if isinstance(options, Mapping) else None
    if options is None and c.given["use_peft"]:
        options = _lora_of_model_config(c.given)
    if options is None:
        return
    if options.get("lora_dropout"):
        c.remarks.append(f"lora_dropout = {options['lora_dropout']}: outdo trains without dropout")
    if options.get("target_modules") is None:
        c.remarks.append("target_modules: unset, PEFT adapts some layers of each kind of model, outdo all-linear")
    options_of_peft = {SHORT.get(name, name): value for name, value in options.items() if name not in OF_PEFT_ALONE}
    if options_of_peft.get("targets") in (None, ["all-linear"]):
        options_of_peft["targets"] = "all-linear"
    c.settings["train.adapter"] = {"name": "lora", **options_of_peft}
    if c.settings.pop("reference.sync", None):
        c.remark("sync_ref_model", "TRL does not support it with an adapter either; left out")


SHORT = {"r": "rank", "lora_alpha": "alpha", "target_modules": "targets", "use_rslora": "rslora"}
"""Options of `LoraConfig`, and their short names in a recipe."""

OF_PEFT_ALONE = ("task_type", "inference_mode", "lora_dropout")


def _lora_of_model_config(given: Given) -> dict[str, Any]:
    names = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
    names |= {"target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
    names |= {"target_parameters": "lora_target_parameters", "use_rslora": "use_rslora", "use_dora": "use_dora"}
    return {name: given[theirs] for name, theirs in names.items() if given[theirs] not in (None, False)}


def _model(c: Conversion) -> None:
    given = c.given
    if given["model_name_or_path"] is not None:
        c.settings["model"] = given["model_name_or_path"]
    quantised = {"nf4": given["load_in_4bit"], "int8": given["load_in_8bit"]}
    if "train.adapter" in c.settings and True in quantised.values():
        c.settings["weights"] = next(name for name, wanted in quantised.items() if wanted)
    elif given["dtype"] not in ("float32", "auto", None):
        c.remark("dtype", "outdo keeps the weights that it trains in float32")
    if given["fp16"]:
        c.remark("fp16", "outdo computes in bfloat16 or float32; precision is left at auto")
    elif given["bf16"] is not None:
        c.settings["precision"] = "bfloat16" if given["bf16"] else "float32"
    checkpointing = (given["activation_checkpointing"], given["gradient_checkpointing"])
    c.settings["train.gradient_checkpointing"] = next(setting for setting in checkpointing if setting is not None)
    if given["use_cpu"]:
        c.settings["device"] = "cpu"
    if given["torch_compile"]:
        c.settings["compile"] = True


# ---------------------------------------------------------------------------------------------- sampling and optimiser


def _sampling(c: Conversion) -> None:
    given = c.given
    for name in ("temperature", "top_p"):
        c.settings[f"sampling.{name}"] = float(given[name])
    if given["mask_truncated_completions"]:
        c.settings["train.mask_truncated"] = True
    c.settings["sampling.top_k"] = max(0, given["top_k"] or 0)
    c.settings["sampling.min_p"] = float(given["min_p"] or 0.0)
    name = "max_new_tokens" if "max_new_tokens" in given.defaults else "max_completion_length"
    if given[name] is None:
        c.mistakes.append(f"{name}: outdo needs the length of the longest answer")
    else:
        c.settings["sampling.max_tokens"] = given[name]
    if given["repetition_penalty"] != 1:
        c.remark("repetition_penalty", "answers would not be drawn from the probabilities that are trained; left out")


def _optimiser(c: Conversion) -> None:
    given = c.given
    c.settings["optim.lr"] = float(given["learning_rate"])
    if norm := given["max_grad_norm"]:
        c.settings["optim.clip_norm"] = float(norm)
    else:
        c.settings["optim.clip_norm"] = 1e9
        c.remark("max_grad_norm", "outdo always clips; the recipe has a bound that no gradient reaches")
    betas, eps = [given["adam_beta1"], given["adam_beta2"]], given["adam_epsilon"]
    decay, name = float(given["weight_decay"]), str(given["optim"] or "adamw")
    if name.startswith("adamw"):
        algorithm = "adamw8bit" if "8bit" in name else "adamw"
        c.settings["optim.algorithm"] = piece(algorithm, betas=betas, eps=eps, weight_decay=decay)
    elif name in ("sgd", "adafactor"):
        c.settings["optim.algorithm"] = piece(name, weight_decay=decay)
        if name == "adafactor":
            c.remark(
                "optim",
                "TRL's learning rate is absolute, outdo's adafactor multiplies it by the root mean square of the "
                "weights; choose optim.lr anew",
            )
    else:
        c.settings["optim.algorithm"] = piece("adamw", betas=betas, eps=eps, weight_decay=decay)
        c.remark("optim", "outdo does not have this optimiser by name; the recipe has adamw")
    _schedule(c)


def _schedule(c: Conversion) -> None:
    given, kind = c.given, c.given["lr_scheduler_type"]
    if kind not in SCHEDULES:
        c.remark("lr_scheduler_type", "outdo has constant, linear and cosine; the recipe has constant")
    if kind == "cosine_with_min_lr":
        c.remark("lr_scheduler_type", "TRL's cosine ends at the least learning rate, outdo's at 0")
    warmup = given["warmup_ratio"] if given["warmup_ratio"] else given["warmup_steps"]
    if 0 < warmup < 1:  # a share of the optimiser steps
        name = "warmup_ratio" if given["warmup_ratio"] else "warmup_steps"
        if "steps" not in c.settings:
            c.remark(name, "outdo counts optimiser steps; left out, because the number of steps is not known")
        warmup = math.ceil(warmup * c.settings.get("steps", 0) * c.updates)
    name = SCHEDULES.get(kind, "constant")
    c.settings["optim.schedule"] = piece(name, warmup=int(warmup) if warmup else None)


# ------------------------------------------------------------------------------------ evaluation, checkpoints, trackers


def _during_the_run(c: Conversion) -> None:
    given = c.given
    strategy, every = given["eval_strategy"], given["eval_steps"]
    if strategy != "no" and every and every >= 1:
        put_evaluation(c, "eval_steps", c.steps_of(every))
    elif strategy == "epoch":
        c.remark("eval_strategy", "outdo counts steps: eval.every")
    if given.changed("save_steps") and given["save_steps"] >= 1:
        c.settings["checkpoint.every"] = c.steps_of(given["save_steps"])
    put_trackers(c, "report_to")
    if folder := str(given["output_dir"] or given["run_name"] or ""):
        c.settings["run"] = folder.rpartition("/")[2] if {"..", "~"} & set(folder.split("/")) else folder
    c.settings["seed"] = given["seed"]


def _tools(c: Conversion) -> None:
    if environment := c.given["environment_factory"]:
        c.settings["environment"] = environment
        c.settings.setdefault("rewards", "environment")
        c.remark("environment_factory", "outdo runs TRL's environments unchanged; see docs/environments.md")
    if not c.given["tools"]:
        return
    c.settings["environment"] = {"name": "tools", "functions": c.given["tools"]}
    if "'name': 'overlong'" in str(c.settings.get("rewards")):
        c.remarks.append(f"get_soft_overlong_punishment: {RESULTS_COUNT}")


METHOD: tuple[Rule, ...] = (objective, advantage, reference)
RULES: tuple[Rule, ...] = (
    _data,
    _rows_of_script,
    put_rewards,
    _adapter,
    _model,
    _sampling,
    _optimiser,
    _during_the_run,
    _tools,
)
