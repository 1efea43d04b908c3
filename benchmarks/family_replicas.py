"""Compare an update of two replicas with that of one process, for each family of `families.py`.

    from family_replicas import compared
    for family, columns in compared(["qwen3", "lfm2"]): ...

Two processes go through the families together. They make a small model, compute one update alone, one with whole
weights on both, and one with the weights divided among them, and compare loss and gradients.
"""

import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.family_models import VOCABULARY, phrase, small
from outdo.algorithms.objectives.presets import grpo
from outdo.extras.replicas.launch import RENDEZVOUS
from outdo.extras.replicas.replicas import Replicas, join
from outdo.extras.replicas.sharding import DividingReplicas
from outdo.models.policy import Policy
from outdo.models.probe import small_batch
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch
from outdo.utils.sharded_tensors import whole

COUNT = 2
TIMEOUT = 120.0
"""Seconds that a replica waits for the other one."""

TOLERANCE = 1e-3
"""Of the norm of the gradient, and of the loss: they are sums in another order, in float32."""

Columns = dict[str, str]
"""Why replicas with whole and with divided weights do not compute the update of one process; empty where they do."""


def compared(families: Iterable[str]) -> Iterator[tuple[str, Columns]]:
    """Yield each family with its columns, as soon as they are known.

    Replicas that crash or wait in vain are started again, with the family after the one at which they ended.
    """
    remaining = list(families)
    while remaining:
        with tempfile.TemporaryDirectory() as folder:
            for columns in _of_replicas(tuple(remaining), Path(folder)):
                yield remaining.pop(0), columns
        if remaining:
            ended = "one of the replicas ends, or waits for the other one"
            yield remaining.pop(0), {"replicas": ended, "divided": ended}


def _of_replicas(families: Sequence[str], folder: Path) -> Iterator[Columns]:
    """Compare updates of families in two processes, and yield what the first one writes of each."""
    reader, writer = os.pipe()
    children = []
    for rank in range(COUNT):
        if (child := os.fork()) == 0:
            try:
                _replica(rank, families, folder, writer)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        children.append(child)
    os.close(writer)
    with os.fdopen(reader) as lines:
        yield from map(json.loads, lines)
    for child in children:
        os.waitpid(child, 0)


def _replica(rank: int, families: Sequence[str], folder: Path, results: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(COUNT), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ[RENDEZVOUS] = (folder / "rendezvous").as_uri()
    os.chdir(folder)
    with join(timeout=TIMEOUT, device="cpu") as replicas:
        dividing = DividingReplicas(timeout=timedelta(seconds=TIMEOUT), device=torch.device("cpu"))
        for family in families:
            columns = _columns(family, replicas, dividing)
            if replicas.first:
                os.write(results, f"{json.dumps(columns)}\n".encode())


def _columns(family: str, replicas: Replicas, dividing: DividingReplicas) -> Columns:
    """Return the columns of a family, the same on both replicas. The first one saves a model in the current folder."""
    model, tokenizer = small(family), byte_bpe_tokenizer([], VOCABULARY)
    alone = Policy(model, tokenizer)
    batch = _batch(alone)
    if replicas.first:
        alone.save(f"./{family}")
    try:
        expected = _update(alone, batch)
    except Exception as error:
        return dict.fromkeys(("replicas", "divided"), f"nor does one process: {phrase(error)}")

    def with_whole_weights() -> Policy:
        alone.scoring = replicas.scoring(alone.scoring)
        return alone

    def with_divided_weights() -> Policy:
        replicas.together(lambda: None)  # then the folder is complete
        return Policy.load(f"./{family}", device="cpu", world=dividing)

    return {
        "replicas": _fault(with_whole_weights, batch, expected, replicas),
        "divided": _fault(with_divided_weights, batch, expected, replicas),
    }


def _batch(policy: Policy) -> Batch:
    """Return two groups of two answers, whose past and reference differ from the policy."""
    batch = small_batch(VOCABULARY)
    batch = batch.with_(token_ids=batch.token_ids.clamp(min=3))  # Gemma 3n has no gradient at an embedding of padding
    now, positions = policy.logprobs(batch), torch.arange(batch.token_ids.shape[1])
    past, reference = ((now + 0.3 * shift) * batch.loss_mask for shift in (positions.sin(), positions.cos()))
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0])[:, None] * batch.loss_mask
    return batch.with_(advantages=advantages, old_logprobs=past, ref_logprobs=reference)


def _fault(make: Callable[[], Policy], batch: Batch, expected: tuple[float, Tensor], replicas: Replicas) -> str:
    """Return how the update of a policy of replicas differs from that of one process; empty if it does not."""
    try:
        loss, gradient = _update(make(), batch)
        away = float((gradient - expected[1]).norm() / expected[1].norm())
        fault = "" if away <= TOLERANCE else f"its gradient differs by {away:.1g} of its norm"
        if not fault and abs(loss - expected[0]) > TOLERANCE * max(1.0, abs(expected[0])):
            fault = f"its loss is {loss:.4g}, and that of one process {expected[0]:.4g}"
    except Exception as error:
        fault = phrase(error)
    return next(filter(None, replicas.together(lambda: fault)), "")


def _update(policy: Policy, batch: Batch) -> tuple[float, Tensor]:
    """Return the loss of an update, and the gradient of all weights, which stay as they are."""
    gradients: list[Tensor] = []

    def keep(loss: float) -> dict[str, float]:
        weights = policy.optimiser.weights.values()
        grads: list[Any] = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        gradients.extend(whole(grad).flatten().clone() for grad in grads)
        for weight in weights:
            weight.grad = None
        return {}

    policy.optimiser.step = keep  # type: ignore[method-assign]
    update = policy.update(batch, grpo(beta=0.1))
    return update.metrics["loss"], torch.cat(gradients)
