"""`data`: the questions of a run, and which answers of theirs the policy learns from without sampling them."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_serializer, model_validator

from outdo.config.fields import (
    Count,
    CountOrZero,
    Fraction,
    HeldOutFiles,
    NamedPiece,
    PathText,
    Section,
    Sources,
)
from outdo.config.prompt_template import PromptTemplate


class Selection(Section):
    """The pass rates of the questions to train on, from the file that `outdo eval --k 8 --rates FILE` writes."""

    file: PathText
    low: Fraction = 0.0
    high: Fraction = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> "Selection":
        if self.low > self.high:
            raise ValueError(f"expected low not above high, found low = {self.low:g} and high = {self.high:g}")
        return self


class Demonstrations(Section):
    """Answers of the data to learn from: a column, `"solution"`, or `{column = "solution", share = 0.5}`."""

    SHORT_FORM = ("column", "share")

    column: PathText
    share: Fraction = 1.0  # of the questions; the others are answered by the policy

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | Demonstrations):
            raise ValueError('expected a column, or a table such as {column = "solution", share = 0.5}')
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_a_share(self) -> "Demonstrations":
        if not self.share:
            raise ValueError("share = 0 uses no demonstration; leave data.demonstrations out")
        return self

    @model_serializer
    def _to_recipe(self) -> Any:
        return self.column if self.share == 1 else {"column": self.column, "share": self.share}


class Data(Section):
    """The questions to train on and to evaluate on."""

    path: Sources = Field(
        description="a .jsonl, .json, .csv or .parquet file, owner/name:split on the Hub, or a list of "
        "{path, weight, streaming}"
    )
    eval_path: HeldOutFiles | None = Field(
        default=None, description='held-out questions: a file, a list, or sets with names: {gsm8k = "test.jsonl"}'
    )
    eval_rows: CountOrZero = Field(default=0, description="without eval_path: number of rows of path to hold out")
    prompt: str | None = Field(default=None, description="column of the question; unset: detected and printed")
    answer: str | None = Field(default=None, description="column of the reference answer; unset: detected and printed")
    template: PromptTemplate | None = Field(
        default=None,
        description="prompt text for base models, with {prompt} in it, and {system} if there is a system message; or "
        "options of the model's chat template: {enable_thinking = false}",
    )
    system: str | None = Field(default=None, description="system message before every question")
    inputs: NamedPiece | None = Field(
        default=None,
        description="file.py:name: makes of a row what the model reads beside tokens; unset: nothing",
    )
    demonstrations: Demonstrations | None = Field(
        default=None,
        description="column of answers that a teacher explains in place of the policy's own; unset: none",
    )
    special_tokens: bool = Field(default=False, description="read <|im_end|> and the like in texts as special tokens")
    shuffle: bool = Field(default=True, description="use a new order of the questions in every epoch, set by the seed")
    limit: Count | None = Field(default=None, description="use only this many rows of each path, from the first")
    max_prompt_tokens: Count = Field(default=512, description="longest prompt, in tokens")
    overlong: Literal["drop", "refuse"] = Field(
        default="drop", description="what to do with longer prompts: drop (and print how many) or refuse"
    )
    select: Selection | None = Field(
        default=None,
        description='train only on a range of pass rates: {file = "rates.jsonl", low = 0.1, high = 0.9}; unset: all',
    )

    @property
    def prompt_template(self) -> str | None:
        """The text that replaces the model's chat template."""
        return self.template if isinstance(self.template, str) else None

    @property
    def chat_options(self) -> Mapping[str, Any]:
        """The options of the model's chat template."""
        return self.template if isinstance(self.template, Mapping) else {}
