"""A reward model: a sequence classifier of transformers that reads a prompt and an answer, and returns one number.

It is trained on comparisons: several answers to one prompt, each with a value.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.extras.reward_models.kept_prompt import keep_prompt, kept_prompt
from outdo.extras.reward_models.preparation import attached, set_pad_token
from outdo.models.adapter import (
    has_adapter,
    load_state_without_base,
    save_adapter,
    state_without_base,
)
from outdo.models.base_model import BaseModel
from outdo.models.base_weights import Weights, choose_weights
from outdo.models.device import choose_device
from outdo.models.finite import check_finite
from outdo.models.gradient_check import check_gradient
from outdo.models.inspect_folder import LANGUAGE_MODEL, REWARD_MODEL, inspect_folder
from outdo.models.loading import (
    load_classifier,
    load_tokenizer,
    max_context,
    save_model,
)
from outdo.models.optimiser import Optimiser, OptimiserSettings
from outdo.models.prompt_encoding import encode_continuation, encode_prompt
from outdo.models.rounding import probe_tokens
from outdo.models.scorer import BatchSizes, MicroBatched
from outdo.models.sharding import sharding_of
from outdo.models.text_part import OtherParts
from outdo.rewards.base import Reward
from outdo.rewards.comparisons import Comparison, Loss, Ranking, Text, is_useful, ranking_of, total_loss
from outdo.rewards.types import RewardInput, RewardOutput, Status, output_without_value, to_output
from outdo.types.rows import pack_by_tokens
from outdo.utils.errors import ModelError
from outdo.utils.rng import shuffled_epochs
from outdo.utils.world import ALONE, World

if TYPE_CHECKING:
    from peft import PeftConfig

Result = TypeVar("Result")
BaseWeights = Weights | Literal["auto"]
BASE_WEIGHTS = ("auto", *get_args(Weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStep:
    """One optimiser step of a reward model."""

    index: int  # 1, 2, ...
    ranking: Ranking  # of the step's comparisons, before the step
    metrics: Mapping[str, float]  # loss, grad_norm, learning_rate, ...


# ----------------------------------------------------------------------------------------------------------- the model


class RewardModel(MicroBatched, Reward):
    """A sequence classifier with one label, as a reward (`outdo.rewards.Reward`) that can be trained.

    Its input is the prompt in the chat template of its own tokenizer, if there is one, then the text of the answer and
    the end-of-sequence token. The score is the one that transformers computes for this row alone, at the last token
    that is not padding; dropout is off, and all products are computed in float32.

    Args:
        micro_batch_tokens: tokens computed at once, including padding; fewer where memory does not suffice.
        template: text with `{prompt}` in it, for base models; it replaces the chat template. None: the one of the
            training, which `save` keeps in the folder.
        system: the first message, as for `encode_prompt`; it is kept as the template is.
        base: with an adapter, the model that it belongs to.
        other_parts: those of a whole model, of which `model` is the text part.
        world: the processes among which the model is divided, if it is. All of them then score the same answers, and
            train on the same comparisons, at the same time: each computes a share of the rows.
    """

    needs_less = "shorter answers, or fewer of them to a prompt, need less"

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
        base: BaseModel | None = None,
        other_parts: OtherParts | None = None,
        world: World = ALONE,
    ) -> None:
        super().__init__(BatchSizes(micro_batch_tokens=micro_batch_tokens))
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.template, self.system = kept_prompt(tokenizer, template=template, system=system)
        self.optimiser = Optimiser(model, optimiser or OptimiserSettings(lr=1e-5))
        self.context = max_context(model)
        self._end: Any = tokenizer.eos_token_id
        self._pad = set_pad_token(model, tokenizer)
        self.base = base
        self.other_parts = other_parts
        self.world = world
        self.is_divided = world.divides_models
        if has_adapter(model):
            check_gradient(model, self._mean_score)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        adapter: "PeftConfig | None" = None,
        base_weights: BaseWeights = "auto",
        seed: int = 0,
        world: World = ALONE,
        **settings: Any,
    ) -> "RewardModel":
        """Load a sequence classifier with one label from a folder or by its hub name. `settings`: see `RewardModel`.

        `adapter` is attached to it, and only this and the head are trained then; `seed` is that of its random numbers.
        An adapter folder is trained further. `base_weights` is how the frozen weights are stored; unless it is float32,
        they are frozen without an adapter too, and only the head is trained. "auto": the weights of an adapter's base
        as in its files if these are bfloat16, else float32. In a `world` that divides models each process reads
        its part of a model without an adapter.

        Raises `ModelError` if there is none, if it is damaged, or if it has more than one label.
        """
        facts = inspect_folder(path, REWARD_MODEL)
        tokenizer = load_tokenizer(facts, kind=REWARD_MODEL)
        weights = choose_weights(base_weights, facts, frozen=bool(adapter or facts.adapter))
        model = load_classifier(facts, choose_device(device)[0], weights=weights, world=world)
        if facts.adapter:  # its folder has no config.json: the tokenizer tells which padding it was trained with
            model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        return cls(model, tokenizer, **attached(model, facts, adapter, seed), world=world, **settings)

    @classmethod
    def from_policy(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        adapter: "PeftConfig | None" = None,
        base_weights: BaseWeights = "auto",
        seed: int = 0,
        **settings: Any,
    ) -> "RewardModel":
        """Build a reward model from a language model: its body, and a new head that is initialised from `seed`.

        `adapter` and `base_weights` as in `load`. Raises `ModelError` if the language model is an adapter itself.
        """
        facts = inspect_folder(path, LANGUAGE_MODEL)
        if facts.adapter:
            raise ModelError(f"model {path}: an adapter gets no head; make a whole model of it: `outdo export --merge`")
        tokenizer = load_tokenizer(facts)
        weights = choose_weights(base_weights, facts, frozen=adapter is not None)
        model = load_classifier(facts, choose_device(device)[0], head_seed=seed, weights=weights)
        if model.config.get_text_config().pad_token_id == tokenizer.eos_token_id:
            model.config.get_text_config().pad_token_id = None  # the new head has to read the end token: use another
        return cls(model, tokenizer, **attached(model, facts, adapter, seed), **settings)

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion. One that cannot be encoded, or is too long for the model, has failed."""
        rows = [self._encode_or_fail(scored) for scored in inputs]
        scores = iter(self.scores([row for row in rows if not isinstance(row, RewardOutput)]).tolist())
        return [row if isinstance(row, RewardOutput) else to_output(next(scores), self.name) for row in rows]

    def encode(self, prompt: Text, completion: str) -> tuple[int, ...]:
        """Return the token ids of a row. Special tokens in its texts are ordinary text: an answer cannot end itself.

        Raises `ModelError` if the chat template refuses the prompt.
        """
        prompt_ids = encode_prompt(self.tokenizer, prompt, template=self.template, system=self.system, whole=False)
        return (*prompt_ids, *encode_continuation(self.tokenizer, completion), self._end)

    def fits(self, comparison: Comparison) -> bool:
        """Return whether every row of the comparison fits into the model's context."""
        rows = self._rows(comparison)
        return self.context is None or all(len(row) <= self.context for row in rows)

    @torch.no_grad()
    def scores(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Compute the scores [n] of rows of token ids, on the CPU; rows of similar length are computed together."""
        lengths, scores = [len(row) for row in rows], torch.zeros(len(rows))

        def compute(indices: list[int]) -> tuple[list[int], Tensor]:
            return indices, self._scores_of([rows[index] for index in indices]).cpu()

        order = self._share(lengths)
        for indices, values in self._in_micro_batches(order, lengths, range(len(rows)), compute):
            scores[indices] = values
        return scores

    def ranking(self, comparisons: Sequence[Comparison]) -> Ranking:
        """Count the pairs of answers that the model ranks right, over all comparisons."""
        rows = [self._rows(comparison) for comparison in comparisons]
        scores = self.scores([row for of_comparison in rows for row in of_comparison]).split(
            [len(of_comparison) for of_comparison in rows]
        )
        rankings = (
            ranking_of(of_comparison.tolist(), comparison.values)
            for of_comparison, comparison in zip(scores, comparisons, strict=True)
        )
        return sum(rankings, Ranking())

    def update(self, comparisons: Sequence[Comparison], loss: Loss = "pairs") -> tuple[Ranking, dict[str, float]]:
        """Make one optimiser step on the mean loss of the comparisons.

        Returns their ranking before the step, and the step's metrics.
        """
        encoded = [self._rows(comparison) for comparison in comparisons]
        share = sorted(self._share([sum(map(len, of_comparison)) for of_comparison in encoded]))
        rows = [(index, row) for index in share for row in encoded[index]]
        comparison_of, lengths = [index for index, _ in rows], [len(row) for _, row in rows]

        def compute(micro_batch: list[int]) -> tuple[float, Ranking]:
            scores = self._scores_of([rows[row][1] for row in micro_batch])
            if not micro_batch:
                scores.backward(torch.zeros_like(scores))  # the other processes exchange their gradients meanwhile
                return 0.0, Ranking()
            counts = Counter(comparison_of[row] for row in micro_batch)  # rows of each comparison, all of them
            total, ranking = total_loss(scores, counts, comparisons, loss)
            mean = total / len(comparisons)
            mean.backward()
            return float(mean.detach()), ranking

        results = self._in_micro_batches(range(len(rows)), lengths, comparison_of, compute, whole_groups=True)
        total = sum((value for value, _ in results), 0.0)
        return sum((ranking for _, ranking in results), Ranking()), {"loss": total} | self.optimiser.step(total)

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Compute the scores [n] of rows of token ids in one forward pass; differentiable."""
        sharding = sharding_of(self.model)
        ids = [torch.tensor(row, device=sharding.device) for row in rows]
        token_ids = pad_sequence(ids, batch_first=True, padding_value=self._pad)  # [n, T]
        lengths = torch.tensor([len(row) for row in rows], device=sharding.device)
        real = torch.arange(token_ids.shape[1], device=sharding.device) < lengths[:, None]

        def compute() -> tuple[Tensor]:
            return (self.model(input_ids=token_ids, attention_mask=real.long()).logits,)

        (logits,) = sharding(compute)
        return logits.squeeze(1).float()

    def _scores_of(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Compute the scores of the rows of a micro-batch; of an empty one, the score of a row that is dropped."""
        return self.forward(rows or [[self._end]])

    def _share(self, sizes: Sequence[int]) -> list[int]:
        """Return the numbers of the items that this process computes, the smallest first: all, or a share of them."""
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        return order[self.world.rank :: len(self.world)]

    def _in_micro_batches(
        self,
        order: Sequence[int],
        lengths: Sequence[int],
        groups: Sequence[int],
        compute: Callable[[list[int]], Result],
        *,
        whole_groups: bool = False,
    ) -> list[Result]:
        """Compute the rows of this process; return the results, those of all processes if there are several.

        For the arguments see `pack_by_tokens`.
        """

        def compute_all() -> list[Result]:
            budget = self.batch_sizes.micro_batch_tokens
            micro_batches = pack_by_tokens(order, lengths, groups, budget, whole_groups=whole_groups)
            return self.world.in_lockstep(micro_batches, compute)

        return self._halving_on_oom(compute_all, self.model.zero_grad)

    def save(self, folder: Path) -> None:
        """Write a folder that `AutoModelForSequenceClassification.from_pretrained` and `RewardModel.load` read.

        With an adapter it is an adapter folder of PEFT with the head, which names the base and does not contain it.

        Raises `NonFiniteWeightsError` and writes nothing if a weight is not finite.
        """
        self._check_finite()
        if self.base is not None:
            save_adapter(self.model, folder)
            self.base.write(folder)
        else:
            save_model(self.model, folder, self.other_parts)
        keep_prompt(self.tokenizer, template=self.template, system=self.system)
        self.tokenizer.save_pretrained(folder)

    def state(self) -> dict[str, Any]:
        """Return the current weights, without frozen ones, and optimiser state, not copies; the size of micro-batches.

        Raises `NonFiniteWeightsError` as `save` does.
        """
        self._check_finite()
        return {
            "weights": state_without_base(self.model),
            "optimiser": self.optimiser.state(),
            "micro_batch_tokens": self.micro_batch_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        load_state_without_base(self.model, state["weights"])
        self.optimiser.load_state(state["optimiser"])
        self.load_micro_batch_state(state.get("micro_batch_tokens", {}))
        self._check_finite()

    def _check_finite(self) -> None:
        check_finite(self.model, f"the reward model {self.name}", "lower its lr")

    def _mean_score(self) -> Tensor:
        """Compute the mean score of some tokens, a scalar."""
        tokens = probe_tokens(self.model.config.get_text_config().vocab_size)
        return self.forward([tokens[:5], tokens[5:16]]).double().mean()

    def _rows(self, comparison: Comparison) -> list[tuple[int, ...]]:
        return [self.encode(comparison.prompt, completion) for completion in comparison.completions]

    def _encode_or_fail(self, reward_input: RewardInput) -> tuple[int, ...] | RewardOutput:
        try:
            row = self.encode(reward_input.before, reward_input.completion)
        except ModelError as error:
            return output_without_value(Status.failed, str(error), self.name)
        if self.context is not None and len(row) > self.context:
            reason = f"prompt and completion have {len(row)} tokens, and {self.name} has positions for {self.context}"
            return output_without_value(Status.failed, reason, self.name)
        return row


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
    start: int = 1,
) -> Iterator[FitStep]:
    """Make the optimiser steps `start` to `steps`, each on `batch` comparisons; every epoch has its own order.

    The order depends only on `seed` and `purpose`. Raises `ValueError` if there is nothing to learn from.
    """
    useful = [comparison for comparison in comparisons if is_useful(comparison, loss)]
    if not useful:
        raise ValueError("there are no two answers to one prompt of which one is better")
    order = itertools.islice(shuffled_epochs(len(useful), seed, purpose), (start - 1) * batch, None)
    for step in range(start, steps + 1):
        ranking, metrics = model.update([useful[index] for index in itertools.islice(order, batch)], loss)
        yield FitStep(index=step, ranking=ranking, metrics=metrics)
