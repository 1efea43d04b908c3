"""Replicas: processes that each hold all models, and share the rows of every batch, over `torch.distributed`.

Every replica runs the same program. What takes time is divided: each one samples its part of the questions, and
computes scores and gradients of its part of the rows. The parts are then exchanged, so that all replicas have the same
groups, the same batch and the same gradient, and take the same decisions and the same optimiser step. What must happen
once (a reward, a choice that depends on time) is done by the first replica, which sends the result to the others.
Random numbers are keyed by the question, so the number of replicas does not change what is sampled.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from statistics import median_low
from time import perf_counter
from typing import Any, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

from outdo.extras.replicas.launch import RENDEZVOUS
from outdo.extras.replicas.network import choose_interface
from outdo.models.forward import Forward
from outdo.models.scorer import BatchSizes, ByRows, Loss, LossAndGrads, Scoring, Sums
from outdo.types import Batch, TokenScores
from outdo.types.rows import group_neighbours
from outdo.utils.bit_sums import bit_sums
from outdo.utils.errors import WorkerError
from outdo.utils.out_of_memory import is_out_of_memory
from outdo.utils.text import first_line
from outdo.utils.timing import span
from outdo.utils.world import World

Value = TypeVar("Value")

BUCKET = 2**23
"""Weights whose gradients are summed in one message."""

COMPARED_SECONDS = 0.01
"""Seconds of computing in a step below which replicas are not compared."""

WHOLE_GROUPS_PER_REPLICA = 4
"""Groups for each replica, from which on shares are made of whole groups, and may differ by one."""


class Replicas(World):
    """The replicas of a run, as one of them sees them: a `World`. Make it with `join`."""

    def __init__(self, *, timeout: timedelta) -> None:
        self.rank = dist.get_rank()
        self.timeout = timeout
        # A new group does not take the timeout of the default group.
        self.objects = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timeout))
        """The group for what is not a gradient: it is exchanged from the CPU, also where the models are on GPUs."""
        self._seconds = [0.0] * len(self)

    def __len__(self) -> int:
        return dist.get_world_size()

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the group `objects`: tensors in main memory are exchanged over it."""
        return DeviceMesh.from_group(self.objects, "cpu")

    def beside(self) -> "Replicas":
        """Return the same replicas with a group of their own, for a thread that exchanges something meanwhile.

        All replicas have to call it. The group ends with the replicas' connections.
        """
        with translated():
            return Replicas(timeout=self.timeout)

    def scoring(self, local: Scoring) -> Scoring:
        """Make a `Scoring` that divides the rows among the replicas."""
        return ReplicatedScoring(self, local.model_forward)

    def part(self, items: Sequence[Value]) -> Sequence[Value]:
        """Return this replica's part of `items`: neighbours, of at most one more than another replica's."""
        start, end = (len(items) * rank // len(self) for rank in (self.rank, self.rank + 1))
        return items[start:end]

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """Compute on every replica, and return the results of all, in the order of the replicas.

        If it fails on one replica, it fails on all: with MemoryError if memory ran out there, so that all of them can
        try again with less, and else with WorkerError. The replica that failed raises its own error.
        """
        values, error, start = list[Value](), None, perf_counter()
        try:
            values.append(compute())
        except Exception as caught:
            error = caught
        fault = None if error is None else (is_out_of_memory(error), f"{type(error).__name__}: {error}")
        gathered = self._gather((values, fault, perf_counter() - start))
        self._seconds = [before + seconds for before, (*_, seconds) in zip(self._seconds, gathered, strict=True)]
        faults = {rank: fault for rank, (_, fault, _) in enumerate(gathered) if fault is not None}
        if not faults:
            return [value for values, *_ in gathered for value in values]
        # All replicas go by the same one, or some would try again with less memory while others end.
        rank = min(faults, key=lambda rank: faults[rank][0])
        if rank == self.rank and error is not None:
            raise error
        out_of_memory, text = faults[rank]
        kind = MemoryError if out_of_memory else WorkerError
        raise kind(f"replica {rank} of {len(self)}: {text}") from error

    def from_first(self, compute: Callable[[], Value]) -> Value:
        """Compute on the first replica alone, and return its result on all.

        If it fails there, the others raise `WorkerError`.
        """
        sent: list[Any] = [None]
        if self.first:
            try:
                sent = [(compute(), None)]
            except BaseException as error:
                self._broadcast([(None, f"{type(error).__name__}: {error}")])
                raise
        self._broadcast(sent)
        value, fault = sent[0]
        if fault is not None:
            raise WorkerError(f"the first replica failed: {fault}")
        return value

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the replicas. All replicas get the same bits."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            with translated():
                dist.all_reduce(flat)
            for tensor, total in zip(bucket, flat.split([member.numel() for member in bucket]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def metrics(self) -> dict[str, float]:
        """Return which replica computed longest in `together` since the last call, as a multiple of the median.

        Of an even number the lower median counts. Nothing is returned if there was hardly anything to compute: replicas
        of divided models wait for each other in every layer, and only their sampling can be told apart.
        """
        seconds, self._seconds = self._seconds, [0.0] * len(self)
        usual, longest = median_low(seconds), max(seconds)
        if usual < COMPARED_SECONDS:
            return {}
        return {"replicas/slowest": float(seconds.index(longest)), "replicas/slowest_ratio": longest / usual}

    def check_equal(self, weights: Sequence[Tensor]) -> None:
        """Raise `WorkerError` if the weights of the replicas are not equal, bit for bit."""
        gathered = self._gather(bit_sums(weights))
        if different := [rank for rank, sums_of_rank in enumerate(gathered) if sums_of_rank != gathered[0]]:
            raise WorkerError(
                f"the weights of replica {different[0]} are no longer those of the first one: the replicas need equal "
                "hardware and equal versions of torch"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # one that closes its connections first may cut off what another one is still receiving
            with contextlib.suppress(RuntimeError):  # the work is done
                dist.barrier(group=self.objects)
        self.close()

    def exchanging(self) -> AbstractContextManager[None]:
        """Turn the RuntimeError of a lost connection into a `WorkerError`."""
        return translated()

    def close(self) -> None:
        """Leave the group, without waiting for the others."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _gather(self, value: Value) -> list[Value]:
        gathered: list[Any] = [None] * len(self)
        with translated():
            dist.all_gather_object(gathered, value, group=self.objects)
        return gathered

    def _broadcast(self, values: list[Any]) -> None:
        with translated():
            dist.broadcast_object_list(values, src=0, group=self.objects)


class ReplicatedScoring(Scoring):
    """Compute on every replica its share of the rows."""

    def __init__(self, replicas: Replicas, model_forward: Forward) -> None:
        super().__init__(model_forward)
        self.replicas = replicas
        self.same_rows = 1  # neighbouring replicas that compute the same rows

    def measure(self, batch: Batch, sizes: BatchSizes, sums: Sums) -> ByRows[TokenScores]:
        """See `Scoring.measure`."""
        mine, measure = self._share(batch, range(len(batch)), whole_groups=False), super().measure

        def compute() -> ByRows[TokenScores]:
            measured = measure(batch.rows(torch.tensor(mine)), sizes, sums) if mine else []
            return [([mine[row] for row in rows], scores) for rows, scores in measured]

        return [result for part in self.replicas.together(compute) for result in part]

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
        weights = self.model_forward.trained
        self.replicas.check_equal(weights)
        accumulate = super().accumulate
        mine = [share for rows in parts if (share := self._share(batch, rows, whole_groups=whole_groups))]

        def compute() -> ByRows[LossAndGrads]:
            accumulated = accumulate(batch, mine, loss, sizes, sums, whole_groups=whole_groups)
            return [(rows, without_grads(result)) for rows, result in accumulated]

        results = self.replicas.together(compute)
        with span("backward"):
            self._add_gradients(weights)
        return [result for part in results for result in part]

    def _add_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Add up the gradients of all replicas. A weight that has none on any replica keeps none, as in one process."""
        have = self.replicas.together(lambda: [weight.grad is not None for weight in weights])
        trained = [weight for weight, *any_has in zip(weights, *have, strict=True) if any(any_has)]
        for weight in trained:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        self.replicas.add_up([weight.grad for weight in trained if weight.grad is not None])

    def _share(self, batch: Batch, rows: Sequence[int], *, whole_groups: bool) -> list[int]:
        """Return the rows that this replica computes."""
        shares = row_shares(batch, rows, len(self.replicas) // self.same_rows, whole_groups=whole_groups)
        number = self.replicas.rank // self.same_rows
        return shares[number] if number < len(shares) else []


def without_grads(result: LossAndGrads) -> LossAndGrads:
    """Return what the other replicas need to know of a micro-batch, on the CPU: no derivatives."""
    tokens = {name: value.cpu() for name, value in result.tokens.items()}
    return LossAndGrads(result.terms, tokens, TokenScores(logprobs=torch.zeros(0)))


def row_shares(batch: Batch, rows: Sequence[int], n: int, *, whole_groups: bool) -> list[list[int]]:
    """Split row numbers of a batch into at most `n` shares that take about the same time; see `split_evenly`."""
    lengths, prompts, groups = batch.attention_mask.sum(1).tolist(), batch.prompt_lengths.tolist(), batch.group
    first = torch.cat([groups.new_ones(1), groups.diff()]).bool().tolist()  # its prompt is computed with it
    costs = [length - (not new) * prompt for length, prompt, new in zip(lengths, prompts, first, strict=True)]
    return split_evenly(rows, costs, groups.tolist(), n, whole_groups=whole_groups)


def split_evenly(
    rows: Sequence[int], costs: Sequence[float], groups: Sequence[int], n: int, *, whole_groups: bool
) -> list[list[int]]:
    """Split row numbers into at most `n` runs of neighbours that cost about the same, none of them empty.

    Groups stay whole if `whole_groups` says so, or if there are so many that the shares hardly become uneven by it.
    """
    members = group_neighbours(rows, groups)
    units = members if whole_groups or len(members) >= WHOLE_GROUPS_PER_REPLICA * n else [[row] for row in rows]
    total, before = sum(costs[row] for row in rows), 0.0
    shares: list[list[int]] = [[] for _ in range(n)]
    for unit in units:
        cost = sum(costs[row] for row in unit)
        shares[min(n - 1, int((before + cost / 2) * n / total))].extend(unit)
        before += cost
    return [share for share in shares if share]


def join(*, timeout: float, device: str = "auto", make: Callable[..., Replicas] = Replicas) -> Replicas:
    """Meet the other replicas, and return them, as `make(timeout=...)` does then.

    A replica that is waited for longer than `timeout` seconds is lost. With GPUs each replica gets that of its
    `LOCAL_RANK`, unless `device` is "cpu".
    """
    assert not dist.is_initialized(), "a process joins once"
    backend = "gloo"
    if device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        backend = "cpu:gloo,cuda:nccl"
    rank, count, limit = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timedelta(seconds=timeout)
    with translated():
        store, *_ = next(rendezvous(os.environ.get(RENDEZVOUS, "env://"), rank, count, timeout=limit))
        # torchrun keeps its store when it starts processes again, with the addresses of those that have ended.
        own_store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        choose_interface(own_store, rank, count)
        dist.init_process_group(backend, store=own_store, rank=rank, world_size=count, timeout=limit)
        return make(timeout=limit)


@contextmanager
def translated() -> Iterator[None]:
    """Turn the RuntimeError of a lost connection into a `WorkerError`."""
    try:
        yield
    except RuntimeError as error:
        raise WorkerError(f"another replica ended, or does not answer ({first_line(error)})") from error


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in order, in lists of one type with about `BUCKET` numbers."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (bucket[0].dtype != tensor.dtype or sum(other.numel() for other in bucket) >= BUCKET):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
