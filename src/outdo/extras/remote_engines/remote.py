"""An engine that has a copy of the weights: each delivery is proved, and an engine that fails is restarted."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import torch

from outdo.extras.remote_engines.first_replica import on_first_replica
from outdo.extras.remote_engines.proof import Proof
from outdo.models.forward import Forward
from outdo.rollouts.engines.base import Engine, EpisodeT, Item, PolicyView
from outdo.rollouts.engines.copies import whole_policy
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.wrapped import WrappedEngine
from outdo.types import Completion, Request
from outdo.utils.errors import EngineError, EngineLostError
from outdo.utils.rng import Stream
from outdo.utils.world import ALONE, World

TIMEOUT = 300.0
"""Seconds without progress after which an engine is lost, unless its options name others."""
RESTARTS = 2
"""How often one call restarts the engine before it gives up."""

Result = TypeVar("Result")


Maker = Callable[[PolicyView], Engine]
"""Returns an engine that has no weights yet."""


class RemoteEngine(WrappedEngine):
    """Delivers weights to the engine that `make` returns, proves each delivery, and restarts an engine that is lost.

    A call that failed with `EngineLostError` is repeated with the same requests, so that the answers have the random
    numbers that they would have had. Restarts are reported on standard error.

    In a `world` of several replicas all of them make each call together. Each has an engine, to know what it is and to
    decode by it; only that of the first one is started, gets weights and samples. What it returns, and its
    `EngineError`, is returned or raised on all of them, so that they restart it, or end, together.
    """

    def __init__(self, make: Maker, policy: PolicyView, proof: Proof, *, world: World = ALONE) -> None:
        self.world = world
        self.proof = proof
        self.restarts = 0
        self.seconds = self.proof_seconds = 0.0  # of the last delivery
        self._forward: Forward | None = None
        super().__init__(make(self._whole(policy)))
        self._version: int | None = None
        self._bytes = 0
        self._policy: PolicyView | None = None
        self._delivered: int | None = None
        self._is_lost = False
        self._is_closed = False
        self._is_asleep = False

    @property
    def version(self) -> int:
        if self._version is None:
            raise EngineError("the engine has no weights yet: call `update_weights(policy)` first")
        return self._version

    def update_weights(self, policy: PolicyView) -> None:
        """Deliver the weights of this policy, unless the engine has them, and compare the engine with the policy.

        Raises `DeliveryError` if the engine does not have these weights now.
        """
        if policy is self._policy and policy.version == self._delivered:
            return
        self._policy, self._delivered = policy, None
        self._repeated(self._deliver)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        return self._ask(lambda: self.engine.generate(requests, sampling))

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[EpisodeT]]
    ) -> list[EpisodeT]:
        """Return what `play` returns for all groups of episodes. Of several replicas the first one plays them.

        Then all of them are played again if the engine is lost; else only the call that failed is repeated.
        """
        if len(self.world) == 1:
            return play(self, groups)
        return self._ask(lambda: play(self.engine, groups))

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        """Tell the engine that these episodes have ended."""
        self._ask(lambda: self.engine.end_episodes(episodes))

    def sleep(self) -> bool:
        """Let the engine sleep, if it can: then the next `update_weights` delivers and proves the weights anew."""
        self._is_asleep = self._ask(self.engine.sleep)
        if self._is_asleep:
            self._delivered = None
        return self._is_asleep

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability, at temperature 1, of each token after the first of each sequence."""
        return self._ask(lambda: self.engine.score(sequences))

    def health(self) -> None:
        on_first_replica(self.world, self.engine.health)

    def close(self) -> None:
        """Release what the engine of this replica holds. A call in another thread ends with an error."""
        self._is_closed = True
        self.engine.close()

    @property
    def delivered_bytes(self) -> int:
        """Bytes of the weights of the last delivery, on every replica."""
        return self._bytes

    def notes(self) -> list[str]:
        """Return how far the engine is from the policy, and what the engine itself has to say."""
        proof = self.proof
        own = (
            f"engine: its weights are proved after each update; now it is {proof.last:.2g} nats from the policy at "
            f"most (bound: {proof.bound.largest:g})"
        )
        return [own, *self.engine.notes()]

    def metrics(self) -> dict[str, float]:
        """Return those of the engine, the seconds and bytes of the last delivery, those of its proof, and restarts."""
        return {
            **self.engine.metrics(),
            "engine/delivery_seconds": self.seconds,
            "engine/delivery_bytes": float(self.delivered_bytes),
            "engine/proof_seconds": self.proof_seconds,
            "engine/restarts": float(self.restarts),
        }

    def _deliver(self) -> None:
        assert self._policy is not None
        if self._delivered is None:  # a restart may have delivered them just now
            began = perf_counter()
            if self._is_asleep:
                torch.cuda.empty_cache()  # the engine's memory may be among what the trainer keeps for its next tensors
                self._is_asleep = False
            with self._policy.forward.gathered():
                self._version = None
                whole = self._whole(self._policy)
                self._version, self._bytes = on_first_replica(self.world, lambda: self._update(whole))
                delivered = perf_counter()
                self.proof.check(self.engine, self._policy, self.world)
            self.seconds, self.proof_seconds = delivered - began, perf_counter() - delivered
            self._delivered = self._policy.version

    def _whole(self, policy: PolicyView) -> PolicyView:
        """Return a policy as the engine reads it: not divided among replicas, and with weights while it is gathered."""
        if len(self.world) == 1:
            return policy
        if policy.forward is not self._forward:
            self._forward, self._snapshot = policy.forward, whole_policy(policy)
        return replace(self._snapshot, version=policy.version)

    def _update(self, policy: PolicyView) -> tuple[int, int]:
        """Deliver the weights of a policy; return their version and their bytes."""
        self.engine.update_weights(policy)
        return self.engine.version, self.engine.delivered_bytes

    def _ask(self, work: Callable[[], Result]) -> Result:
        """Do some work with the engine, on the first replica; repeat it if the engine is lost."""
        return self._repeated(lambda: on_first_replica(self.world, work))

    def _repeated(self, work: Callable[[], Result]) -> Result:
        """Do the work; if the engine is lost, restart it and do the work again, up to `RESTARTS` times."""
        for attempts_left in range(RESTARTS, -1, -1):
            try:
                if self._is_lost:
                    self._restart()
                return work()
            except EngineLostError as error:
                self._is_lost = True
                if self._is_closed or not attempts_left:
                    raise
                if self.world.first:
                    sys.stderr.write(f"the engine is restarted: {error}\n")
            finally:
                if self._is_closed:  # by another thread, while this one may have started it again
                    self.engine.close()
        raise AssertionError("the last attempt returns or raises")

    def _restart(self) -> None:
        self._version = None
        on_first_replica(self.world, self.engine.restart)
        self.restarts += 1
        self._is_lost, self._delivered = False, None
        if self._policy is not None:
            self._deliver()
