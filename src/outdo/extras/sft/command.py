"""`outdo sft`: fine-tune a model on given answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from outdo.cli.adapter_option import read_adapter
from outdo.cli.arguments import Adapter, BaseWeights, CheckpointEvery, Device, Epochs, Steps, Template, Threads
from outdo.cli.template_option import read_template, template_notes, with_date
from outdo.config.paths import absolute, absolute_data
from outdo.data.batches import Mixture
from outdo.data.files import read_rows
from outdo.data.prompts import Prompts
from outdo.extras.sft.sft import SftStep, sft
from outdo.extras.sft.sft_examples import SftExample, SftTokens, encode_examples, examples_in, messages_of
from outdo.extras.sft.supervised import EPOCHS, PreparedTraining, TrainingLength, mistakes_of_new, parsed, run_plan
from outdo.models.base_weights import Weights, choose_weights
from outdo.models.chat_options import set_chat_options
from outdo.models.conversation_notes import loses_thinking
from outdo.models.device import set_threads
from outdo.models.download import downloaded
from outdo.models.inspect_folder import conversion_notes, inspect_folder
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.schedules import constant
from outdo.models.special_tokens import special_tokens_in
from outdo.run.display import Display
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import counted, escape_control, excerpt

if TYPE_CHECKING:
    from peft import PeftConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """The settings of a fine-tuning. Of `Sequence`s, JSON makes lists."""

    model: str
    data: Sequence[str]
    weights: Sequence[float]  # of `data`; empty: by their sizes
    epochs: float | None = None  # of `epochs` and `steps`, one is set
    steps: int | None = None
    batch: int
    lr: float
    warmup: int
    seed: int
    device: str
    threads: int | None = None
    prompt: str | None
    answer: str | None
    template: str | None  # text, or options of the chat template as a table in TOML
    special_tokens: bool = False
    adapter: str | None  # as `train.adapter` in a recipe
    base_weights: Weights | Literal["auto"] = "auto"
    checkpoint_every: int

    def to_json(self) -> dict[str, Any]:
        """Return the settings with absolute paths, so that the training can be resumed from any folder."""
        data = [absolute_data(path) for path in self.data]
        return {"command": "sft", **asdict(self), "model": absolute(self.model), "data": data}


@dataclass(frozen=True, slots=True, kw_only=True)
class SftData:
    """The examples of each file, notes for the user on how they are read, and the SHA-256 of each file."""

    sources: list[list[SftExample]]
    notes: list[str]
    fingerprints: dict[str, str]
    adapter: "PeftConfig | None" = None  # that a new training starts with
    template: str | None = None  # as in the settings, with the date that the chat template writes


def command(
    *,
    model: Annotated[str, typer.Argument(help="a model folder, a .gguf file or a hub name")],
    data: Annotated[list[str], typer.Option(help="conversations, or prompts and answers; may be given several times")],
    weight: Annotated[
        list[float] | None, typer.Option(min=0.001, help="share of each --data in every batch; unset: by their sizes")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the fine-tuned model")],
    epochs: Epochs = None,
    steps: Steps = None,
    batch: Annotated[int, typer.Option(min=1, help="examples per step")] = 32,
    lr: Annotated[float, typer.Option(min=0, help="learning rate")] = 1e-5,
    warmup: Annotated[int, typer.Option(min=0, help="steps of learning-rate warm-up")] = 0,
    prompt: Annotated[str | None, typer.Option(help="column of the prompts; unset: found by its name")] = None,
    answer: Annotated[str | None, typer.Option(help="column of the answers; unset: found by its name")] = None,
    template: Template = None,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens", help="read <|im_end|> and the like in --data as special tokens")
    ] = False,
    adapter: Adapter = None,
    base_weights: BaseWeights = "auto",
    seed: Annotated[int, typer.Option(help="random seed of the order of the examples, and of --adapter")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    checkpoint_every: CheckpointEvery = 100,
) -> int:
    """Fine-tune a model on the examples of one or more files."""
    settings = SftSettings(
        model=model,
        data=data,
        weights=weight or (),
        epochs=epochs or (None if steps else EPOCHS),
        steps=steps,
        batch=batch,
        lr=lr,
        warmup=warmup,
        seed=seed,
        device=device,
        threads=threads,
        prompt=prompt,
        answer=answer,
        template=template,
        special_tokens=special_tokens,
        adapter=adapter,
        base_weights=base_weights,
        checkpoint_every=checkpoint_every,
    )
    return run_sft(settings, out, Display())


def resume_sft(
    settings: Mapping[str, Any], out: Path, display: Display, *, overrides: Sequence[str], changed: bool
) -> int:
    """Continue the fine-tuning that makes `out`, with its saved settings and `overrides`; return the exit status."""
    return run_sft(parsed(SftSettings, settings, out, overrides), out, display, resumed=True, changed=changed)


def run_sft(settings: SftSettings, out: Path, display: Display, *, resumed: bool = False, changed: bool = False) -> int:
    """Fine-tune a model on the examples of one or more files, and write it to a new folder; return the exit status.

    For `resumed` and `changed` see `outdo.extras.sft.supervised.run_plan`. Raises `UserError` with every fault of the
    folders and the data, before the model is loaded.
    """
    mistakes = [] if resumed else mistakes_of_new(out, steps=settings.steps, epochs=settings.epochs)
    set_threads(settings.threads)
    data = _checked_data(settings, mistakes, resumed=resumed)
    for note in data.notes:
        display.say(escape_control(note))
    settings = replace(settings, template=data.template)
    plan = PreparedTraining(
        makes="fine-tuned model",
        settings=settings.to_json(),
        data=data.fingerprints,
        load=partial(_load, settings, data, display),
        checkpoint_every=settings.checkpoint_every,
    )
    return run_plan(plan, out, display, resumed=resumed, changed=changed)


@dataclass(slots=True)
class SftTraining:
    """A `SupervisedTraining`: a policy, and the batches of its examples."""

    policy: Policy
    examples: Prompts[SftTokens]
    length: TrainingLength

    @property
    def version(self) -> int:
        """The number of optimiser steps that the weights have taken."""
        return self.policy.version

    def weights(self) -> Mapping[str, Tensor]:
        """Return the trained weights by name."""
        return self.policy.optimiser.weights

    def train(self, start: int) -> Iterator[SftStep]:
        self.examples.load_state({"position": (start - 1) * self.examples.per_step})
        return sft(self.policy, self.examples, steps=self.length.steps, start=start)

    def line(self, steps: Sequence[SftStep]) -> str:
        """Return a line about the last of the steps."""
        return f"loss {-steps[-1].likelihood:.3f}"

    def conclude(self) -> Iterator[str]:
        """Yield nothing."""
        return iter(())

    def save(self, folder: Path) -> None:
        self.policy.save(folder)

    def state(self) -> dict[str, Any]:
        return self.policy.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state(state)


def show_example(tokenizer: PreTrainedTokenizerBase, example: SftTokens) -> str:
    """Return an example as text, with » and « around what is learned; characters that do not print are escaped."""
    parts: list[str] = []
    for learned, tokens in groupby(zip(example.token_ids, example.learned, strict=True), key=lambda pair: pair[1]):
        text = excerpt(str(tokenizer.decode([token for token, _ in tokens])))
        parts.append(f"»{text}«" if learned else text)
    return "".join(parts)


def _checked_data(settings: SftSettings, mistakes: list[str], *, resumed: bool) -> SftData:
    """Read the examples of each file. Raises `UserError` with every fault, those in `mistakes` first."""
    data, weights, adapter, notes = settings.data, settings.weights, None, list[str]()
    template = settings.template
    if weights and len(weights) != len(data):
        mistakes.append(f"--weight: expected one for each --data, {len(data)}, or none; found {len(weights)}")
    try:
        if not resumed:  # then the model is that of the checkpoint
            adapter, notes = read_adapter(settings.adapter, settings.model, settings.base_weights)
            notes += conversion_notes(inspect_folder(settings.model))
            notes += template_notes(settings.template, settings.model, dated=True)
            template, dated = with_date(template, settings.model)
            notes += dated
    except (ModelError, UserError) as error:
        mistakes += str(error).splitlines()
    checked = SftData(sources=[], notes=notes, fingerprints={}, adapter=adapter, template=template)
    for number, path in enumerate(data, 1):
        try:
            rows = read_rows(path)
            examples, notes = examples_in(rows, prompt=settings.prompt, answer=settings.answer)
        except UserError as error:
            mistakes += error.problems
            continue
        checked.sources.append(examples)
        checked.notes.extend(notes)
        checked.fingerprints["--data" if len(data) == 1 else f"--data[{number}]"] = rows.fingerprint
    if mistakes:
        raise UserError(mistakes)
    return checked


def _load(settings: SftSettings, data: SftData, display: Display, folder: str | Path | None) -> SftTraining:
    """Load the model of a folder, or that of the settings, and encode the examples."""
    optimiser = OptimiserSettings(lr=settings.lr, schedule=partial(constant, warmup=settings.warmup))
    start = {"device": settings.device, "adapter": data.adapter, "seed": settings.seed, "optimiser": optimiser}
    with display.working(f"loading {settings.model}"):
        facts = downloaded(inspect_folder(folder or settings.model))
        weights = choose_weights(settings.base_weights, facts, frozen=bool(data.adapter or facts.adapter))
        policy = Policy.load(facts, weights=weights, **start)
    template, options = read_template(settings.template)
    set_chat_options(policy.tokenizer, options)
    how: dict[str, Any] = {"template": template, "special_tokens": settings.special_tokens}
    encoded = [_encode(policy, examples, display, **how) for examples in data.sources]
    display.say("the first example, as the model reads it; » and « enclose what is learned:")
    display.say(show_example(policy.tokenizer, encoded[0][0]))
    if not any(token in policy.end_ids for token in _learned(encoded[0][0])):
        display.say("note: no end-of-sequence token is learned in it, so the model does not learn to end its answers")
    batch, seed = settings.batch, settings.seed
    total = sum(map(len, encoded))
    length = TrainingLength.of(total, batch, steps=settings.steps, epochs=settings.epochs)
    if not settings.weights:
        joined = [example for source in encoded for example in source]
        return SftTraining(policy, Prompts(joined, per_step=batch, seed=seed), length)
    examples = Mixture(encoded, settings.weights, per_step=batch, seed=seed)
    shares = [share / len(source) for share, source in zip(examples.shares, encoded, strict=True)]
    return SftTraining(policy, examples, replace(length, most_epochs=max(shares) * total * length.epochs))


def _encode(policy: Policy, examples: Sequence[SftExample], display: Display, **how: Any) -> list[SftTokens]:
    """Encode the examples of a file; print how many are too long for the model, and how many have special tokens."""
    encoded = encode_examples(
        examples,
        policy.tokenizer,
        max_tokens=policy.context,
        end_ids=policy.end_ids,
        **how,
        track=lambda items: display.track(items, total=len(items), what="tokenising examples", stays=False),
    )
    if left := len(examples) - len(encoded):
        longer = f"longer than the model's context of {policy.context} tokens"
        display.say(f"left out: {left:,} of {counted(len(examples), 'example')}, {longer}")
    if how["template"] is None and policy.tokenizer.chat_template:
        lost = sum(loses_thinking(policy.tokenizer, messages_of(example), example.tools) for example in examples)
        if lost:
            display.say(f"the chat template leaves out thinking in {lost:,} of {counted(len(examples), 'example')}")
    texts = ([example.prompt, example.completion, example.tools] for example in examples)
    if special := sum(bool(special_tokens_in(policy.tokenizer, text)) for text in texts):
        meaning = "special tokens" if how["special_tokens"] else "ordinary text (--special-tokens: special tokens)"
        those = f"{special:,} of {counted(len(examples), 'example')} have special tokens in their texts"
        display.say(f"{those}: they are {meaning}")
    return encoded


def _learned(example: SftTokens) -> list[int]:
    return [token for token, learned in zip(example.token_ids, example.learned, strict=True) if learned]
