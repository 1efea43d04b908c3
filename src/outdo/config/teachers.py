"""`teachers`: the models that read the policy's answers, a path or a list of tables."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_serializer, model_validator

from outdo.config.fields import PathText, Positive, Section

POLICY, REFERENCE = "policy", "reference"
"""What a recipe writes for a teacher that is no other model: the policy as it is now, or the reference."""


class TeacherSection(Section):
    """A teacher: `"path"`, or `{name = "big", model = "path", weight = 2.0, hint = "..."}`."""

    SHORT_FORM = ("model", "name", "weight", "hint", "weights", "device")

    model: PathText
    name: str = ""  # that a row writes in its column `teacher`; empty: the last part of the model's path
    weight: Positive = 1.0  # its share where several teach a row
    hint: str | None = None  # what it reads in place of the question: a text with {prompt} in it
    weights: Literal["auto", "float32", "bfloat16", "int8", "nf4"] = "auto"  # how those of its own are stored
    device: str = ""  # where it is; empty: where the policy is

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | TeacherSection):
            raise ValueError('expected a model, or a table such as {name = "big", model = "path", weight = 2.0}')
        table = {"model": value} if isinstance(value, str) else value
        if isinstance(table, Mapping) and not table.get("name") and isinstance(model := table.get("model"), str):
            table = {**table, "name": PurePath(model).name}
        return table

    @model_validator(mode="after")
    def _has_a_place(self) -> "TeacherSection":
        if self.hint is not None and "{prompt}" not in self.hint:
            raise ValueError("hint: expected a text with {prompt} in it, where the question stands")
        return self

    @model_validator(mode="after")
    def _places_its_own_weights(self) -> "TeacherSection":
        if not self.is_folder and (self.weights != "auto" or self.device):
            raise ValueError(f"{self.model} has its weights already: weights and device are for a model of its own")
        return self

    @model_serializer
    def _to_recipe(self) -> Any:
        written = {
            "name": None if self.name == PurePath(self.model).name else self.name,
            "weight": None if self.weight == 1 else self.weight,
            "hint": self.hint,
            "weights": None if self.weights == "auto" else self.weights,
            "device": self.device or None,
        }
        options = {name: value for name, value in written.items() if value is not None}
        return {"model": self.model, **options} if options else self.model

    @property
    def is_folder(self) -> bool:
        """Whether it is a model of its own, and not the policy or the reference."""
        return self.model not in (POLICY, REFERENCE)


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _different_names(teachers: tuple[TeacherSection, ...]) -> tuple[TeacherSection, ...]:
    names = [teacher.name for teacher in teachers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two teachers have the name {twice[0]}: give each a name of its own")
    if len([teacher for teacher in teachers if teacher.hint is not None]) > 1:
        raise ValueError("only one teacher can have a hint")
    return teachers


TEACHER = [
    {"type": "string"},
    {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "name": {"type": "string"},
            "weight": {"type": "number"},
            "hint": {"type": "string"},
            "weights": {"enum": ["auto", "float32", "bfloat16", "int8", "nf4"]},
            "device": {"type": "string"},
        },
        "required": ["model"],
    },
]
Teachers = Annotated[
    tuple[TeacherSection, ...],
    BeforeValidator(_as_list),
    AfterValidator(_different_names),
    Field(strict=False),
    WithJsonSchema({"anyOf": [*TEACHER, {"type": "array", "items": {"anyOf": TEACHER}}]}),
]
