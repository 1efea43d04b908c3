"""The built-in engine on every replica, each on its part of the requests."""

from collections.abc import Sequence

from outdo.distributed.replicas import Replicas
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request


class ReplicatedEngine:
    """Samples on every replica, from its own weights, and returns the completions of all of them to each."""

    def __init__(self, engine: BuiltinEngine, replicas: Replicas) -> None:
        self.engine = engine
        self.replicas = replicas
        self.choice = engine.choice

    def load(self, policy: PolicyView) -> None:
        """Use the weights of this policy, as they are at each call of `generate`."""
        self.engine.load(policy)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        return self.engine.decode(token_ids)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""
        mine = self.replicas.part(requests)  # neighbours, so that a prompt is prefilled once for its answers
        assert self.engine.policy is not None
        with self.engine.policy.forward.gathered():
            parts = self.replicas.together(lambda: self.engine.generate(mine, sampling) if mine else [])
        return [completion for part in parts for completion in part]
