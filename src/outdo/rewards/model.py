"""A learnt reward: a sequence classifier of transformers that reads a prompt and an answer, and says one number.

It learns from comparisons: several answers to one prompt, and what each is worth.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.models.device import choose_device
from outdo.models.inspect_folder import REWARD_MODEL
from outdo.models.loading import load_classifier, load_tokenizer, max_context, without_bars
from outdo.models.optimiser import Optimiser, OptimiserSettings
from outdo.models.prompt_encoding import encode_prompt
from outdo.rewards.types import RewardInput, RewardOutput, Status, judged, unscored
from outdo.utils.errors import ModelError
from outdo.utils.rng import Stream, stream_key, uniforms

Text = str | Sequence[Mapping[str, Any]]  # a prompt, or chat messages
Loss = Literal["pairs", "regression"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Answers to one prompt, and what each is worth. A preference is two of them, worth 1 and 0."""

    prompt: Text
    completions: tuple[str, ...]
    values: tuple[float, ...]  # only their order matters to the loss "pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How many pairs of answers a model puts in the order that their values have. Adds up."""

    pairs: int = 0
    right: int = 0

    def __add__(self, other: "Ranking") -> "Ranking":
        return Ranking(pairs=self.pairs + other.pairs, right=self.right + other.right)

    @property
    def share(self) -> float:
        """Of the pairs, those in the right order; 0.5 is chance. NaN where there are none."""
        return self.right / self.pairs if self.pairs else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStep:
    """One optimiser step of a reward model."""

    index: int  # 1, 2, ...
    ranking: Ranking  # of the step's comparisons, before the step
    metrics: Mapping[str, float]  # loss, grad_norm, learning_rate, ...


# --------------------------------------------------------------------------------------------------------- comparisons


def comparisons_of(rated: Iterable[tuple[Text, str, float]]) -> list[Comparison]:
    """`(prompt, completion, value)` gathered by prompt, both in the order first seen."""
    gathered: dict[str, list[tuple[Text, str, float]]] = {}
    for each in rated:
        gathered.setdefault(repr(each[0]), []).append(each)
    return [
        Comparison(prompt=rows[0][0], completions=tuple(row[1] for row in rows), values=tuple(row[2] for row in rows))
        for rows in gathered.values()
    ]


def pairs_of(values: Sequence[float]) -> list[tuple[int, int]]:
    """Every `(better, worse)` of different value, as places in `values`."""
    places = range(len(values))
    return [(better, worse) for better in places for worse in places if values[better] > values[worse]]


def ranking_of(scores: Sequence[float], values: Sequence[float]) -> Ranking:
    """How scores rank what is worth `values`. Two equal scores are no ranking: that pair is not right."""
    pairs = pairs_of(values)
    return Ranking(pairs=len(pairs), right=sum(scores[better] > scores[worse] for better, worse in pairs))


def comparison_loss(scores: Tensor, values: Sequence[float], loss: Loss = "pairs") -> Tensor:
    """The loss of one comparison, a scalar, of scores s [n] and values v.

    "pairs":      −(1/|P|) Σ_{(b, w) ∈ P} log σ(s_b − s_w),  P: the pairs with v_b > v_w
                  (Bradley & Terry 1952; Ouyang et al. 2022, equation 1). Every comparison weighs the same, however many
                  pairs it has, and one without any is 0.
    "regression": (1/n) Σ_i (s_i − v_i)²
    """
    if loss == "regression":
        return (scores - scores.new_tensor(values)).square().mean()
    pairs = pairs_of(values)
    if not pairs:
        return scores.sum() * 0.0
    better, worse = torch.tensor(pairs, device=scores.device).unbind(1)  # [|P|] each
    return -logsigmoid(scores[better] - scores[worse]).mean()


def teaches(comparison: Comparison, loss: Loss) -> bool:
    """Whether the loss has anything to learn from it."""
    return loss == "regression" or len(set(comparison.values)) > 1


# ----------------------------------------------------------------------------------------------------------- the model


class RewardModel:
    """A sequence classifier with one label, as a reward (`outdo.rewards.Reward`) that can be trained.

    It reads what the policy would have read and written: the prompt through its own tokenizer's chat template, if there
    is one, then the answer's text and the end-of-sequence token. The score is the one that transformers gives for this
    row alone, read at the last token that is not padding; dropout is off, and everything is float32.

    Args:
        micro_batch_tokens: tokens computed at once, padding included.
        template: text with `{prompt}` in it, for base models; it replaces the chat template.
        system: the first message, as for `encode_prompt`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "reward_model",
        optimiser: OptimiserSettings | None = None,
        micro_batch_tokens: int = 16384,
        template: str | None = None,
        system: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.micro_batch_tokens = micro_batch_tokens
        self.template = template
        self.system = system
        self.optimiser = Optimiser(model, optimiser or OptimiserSettings(lr=1e-5))
        self.context = max_context(model)
        self._end: Any = tokenizer.eos_token_id
        self._pad = _settle_padding(model, tokenizer)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto", **how: Any) -> "RewardModel":
        """From the folder or hub name of a sequence classifier with one label. `how`: see `RewardModel`.

        Raises `ModelError` if there is none, if it is damaged, or gives more than one score.
        """
        tokenizer = load_tokenizer(path, kind=REWARD_MODEL)
        return cls(load_classifier(path, choose_device(device)[0]), tokenizer, **how)

    @classmethod
    def from_policy(cls, path: str | Path, *, device: str = "auto", seed: int = 0, **how: Any) -> "RewardModel":
        """From a language model: its body, and a new head whose random numbers follow from `seed`."""
        tokenizer = load_tokenizer(path)
        model = load_classifier(path, choose_device(device)[0], head_seed=seed)
        if model.config.get_text_config().pad_token_id == tokenizer.eos_token_id:
            model.config.get_text_config().pad_token_id = None  # a new head shall read at the end: choose another
        return cls(model, tokenizer, **how)

    def __call__(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        """The score of every completion. One that cannot be read, or is too long for the model, has failed."""
        rows = [self._row(each) for each in answered]
        scores = iter(self.scores([row for row in rows if not isinstance(row, RewardOutput)]).tolist())
        return [row if isinstance(row, RewardOutput) else judged(next(scores), self.name) for row in rows]

    def close(self) -> None:
        """There is nothing to give back."""

    def encode(self, prompt: Text, completion: str) -> tuple[int, ...]:
        """The token ids of a row. Raises `ModelError` where the chat template refuses the prompt."""
        asked = encode_prompt(self.tokenizer, prompt, template=self.template, system=self.system)
        return (*asked, *self.tokenizer.encode(completion, add_special_tokens=False), self._end)

    def fits(self, comparison: Comparison) -> bool:
        """Whether the model has positions for every row of it."""
        rows = self._rows(comparison)
        return self.context is None or all(len(row) <= self.context for row in rows)

    @torch.no_grad()
    def scores(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The scores [n] of rows of token ids, on the CPU; those of about the same length are computed together."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        found = torch.zeros(len(rows))
        for part in _within([[rows[place]] for place in order], self.micro_batch_tokens):
            places = [order[index] for index in part]
            found[places] = self.forward([rows[place] for place in places]).cpu()
        return found

    def ranking(self, comparisons: Sequence[Comparison]) -> Ranking:
        """How the model ranks the answers of each comparison."""
        rows = [self._rows(each) for each in comparisons]
        scores = self.scores([row for each in rows for row in each]).split([len(each) for each in rows])
        each = (ranking_of(own.tolist(), one.values) for own, one in zip(scores, comparisons, strict=True))
        return sum(each, Ranking())

    def update(self, comparisons: Sequence[Comparison], loss: Loss = "pairs") -> tuple[Ranking, dict[str, float]]:
        """One optimiser step on the mean loss of the comparisons; their ranking before it, and the step's metrics."""
        rows = [self._rows(each) for each in comparisons]
        total, ranking = 0.0, Ranking()
        for part in _within(rows, self.micro_batch_tokens):
            scores = self.forward([row for place in part for row in rows[place]])
            losses = []
            for place, own in zip(part, scores.split([len(rows[place]) for place in part]), strict=True):
                losses.append(comparison_loss(own, comparisons[place].values, loss))
                ranking += ranking_of(own.tolist(), comparisons[place].values)
            summed = torch.stack(losses).sum() / len(comparisons)
            summed.backward()
            total += float(summed.detach())
        return ranking, {"loss": total} | self.optimiser.step(total)

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The scores [n] of rows of token ids, computed at once; differentiable."""
        device = self.model.device
        ids = [torch.tensor(row, device=device) for row in rows]
        token_ids = pad_sequence(ids, batch_first=True, padding_value=self._pad)  # [n, T]
        lengths = torch.tensor([len(row) for row in rows], device=device)
        real = torch.arange(token_ids.shape[1], device=device) < lengths[:, None]
        return self.model(input_ids=token_ids, attention_mask=real.long()).logits.squeeze(1).float()

    def save(self, folder: Path) -> None:
        """Write a folder that `AutoModelForSequenceClassification.from_pretrained` and `RewardModel.load` read."""
        with without_bars():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def state(self) -> dict[str, Any]:
        """Weights and optimiser, as they are at the moment: not a copy."""
        return {"weights": dict(self.model.state_dict()), "optimiser": self.optimiser.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.model.load_state_dict(state["weights"])
        self.optimiser.load_state(state["optimiser"])

    def _rows(self, comparison: Comparison) -> list[tuple[int, ...]]:
        return [self.encode(comparison.prompt, completion) for completion in comparison.completions]

    def _row(self, answered: RewardInput) -> tuple[int, ...] | RewardOutput:
        try:
            row = self.encode(answered.prompt, answered.completion)
        except ModelError as error:
            return unscored(Status.failed, str(error), self.name)
        if self.context is not None and len(row) > self.context:
            reason = f"prompt and completion have {len(row)} tokens, and {self.name} has positions for {self.context}"
            return unscored(Status.failed, reason, self.name)
        return row


def _settle_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The padding token; where the model names none, a special token other than the end, if there is any.

    Transformers reads the score at the last token that is not padding. If padding and end are the same token, that is
    the token before the end: a model that was trained so is read so.
    """
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        end: Any = tokenizer.eos_token_id
        special: list[Any] = [tokenizer.pad_token_id, *tokenizer.all_special_ids]
        config.pad_token_id = next((each for each in special if each != end), end)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    return config.pad_token_id


def _within(units: Sequence[Sequence[Sequence[int]]], budget: int) -> Iterator[list[int]]:
    """The places of units of rows, in runs that hold `budget` tokens, padding included; one alone may hold more."""
    part: list[int] = []
    rows = longest = 0
    for place, unit in enumerate(units):
        rows, longest = rows + len(unit), max(longest, *map(len, unit))
        if part and rows * longest > budget:
            yield part
            part, rows, longest = [], len(unit), max(map(len, unit))
        part.append(place)
    if part:
        yield part


# ------------------------------------------------------------------------------------------------------------ training


def fit(
    model: RewardModel,
    comparisons: Sequence[Comparison],
    *,
    steps: int,
    batch: int,
    seed: int = 0,
    loss: Loss = "pairs",
    purpose: str = "reward model",
) -> Iterator[FitStep]:
    """Make `steps` optimiser steps, each on `batch` comparisons; every epoch has an order of its own.

    The order follows from `seed` and `purpose` alone. Raises `ValueError` if there is nothing to learn from.
    """
    useful = [each for each in comparisons if teaches(each, loss)]
    if not useful:
        raise ValueError("there are no two answers to one prompt of which one is better")
    places = endless_order(len(useful), seed, purpose)
    for index in range(steps):
        ranking, metrics = model.update([useful[place] for place in itertools.islice(places, batch)], loss)
        yield FitStep(index=index + 1, ranking=ranking, metrics=metrics)


def endless_order(count: int, seed: int, purpose: str) -> Iterator[int]:
    """The places 0 .. `count` − 1 in a random order, then in another, without end; `seed` and `purpose` decide it."""
    positions = numpy.arange(count, dtype=numpy.uint64)
    for epoch in itertools.count():
        key = stream_key(seed, Stream(purpose, epoch, "", 0))
        yield from uniforms(numpy.full_like(positions, key), positions).argsort(kind="stable").tolist()
