"""The types of settings: numbers within bounds, paths, tables, and pieces with their options."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    WrapSerializer,
    model_serializer,
    model_validator,
)

from outdo.utils.hub_names import REASONING_GYM
from outdo.utils.machine import MOST_THREADS


def _plain_path(text: str) -> str:
    if not text.strip() or any(ord(character) < 32 or character == "\x7f" for character in text):
        raise ValueError("expected a name or a path without control characters")
    return os.path.expanduser(text)  # a shell leaves the ~ of `data.path=~/train.jsonl` as it is


def _with_home(value: Any) -> Any:
    """Return the options of a piece with the home folder in place of the ~ that a path begins with."""
    if isinstance(value, Mapping):
        return {key: _with_home(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_home(inner) for inner in value]
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def _run_name(text: str) -> str:
    if any(part in ("..", "~") for part in text.split("/")) or text in (".", "/", os.path.expanduser("~")):
        raise ValueError('expected a name, or the path of a folder of its own, without ".." and "~" in it')
    return text


Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=MOST_THREADS)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PathText = Annotated[str, AfterValidator(_plain_path)]
RunName = Annotated[PathText, AfterValidator(_run_name)]


class Section(BaseModel):
    """A table of the recipe: frozen, without unknown keys, without silent conversions (`"1e-6"` is not a number)."""

    SHORT_FORM: ClassVar[tuple[str, ...]] = ()
    """The fields that a recipe may set without a table, by a plain value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


NAME_OR_TABLE = [
    {"type": "string"},
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
]
"""The JSON schema of what `_from_recipe` reads."""


class Piece(Section):
    """A named piece and its options: `"name"`, or `{name = "name", option = value}`."""

    SHORT_FORM = ("name", "options")

    name: PathText
    options: Annotated[Mapping[str, Any], AfterValidator(_with_home)] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "name" in value and "options" not in value:
            return {"name": value["name"], "options": {key: v for key, v in value.items() if key != "name"}}
        if isinstance(value, Piece) or (isinstance(value, Mapping) and value.keys() == {"name", "options"}):
            return value
        raise ValueError('expected a name, or a table such as {name = "grpo", clip_low = 0.2}')

    @model_serializer
    def _to_recipe(self) -> Any:
        return {"name": self.name, **self.options} if self.options else self.name


class WeightedReward(Piece):
    """One reward, a name or `"file.py:name"`, with its options and its weight in the sum."""

    weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0

    @property
    def place(self) -> Any:
        """Where its worker processes run: `"ray"`, or None for this machine. The function does not get this option."""
        return self.options.get("place")

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "name" in value and "options" not in value:
            options = {key: v for key, v in value.items() if key not in ("name", "weight")}
            return {key: v for key, v in value.items() if key not in options} | {"options": options}
        return value

    @model_serializer
    def _to_recipe(self) -> Any:
        extra = dict(self.options) if self.weight == 1 else {"weight": self.weight, **self.options}
        return {"name": self.name, **extra} if extra else self.name


class Shard(Section):
    """How the replicas divide the models: `true`, `false`, or a table of options, `{offload = true}`."""

    SHORT_FORM = ("on", "offload", "reduce_dtype")

    on: bool = True
    offload: bool = False  # the parts of weights, gradients and moments are in main memory
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"  # of the gradients that are summed

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if not isinstance(value, bool | Mapping | Shard):
            raise ValueError("expected true, false, or a table such as {offload = true}")
        return {"on": value} if isinstance(value, bool) else value

    @model_serializer
    def _to_recipe(self) -> Any:
        options = {name: getattr(self, name) for name in ("offload", "reduce_dtype") if name in self.model_fields_set}
        return options if self.on and options else self.on

    def __bool__(self) -> bool:
        return self.on


class GradientProducts(Section):
    """The library that computes the matrix products of a backward pass: a name, or a table, `{weight = "mkl"}`."""

    SHORT_FORM = ("input", "weight")

    input: Literal["onednn", "mkl"] = "onednn"  # for the gradients of the inputs
    weight: Literal["onednn", "mkl"] = "onednn"  # for the gradients of the weights

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | GradientProducts):
            raise ValueError('expected "onednn", "mkl", or a table such as {weight = "mkl"}')
        return {"input": value, "weight": value} if isinstance(value, str) else value

    @model_serializer
    def _to_recipe(self) -> Any:
        return self.input if self.input == self.weight else {"input": self.input, "weight": self.weight}


class CurriculumSection(Section):
    """The levels of a task of reasoning-gym, one after the other: `true`, or `{threshold = 0.9, window = 100}`."""

    SHORT_FORM = ("threshold", "window", "levels")

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8  # share of right answers that ends a level
    window: Count = 64  # questions of the level over which it is counted
    levels: Annotated[tuple[CountOrZero, ...], Field(strict=False, min_length=2)] | None = None  # None: all

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if value is not True and not isinstance(value, Mapping | CurriculumSection):
            raise ValueError("expected true, or a table such as {threshold = 0.8, window = 64}")
        return {} if value is True else value

    @model_serializer
    def _to_recipe(self) -> Any:
        levels = {} if self.levels is None else {"levels": list(self.levels)}
        return {"threshold": self.threshold, "window": self.window, **levels}


class Source(Section):
    """A file or data set to train on, `"train.jsonl"` or `{path = "train.jsonl", weight = 0.7, streaming = true}`."""

    SHORT_FORM = ("path", "streaming", "curriculum")

    path: PathText
    weight: Positive | None = None
    streaming: bool = False  # its questions stay on disk
    curriculum: CurriculumSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | Source):
            raise ValueError('expected a file, or a table such as {path = "train.jsonl", weight = 0.7}')
        return {"path": value} if isinstance(value, str) else value

    @model_serializer
    def _to_recipe(self) -> Any:
        written = {
            "weight": self.weight,
            "streaming": self.streaming or None,
            "curriculum": self.curriculum and self.curriculum.model_dump(),
        }
        options = {name: value for name, value in written.items() if value is not None}
        return {"path": self.path, **options} if options else self.path

    @model_validator(mode="after")
    def _has_levels(self) -> Self:
        task, _, settings = self.path.partition("?")
        if self.curriculum is not None and not task.startswith(REASONING_GYM):
            raise ValueError(f'only a task of reasoning-gym has a curriculum, such as "{REASONING_GYM}chain_sum"')
        if self.curriculum is not None and any(setting.startswith("level=") for setting in settings.split("&")):
            raise ValueError("the curriculum sets the level: leave `level` out of the path")
        return self


class HeldOut(Section):
    """A file of held-out questions, and the name of its set if the sets have names: `{gsm8k = "gsm8k.jsonl"}`."""

    SHORT_FORM = ("path", "set")

    path: PathText
    set: str | None = None


class Best(Section):
    """The number that decides which evaluation is the best one: `"greedy"`, or `{name = "greedy", patience = 3}`."""

    SHORT_FORM = ("name", "patience")

    name: PathText = "greedy"
    patience: Count | None = None  # evaluations without a new best one that end the run

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | Best):
            raise ValueError('expected a name, or a table such as {name = "greedy", patience = 3}')
        return {"name": value} if isinstance(value, str) else value

    @model_serializer
    def _to_recipe(self) -> Any:
        return self.name if self.patience is None else {"name": self.name, "patience": self.patience}


_SET = re.compile(r"(?!greedy|sampled|questions$)[A-Za-z0-9][\w-]*", re.ASCII)
"""The name of a held-out set. It may not look like the name of one of its numbers: `eval/SET/greedy`."""


def _held_out_files(value: Any) -> Any:
    """Return the files of a plain value, of a list, or of a table of sets."""
    if not isinstance(value, Mapping):
        return [_held_out_file(file) for file in _as_list(value)]
    for name in value:
        if not _SET.fullmatch(str(name)):
            raise ValueError(
                f'expected names of letters, digits, "_" and "-" that do not begin with greedy or sampled, not "{name}"'
            )
    return [_held_out_file(file, str(name)) for name, files in value.items() for file in _as_list(files)]


def _held_out_file(value: Any, name: str | None = None) -> Any:
    if isinstance(value, HeldOut):
        return value
    if not isinstance(value, str):
        raise ValueError('expected a file, a list of files, or a table of them such as {gsm8k = "test.jsonl"}')
    return {"path": value, "set": name}


def by_set(files: Sequence[HeldOut]) -> dict[str | None, list[str]]:
    """Return the paths of each held-out set by its name; None is that of sets without names."""
    sets: dict[str | None, list[str]] = {}
    for file in files:
        sets.setdefault(file.set, []).append(file.path)
    return sets


def _write_held_out(files: Sequence[HeldOut]) -> Any:
    written = {name: paths[0] if len(paths) == 1 else paths for name, paths in by_set(files).items()}
    return written.get(None, written)


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _only_one(values: Sequence[Any], serialise: SerializerFunctionWrapHandler) -> Any:
    """Write a list of one file as this file."""
    written = serialise(values)
    return written[0] if len(written) == 1 else written


def _all_weighted_or_none(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    if len({source.weight is None for source in sources}) > 1:
        raise ValueError("expected a weight for each file, or for none")
    if len(sources) > 1 and any(source.curriculum for source in sources) and sources[0].weight is None:
        raise ValueError("a curriculum beside other files needs a weight for each of them")
    return sources


PATH_OR_PATHS = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
SOURCE = [
    {"type": "string"},
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "weight": {"type": "number"},
            "streaming": {"type": "boolean"},
            "curriculum": {"anyOf": [{"const": True}, {"type": "object"}]},
        },
        "required": ["path"],
    },
]
HeldOutFiles = Annotated[
    tuple[HeldOut, ...],
    BeforeValidator(_held_out_files),
    Field(strict=False, min_length=1),
    PlainSerializer(_write_held_out),
    WithJsonSchema({"anyOf": [*PATH_OR_PATHS, {"type": "object", "additionalProperties": {"anyOf": PATH_OR_PATHS}}]}),
]
BestBy = Annotated[
    Best,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "patience": {"type": "integer", "minimum": 1}},
                    "required": ["name"],
                },
            ]
        }
    ),
]
Sources = Annotated[
    tuple[Source, ...],
    BeforeValidator(_as_list),
    AfterValidator(_all_weighted_or_none),
    Field(strict=False, min_length=1),
    WrapSerializer(_only_one),
    WithJsonSchema({"anyOf": [*SOURCE, {"type": "array", "items": {"anyOf": SOURCE}}]}),
]
Pieces = Annotated[
    tuple[Piece, ...],
    BeforeValidator(_as_list),
    Field(strict=False),
    WithJsonSchema({"anyOf": [*NAME_OR_TABLE, {"type": "array", "items": {"anyOf": NAME_OR_TABLE}}]}),
]
NamedPiece = Annotated[Piece, WithJsonSchema({"anyOf": NAME_OR_TABLE})]
Division = Annotated[
    Shard,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {
                    "type": "object",
                    "properties": {
                        "offload": {"type": "boolean"},
                        "reduce_dtype": {"enum": ["float32", "bfloat16"]},
                    },
                },
            ]
        }
    ),
]
Rewards = Annotated[
    tuple[WeightedReward, ...],
    BeforeValidator(_as_list),
    Field(strict=False, min_length=1),
    WithJsonSchema({"anyOf": [*NAME_OR_TABLE, {"type": "array", "items": {"anyOf": NAME_OR_TABLE}}]}),
]
