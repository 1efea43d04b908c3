"""`outdo reward-model`: train a reward model on preferences or on rated answers."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from torch import Tensor

from outdo.cli.adapter_option import read_adapter
from outdo.cli.arguments import Adapter, BaseWeights, CheckpointEvery, Device, Epochs, Steps, Template, Threads
from outdo.cli.template_option import read_template, template_notes, with_date
from outdo.config.paths import absolute, absolute_data
from outdo.data.files import read_rows
from outdo.extras.reward_models.model import FitStep, RewardModel, fit
from outdo.extras.reward_models.preferences import Kind, comparisons_in, describe_format, detect_kind
from outdo.extras.sft.supervised import EPOCHS, PreparedTraining, TrainingLength, mistakes_of_new, parsed, run_plan
from outdo.models.chat_options import set_chat_options
from outdo.models.device import set_threads
from outdo.models.inspect_folder import EITHER, REWARD_MODEL, conversion_notes, inspect_folder
from outdo.models.loading import load_tokenizer
from outdo.models.optimiser import OptimiserSettings
from outdo.models.schedules import constant
from outdo.models.template_header import DATE
from outdo.rewards.comparisons import Comparison, Loss, Ranking, is_useful
from outdo.run.display import Display
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import counted, escape_control, excerpt

if TYPE_CHECKING:
    from peft import PeftConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelSettings:
    """The settings of the training of a reward model.

    `model` is a language model, which gets a new head, or a reward model, whose training continues.
    """

    model: str
    data: str
    kind: Kind | None
    epochs: float | None = None  # of `epochs` and `steps`, one is set
    steps: int | None = None
    batch: int
    lr: float
    warmup: int
    holdout: float  # share of the prompts that are held out for a test
    columns: Mapping[str, str | None]  # the columns of `data` that are not found by their names
    template: str | None  # text, or options of the chat template as a table in TOML
    adapter: str | None  # as `train.adapter` in a recipe
    base_weights: BaseWeights = "auto"
    seed: int
    device: str
    threads: int | None = None
    checkpoint_every: int

    def to_json(self) -> dict[str, Any]:
        """Return the settings with absolute paths, so that the training can be resumed from any folder."""
        paths = {"model": absolute(self.model), "data": absolute_data(self.data)}
        return {"command": "reward-model", **asdict(self), **paths}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceData:
    """The comparisons to train on and those held out, and what they are."""

    kind: Kind
    train: list[Comparison]
    held_out: list[Comparison]
    notes: list[str]  # for the user
    fingerprint: str  # SHA-256 of the file
    adapter: "PeftConfig | None" = None  # that a new training starts with
    template: str | None = None  # as in the settings, with the date that the chat template writes

    @property
    def loss(self) -> Loss:
        """The loss that is minimised."""
        return "regression" if self.kind == "regression" else "pairs"


def command(
    *,
    model: Annotated[str, typer.Argument(help="a language model or a reward model: a folder, .gguf file or hub name")],
    data: Annotated[str, typer.Option(help="preference pairs, or rated answers")],
    out: Annotated[Path, typer.Option(help="folder for the reward model")],
    kind: Annotated[
        Literal["pairs", "scored", "regression"] | None,
        typer.Option(help="content of the data, and how it is learnt; unset: pairs or scored, by its columns"),
    ] = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch: Annotated[int, typer.Option(min=1, help="pairs, or rated prompts, per step")] = 32,
    lr: Annotated[float, typer.Option(min=0, help="learning rate")] = 1e-5,
    warmup: Annotated[int, typer.Option(min=0, help="steps of learning-rate warm-up")] = 0,
    holdout: Annotated[float, typer.Option(min=0, max=0.9, help="share of the prompts held out as a test")] = 0.1,
    prompt: Annotated[str | None, typer.Option(help="column of the prompts; unset: found by its name")] = None,
    chosen: Annotated[str | None, typer.Option(help="column of the better answers; unset: found")] = None,
    rejected: Annotated[str | None, typer.Option(help="column of the worse answers; unset: found")] = None,
    completion: Annotated[str | None, typer.Option(help="column of the rated answers; unset: found")] = None,
    reward: Annotated[str | None, typer.Option(help="column of the ratings; unset: found")] = None,
    template: Template = None,
    adapter: Adapter = None,
    base_weights: BaseWeights = "auto",
    seed: Annotated[int, typer.Option(help="random seed of new weights, the held-out prompts and the order")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    checkpoint_every: CheckpointEvery = 100,
) -> int:
    """Train a reward model on a file."""
    columns = {
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "completion": completion,
        "reward": reward,
    }
    settings = RewardModelSettings(
        model=model,
        data=data,
        kind=kind,
        epochs=epochs or (None if steps else EPOCHS),
        steps=steps,
        batch=batch,
        lr=lr,
        warmup=warmup,
        holdout=holdout,
        columns=columns,
        template=template,
        adapter=adapter,
        base_weights=base_weights,
        seed=seed,
        device=device,
        threads=threads,
        checkpoint_every=checkpoint_every,
    )
    return run_reward_model(settings, out, Display())


def resume_reward_model(
    settings: Mapping[str, Any], out: Path, display: Display, *, overrides: Sequence[str], changed: bool
) -> int:
    """Continue the training that makes `out`, with its saved settings and `overrides`; return the exit status."""
    read = parsed(RewardModelSettings, settings, out, overrides)
    return run_reward_model(read, out, display, resumed=True, changed=changed)


def run_reward_model(
    settings: RewardModelSettings, out: Path, display: Display, *, resumed: bool = False, changed: bool = False
) -> int:
    """Train a reward model on a file, and write it to a new folder; return the exit status.

    For `resumed` and `changed` see `outdo.extras.sft.supervised.run_plan`. Raises `UserError` with every fault of the
    folders and the data, before a model is loaded.
    """
    mistakes = [] if resumed else mistakes_of_new(out, steps=settings.steps, epochs=settings.epochs)
    set_threads(settings.threads)
    data = _checked_data(settings, mistakes, resumed=resumed)
    for note in data.notes:
        display.say(escape_control(note))
    settings = replace(settings, template=data.template)
    plan = PreparedTraining(
        makes="reward model",
        settings=settings.to_json(),
        data={"--data": data.fingerprint},
        load=partial(_load, settings, data, display),
        checkpoint_every=settings.checkpoint_every,
    )
    return run_plan(plan, out, display, resumed=resumed, changed=changed)


@dataclass(slots=True)
class RewardModelTraining:
    """A `SupervisedTraining`: a reward model, what it learns from, and what it is tested on."""

    model: RewardModel
    comparisons: list[Comparison]
    held_out: list[Comparison]
    settings: RewardModelSettings
    loss: Loss
    display: Display
    before: Ranking | None = None  # of what is held out, before the first step

    @property
    def length(self) -> TrainingLength:
        settings = self.settings
        return TrainingLength.of(len(self.comparisons), settings.batch, steps=settings.steps, epochs=settings.epochs)

    @property
    def version(self) -> int:
        """The number of optimiser steps that the weights have taken."""
        return self.model.optimiser.steps

    def weights(self) -> Mapping[str, Tensor]:
        """Return the trained weights by name."""
        return self.model.optimiser.weights

    def train(self, start: int) -> Iterator[FitStep]:
        if self.before is None:
            with self.display.working("ranking the held-out answers"):
                self.before = self.model.ranking(self.held_out)
        steps, batch, seed = self.length.steps, self.settings.batch, self.settings.seed
        yield from fit(self.model, self.comparisons, steps=steps, batch=batch, seed=seed, loss=self.loss, start=start)

    def line(self, steps: Sequence[FitStep]) -> str:
        """Return a line about the rankings and the mean loss of the steps."""
        ranking = sum((step.ranking for step in steps), Ranking())
        mean = math.fsum(step.metrics["loss"] for step in steps) / len(steps)
        return f"{_sentence(ranking)}  loss {mean:.4g}"

    def conclude(self) -> Iterator[str]:
        """Yield a line on how the model ranks what is held out, if it has pairs of answers."""
        if self.before and self.before.pairs:
            with self.display.working("ranking the held-out answers"):
                after = self.model.ranking(self.held_out)
            yield f"held-out: {_sentence(after)} (before training {self.before.share:.1%})"

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    def state(self) -> dict[str, Any]:
        assert self.before is not None
        return {
            "optimiser": self.model.optimiser.state(),
            "micro_batch_tokens": self.model.micro_batch_state(),
            "before": asdict(self.before),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.model.optimiser.load_state(state["optimiser"])
        self.model.load_micro_batch_state(state.get("micro_batch_tokens", {}))
        self.before = Ranking(**state["before"])


def _show_first(reward: RewardModel, comparison: Comparison, display: Display) -> None:
    """Print the first comparison as the model reads it: the best and the worst answer, each with its prompt."""
    ranked = sorted(zip(comparison.values, comparison.completions, strict=True), key=lambda pair: -pair[0])
    for value, completion in (ranked[0], *ranked[1:][-1:]):
        display.say(f"the first comparison, as the model reads it; value {value:g}:")
        display.say(excerpt(str(reward.tokenizer.decode(list(reward.encode(comparison.prompt, completion))))))


def _short_enough(reward: RewardModel, comparisons: Sequence[Comparison], display: Display) -> list[Comparison]:
    """Return the comparisons that fit into the model's context; print how many are left out."""
    tracked = display.track(comparisons, total=len(comparisons), what="tokenising comparisons", stays=False)
    fitting = [comparison for comparison in tracked if reward.fits(comparison)]
    if left := len(comparisons) - len(fitting):
        longer = f"longer than the model's context of {reward.context} tokens"
        display.say(f"left out: {left:,} of {counted(len(comparisons), 'comparison')}, {longer}")
    return fitting


def _sentence(ranking: Ranking) -> str:
    if not ranking.pairs:
        return "has no pair of answers to rank"
    return f"pairwise accuracy {ranking.share:.1%} of {counted(ranking.pairs, 'pair')}"


def _load(
    settings: RewardModelSettings, data: PreferenceData, display: Display, folder: str | Path | None
) -> RewardModelTraining:
    """Load the reward model of a folder, or the model of the settings, and choose what it learns from."""
    useful = [comparison for comparison in data.train if is_useful(comparison, data.loss)]
    if left := len(data.train) - len(useful):
        display.say(f"left out: {left:,} of {counted(len(data.train), 'prompt')}, whose answers have equal values")
    with display.working(f"loading {settings.model}"):
        model = _reward_model(str(folder or settings.model), settings, data.adapter)
    trained_on, tested_on = _short_enough(model, useful, display), _short_enough(model, data.held_out, display)
    if not trained_on:
        raise UserError([f"{settings.data}: no comparison fits into the model's context of {model.context} tokens"])
    _show_first(model, trained_on[0], display)
    return RewardModelTraining(model, trained_on, tested_on, settings, data.loss, display)


def _reward_model(model: str, settings: RewardModelSettings, adapter: "PeftConfig | None") -> RewardModel:
    """Load a reward model as it is, or a language model's body with a new head; attach a new adapter."""
    template, options = read_template(settings.template)
    how: dict[str, Any] = {
        "device": settings.device,
        "adapter": adapter,
        "base_weights": settings.base_weights,
        "seed": settings.seed,
        "optimiser": OptimiserSettings(lr=settings.lr, schedule=partial(constant, warmup=settings.warmup)),
        "template": template,
    }
    load_tokenizer(model, kind=EITHER)  # which downloads the config.json of a hub model
    architecture = inspect_folder(model, EITHER).architecture or ""
    load = RewardModel.load if architecture.endswith(REWARD_MODEL.endings) else RewardModel.from_policy
    reward = load(model, **how)
    if options.keys() - {DATE}:  # of the chat template, which a text that the folder keeps would replace
        reward.template = None
    set_chat_options(reward.tokenizer, options)
    return reward


# ------------------------------------------------------------------------------------------------------------- the data


def _checked_data(settings: RewardModelSettings, mistakes: list[str], *, resumed: bool) -> PreferenceData:
    """Return the comparisons to train on and those held out. Raises `UserError` with every fault, `mistakes` first."""
    adapter, template, notes = None, settings.template, list[str]()
    try:
        if not resumed:  # then the model is that of the checkpoint
            adapter, notes = read_adapter(settings.adapter, settings.model, settings.base_weights, EITHER)
            notes += conversion_notes(inspect_folder(settings.model, EITHER))
            notes += template_notes(settings.template, settings.model, EITHER, dated=True)
            template, dated = with_date(template, settings.model, EITHER)
            notes += dated
    except (ModelError, UserError) as error:
        mistakes += str(error).splitlines()
    try:
        data = _read(settings)
    except UserError as error:
        raise UserError([*mistakes, *error.problems]) from None
    if mistakes:
        raise UserError(mistakes)
    return replace(data, adapter=adapter, template=template, notes=[*notes, *data.notes])


def _read(settings: RewardModelSettings) -> PreferenceData:
    path, columns = settings.data, settings.columns
    rows = read_rows(path)
    kind = settings.kind or detect_kind(rows)
    comparisons = comparisons_in(rows, kind, columns)
    train, held_out = hold_out(comparisons, settings.holdout, settings.seed)
    notes = [
        f"{path}: {counted(len(comparisons), 'prompt')}; format: {describe_format(rows, kind, columns)}; --kind {kind}"
    ]
    for column in ("tools", "system"):
        if any(row.get(column) for row in rows.values.values()):
            notes.append(f"{path}: the column {column} is not read: a reward model reads the prompt and the answer")
    data = PreferenceData(kind=kind, train=train, held_out=held_out, notes=notes, fingerprint=rows.fingerprint)
    if not any(is_useful(comparison, data.loss) for comparison in train):
        missing = "two answers with different rewards to one prompt" if kind == "scored" else "an answer"
        hint = "; --kind regression learns from single answers" if kind == "scored" else ""
        needs = f"without the held-out prompts, it needs at least {missing}{hint}"
        raise UserError([f"{path}: nothing to train on: {needs}"])
    return data


def hold_out(comparisons: Sequence[Comparison], share: float, seed: int) -> tuple[list[Comparison], list[Comparison]]:
    """Split into `(train, held_out)`; no prompt is in both.

    The held-out share are the prompts with the smallest SHA-256 together with the seed; at least one.
    """
    prompts = sorted({repr(comparison.prompt) for comparison in comparisons}, key=lambda text: _hash(seed, text))
    held_out = set(prompts[: max(1, round(share * len(prompts))) if share else 0])
    train = [comparison for comparison in comparisons if repr(comparison.prompt) not in held_out]
    return train, [comparison for comparison in comparisons if repr(comparison.prompt) in held_out]


def _hash(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}:{text}".encode()).digest()
