"""Measure what a step did, and write it to disk. The training loop calls the recorder after every step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from outdo.algorithms.advantages.base import Advantage
from outdo.algorithms.advantages.signal import cannot_be_asked, groups_with_signal
from outdo.algorithms.objectives.base import Objective
from outdo.extras.record import parquet
from outdo.extras.record.movement import movement_metrics
from outdo.extras.record.reading.measure import QuestionRead, Reading
from outdo.extras.record.table import TopTokens, record_table
from outdo.extras.record.tokens import token_record
from outdo.extras.record.transfer import Transfer
from outdo.models.policy import Policy
from outdo.models.teacher import Teacher, top_of
from outdo.models.token_text import TokenTexts
from outdo.run.folder import reads
from outdo.types import Batch, Group, Step
from outdo.utils.rng import Stream, stream_key, uniforms

READ_EVERY = 10
"""Steps between two measurements of what answers read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """The most probable tokens of some groups of a step, before its first update."""

    step: int
    policy: TopTokens
    teachers: TopTokens | None  # None: the run has none


class Recorder:
    """Writes `tokens/step_000040.parquet` every `every` steps (0: never), and computes the `moved_*` metrics.

    To see what the last optimiser step did, the policy has to score the tokens once more, without gradients. This is
    done for the share `after` of the groups that were trained on, rounded up, or for "all" of them. The counter-based
    generator selects whole groups among those with a push; a run that was killed and resumed selects the same ones. The
    `moved_*` metrics are about these groups, and `moved/tokens` is their number of tokens.

    With `top` the record also has that many most probable tokens at each token of these groups, before and after the
    step, and those of the `teachers`, if there are any. Those before it and of the teachers are computed by `before`,
    which has to be called between sampling and update. The method's `advantage` tells it which groups will get a push;
    without it every group is expected to.

    `reading` measures what answers read of their questions, in `before` too.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        *,
        advantage: Advantage | None = None,
        every: int = 1,
        after: float | Literal["all"] = 0.0625,
        top: int = 0,
        teachers: Sequence[Teacher] = (),
        seed: int = 0,
        reading: Reading | None = None,
    ) -> None:
        self.policy = policy
        self.objective = objective
        self.advantage = advantage
        self.every = every
        self.share = 1.0 if after == "all" else after
        self.top = top
        self.teachers = teachers
        self.seed = seed
        self.reading = reading
        self.transfer = Transfer()
        self.token_texts = TokenTexts(policy.tokenizer)
        self._before: _Before | None = None
        self._read: Sequence[QuestionRead] = ()  # what the answers of this step read, measured by `before`

    def __call__(self, step: Step, folder: Path) -> dict[str, float]:
        """Record a step in the run folder `folder`, if it is due; return its metrics.

        Raises: RunFolderError if the disk refuses.
        """
        metrics, write = self.measure(step, folder)
        if write is not None:
            write()
        return metrics

    def before(self, step: int, groups: Sequence[Group]) -> None:
        """Measure what the answers of a step read, and their most probable tokens, before its first update.

        What they read is measured in the first step and in every `READ_EVERY`th. Which groups will be measured after
        the step depends on the pushes. These are foreseen: groups with an advantage that is not 0 get one, and all
        groups if the advantage is not known yet or the objective has other terms. Other groups have no such tokens
        before it.
        """
        self._before, self._read = None, ()
        if self.reading is not None and (step == 1 or step % READ_EVERY == 0):
            self._read = self.reading.of_step(_by_policy(groups))
        if not self.top or not self.every or step % self.every or not groups:
            return
        batch = Batch.from_groups(groups)
        trained = batch.group[batch.loss_mask.any(1)].unique().tolist()
        if chosen := self._choose(step, groups, self._foreseen(groups, trained), trained):
            of_teachers = self._top_of_teachers(batch, chosen) if self.teachers else None
            self._before = _Before(step=step, policy=self._top(batch, chosen), teachers=of_teachers)

    def _foreseen(self, groups: Sequence[Group], trained: Sequence[int]) -> list[int]:
        """Return the numbers of the trained groups that get a push, as far as it is known before the update."""
        requires = self.objective.requires
        if requires.reference or requires.differentiated or self.advantage is None or cannot_be_asked(self.advantage):
            return list(trained)
        signal = groups_with_signal(self.advantage, groups)
        return [number for number in trained if signal[number]]

    def measure(self, step: Step, folder: Path) -> tuple[dict[str, float], Callable[[], None] | None]:
        """Do what must run before the weights change; return the metrics, and a function that writes the record.

        The function is None if the step gets no record.
        """
        metrics = self.transfer.observe(step.index, _by_policy(step.groups)) if self.every else {}
        if self.reading is not None and self._read:
            metrics |= self.reading.metrics(self._read)
            reads.write(folder, "training", step.index, [read.line() for read in self._read])
        if not self.every or step.index % self.every or not len(step.batch):
            return metrics, None
        groups = self._groups_to_measure(step)
        record = token_record(step, self.objective, self._new_logprobs(step, groups))
        tops = self._tops_before(step, groups)
        if groups and self.top:
            tops["new_top"] = self._top(step.batch, groups)

        def write() -> None:
            parquet.write(folder, step.index, record_table(step, record, self.token_texts, about={}, **tops))

        return metrics | movement_metrics(record, step.batch), write

    def _new_logprobs(self, step: Step, groups: Sequence[int]) -> Tensor | None:
        """Compute log πθ [B, T] after the step; NaN in groups that are not measured, None if no group is."""
        if not groups:
            return None
        rows = _rows_of(step.batch, groups)
        logprobs = self.policy.logprobs(step.batch.rows(rows))  # [b, t]
        new_logprobs = torch.full(step.batch.token_ids.shape, torch.nan)
        new_logprobs[rows, : logprobs.shape[1]] = logprobs
        return new_logprobs

    def _top(self, batch: Batch, groups: Sequence[int]) -> TopTokens:
        """Return the most probable tokens of these groups, under the policy as it is now."""
        rows = _rows_of(batch, groups)
        token_ids, logprobs = self.policy.top(batch.rows(rows), self.top)
        return TopTokens(rows=rows.tolist(), token_ids=token_ids, logprobs=logprobs)

    def _top_of_teachers(self, batch: Batch, groups: Sequence[int]) -> TopTokens:
        """Return the tokens that the teachers of these groups find most probable, of the rows that have a teacher."""
        rows = _rows_of(batch, groups)
        taught, token_ids, logprobs = top_of(self.teachers, batch.rows(rows), self.top)
        return TopTokens(rows=rows[taught].tolist(), token_ids=token_ids, logprobs=logprobs)

    def _tops_before(self, step: Step, groups: Sequence[int]) -> dict[str, TopTokens]:
        """Return by column what `before` has measured of these groups; empty if it was not called for this step."""
        if self._before is None or self._before.step != step.index:
            return {}
        wanted = set(_rows_of(step.batch, groups).tolist())
        measured = {"old_top": self._before.policy, "teacher_top": self._before.teachers}
        return {name: top.of_rows(wanted) for name, top in measured.items() if top is not None}

    def _groups_to_measure(self, step: Step) -> list[int]:
        """Return the groups to measure after a step; none if no pass was made."""
        pushes = [update.tokens["push"] for update in step.updates if update.tokens]
        if not pushes:
            return []
        trained = step.batch.group[step.batch.loss_mask.any(1)].unique().tolist()
        pushed = step.batch.group[(torch.stack(pushes) != 0).any(0).any(1)].unique().tolist()
        return self._choose(step.index, step.groups, pushed, trained)

    def _choose(self, step: int, groups: Sequence[Group], pushed: Sequence[int], trained: Sequence[int]) -> list[int]:
        """Return the groups to measure: all trained ones if `share` is 1, else so many of the pushed ones."""
        if self.share == 1:
            return list(trained)
        ordered = sorted(pushed, key=lambda number: self._random_order(step, number, groups[number]))
        return ordered[: math.ceil(round(self.share * len(trained), 6))]  # 0.07 of 100 is 7, despite rounding errors

    def _random_order(self, step: int, number: int, group: Group) -> float:
        """Return a random number in [0, 1): groups are measured in this order."""
        key = stream_key(self.seed, Stream("record", step, group.prompt.id, number))
        return float(uniforms(numpy.array([key], numpy.uint64), numpy.zeros(1, numpy.uint64))[0])

    def state(self) -> dict[str, Any]:
        """Return what later steps need of earlier ones, for a checkpoint."""
        return self.transfer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.transfer.load_state(state)


def _by_policy(groups: Sequence[Group]) -> list[Group]:
    """Return the groups without the answers of the data, which say nothing of the policy's own."""
    return [group for group in groups if not group.demonstrated]


def _rows_of(batch: Batch, groups: Sequence[int]) -> Tensor:
    """Return the row numbers of some groups, in order. [R]"""
    return torch.isin(batch.group, torch.tensor(groups)).nonzero().squeeze(1)
