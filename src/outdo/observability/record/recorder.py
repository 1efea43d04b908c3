"""Measure what a step did, and write it to disk. The training loop calls the recorder after every step."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from outdo.algorithms.objectives.base import Objective
from outdo.models.policy import Policy
from outdo.observability.record import parquet
from outdo.observability.record.movement import movement_metrics
from outdo.observability.record.table import record_table
from outdo.observability.record.token_text import TokenTexts
from outdo.observability.record.tokens import token_record
from outdo.observability.record.transfer import Transfer
from outdo.types import Group, Step
from outdo.utils.rng import Stream, stream_key, uniforms


class Recorder:
    """Writes `tokens/step_000040.parquet` every `every` steps (0: never), and computes the `moved_*` metrics.

    To see what the last optimiser step did, the policy has to score the tokens once more, without gradients. This is
    done for the share `after` of the groups that were trained on, rounded up, or for "all" of them. The counter-based
    generator selects whole groups among those with a push; a run that was killed and resumed selects the same ones. The
    `moved_*` metrics are about these groups, and `moved/tokens` is their number of tokens.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        *,
        every: int = 1,
        after: float | Literal["all"] = 0.0625,
        seed: int = 0,
    ) -> None:
        self.policy = policy
        self.objective = objective
        self.every = every
        self.share = 1.0 if after == "all" else after
        self.seed = seed
        self.transfer = Transfer()
        self.token_texts = TokenTexts(policy.tokenizer)

    def __call__(self, step: Step, folder: Path) -> dict[str, float]:
        """Record a step in the run folder `folder`, if it is due; return its metrics.

        Raises: RunFolderError if the disk refuses.
        """
        metrics, write = self.measure(step, folder)
        if write is not None:
            write()
        return metrics

    def measure(self, step: Step, folder: Path) -> tuple[dict[str, float], Callable[[], None] | None]:
        """Do what must run before the weights change; return the metrics, and a function that writes the record.

        The function is None if the step gets no record.
        """
        metrics = self.transfer.observe(step.index, step.groups) if self.every else {}
        if not self.every or step.index % self.every or not len(step.batch):
            return metrics, None
        record = token_record(step, self.objective, self.new_logprobs(step))

        def write() -> None:
            parquet.write(folder, step.index, record_table(step, record, self.token_texts, about={}))

        return metrics | movement_metrics(record, step.batch), write

    def new_logprobs(self, step: Step) -> Tensor | None:
        """Compute log πθ [B, T] after the step; NaN in groups that are not measured, None if no group is."""
        batch, groups = step.batch, self._groups_to_measure(step)
        if not groups:
            return None
        rows = torch.isin(batch.group, torch.tensor(groups)).nonzero().squeeze(1)
        logprobs = self.policy.logprobs(batch.rows(rows))  # [b, t]
        new_logprobs = torch.full(batch.token_ids.shape, torch.nan)
        new_logprobs[rows, : logprobs.shape[1]] = logprobs
        return new_logprobs

    def _groups_to_measure(self, step: Step) -> list[int]:
        """Return the groups to measure: all trained ones if `share` is 1, else some of those with a push."""
        pushes = [update.tokens["push"] for update in step.updates if update.tokens]
        if not pushes:
            return []
        trained = step.batch.group[step.batch.loss_mask.any(1)].unique().tolist()
        if self.share == 1:
            return trained
        pushed = step.batch.group[(torch.stack(pushes) != 0).any(0).any(1)].unique().tolist()
        ordered = sorted(pushed, key=lambda number: self._random_order(step.index, number, step.groups[number]))
        return ordered[: math.ceil(round(self.share * len(trained), 6))]  # 0.07 of 100 is 7, despite rounding errors

    def _random_order(self, step: int, number: int, group: Group) -> float:
        """Return a random number in [0, 1): groups are measured in this order."""
        key = stream_key(self.seed, Stream("record", step, group.prompt.id, number))
        return float(uniforms(numpy.array([key], numpy.uint64), numpy.zeros(1, numpy.uint64))[0])

    def state(self) -> dict[str, Any]:
        """Return what later steps need of earlier ones, for a checkpoint."""
        return self.transfer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.transfer.load_state(state)
