"""What a call of TRL's `GRPOTrainer` says: its model, adapter, settings, rewards and rows, by the names of TRL."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.extras.convert.expressions import (
    Call,
    Expression,
    Name,
    NotPlainError,
    PartOf,
    Unread,
    plain,
    shown,
)
from outdo.extras.convert.reading import Configuration
from outdo.extras.convert.script_source import Sources
from outdo.extras.convert.trainer_functions import put_functions
from outdo.extras.convert.trainer_rows import put_rows

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

SAME_MODEL = (
    "to",
    "cuda",
    "cpu",
    "train",
    "eval",
    "float",
    "for_training",
    "prepare_model_for_kbit_training",
    "compile",
)
"""Functions and methods that return the model that they get."""

HARMLESS = re.compile(
    rf"config\.|({'|'.join(SAME_MODEL)}|print_trainable_parameters|gradient_checkpointing_\w+|enable_input_require_grads|"
    r"num_parameters|(named_)?(parameters|modules)|(get|save|load|push|fast|generate)\w*)\(\)"
)
"""What a script does to a model after which it trains as before."""

UNSLOTH = {"r": 16, "lora_alpha": 16}
"""The defaults of `FastLanguageModel.get_peft_model`, which has those of PEFT otherwise."""
UNSLOTH_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
UNSLOTH_SETTINGS = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 5e-5}
UNSLOTH_SETTINGS |= {"weight_decay": 0.01, "warmup_ratio": 0.1, "seed": 3407, "optim": "adamw_8bit"}
"""The defaults of `GRPOConfig` that Unsloth changes when it is imported."""
NOT_OF_LORA = ("use_gradient_checkpointing", "random_state", "max_seq_length", "model", "adapter_name")


@dataclass(kw_only=True)
class Trainer:
    """A trainer as a script makes it."""

    arguments: Mapping[str, Expression]
    line: int
    path: Path
    text: str
    tree: ast.Module
    kind: str = "GRPOTrainer"
    methods: Sequence[str] = ()
    """What a subclass of the script defines."""
    trained: Sequence[tuple[int, str]] = ()
    """Other trainers that the script runs before, and their lines."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The plain values at the top of the script, as Python writes them; empty if it was read as text."""


def reading_of_trainer(trainer: Trainer) -> Configuration:
    """Return what a trainer says. Each of its arguments is written, or unread, or in a remark."""
    reading = Configuration()
    given = dict(trainer.arguments)
    _put_surroundings(reading, trainer)
    _put_config(reading, given.pop("args", None))
    if re.search(r"^\s*(from|import) unsloth\b", trainer.text, re.MULTILINE):
        _put_defaults_of_unsloth(reading)
    _put_model(reading, given.pop("model", None))
    for line, other in trainer.trained:
        reading.written.pop("model_name_or_path", None)
        reading.unread["model_name_or_path"] = f"what {other} trains at line {line}; name the model that it saves"
    _put_adapter(reading, given.pop("peft_config", None))
    if (quantised := given.pop("quantization_config", None)) is not None:
        _put_model_arguments(reading, {"quantization_config": quantised}, "GRPOTrainer")
    sources = Sources(trainer.path, trainer.text, trainer.tree, trainer.values)
    for name in ("train_dataset", "eval_dataset"):
        if given.get(name) is not None:
            put_rows(reading, name, given.pop(name), sources)
    functions = {name: given.pop(name, None) for name in ("reward_funcs", "tools", "environment_factory")}
    put_functions(reading, functions, sources)
    _put_tokenizer(reading, given.pop("processing_class", None))
    for name, value in given.items():
        if value is not None:
            _put(reading, name, value)
    return reading


def _put_surroundings(reading: Configuration, trainer: Trainer) -> None:
    """Put what is special about the trainer: a subclass of the script, one of several."""
    if trainer.methods:
        own = ", ".join(trainer.methods)
        reading.missing.append(f"{trainer.kind}: the script's own trainer, with its own {own}; see docs/pieces.md")
    loops = [n for n in ast.walk(trainer.tree) if isinstance(n, ast.For | ast.While)]
    if any(each.lineno < trainer.line <= (each.end_lineno or 0) for each in loops):
        reading.remarks.append(f"line {trainer.line} makes a trainer in a loop; the recipe has the first")
    calls = [n for n in ast.walk(trainer.tree) if isinstance(n, ast.Call) and last_name(n.func) == trainer.kind]
    if len(calls) > 1:
        lines = ", ".join(str(each.lineno) for each in calls)
        reading.remarks.append(
            f"the script makes trainers in lines {lines}; the recipe has that of line {trainer.line}"
        )


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _put(reading: Configuration, name: str, value: Expression) -> None:
    try:
        reading.written[name] = plain(value)
    except NotPlainError as error:
        if name in OF_THE_MACHINE:
            reading.remarks.append(f"{name} = {error}: outdo decides this by the machine that it runs on")
        elif name in OF_THE_FOLDER:
            reading.remarks.append(f"{name} = {error}: not known; it names a folder, and decides nothing else")
        else:
            reading.unread[name] = str(error)


def _put_config(reading: Configuration, config: Expression) -> None:
    if isinstance(config, Call) and config.name == "GRPOConfig":
        for name, value in config.named("output_dir").items():
            if name == "model_init_kwargs" and isinstance(value, Mapping):
                _put_model_arguments(reading, value, name)
            elif name.startswith("**"):
                reading.missing.append(f"{name[2:]}: settings of GRPOConfig")
            else:
                _put(reading, name, value)
    elif config is not None:
        reading.missing.append(f"args = {shown(config)}: the settings of GRPOConfig")


def _put_defaults_of_unsloth(reading: Configuration) -> None:
    """Put the settings that Unsloth has by default, and the batch that it makes a multiple of the group."""
    if any("GRPOConfig" in each for each in reading.missing):
        return
    written, known = reading.written, {*reading.written, *reading.unread}
    known |= {"warmup_ratio"} if "warmup_steps" in known else set()
    defaults = {name: value for name, value in UNSLOTH_SETTINGS.items() if name not in known}
    if defaults:
        written |= defaults
        named = ", ".join(f"{name} = {value}" for name, value in defaults.items())
        reading.remarks.append(f"{named}: the defaults of Unsloth, which are not those of TRL")
    group = written.get("num_generations", 8)
    sizes: list[Any] = [written.get("per_device_train_batch_size"), written.get("gradient_accumulation_steps"), group]
    if all(isinstance(each, int) and each > 0 for each in sizes) and sizes[0] * sizes[1] % group:
        written["per_device_train_batch_size"] = group
        reading.remarks.append(f"per_device_train_batch_size = {group}: Unsloth makes it a multiple of num_generations")


# ------------------------------------------------------------------------------------------------- model and adapter


def _put_model(reading: Configuration, model: Expression) -> None:
    """Put the name of a model, how it is loaded, and the adapter that the script puts on it."""
    if isinstance(model, PartOf) and model.key == 0:  # of `model, tokenizer = ...`
        _put_effects(reading, model.effects)
        model = model.of
    if isinstance(model, str):
        reading.written["model_name_or_path"] = model
    elif isinstance(model, Call):
        _put_effects(reading, model.effects)
        _put_called_model(reading, model)
    elif model is not None:
        reading.unread["model_name_or_path"] = shown(model)


def _put_called_model(reading: Configuration, model: Call) -> None:
    given = model.named("model", "peft_config" if model.name == "get_peft_model" else "second")
    owner = model.owner
    if model.name in SAME_MODEL:
        _put_model(reading, given.get("model") if isinstance(owner, Name) else owner)
    elif model.name == "get_peft_model":
        _put_wrapped(reading, given, unsloth=isinstance(owner, Name) and owner.path.startswith("unsloth"))
    elif model.name == "from_pretrained":
        put = _put_trained_adapter if "Peft" in shown(owner) else _put_loaded
        put(reading, model)
    else:
        reading.unread["model_name_or_path"] = shown(model)


def _put_effects(reading: Configuration, effects: Sequence[tuple[int, str]]) -> None:
    for line, how in effects:
        if not HARMLESS.match(how):
            reading.missing.append(f"line {line}: what the script does to the model ({how})")


def _put_wrapped(reading: Configuration, given: dict[str, Expression], *, unsloth: bool) -> None:
    _put_model(reading, given.pop("model", None))
    if "peft_config" in given:
        _put_adapter(reading, given.pop("peft_config"))
        return
    defaults = UNSLOTH | {"target_modules": UNSLOTH_TARGETS} if unsloth else {}
    left = [name for name in given if name in NOT_OF_LORA and name != "model"]
    if left:
        reading.remarks.append(f"{', '.join(left)} of get_peft_model: memory and seeds, which outdo sets by itself")
    _put_lora(reading, defaults | {name: value for name, value in given.items() if name not in NOT_OF_LORA})


def _put_trained_adapter(reading: Configuration, call: Call) -> None:
    """Put an adapter that is trained further: outdo reads its base from the adapter's own folder."""
    given = call.named("model", "model_id")
    adapter = given.get("model_id", given.get("pretrained_model_name_or_path", given.get("model")))
    if "model_id" in given:
        base = Configuration()
        _put_model(base, given["model"])
        written = base.written.pop("model_name_or_path", shown(given["model"]))
        reading.written |= base.written
        reading.remarks += base.remarks
        reading.remarks.append(
            f"the base of the adapter is what its adapter_config.json names; in the script {written}"
        )
    if given.get("is_trainable") is not True:
        reading.missing.append("is_trainable: without it PEFT freezes the adapter, and nothing would be trained")
    _put(reading, "model_name_or_path", adapter)


def _put_loaded(reading: Configuration, call: Call) -> None:
    given = call.named("pretrained_model_name_or_path")
    names = ("pretrained_model_name_or_path", "model_name", "model_name_or_path", "model")
    name = next((name for name in names if name in given), None)
    _put(reading, "model_name_or_path", given.pop(name) if name else Unread(shown=shown(call)))
    if "unsloth" in shown(call.function) and not {"load_in_8bit", "load_in_16bit", "full_finetuning"} & given.keys():
        given.setdefault("load_in_4bit", True)  # Unsloth's own default
    _put_model_arguments(reading, given, shown(call.function))


def _put_model_arguments(reading: Configuration, given: Mapping[str, Expression], of: str) -> None:
    others = {}
    for name, value in given.items():
        if name == "quantization_config" and isinstance(value, Call):
            _put_model_arguments(reading, value.keywords, shown(value.function))
        elif name == "quantization_config" and value is not None:
            reading.missing.append(f"{name} = {shown(value)}")
        elif name in OF_THE_MODEL:
            _put(reading, OF_THE_MODEL[name], value)
        elif value is not None:
            others[name] = value
    if others:
        named = ", ".join(f"{name} = {shown(value)}" for name, value in others.items())
        reading.remarks.append(f"{named} of {of}: no counterpart")


def _put_adapter(reading: Configuration, config: Expression) -> None:
    if config is None:
        return
    if isinstance(config, Call) and config.name == "LoraConfig":
        _put_lora(reading, config.named())
    elif isinstance(config, Call) and config.name == "get_peft_config" and isinstance(config.arguments[0], Call):
        options = {name: value for name, value in config.arguments[0].keywords.items() if "lora" in name}
        for name, value in (options | {"use_peft": config.arguments[0].keywords.get("use_peft", False)}).items():
            _put(reading, name, value)
    else:
        reading.unread["peft_config"] = f"{shown(config)}; see docs/adapters.md"


def _put_lora(reading: Configuration, options: Mapping[str, Expression]) -> None:
    written = reading.written["peft_config"] = {}
    for name, value in options.items():
        try:
            written[name] = plain(value) if name != "task_type" else shown(value)
        except NotPlainError as error:
            reading.missing.append(f"{name} of the adapter: {error}")


def _put_tokenizer(reading: Configuration, tokenizer: Expression) -> None:
    """Report what a script does to its tokenizer and outdo does not: a chat template, further tokens."""
    for line, how in getattr(tokenizer, "effects", ()):
        if how.startswith(("chat_template", "add_", "truncation")):
            reading.missing.append(f"processing_class, line {line}: {how}; save this tokenizer with the model")
    name = tokenizer.named("name").get("name") if isinstance(tokenizer, Call) else None
    model = reading.written.get("model_name_or_path")
    if (
        isinstance(name, str)
        and isinstance(model, str)
        and name != model
        and not any(name in r for r in reading.remarks)
    ):
        reading.remarks.append(f"processing_class: the tokenizer of {name}; outdo reads that of the model, {model}")
