"""A pool of processes that share the weights of models: one process computes on one core."""

from collections.abc import Sequence
from itertools import count
from typing import Any, Self

import torch

from outdo.distributed.pooled_scoring import PooledScoring, ScoringWorker
from outdo.distributed.process import Process, Replicated
from outdo.models.attention.forward import Forward


class WorkerPool:
    """This process, and `others` more; each computes with `threads` threads.

    A program that makes one must keep what it does behind `if __name__ == "__main__":`, as for every process pool in
    Python. The others end with this process, however that ends.
    """

    def __init__(self, others: int = 0, *, threads: int = 1) -> None:
        self.others = [Process(threads) for _ in range(others)]
        self._names = count()

    def __len__(self) -> int:
        return 1 + len(self.others)

    def place(self, parts: Sequence[Any]) -> Replicated:
        """Send each process one of the parts; the first stays in this process. They must be fit for pickling."""
        name = next(self._names)
        for process, part in zip(self.others, parts[1:], strict=True):
            process.hold(name, part)
        return Replicated(parts[0], self.others, name)

    def scoring(self, model_forward: Forward) -> PooledScoring:
        """Place a model in every process, its weights shared, to score and to be trained."""
        weights = model_forward.trained
        gradients = [[torch.zeros_like(weight) for weight in weights] for _ in self.others]
        others = [ScoringWorker(model_forward, each) for each in gradients]
        return PooledScoring(self.place([ScoringWorker(model_forward), *others]), model_forward, gradients)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the other processes."""
        for process in self.others:
            process.close()
        self.others = []
