"""The recipe: every setting of a training run, typed, with its default and one line that explains it.

The recipe is where a run is described and nowhere else: no other module of outdo takes a configuration object.
`outdo.config.file` reads and writes it, `outdo.config.rules` finds settings that cannot work together.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

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
from pydantic.fields import FieldInfo

from outdo.config.names import DEFAULT_ADVANTAGE, REWARD_MODEL, WITH_CRITIC

RUNS = Path("runs")
"""Where a run that is only named, not placed, has its folder."""


def _plain_path(text: str) -> str:
    if not text.strip() or any(ord(character) < 32 or character == "\x7f" for character in text):
        raise ValueError("expected a name or a path without control characters")
    return text


def _run_name(text: str) -> str:
    if any(part in ("..", "~") for part in text.split("/")) or text in (".", "/"):
        raise ValueError('a run folder may not contain ".." or "~"; give a name, a path downwards or an absolute path')
    return text


Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PathText = Annotated[str, AfterValidator(_plain_path)]
RunName = Annotated[PathText, AfterValidator(_run_name)]


class Section(BaseModel):
    """A part of the recipe: frozen, without unknown keys, without silent conversions (`"1e-6"` is not a number)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


NAME_OR_TABLE = [
    {"type": "string"},
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
]
"""How an editor sees, by the JSON schema, what is read by `_from_recipe`."""


class Piece(Section):
    """A named piece and its options, written as `"name"` or as `{name = "name", option = value}`."""

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
    """One reward, by name or by `"file.py:name"`, its options, and its weight in the sum."""

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


def _spec(reward: WeightedReward, max_tokens: int) -> dict[str, Any]:
    """A reward and its options as `load_reward` takes them, the longest answer filled in where it is asked for."""
    filled = {"max_tokens": max_tokens} if reward.name == "overlong" else {}
    return {"name": reward.name, **filled, **reward.options}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


NamedPiece = Annotated[Piece, WithJsonSchema({"anyOf": NAME_OR_TABLE})]
Rewards = Annotated[
    tuple[WeightedReward, ...],
    BeforeValidator(_as_list),
    Field(strict=False, min_length=1),
    WithJsonSchema({"anyOf": [*NAME_OR_TABLE, {"type": "array", "items": {"anyOf": NAME_OR_TABLE}}]}),
]


class Selection(Section):
    """Which questions to train on, by how often a model got them right: `outdo eval --k 8 --rates FILE` writes it."""

    file: PathText
    low: Share = 0.0
    high: Share = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> "Selection":
        if self.low > self.high:
            raise ValueError(f"expected low not above high, found {self.low:g} and {self.high:g}")
        return self


class Data(Section):
    """The questions."""

    path: PathText = Field(description="a .jsonl, .json, .csv or .parquet file, or owner/name:split on the Hub")
    eval_path: PathText | None = Field(default=None, description="held-out questions, in the same formats")
    eval_rows: CountOrZero = Field(default=0, description="without eval_path: hold out this many rows of path")
    prompt: str | None = Field(default=None, description="column that holds the question (unset: found and said)")
    answer: str | None = Field(
        default=None, description="column that holds the reference answer (unset: found and said)"
    )
    template: str | None = Field(
        default=None, description="prompt text for base models, with {prompt}, and perhaps {system}, in it"
    )
    system: str | None = Field(default=None, description="system message put before every question")
    shuffle: bool = Field(default=True, description="a new order of the questions in every pass over them, by the seed")
    limit: Count | None = Field(default=None, description="use only the first so many rows of path")
    max_prompt_tokens: Count = Field(default=512, description="longest prompt in tokens")
    overlong: Literal["drop", "refuse"] = Field(
        default="drop", description="longer prompts: drop (and say how many) or refuse"
    )
    select: Selection | None = Field(
        default=None, description='{file = "rates.jsonl", low = 0.1, high = 0.9}: by pass rate, as outdo eval wrote it'
    )


class Schedule(Section):
    """How the learning rate goes, written as `"cosine"` or as `{name = "cosine", warmup = 20}`."""

    name: Literal["constant", "linear", "cosine"]
    warmup: CountOrZero = 0

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class ReferenceSync(Section):
    """When the reference follows the policy, and the policy's share in it then: 1 replaces it."""

    every: Count
    mix: Annotated[float, Field(gt=0, le=1)] = 1.0


class RewardLimits(Section):
    """What a reward function may take and how often it may fail."""

    timeout: Positive = Field(default=10.0, description="seconds that one call of a reward function may take")
    max_failed: Share = Field(
        default=0.5, description="stop the run when more than this share of a step's rewards failed"
    )


class Sampling(Section):
    """How answers are drawn from the policy in training."""

    temperature: NotNegative = Field(default=1.0, description="logits are divided by it, in sampling and in training")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="the likeliest tokens that make up this probability"
    )
    top_k: CountOrZero = Field(default=0, description="only the k likeliest tokens; 0 is all")
    min_p: BelowOne = Field(default=0.0, description="only tokens at least this share as likely as the likeliest")
    stop: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description="texts that end an answer, besides the tokenizer's end-of-sequence token"
    )
    stop_token_ids: Annotated[tuple[CountOrZero, ...], Field(strict=False)] = Field(
        default=(), description="token ids that end an answer, besides the tokenizer's end-of-sequence token"
    )
    max_tokens: Count = Field(default=256, description="longest answer in tokens")


class Train(Section):
    """One step: questions, answers, advantages, and the updates made of them."""

    prompts: Count = Field(default=32, description="questions per step (P)")
    group_size: Count = Field(default=8, description="answers per question (G)")
    dynamic_sampling: CountOrZero = Field(
        default=0,
        description="so many further rounds of questions, at most, to replace groups that are all alike",
    )
    passes: Count = Field(default=1, description="passes over each batch (μ)")
    minibatches: Count = Field(default=1, description="optimiser steps within one pass")
    micro_batch_tokens: Count | Literal["auto"] = Field(
        default=16384, description="tokens in one forward pass, or auto: decides memory, never the gradient"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="compute activations again in the backward pass: less memory, a third more time"
    )
    objective: NamedPiece = Field(
        default=Piece(name="grpo"), description='grpo, dapo, gspo ..., {name = "grpo", beta = 0.04} or file.py:name'
    )
    advantage: NamedPiece | None = Field(
        default=None, description="group_standardised, leave_one_out ... or file.py:name; unset: the objective's own"
    )
    kl_in_reward: NamedPiece | None = Field(
        default=None, description='KL from the reference, taken off the reward: {name = "k1", beta = 0.05}; unset: none'
    )
    mask_truncated: bool = Field(
        default=False, description="leave answers cut off at max_tokens out of the loss (overlong filtering)"
    )
    critic: NamedPiece | None = Field(
        default=None,
        description='model, head or {name = "model", lr = 1e-5}; unset: model where the advantage needs one',
    )
    stop: NamedPiece | None = Field(
        default=None, description='end the updates early: {name = "first_of", attained = 0.9, kl = 0.1}; unset: never'
    )
    compat: Literal["outdo", "trl", "verl", "openrlhf", "areal"] = Field(
        default="outdo", description="conventions where libraries differ (eps, clamps, empty rows, means)"
    )


class Reference(Section):
    """The policy that KL is measured from; on-policy distillation learns from it."""

    model: PathText | None = Field(
        default=None, description="a model folder or hub name; unset: the policy as it starts"
    )
    sync: ReferenceSync | None = Field(
        default=None, description="{every = 20, mix = 0.6}: from the policy, whose share is mix; unset: never"
    )


class Optim(Section):
    """The optimiser and its learning rate. A schedule and its `warmup` count optimiser steps."""

    lr: Positive = Field(default=1e-6, description="learning rate after the warm-up")
    schedule: Annotated[Schedule, WithJsonSchema({"anyOf": NAME_OR_TABLE})] = Field(
        default=Schedule(name="constant"),
        description="constant, or linear or cosine down to 0; before, in warmup steps, it rises to lr",
    )
    algorithm: NamedPiece = Field(
        default=Piece(name="adamw"),
        description='adamw, adafactor, adamw8bit, {name = "adamw", weight_decay = 0.1} or file.py:name',
    )
    clip_norm: Positive = Field(
        default=1.0, description="largest norm of the gradient; longer ones are scaled down to it"
    )


class Eval(Section):
    """Evaluation on held-out questions during the run."""

    every: CountOrZero = Field(
        default=0, description="evaluate every so many steps; 0: only before the first and after the last"
    )
    rows: Count = Field(default=128, description="at most so many held-out questions")
    samples: CountOrZero = Field(default=1, description="answers sampled per question at temperature 1; 0 is none")
    greedy: bool = Field(default=True, description="also the likeliest answer of each question")
    best: Literal["greedy", "sampled"] = Field(
        default="greedy", description="the accuracy that says which checkpoint is the best"
    )


class Checkpoint(Section):
    """What is kept on disk."""

    every: Count = Field(default=20, description="save every so many steps, and at the end")
    keep: Count = Field(default=2, description="newest checkpoints kept; the best one is kept besides")


class Record(Section):
    """What is written down of every token: `tokens/step_000040.parquet` in the run folder."""

    every: CountOrZero = Field(default=1, description="record every so many steps; 0: none")
    after: Share | Literal["all"] = Field(
        default=0.0625, description="share of the groups, or all, asked once more after the update: what truly moved"
    )


class Recipe(Section):
    """Everything that decides a run."""

    model: PathText = Field(description="a model folder that from_pretrained loads, or a hub name")
    run: RunName | None = Field(
        default=None, description="run folder: a path, or a name in runs/; unset: chosen and said"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="key of every random number in the run")
    steps: Count = Field(default=100, description="steps; each samples, scores and trains on one batch of questions")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="auto, cpu, cuda or mps")
    threads: Count | None = Field(default=None, description="CPU threads; unset: as torch chooses")
    workers: Count | None = Field(
        default=None, description="CPU processes that share the weights and the threads; unset: chosen and said"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="of products, never of the weights; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    compile: bool = Field(default=False, description="let torch compile the model: slow to start, faster after it")
    attention: Literal["auto", "shared", "padded"] = Field(
        default="auto", description="shared: a group's prompt is computed once; padded: for models that refuse it"
    )
    rewards: Rewards = Field(
        default=(WeightedReward(name="exact"),),
        description="exact, last_number, math, format ..., file.py:name, or a list of these or of {name, weight}",
    )
    data: Data = Field(description="the questions")
    reward_limits: RewardLimits = Field(default=RewardLimits(), description="limits of reward functions")
    sampling: Sampling = Field(default=Sampling(), description="how answers are drawn in training")
    train: Train = Field(default=Train(), description="one step: questions, answers, advantages, updates")
    reference: Reference = Field(default=Reference(), description="the policy that KL is measured from")
    optim: Optim = Field(
        default=Optim(), description="the optimiser and its learning rate; a schedule counts optimiser steps"
    )
    eval: Eval = Field(default=Eval(), description="evaluation on held-out questions during the run")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="what is kept on disk")
    record: Record = Field(default=Record(), description="what is written down of every token")

    @property
    def advantage(self) -> Piece:
        """The advantage asked for, or the one that the objective was published with."""
        published = DEFAULT_ADVANTAGE.get(self.train.objective.name, "group_standardised")
        return self.train.advantage or Piece(name=published)

    @property
    def rules(self) -> list[tuple[dict[str, Any], float]]:
        """The rewards that are not learnt: what `load_reward` takes, and the weight of each."""
        longest = self.sampling.max_tokens
        return [(_spec(each, longest), each.weight) for each in self.rewards if each.name != REWARD_MODEL]

    @property
    def critic(self) -> Piece | None:
        """The critic asked for, or a model of its own where the advantage needs one."""
        return self.train.critic or (Piece(name="model") if self.advantage.name in WITH_CRITIC else None)


def sections() -> dict[str, type[Section]]:
    """The recipe's tables by name, in order."""
    return {
        name: info.annotation
        for name, info in Recipe.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
    }


def settings() -> dict[str, FieldInfo]:
    """Every setting by its dotted key, in the order of the recipe: `{"model": ..., "data.path": ..., ...}`."""
    tables = sections()

    def walk() -> Iterator[tuple[str, FieldInfo]]:
        yield from ((name, info) for name, info in Recipe.model_fields.items() if name not in tables)
        for name, table in tables.items():
            yield from ((f"{name}.{key}", info) for key, info in table.model_fields.items())

    return dict(walk())


def leaves() -> dict[str, FieldInfo]:
    """Return every value that a recipe can hold, by its dotted key: `settings()`, where each field of a nested table
    such as `data.select` counts for itself. The options of a piece do not count; they belong to the piece."""

    def walk(key: str, info: FieldInfo) -> Iterator[tuple[str, FieldInfo]]:
        table = _table_in(info.annotation)
        if table is None:
            yield key, info
            return
        if issubclass(table, Piece):
            yield key, info
        for name, inner in table.model_fields.items():
            if name not in Piece.model_fields or not issubclass(table, Piece):
                yield from walk(f"{key}.{name}", inner)

    return dict(leaf for key, info in settings().items() for leaf in walk(key, info))


def _table_in(annotation: Any) -> type[Section] | None:
    """Return the kind of table in an annotation such as `Selection | None` or `tuple[WeightedReward, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_table_in, get_args(annotation))), None)


def run_folder(run: str) -> Path:
    """The folder of `run`: a bare name lives in `runs/`, anything with a slash is the path it says."""
    return Path(run) if "/" in run else RUNS / run
