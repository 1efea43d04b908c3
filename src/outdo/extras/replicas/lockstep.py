"""Replicas that compute the same layer at the same time, because a layer needs what the others hold.

They do if the weights of a model are divided among them (`sharding.py`), or if several of them compute the parts of the
same sequences (`ulysses.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from outdo.extras.replicas.replicas import Replicas, ReplicatedScoring, translated, without_grads
from outdo.extras.replicas.ulysses import SequenceGroup, check_parts, in_parts
from outdo.models.forward import Forward
from outdo.models.scorer import (
    BatchSizes,
    ByRows,
    Loss,
    LossAndGrads,
    Scoring,
    Sums,
    backward_scores,
    map_scores,
    token_scores,
)
from outdo.types import Batch, TokenScores
from outdo.utils.errors import OutdoError
from outdo.utils.out_of_memory import is_out_of_memory
from outdo.utils.sharded_tensors import is_sharded
from outdo.utils.timing import span

Value = TypeVar("Value")


class LockstepReplicas(Replicas):
    """Replicas that compute in lockstep.

    Groups of `share` neighbours compute the same rows, each of them its part of the tokens. The groups end with the
    replicas' connections.
    """

    def __init__(self, *, timeout: timedelta, share: int = 1) -> None:
        super().__init__(timeout=timeout)
        self.sequence = sequence_group(share, timeout) if share > 1 else None

    def scoring(self, local: Scoring) -> Scoring:
        """Make a `Scoring` in which replicas compute the same layer at the same time."""
        return LockstepScoring(self, local.model_forward, self.sequence)

    def check_forward(self, forward: Forward) -> None:
        """Raise `ModelError` if a group computes other log-probabilities than one process does."""
        if self.sequence is not None:
            check_parts(forward, self.sequence)

    def in_lockstep(self, micro_batches: Sequence[list[int]], compute: Callable[[list[int]], Value]) -> list[Value]:
        """See `World.in_lockstep`."""
        with fatal_errors("shorter answers, or fewer of them to a prompt, need less"):
            computed = [(rows, compute(rows)) for rows in filled(self, micro_batches)]
        return [
            result for part in self.together(lambda: [result for rows, result in computed if rows]) for result in part
        ]


def sequence_group(count: int, timeout: timedelta) -> SequenceGroup:
    """Make groups of `count` neighbouring replicas that share sequences, and return that of this one.

    All replicas have to call it.
    """
    with translated():
        group, _ = dist.new_subgroups(count, timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return SequenceGroup(group)


class LockstepScoring(ReplicatedScoring):
    """Scores and gradients of replicas that wait for each other in every layer.

    The replicas of a sequence group compute the same micro-batches. If the weights are divided, all replicas compute
    equally many: one with fewer rows computes a row of the batch again, and drops the result. Memory that does not
    suffice on one replica cannot be remedied by smaller micro-batches, as the others wait in the middle of a layer.
    """

    def __init__(self, replicas: Replicas, model_forward: Forward, sequence: SequenceGroup | None = None) -> None:
        """Raises `ModelError` if the model cannot be computed in the parts of a sequence group."""
        super().__init__(replicas, model_forward if sequence is None else in_parts(model_forward, sequence))
        self.sequence = sequence
        self.same_rows = 1 if sequence is None else len(sequence)

    @property
    def is_divided(self) -> bool:
        """Whether the weights are divided among all replicas, with or without an adapter that is not."""
        return self.model_forward.sharding.is_divided

    def measure(self, batch: Batch, sizes: BatchSizes, sums: Sums) -> ByRows[TokenScores]:
        """See `Scoring.measure`."""
        mine = self._share(batch, range(len(batch)), whole_groups=False)
        micro_batches = batch.micro_batch_rows(sizes.micro_batch_tokens, mine, whole_groups=False)
        measured: ByRows[TokenScores] = []
        with fatal_errors(), torch.no_grad():
            for rows in self._filled(micro_batches):
                scores = token_scores(self.model_forward, self._rows(batch, rows), sums, sizes.chunk)
                if rows:
                    measured.append((rows, map_scores(scores, Tensor.cpu)))
        return self._of_all(measured)

    def accumulate(
        self,
        batch: Batch,
        parts: Sequence[list[int]],
        loss: Loss,
        sizes: BatchSizes,
        sums: Sums,
        *,
        whole_groups: bool,
    ) -> ByRows[LossAndGrads]:
        """See `Scoring.accumulate`."""
        undivided = [weight for weight in self.model_forward.trained if not is_sharded(weight)]
        if undivided:
            self.replicas.check_equal(undivided)
        shares = [self._share(batch, rows, whole_groups=whole_groups) for rows in parts]
        budget = sizes.micro_batch_tokens
        micro_batches = [batch.micro_batch_rows(budget, rows, whole_groups=whole_groups) for rows in shares if rows]
        accumulated: ByRows[LossAndGrads] = []
        with fatal_errors():
            for rows in self._filled([rows for part in micro_batches for rows in part]):
                micro = self._rows(batch, rows)
                with span("forward"):
                    scores = token_scores(self.model_forward, micro, sums, sizes.chunk)
                grads = TokenScores(logprobs=torch.zeros_like(scores.logprobs))
                if rows:
                    result = loss(map_scores(scores, Tensor.detach), micro)
                    accumulated.append((rows, without_grads(result)))
                    grads = result.grads
                with span("backward"):
                    # The other replicas of divided weights exchange their gradients meanwhile, also if this one is 0.
                    # The derivatives of a sequence group are the same bits, as it has exchanged the scores.
                    backward_scores(scores, grads, zeros=self.is_divided)
        if undivided:
            with span("backward"):
                self._add_gradients(undivided)
        return self._of_all(accumulated)

    def _of_all(self, results: ByRows[Value]) -> ByRows[Value]:
        """Return what all replicas have found; those of a sequence group have found the same."""
        reports = self.sequence is None or self.sequence.rank == 0
        return [result for part in self.replicas.together(lambda: results if reports else []) for result in part]

    def _filled(self, micro_batches: Sequence[list[int]]) -> list[list[int]]:
        """Return this replica's micro-batches, and empty ones up to the largest number that a replica has.

        Replicas that hold all weights wait for nobody but their sequence group, which has the same.
        """
        return filled(self.replicas, micro_batches) if self.is_divided else list(micro_batches)

    def _rows(self, batch: Batch, rows: Sequence[int]) -> Batch:
        """Return some rows of a batch on the device; for an empty micro-batch, any row."""
        return batch.rows(torch.tensor(rows or [0])).to(self.model_forward.device)


def filled(replicas: Replicas, micro_batches: Sequence[list[int]]) -> list[list[int]]:
    """Return this replica's micro-batches, and empty ones up to the largest number that a replica has."""
    most = max(replicas.together(lambda: len(micro_batches)))
    return [*micro_batches, *([] for _ in range(most - len(micro_batches)))]


@contextmanager
def fatal_errors(remedy: str = "a smaller `train.micro_batch_tokens` needs less") -> Iterator[None]:
    """Turn memory that runs out into an error that ends the run, and a lost connection into a `WorkerError`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutdoError(f"memory does not suffice on this replica; {remedy} ({error})") from error
        if any(backend in str(error).lower() for backend in ("gloo", "nccl")):
            with translated():
                raise
        raise
