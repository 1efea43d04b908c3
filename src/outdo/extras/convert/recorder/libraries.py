"""The members of TRL and its relatives that a script gets more of than an unknown value."""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from outdo.extras.convert.reading import unmarked
from outdo.extras.convert.recorder.unknown import RUN, Origin, Unknown, frame_of_script, line, shown
from outdo.extras.convert.words import flags


class TrainingBeginsError(BaseException):
    """`train` of a trainer was called: all that follows needs what it trains."""


def default_of(field: Any) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


class SettingsType(type):
    """A class of settings that keeps which ones were given. A subclass may be a dataclass with more of them."""

    tables: Mapping[str, Mapping[str, Any]] = {}
    """The defaults of the settings of each configuration of a trainer, by the name of its class."""

    @property
    def defaults(cls) -> Mapping[str, Any]:
        """The defaults of the settings that TRL itself has; `ModelConfig` and `ScriptArguments` share those of GRPO."""
        names = [base.__name__ for base in cls.__mro__ if base.__name__ in SettingsType.tables]
        return SettingsType.tables.get(names[0] if names else "GRPOConfig", {})

    def __call__(cls, *arguments: Any, **settings: Any) -> Any:
        made: Any = object.__new__(cls)
        fields = _fields(cls)
        vars(made).update({"given": {}, "own": set(fields) - {*cls.defaults}})
        for name, field in fields.items():
            value = default_of(field)
            setattr(made, name, Unknown(Origin("text", f"--{name}")) if value is dataclasses.MISSING else value)
        for name, value in {**dict(zip(["output_dir"], arguments, strict=False)), **settings}.items():
            setattr(made, name, value)
        made.__post_init__()
        return made


class Settings(metaclass=SettingsType):
    """The base of `ModelConfig`, `ScriptArguments` and the configurations of trainers."""

    given: dict[str, Any]
    own: set[str]
    """Names that the script's own subclass adds, which TRL does not read."""

    def __post_init__(self) -> None: ...

    def settings(self) -> dict[str, Any]:
        """Return what was given to TRL, also by way of `vars(config)`."""
        written = self.given | {n: value for n, value in vars(self).items() if n not in ("given", "own")}
        return {unmarked(name): value for name, value in written.items() if name not in self.own}

    def __setattr__(self, name: str, value: Any) -> None:
        self.given[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("given", "own"):
            raise AttributeError(name)
        if name in self.given:
            return self.given[name]
        if name in type(self).defaults:
            return type(self).defaults[name]
        return Unknown(Origin("text", f"{type(self).__name__}().{name}"))


class TrainerConfig(Settings):
    """The base of the configurations of trainers, such as `GRPOConfig`."""


class ModelConfig(Settings): ...


class ScriptArguments(Settings): ...


class Trainer:
    """Keeps how it was made. A subclass may say more."""

    positional = ""
    """The arguments of the class in their order."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        named = dict(zip(self.positional.split(), arguments, strict=False)) | keywords
        RUN.trainers.append((self, named, line()))
        vars(self).update(named)
        if isinstance(named.get("model"), str):  # which TRL loads
            vars(self)["model"] = Unknown(Origin("text", "the model of the trainer"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(Origin("text", f"{type(self).__name__}().{name}"))

    def __setattr__(self, name: str, value: Any) -> None:
        frame = frame_of_script()
        if frame is None or frame.f_locals.get("self") is not self:  # a subclass of the script is reported by itself
            vars(self).setdefault("effects", []).append((line(), f"{name} = {shown(value)}"))
        vars(self)[name] = value

    def add_callback(self, callback: Any) -> None:
        vars(self).setdefault("effects", []).append((line(), f"add_callback({shown(callback)})"))

    def train(self, *_: Any, **__: Any) -> Any:
        raise TrainingBeginsError


OF_TRAINER = frozenset(vars(Trainer))
"""What the class has of itself: a script may set more."""

OF_TEACHERS = "model teacher_model args data_collator train_dataset eval_dataset processing_class compute_metrics "
OF_TEACHERS += "callbacks optimizers preprocess_logits_for_metrics peft_config"
POSITIONAL = {
    "GRPO": "model reward_funcs args train_dataset eval_dataset processing_class reward_processing_classes callbacks "
    "optimizers quantization_config peft_config tools rollout_func environment_factory",
    "Distillation": "model teacher_model args train_dataset eval_dataset processing_class callbacks optimizers "
    "quantization_config peft_config tools",
    "GKD": f"{OF_TEACHERS} formatting_func",
    "SDFT": "model args train_dataset eval_dataset processing_class callbacks optimizers peft_config",
    "SDPO": "model reward_funcs args train_dataset eval_dataset processing_class reward_processing_classes callbacks "
    "optimizers peft_config",
    "IWOPD": OF_TEACHERS,
    "GOLD": "",
    "ServerDistillation": "",
    "AsyncDistillation": "",
}
"""The trainers that are recorded, by the names before `Trainer` and `Config`, and the arguments of each."""

TRAINERS: dict[str, Any] = {
    name: type(name, (Trainer,), {"positional": arguments})
    for name, arguments in ((f"{name}Trainer", arguments) for name, arguments in POSITIONAL.items())
}
CONFIGURATIONS: dict[str, Any] = {
    name: SettingsType(name, (TrainerConfig,), {}) for name in (f"{name}Config" for name in POSITIONAL)
}


def trainer_of(kind: type) -> type:
    """Return the class of TRL that a class is, or is derived from."""
    return next(base for base in kind.__mro__ if base in TRAINERS.values())


# ------------------------------------------------------------------------------------------- the script's own arguments

TABLES: dict[str, Any] = {}
"""What YAML files near the script hold, by their texts."""


class Parser:
    """`TrlParser` and `HfArgumentParser`: fills dataclasses from the command line and from a file of settings."""

    def __init__(self, dataclass_types: Any = (), *_: Any, **__: Any) -> None:
        self.types = list(dataclass_types) if isinstance(dataclass_types, Sequence) else [dataclass_types]

    def parse_args_and_config(self, args: Any = None, *_: Any, **__: Any) -> tuple[Any, ...]:
        values = flags(sys.argv[1:] if args is None else args)[0]
        file = values.pop("config", None)
        return self.parse_dict((load_table(file) if file else {}) | values)

    parse_args_into_dataclasses = parse_args_and_config

    def parse_yaml_file(self, file: Any, **_: Any) -> tuple[Any, ...]:
        return self.parse_dict(load_table(file))

    parse_json_file = parse_yaml_file

    def parse_dict(self, values: Mapping[str, Any], **_: Any) -> tuple[Any, ...]:
        """Give each value to the class that has a field of its name, or else to the one of TRL."""
        claimed = {name for kind in self.types for name in values if _has_field(kind, name)}
        return tuple(
            _filled(kind, {n: v for n, v in values.items() if _has_field(kind, n) or _takes_all(kind, n, claimed)})
            for kind in self.types
        )


def _filled(kind: Any, given: dict[str, Any]) -> Any:
    """Return an object of a class with these values; what it needs besides is unknown."""
    for name, field in _fields(kind).items():
        if name in given:
            continue
        if field.default is field.default_factory is dataclasses.MISSING:
            given[name] = Unknown(Origin("text", f"the argument --{name}"))
        else:
            RUN.defaults[f"--{name}"] = shown(default_of(field))
    return kind(**given)


def _fields(kind: Any) -> dict[str, Any]:
    return {field.name: field for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}


def _has_field(kind: Any, name: str) -> bool:
    of_trl = next((fields for base, fields in FIELDS.items() if issubclass(kind, base)), "")
    return name in _fields(kind) or name in of_trl.split()


def _takes_all(kind: Any, name: str, claimed: set[str]) -> bool:
    return issubclass(kind, TrainerConfig) and name not in claimed


FIELDS = {
    ModelConfig: "model_name_or_path model_revision dtype torch_dtype attn_implementation trust_remote_code use_peft "
    "lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type "
    "use_rslora use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type bnb_4bit_quant_storage use_bnb_nested_quant",
    ScriptArguments: "dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming "
    "ignore_bias_buffers reward_model_name_or_path reward_funcs datasets",
}
"""The fields of TRL's classes beside the configuration of the trainer, which has all others."""


def load_table(file: Any, *_: Any, **__: Any) -> Any:
    """Return what a file of settings holds: an open one, its path, or its text."""
    text = file.read() if hasattr(file, "read") else RUN.text_of(file) or str(file)
    if text in TABLES:
        return TABLES[text]
    try:
        return json.loads(text)
    except ValueError:
        raise FileNotFoundError(f"{shown(file)}: no settings could be read") from None


def progress(items: Any = (), *_: Any, **__: Any) -> Any:
    return items


def cli(kind: Any, *_: Any, **__: Any) -> Any:
    """`tyro.cli`."""
    if dataclasses.is_dataclass(kind):
        return Parser(kind).parse_args_and_config()[0]
    call: Any = kind
    return call(**flags(sys.argv[1:])[0])


RECORDED: dict[str, dict[str, Any]] = {
    "trl": {
        **CONFIGURATIONS,
        **TRAINERS,
        "ModelConfig": ModelConfig,
        "ScriptArguments": ScriptArguments,
        "GRPOScriptArguments": ScriptArguments,
        "TrlParser": Parser,
    },
    "transformers": {"HfArgumentParser": Parser},
    "yaml": dict.fromkeys(("safe_load", "load", "full_load", "unsafe_load"), load_table),
    "tqdm": {"tqdm": progress, "trange": range},
    "tyro": {"cli": cli},
}
