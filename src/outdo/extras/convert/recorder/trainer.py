"""What the trainer of a script says: its model, adapter, settings, rewards and rows, by the names of TRL."""

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

from outdo.extras.convert.reading import Configuration
from outdo.extras.convert.recorder.functions import put_functions
from outdo.extras.convert.recorder.libraries import OF_TRAINER, Settings, Trainer, TrainerConfig, trainer_of
from outdo.extras.convert.recorder.rows import put_rows
from outdo.extras.convert.recorder.source import Sources
from outdo.extras.convert.recorder.unknown import (
    RUN,
    NotPlainError,
    Unknown,
    called,
    effects_on,
    first_of,
    method_of,
    named,
    origin_of,
    plain,
    shown,
)

OF_THE_MACHINE = ("bf16", "fp16", "tf32", "use_cpu", "dtype", "attn_implementation", "gradient_checkpointing")
"""Settings that outdo decides for itself where a script asks the machine."""

OF_THE_FOLDER = ("output_dir", "run_name", "logging_dir")

OF_THE_MODEL = {
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "revision": "model_revision",
    "trust_remote_code": "trust_remote_code",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_quant_storage": "bnb_4bit_quant_storage",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""Arguments of `from_pretrained` and `BitsAndBytesConfig`, and the settings of TRL that say the same."""

NAME_OF_MODEL = ("pretrained_model_name_or_path", "model_name", "model_name_or_path", "model")
SAME_MODEL = "to cuda cpu train eval float compile for_training prepare_model_for_kbit_training"
"""Functions and methods that return the model that they get."""

HARMLESS = re.compile(
    rf"config\.|({SAME_MODEL.replace(' ', '|')}|print_trainable_parameters|gradient_checkpointing_\w+|num_parameters|"
    r"enable_input_require_grads|(named_)?(parameters|modules)|(get|save|push|fast|generate)\w*)\(\)|"
    r"an item of \w+\(\): (?!.*(_\(\)| = ))"
)
"""What a script does to a model after which it trains as before."""

UNSLOTH = {
    "r": 16,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
"""The defaults of `FastLanguageModel.get_peft_model`, which has those of PEFT otherwise."""
UNSLOTH_SETTINGS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 5e-5,
    "weight_decay": 0.01,
    "warmup_ratio": 0.1,
    "seed": 3407,
    "optim": "adamw_8bit",
}
"""The defaults of `GRPOConfig` that Unsloth changes when it is imported."""
INSTEAD = {
    "optimizers": "set optim.lr, optim.algorithm and optim.schedule",
    "callbacks": "a hook of the recipe may do the same, see docs/trackers.md",
}
"""Arguments of a trainer that are objects, and what a recipe has instead."""
NOT_OF_LORA = ("use_gradient_checkpointing", "random_state", "max_seq_length", "adapter_name")


def reading_of_trainer(task: Mapping[str, Any]) -> Configuration:
    """Return what the first trainer of a run says. Each of its arguments is written, or unread, or in a remark."""
    trainer, arguments, line = RUN.trainers[0]
    reading, given, tree = Configuration(), dict(arguments), ast.parse(task["text"])
    reading.trainer = trainer_of(type(trainer)).__name__
    _put_surroundings(reading, type(trainer), line, tree)
    _put_later_changes(reading, trainer)
    _put_config(reading, given.pop("args", None))
    if re.search(r"^\s*(from|import) unsloth\b", task["text"], re.MULTILINE):
        _put_defaults_of_unsloth(reading)
    _put_model(reading, given.pop("model", None))
    for line, other in RUN.trained:
        reading.written.pop("model_name_or_path", None)
        reading.unread["model_name_or_path"] = f"what {other} trains at line {line}; name the model that it saves"
    _put_adapter(reading, given.pop("peft_config", None))
    if (quantised := given.pop("quantization_config", None)) is not None:
        _put_model_arguments(reading, {"quantization_config": quantised}, reading.trainer)
    _put_teacher(reading, given.pop("teacher_model", None))
    sources = Sources(path=task["path"], folder=task["folder"], text=task["text"], tree=tree, modules=task["modules"])
    put_rows(reading, given.pop("train_dataset", None), given.pop("eval_dataset", None), sources)
    functions = {name: given.pop(name, None) for name in ("reward_funcs", "tools", "environment_factory")}
    put_functions(reading, functions, sources)
    _put_tokenizer(reading, given.pop("processing_class", None))
    for name, instead in INSTEAD.items():
        objects = given.pop(name, None)
        if objects is not None and not (isinstance(objects, list | tuple) and all(part is None for part in objects)):
            reading.missing.append(f"{name}: {shown(objects)}; {instead}")
    for name, value in given.items():
        if value is not None:
            _put(reading, name, value)
    return reading


def _put_surroundings(reading: Configuration, kind: type, line: int, tree: ast.Module) -> None:
    """Put what is special about the trainer: a subclass of the script, one of several."""
    classes = kind.__mro__[: kind.__mro__.index(trainer_of(kind))]
    methods = {name for cls in classes for name, of in vars(cls).items() if inspect.isfunction(of)}
    if methods := sorted(methods | {*vars(Trainer), *vars(trainer_of(kind))} - OF_TRAINER):
        overridden = ", ".join(methods)
        reading.missing.append(
            f"{kind.__name__}: the script's own trainer, with its own {overridden}; see docs/pieces.md"
        )
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For | ast.While)]
    if any(loop.lineno < line <= (loop.end_lineno or 0) for loop in loops):
        reading.remarks.append(f"line {line} makes a trainer in a loop; the recipe has the first")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith(kind.__name__)]
    if len(calls) > 1:
        lines = ", ".join(str(call.lineno) for call in calls)
        reading.remarks.append(f"the script makes trainers in lines {lines}; the recipe has that of line {line}")


def _put_later_changes(reading: Configuration, trainer: Trainer) -> None:
    """Put what the script does to a trainer after it has made it."""
    for line, how in vars(trainer).get("effects", []):
        reading.missing.append(f"line {line}: what the script sets in the trainer ({how})")
    if isinstance(trainer.model, Unknown) and origin_of(trainer.model).kind == "text":
        _put_effects(reading, trainer.model)


def _put(reading: Configuration, name: str, value: Any) -> None:
    try:
        reading.written[name] = plain(value)
    except NotPlainError as error:
        if name in OF_THE_MACHINE:
            reading.remarks.append(f"{name} = {error}: outdo decides this by the machine that it runs on")
        elif name in OF_THE_FOLDER:
            reading.remarks.append(f"{name} = {error}: not known; it names a folder, and decides nothing else")
        else:
            reading.unread[name] = str(error)


def _put_config(reading: Configuration, config: Any) -> None:
    if config is None:
        return
    of_trainer = reading.trainer.replace("Trainer", "Config")
    if not isinstance(config, TrainerConfig):
        reading.missing.append(f"args = {shown(config)}: the settings of {of_trainer}")
        return
    for name, value in config.settings().items():
        if name == "model_init_kwargs" and isinstance(value, Mapping):
            _put_model_arguments(reading, value, name)
        elif name.startswith("**"):
            reading.missing.append(f"{name[2:]}: settings of {of_trainer}")
        else:
            _put(reading, name, value)


def _put_defaults_of_unsloth(reading: Configuration) -> None:
    """Put the settings that Unsloth has by default, and the batch that it makes a multiple of the group."""
    if any("GRPOConfig" in sentence for sentence in reading.missing):
        return
    written, known = reading.written, {*reading.written, *reading.unread}
    known |= {"warmup_ratio"} if "warmup_steps" in known else set()
    defaults = {name: value for name, value in UNSLOTH_SETTINGS.items() if name not in known}
    if defaults:
        written |= defaults
        listed = ", ".join(f"{name} = {value}" for name, value in defaults.items())
        reading.remarks.append(f"{listed}: the defaults of Unsloth, which are not those of TRL")
    group = written.get("num_generations", 8)
    sizes: list[Any] = [written.get("per_device_train_batch_size"), written.get("gradient_accumulation_steps"), group]
    if all(isinstance(size, int) and size > 0 for size in sizes) and sizes[0] * sizes[1] % group:
        written["per_device_train_batch_size"] = group
        reading.remarks.append(f"per_device_train_batch_size = {group}: Unsloth makes it a multiple of num_generations")


# ------------------------------------------------------------------------------------------------- model and adapter


def _put_model(reading: Configuration, model: Any) -> None:
    """Put the name of a model, how it is loaded, and the adapter that the script puts on it."""
    _put_effects(reading, model)
    if isinstance(model, Unknown) and repr(origin_of(model).key) == "0":  # of `model, tokenizer = ...`
        model = origin_of(model).of
    name = called(model)
    if model is not None and not name:
        _put(reading, "model_name_or_path", model)
    elif name in SAME_MODEL.split():
        of = method_of(model)
        _put_model(reading, named(model, "model").get("model") if of is None else of)
    elif name == "get_peft_model":
        _put_wrapped(reading, model)
    elif name == "from_pretrained":
        put = _put_trained_adapter if "Peft" in shown(origin_of(model).of) else _put_loaded
        put(reading, model)
    elif model is not None:
        reading.unread["model_name_or_path"] = shown(model)


def _put_effects(reading: Configuration, model: Any) -> None:
    harmful = [(line, how) for line, how in effects_on(model) if not HARMLESS.match(how)]
    reading.missing += [f"line {line}: what the script does to the model ({how})" for line, how in harmful]


def _put_wrapped(reading: Configuration, call: Any) -> None:
    """Put the adapter of `get_peft_model`, which is that of PEFT or of Unsloth."""
    given = named(call, "model", "peft_config")
    _put_model(reading, given.pop("model", None))
    if "peft_config" in given:
        _put_adapter(reading, given.pop("peft_config"))
        return
    if left := [name for name in given if name in NOT_OF_LORA]:
        reading.remarks.append(f"{', '.join(left)} of get_peft_model: memory and seeds, which outdo sets by itself")
    if parts := [name for name in given if name.startswith("finetune_")]:
        chosen = ", ".join(f"{name} = {shown(given.pop(name))}" for name in parts)
        reading.remarks.append(f"{chosen} of get_peft_model: Unsloth chooses layers by them; see train.adapter.targets")
    defaults = UNSLOTH if shown(origin_of(call).of).startswith("unsloth") else {}
    _put_lora(reading, defaults | {name: value for name, value in given.items() if name not in NOT_OF_LORA})


def _put_teacher(reading: Configuration, teacher: Any) -> None:
    """Put the name of the model that teaches, over that in the settings: the trainer takes its argument alone."""
    if teacher is None:
        return
    of_teacher = Configuration()
    _put_model(of_teacher, teacher)
    for here in (reading.written, reading.unread):
        here.pop("teacher_model_name_or_path", None)
    for part, whole in ((of_teacher.written, reading.written), (of_teacher.unread, reading.unread)):
        if "model_name_or_path" in part:
            whole["teacher_model_name_or_path"] = part.pop("model_name_or_path")
    if of_teacher.written:
        reading.written["teacher_model_init_kwargs"] = of_teacher.written
    reading.remarks += [f"the teacher: {remark}" for remark in of_teacher.remarks]
    reading.missing += [f"the teacher: {sentence}" for sentence in of_teacher.missing]


def _put_trained_adapter(reading: Configuration, call: Any) -> None:
    """Put an adapter that is trained further: outdo reads its base from the adapter's own folder."""
    given = named(call, "model", "model_id")
    adapter = given.get("model_id", given.get("pretrained_model_name_or_path", given.get("model")))
    if "model_id" in given:
        base = Configuration()
        _put_model(base, given["model"])
        name = base.written.pop("model_name_or_path", shown(given["model"]))
        reading.written |= base.written
        reading.remarks += base.remarks
        reading.remarks.append(f"the base of the adapter is what its adapter_config.json names; in the script {name}")
    if given.get("is_trainable") is not True:
        reading.missing.append("is_trainable: without it PEFT freezes the adapter, and nothing would be trained")
    _put(reading, "model_name_or_path", adapter)


def _put_loaded(reading: Configuration, call: Any) -> None:
    given, function = named(call, NAME_OF_MODEL[0]), shown(origin_of(call).of)
    name = next((name for name in NAME_OF_MODEL if name in given), None)
    _put(reading, "model_name_or_path", given.pop(name) if name else call)
    if "unsloth" in function and not {"load_in_8bit", "load_in_16bit", "full_finetuning"} & given.keys():
        given.setdefault("load_in_4bit", True)  # Unsloth's own default
    _put_model_arguments(reading, given, function)


def _put_model_arguments(reading: Configuration, given: Mapping[str, Any], of: str) -> None:
    others = list[str]()
    for name, value in given.items():
        if name == "quantization_config" and called(value):
            _put_model_arguments(reading, named(value), called(value))
        elif name == "quantization_config" and value is not None:
            reading.missing.append(f"{name} = {shown(value)}")
        elif name in OF_THE_MODEL:
            _put(reading, OF_THE_MODEL[name], value)
        elif value is not None:
            others.append(f"{name} = {value if isinstance(value, str) else shown(value)}")
    if others:
        reading.remarks.append(f"{', '.join(others)} of {of}: no counterpart")


def _put_adapter(reading: Configuration, config: Any) -> None:
    if config is None:
        return
    options = first_of(config) if called(config) == "get_peft_config" else None
    if called(config) == "LoraConfig":
        if origin_of(config).arguments:
            reading.missing.append(f"{shown(config)}: arguments of the adapter without a name")
        _put_lora(reading, named(config))
    elif isinstance(options, Settings):
        _put(reading, "use_peft", options.settings().get("use_peft", False))
        for name, value in options.settings().items():
            if "lora" in name:
                _put(reading, name, value)
    else:
        reading.unread["peft_config"] = f"{shown(config)}; see docs/adapters.md"


def _put_lora(reading: Configuration, options: Mapping[str, Any]) -> None:
    written = reading.written["peft_config"] = {}
    for name, value in options.items():
        try:
            written[name] = plain(value) if name != "task_type" else shown(value)
        except NotPlainError as error:
            reading.missing.append(f"{name} of the adapter: {error}")


def _put_tokenizer(reading: Configuration, tokenizer: Any) -> None:
    """Report what a script does to its tokenizer and outdo does not: a chat template, further tokens."""
    for line, how in effects_on(tokenizer):
        if how.startswith(("chat_template", "add_", "truncation")):
            reading.missing.append(f"processing_class, line {line}: {how}; save this tokenizer with the model")
    name = named(tokenizer, "name").get("name") if called(tokenizer) else None
    model = reading.written.get("model_name_or_path")
    if not isinstance(name, str) or model in (None, name) or any(name in remark for remark in reading.remarks):
        return
    reading.remarks.append(f"processing_class: the tokenizer of {name}; outdo reads that of the model, {model}")
