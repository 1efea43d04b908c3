"""Models whose weights, gradients and moments are divided among the replicas: FSDP2 (`fully_shard`) of torch.

Each replica holds a part of every weight. A layer gathers its weights before it computes, forward and backward, and
drops them afterwards; gradients are summed, and each replica keeps its part. The replicas therefore have to run the
model equally often, which `ShardedScoring` takes care of. To sample, which runs the model as often as the longest of
its own answers, a replica gathers all weights of the policy (`Sharded.gathered`).

No replica ever holds all weights of a model otherwise: models are divided while they have none, and each replica reads
its part (`outdo.models.loading`), or copies it from another divided model (`Sharded.copied`).

Sources: `torch.distributed.fsdp`; Zhao et al., PyTorch FSDP, arXiv 2304.11277.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from outdo.distributed.replicas import Replicas, ReplicatedScoring, translated
from outdo.models.attention.forward import Forward
from outdo.models.logprobs import Entropy
from outdo.models.scorer import BatchSizes, ByRows, Loss, LossAndGrads, map_scores, token_scores
from outdo.types import Batch, TokenScores
from outdo.utils.errors import OutdoError
from outdo.utils.out_of_memory import is_out_of_memory
from outdo.utils.sharded_tensors import is_sharded, own_part
from outdo.utils.timing import span

Value = TypeVar("Value")
Copied = TypeVar("Copied", bound=nn.Module)
Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])


class DividingReplicas:
    """Replicas that divide models among them; see `outdo.models.scorer.Division`."""

    def __init__(self, replicas: Replicas, device: torch.device) -> None:
        self.replicas = replicas
        self.mesh = init_device_mesh(device.type, (len(replicas),))

    def __len__(self) -> int:
        return len(self.replicas)

    def scoring(self, model_forward: Forward) -> "ShardedScoring":
        """Make a `Scoring` in which all replicas compute the same layer at the same time."""
        return ShardedScoring(self.replicas, model_forward)

    def divide(self, model: PreTrainedModel) -> None:
        """Divide a model, and set its attribute `sharding`."""
        Sharded(model, self.mesh)

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """See `Replicas.together`."""
        return self.replicas.together(compute)

    def close(self) -> None:
        """See `Replicas.close`."""
        self.replicas.close()


class Root(nn.Module):
    """The root of FSDP: outdo calls body and head of a model separately, and FSDP gathers the weights of the root when
    its `forward` is called.
    """

    def __init__(self, model: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.head = head

    def forward(self, compute: Callable[[], Tensors]) -> Tensors:
        """Call `compute`, which runs the model."""
        return compute()


class Sharded:
    """How a model is divided among the replicas; see `outdo.models.attention.forward.Sharding`."""

    def __init__(self, model: PreTrainedModel, mesh: DeviceMesh, head: nn.Module | None = None) -> None:
        """Divide `model`, with a `head` together with that."""
        model.sharding = model.base_model.sharding = self  # type: ignore[assignment]
        self.mesh = mesh
        self.root = Root(model, head)
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                fully_shard(layer, mesh=mesh)
        # Also after a forward pass the parameters of the root have to be its parts, which an optimiser and a state see.
        fully_shard(self.root, mesh=mesh, reshard_after_forward=True)
        self.parts = [part for part in self.root.modules() if isinstance(part, FSDPModule)]
        for part in self.parts:
            # A sum, not a mean: totals are those of the whole batch.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)

    def __call__(self, compute: Callable[[], Tensors]) -> Tensors:
        """See `Sharding.__call__`. If `compute` fails, the weights that it gathered are dropped."""
        try:
            return self.root(compute)
        except BaseException:
            for part in self.parts:
                part.reshard()
            raise

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Hold all weights during a `with` block, which must not compute gradients."""
        for part in self.parts:
            part.set_reshard_after_forward(False)
        for part in self.parts:
            part.unshard()
        try:
            yield
        finally:
            for part in self.parts:
                part.set_reshard_after_forward(True)
                part.reshard()

    @torch.no_grad()
    def copied(self, model: PreTrainedModel, head: nn.Module | None = None) -> PreTrainedModel:
        """See `Sharding.copied`."""
        with torch.device("meta"):
            made = type(model)(copy.deepcopy(model.config)).eval()
        made.tie_weights()
        Sharded(made, self.mesh, head)
        made.to_empty(device=model.device)
        made.tie_weights()
        for own, other in zip(made.parameters(), model.parameters(), strict=True):
            own_part(own).copy_(own_part(other))
        for own, other in zip(made.buffers(), model.buffers(), strict=True):
            own.copy_(other)
        return made

    def on_same_parts(self, model: Copied, shared: dict[int, Any]) -> Copied:
        """See `Sharding.on_same_parts`."""
        parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
        # The hooks of a layer and of its copy belong to one state, which gathers the weights for both.
        states = [part._get_fsdp_state() for part in parts]
        shared |= {id(each): each for each in (self, *states)}
        kinds = [type(part) for part in parts]
        try:
            for part in parts:
                part.__class__ = type(part).__bases__[1]  # FSDP's own class refuses to be copied
            return copy.deepcopy(model, shared)
        finally:
            for part, kind in zip(parts, kinds, strict=True):
                part.__class__ = kind


class ShardedScoring(ReplicatedScoring):
    """Scores and gradients of a divided model: all replicas compute equally many micro-batches, in lockstep.

    A replica with fewer rows computes a row of the batch again, and drops the result. Memory that does not suffice on
    one replica cannot be remedied by smaller micro-batches, as the others wait in the middle of a layer.
    """

    def measure(self, batch: Batch, sizes: BatchSizes, *, entropy: Entropy) -> ByRows[TokenScores]:
        """See `Scoring.measure`."""
        mine = self._share(batch, range(len(batch)), whole_groups=False)
        micro_batches = batch.micro_batch_rows(sizes.micro_batch_tokens, mine, whole_groups=False)
        found: ByRows[TokenScores] = []
        with _fatal(), torch.no_grad():
            for rows in self._filled(micro_batches):
                scores = token_scores(self.model_forward, self._rows(batch, rows), entropy, sizes.chunk)
                if rows:
                    found.append((rows, map_scores(scores, Tensor.cpu)))
        return [each for part in self.replicas.together(lambda: found) for each in part]

    def accumulate(
        self,
        batch: Batch,
        parts: Sequence[list[int]],
        loss: Loss,
        sizes: BatchSizes,
        *,
        entropy: Entropy,
        whole_groups: bool,
    ) -> ByRows[LossAndGrads]:
        """See `Scoring.accumulate`."""
        undivided = [weight for weight in self.model_forward.trained if not is_sharded(weight)]
        if undivided:
            self.replicas.check_equal(undivided)
        shares = [self._share(batch, rows, whole_groups=whole_groups) for rows in parts]
        budget = sizes.micro_batch_tokens
        micro_batches = [batch.micro_batch_rows(budget, rows, whole_groups=whole_groups) for rows in shares if rows]
        found: ByRows[LossAndGrads] = []
        with _fatal():
            for rows in self._filled([rows for part in micro_batches for rows in part]):
                micro = self._rows(batch, rows)
                with span("forward"):
                    scores = token_scores(self.model_forward, micro, entropy, sizes.chunk)
                grads = torch.zeros_like(scores.logprobs), None
                if rows:
                    result = loss(map_scores(scores, Tensor.detach), micro)
                    found.append((rows, _without_grads(result)))
                    grads = result.grads
                with span("backward"):
                    _backward(scores, *grads)
        if undivided:
            with span("backward"):
                self._add_gradients(undivided)
        return [each for part in self.replicas.together(lambda: found) for each in part]

    def _filled(self, micro_batches: Sequence[list[int]]) -> list[list[int]]:
        """Return this replica's micro-batches, and empty ones up to the largest number that a replica has."""
        most = max(self.replicas.together(lambda: len(micro_batches)))
        return [*micro_batches, *([] for _ in range(most - len(micro_batches)))]

    def _rows(self, batch: Batch, rows: Sequence[int]) -> Batch:
        """Return some rows of a batch on the device; for an empty micro-batch, any row."""
        return batch.rows(torch.tensor(rows or [0])).to(self.model_forward.device)


def _backward(scores: TokenScores, by_logprobs: Tensor, by_entropy: Tensor | None) -> None:
    """Add the gradient, also if it is 0: the other replicas exchange theirs at the same time."""
    pairs = [(scores.logprobs, by_logprobs), (scores.entropy, by_entropy)]
    used = [(value, by) for value, by in pairs if value is not None and by is not None]
    torch.autograd.backward([value for value, _ in used], [by for _, by in used])


def _without_grads(result: LossAndGrads) -> LossAndGrads:
    """Return what the other replicas need to know of a micro-batch, on the CPU."""
    tokens = {name: value.cpu() for name, value in result.tokens.items()}
    return LossAndGrads(result.terms, tokens, (torch.zeros(0), None))


@contextmanager
def _fatal() -> Iterator[None]:
    """Turn memory that runs out into an error that ends the run, and a lost connection into a `WorkerError`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise OutdoError(
                f"memory does not suffice on this replica; a smaller `train.micro_batch_tokens` needs less ({error})"
            ) from error
        if any(backend in str(error).lower() for backend in ("gloo", "nccl")):
            with translated():
                raise
        raise
