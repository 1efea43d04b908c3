"""The built-in engine in every process of a pool, each on its share of the requests.

What is sampled does not change by that: on a CPU in float32 a request's tokens depend on nothing but the request, its
random numbers and the weights, which all of them share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.distributed.worker_pool import WorkerPool
from outdo.models.attention.forward import Forward
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request


class MultiprocessEngine:
    """`rows` sequences are sampled at a time in each process; `seed` is the run's."""

    def __init__(self, policy: PolicyView, pool: WorkerPool, *, seed: int = 0, rows: int = 256) -> None:
        self.pool = pool
        self.how = {"seed": seed, "rows": rows}
        self._place(policy)

    def load(self, policy: PolicyView) -> None:
        """Sample from this policy's weights, as they are at each call of `generate`."""
        if policy is not self.policy:  # the weights of this one are shared: what becomes of them is seen everywhere
            self._place(policy)

    def _place(self, policy: PolicyView) -> None:
        self.policy = policy
        there = [BuiltinEngine(_PolicySnapshot.of(policy), **self.how) for _ in self.pool.others]
        self.engines = self.pool.place([BuiltinEngine(policy, **self.how), *there])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens."""
        here: BuiltinEngine = self.engines.local
        return here.decode(token_ids)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """One completion per request, in their order."""
        # In runs, so that requests with one prompt, which are neighbours, have it read once.
        each = max(1, -(-len(requests) // len(self.engines)))
        shares = [requests[start : start + each] for start in range(0, len(requests), each)]
        found = self.engines.map("generate", [(share, sampling) for share in shares])
        version = self.policy.version  # which the other processes do not hear of
        return [replace(completion, policy_version=version) for share in found for completion in share]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PolicySnapshot:
    """What an engine in another process sees of a policy."""

    forward: Forward
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    version: int
    end_ids: frozenset[int]
    context: int | None

    @classmethod
    def of(cls, policy: PolicyView) -> "_PolicySnapshot":
        names = ("forward", "model", "tokenizer", "version", "end_ids", "context")
        return cls(**{name: getattr(policy, name) for name in names})
