"""The types of settings: numbers within bounds, paths, tables, and pieces with their options."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_serializer,
    model_validator,
)


def _plain_path(text: str) -> str:
    if not text.strip() or any(ord(character) < 32 or character == "\x7f" for character in text):
        raise ValueError("expected a name or a path without control characters")
    return text


def _run_name(text: str) -> str:
    if any(part in ("..", "~") for part in text.split("/")) or text in (".", "/"):
        raise ValueError('expected a name, a path without ".." and "~", or an absolute path')
    return text


Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PathText = Annotated[str, AfterValidator(_plain_path)]
RunName = Annotated[PathText, AfterValidator(_run_name)]


class Section(BaseModel):
    """A table of the recipe: frozen, without unknown keys, without silent conversions (`"1e-6"` is not a number)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


NAME_OR_TABLE = [
    {"type": "string"},
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
]
"""The JSON schema of what `_from_recipe` reads."""


class Piece(Section):
    """A named piece and its options: `"name"`, or `{name = "name", option = value}`."""

    name: PathText
    options: Mapping[str, Any] = Field(default_factory=dict)

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


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


NamedPiece = Annotated[Piece, WithJsonSchema({"anyOf": NAME_OR_TABLE})]
Rewards = Annotated[
    tuple[WeightedReward, ...],
    BeforeValidator(_as_list),
    Field(strict=False, min_length=1),
    WithJsonSchema({"anyOf": [*NAME_OR_TABLE, {"type": "array", "items": {"anyOf": NAME_OR_TABLE}}]}),
]
