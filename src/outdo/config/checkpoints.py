"""The settings of checkpoints."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, model_serializer, model_validator

from outdo.config.fields import Count, Section


class SaveEvery(Section):
    """The steps between checkpoints: a number, or a table, `{steps = 20, wait = true}`."""

    SHORT_FORM = ("steps", "wait")

    steps: Count = 20
    wait: bool = False  # until a checkpoint is written, before the next step

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | Mapping | SaveEvery):
            raise ValueError("expected a number of steps, or a table such as {steps = 20, wait = true}")
        return {"steps": value} if isinstance(value, int) else value

    @model_serializer
    def _to_recipe(self) -> Any:
        return {"steps": self.steps, "wait": True} if self.wait else self.steps


STEPS = {"type": "integer", "minimum": 1}


class Checkpoint(Section):
    """The checkpoints on disk."""

    every: Annotated[
        SaveEvery,
        WithJsonSchema(
            {"anyOf": [STEPS, {"type": "object", "properties": {"steps": STEPS, "wait": {"type": "boolean"}}}]}
        ),
    ] = Field(
        default=SaveEvery(),
        description="steps between checkpoints; the last step is always saved; {steps = 20, wait = true} waits until "
        "each is written",
    )
    keep: Count = Field(default=2, description="number of newest checkpoints to keep; the best one is kept too")
