"""Sample by `model.generate` of transformers: plain, for any architecture.

outdo chooses each token: a logits processor samples it by the request's own random numbers, and masks all others. The
tokens of a request may depend on the rest of the batch, by rounding. `outdo.rollouts.fast` overrides `StaticBatching`.

`model.generate` gets the inputs of the rows (`Request.inputs`). The model decides when it reads them: at each token, or
with the prompt alone if its `prepare_inputs_for_generation` drops them afterwards, as it does with pictures.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from outdo.models.windows import windows_set_to
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.limits import SEQUENCES_AT_A_TIME
from outdo.rollouts.engines.modes import SamplingMode
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState, StopRule, append_next_tokens
from outdo.types.inputs import Inputs, inputs_of_rows, joined_inputs
from outdo.utils.errors import ModelError
from outdo.utils.rng import Stream


class StaticBatching:
    """Samples batches of sequences, each to the end of its longest one, in a `mode` of `model.generate`."""

    def __init__(self, mode: SamplingMode) -> None:
        self.mode = mode

    @property
    def cached_episodes(self) -> int:
        """How many episodes have something cached for their next turn."""
        return 0

    def drop(self, episodes: Iterable[Stream] | None = None) -> None:
        """Drop what is cached for the next turns of some episodes, or of all."""

    def sample(
        self,
        policy: PolicyView,
        sequences: Sequence[SequenceState],
        sampling: SamplingParams,
        rule: StopRule,
        *,
        rows: int = SEQUENCES_AT_A_TIME,
    ) -> None:
        """Sample every sequence to its end, at most `rows` at a time, prompts of similar length together."""
        # `generate` calls the model's own attention, also of a model that is trained in the shared layout.
        with policy.forward.padded().prepared(packed=True):
            for batch in _batches(sequences, rows, policy.context, mix_lengths=self.mode.mix_lengths):
                self._sample_batch(policy, batch, sampling, rule)

    def _sample_batch(
        self, policy: PolicyView, batch: Sequence[SequenceState], sampling: SamplingParams, rule: StopRule
    ) -> None:
        width = max(len(row.request.token_ids) for row in batch)
        padding = [width - len(row.request.token_ids) for row in batch]
        token_ids = [[0] * pad + list(row.request.token_ids) for pad, row in zip(padding, batch, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        config = GenerationConfig(
            max_new_tokens=max(row.max_tokens for row in batch),
            do_sample=False,
            use_cache=self.mode.use_cache,
            eos_token_id=None,
            pad_token_id=0,
        )
        inputs = _inputs_of(batch, config, policy.forward.device)
        windows = windows_set_to(None, policy.model) if self.mode.whole_cache else nullcontext()
        with policy.forward.precision(), _without_own_settings(policy.model), windows:
            policy.model.generate(  # type: ignore[operator]
                torch.tensor(token_ids, device=policy.forward.device),
                attention_mask=torch.tensor(mask, device=policy.forward.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([_ForceChosenTokens(batch, sampling, rule)]),
                stopping_criteria=StoppingCriteriaList([_StopWhenAllFinished(batch)]),
                synced_gpus=False,  # each replica samples its own rows, with whole weights
                **inputs,
            )


def _inputs_of(batch: Sequence[SequenceState], config: GenerationConfig, device: torch.device) -> Inputs:
    """Return what the model reads of a batch beside its tokens.

    Raises `ModelError` for a name that `model.generate` takes for a setting of its own: the model would not get it.
    """
    inputs = joined_inputs(inputs_of_rows([row.request.inputs for row in batch]))
    if settings := [name for name in inputs if hasattr(config, name)]:
        raise ModelError(
            f"the prompts bring the input {settings[0]}, which model.generate would take for its own setting: sampling "
            "needs another name for it"
        )
    return {name: value.to(device) for name, value in inputs.items()}


class _ForceChosenTokens(LogitsProcessor):
    """Samples the next token of each row, and masks all other tokens so that `generate` takes it."""

    def __init__(self, rows: Sequence[SequenceState], sampling: SamplingParams, rule: StopRule) -> None:
        self.rows, self.sampling, self.rule = rows, sampling, rule

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        unfinished = [index for index, row in enumerate(self.rows) if row.finish_reason is None]
        if unfinished:
            append_next_tokens([self.rows[index] for index in unfinished], scores[unfinished], self.sampling, self.rule)
        chosen = torch.tensor([[row.token_ids[-1]] for row in self.rows], device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)


class _StopWhenAllFinished(StoppingCriteria):
    def __init__(self, rows: Sequence[SequenceState]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        finished = [row.finish_reason is not None for row in self.rows]
        return torch.tensor(finished, device=input_ids.device)


@contextmanager
def _without_own_settings(model: PreTrainedModel) -> Iterator[None]:
    """Hide the model's generation config: a repetition penalty in it, for example, would change the logits."""
    settings = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = settings


def _batches(
    sequences: Sequence[SequenceState], batch_size: int, context: int | None, *, mix_lengths: bool
) -> list[list[SequenceState]]:
    """Split into batches. A finished row gets tokens until the batch ends, and must stay within the model's context."""
    batches: list[list[SequenceState]] = []
    for sequence in sorted(sequences, key=lambda sequence: len(sequence.request.token_ids)):
        batch = [*(batches[-1] if batches else []), sequence]
        longest = len(sequence.request.token_ids) + max(row.max_tokens for row in batch)
        alike = mix_lengths or len(batch[0].request.token_ids) == len(sequence.request.token_ids)
        if batches and alike and len(batch) <= batch_size and (context is None or longest <= context):
            batches[-1] = batch
        else:
            batches.append([sequence])
    return batches
