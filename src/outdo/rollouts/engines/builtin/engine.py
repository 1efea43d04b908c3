"""Sampling from the trainer's own weights: nothing is synchronised, nothing can be out of date.

A prompt is read once for all requests that begin with it. Sequences that finish leave the batch, and waiting ones
take their places. On a CPU in float32 the tokens of a request do not depend on what it was batched with: its random
numbers are keyed by its stream, and every row of the computation is made independent of its neighbours (see
`attention/cache.py`; matrix products are given a multiple of four rows, or MKL would change their bits with the count).
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.builtin.hf_generate import generate_padded
from outdo.rollouts.engines.builtin.kv_cache import Layer, Prefill, RowCache
from outdo.rollouts.engines.builtin.sequences import SequenceState, StopRule, extend
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, FinishReason, Request
from outdo.utils.rng import stream_key

MULTIPLE = 4  # rows that products are computed on
CPU_BLOCK, ACCELERATOR_BLOCK = 64, 512  # tokens by which the cache grows, and attention sums


class BuiltinEngine:
    """`rows` sequences are sampled at a time; `seed` is the run's."""

    def __init__(self, policy: PolicyView | None = None, *, seed: int = 0, rows: int = 256) -> None:
        self.policy = policy
        self.seed = seed
        self.rows = rows

    def load(self, policy: PolicyView) -> None:
        """Sample from this policy's weights, as they are at each call of `generate`."""
        self.policy = policy

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens."""
        return str(self._loaded().tokenizer.decode(list(token_ids), skip_special_tokens=True))

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """One completion per request, in their order. An answer ends at the latest where the model's context does."""
        policy = self._loaded()
        rule = StopRule(policy, sampling)
        rows = [
            SequenceState(request, stream_key(self.seed, request.stream), rule.limit(request)) for request in requests
        ]
        with policy.forward.prepared(packed=True):
            if policy.forward.way == "padded":
                generate_padded(policy, rows, sampling, rule, at_once=self.rows)
            else:
                Sampler(policy, sampling, rule, min(self.rows, len(rows))).run(rows)
        return [
            Completion(
                token_ids=tuple(row.token_ids),
                logprobs=tuple(row.logprobs),
                finish_reason=row.finished or FinishReason.abort,
                policy_version=policy.version,
            )
            for row in rows
        ]

    def _loaded(self) -> PolicyView:
        if self.policy is None:
            raise ValueError("the engine has no policy yet: call `load(policy)` first")
        return self.policy


@dataclass(slots=True)
class ReadPrompt:
    """What reading a prompt left behind, kept until the last request that begins with it is under way."""

    layers: list[Layer]
    logits: Tensor  # [V] of the first token of an answer


class Sampler:
    """One call of `generate`: row i of the cache belongs to `active[i]`."""

    def __init__(self, policy: PolicyView, sampling: SamplingParams, rule: StopRule, rows: int) -> None:
        self.forward = policy.forward
        self.sampling = sampling
        self.rule = rule
        self.rows = rows
        self.active: list[SequenceState] = []
        self.read: dict[tuple[int, ...], ReadPrompt] = {}
        device = self.forward.device
        block = CPU_BLOCK if device.type == "cpu" else ACCELERATOR_BLOCK
        self.cache = RowCache(_round_up(rows), block=block, device=device)

    def run(self, rows: Sequence[SequenceState]) -> None:
        """Fill in every row."""
        waiting = deque(rows)
        siblings = Counter(row.request.token_ids for row in rows)
        while waiting or self.active:
            free = min(len(waiting), self.rows - len(self.active))
            if free:
                self._admit([waiting.popleft() for _ in range(free)], siblings)
            if self.active:
                self._step()

    def _admit(self, rows: list[SequenceState], siblings: Counter[tuple[int, ...]]) -> None:
        """Give rows their first token, and those that go on a place in the cache."""
        self._read(dict.fromkeys(row.request.token_ids for row in rows if row.request.token_ids not in self.read))
        logits = torch.stack([self.read[row.request.token_ids].logits for row in rows])
        extend(rows, logits, self.sampling, self.rule)
        for ids, siblings_now in groupby(rows, key=lambda row: row.request.token_ids):
            asked = list(siblings_now)
            going_on = [row for row in asked if row.finished is None]
            self.cache.admit(len(self.active), len(going_on), self.read[ids].layers)
            self.active += going_on
            siblings[ids] -= len(asked)
            if siblings[ids] == 0:
                del self.read[ids]

    def _read(self, prompts: dict[tuple[int, ...], None]) -> None:
        if not prompts:
            return
        lengths = [len(ids) for ids in prompts]
        layout = Prefill(lengths)
        token_ids = [token for ids in prompts for token in ids]
        positions = [position for length in lengths for position in range(length)]
        hidden = self._forward(token_ids, positions, layout)
        ends = torch.tensor(lengths).cumsum(0) - 1
        logits = self._head(hidden[ends.to(hidden.device)])
        for number, ids in enumerate(prompts):
            self.read[ids] = ReadPrompt(layout.layers[number], logits[number])

    def _step(self) -> None:
        """One more token for every active row."""
        n = len(self.active)
        token_ids = [row.token_ids[-1] for row in self.active]
        positions = self.cache.lengths[:n].tolist()
        self.cache.begin(_round_up(n))
        logits = self._head(self._forward(token_ids, positions, self.cache)[:n])
        extend(self.active, logits, self.sampling, self.rule)
        for row in reversed([row for row in range(n) if self.active[row].finished is not None]):
            last = len(self.active) - 1
            if row != last:
                self.cache.move(last, row)
                self.active[row] = self.active[last]
            self.active.pop()
        self.cache.lengths[len(self.active) :] = 0

    def _forward(self, token_ids: list[int], positions: list[int], layout: Prefill | RowCache) -> Tensor:
        """Hidden states [n, H]; filled up to a multiple of rows whose results nobody reads."""
        filling = [0] * (_round_up(len(token_ids)) - len(token_ids))
        device = self.forward.device
        tokens = torch.tensor(token_ids + filling, device=device)
        return self.forward.flat(tokens, torch.tensor(positions + filling, device=device), layout)[: len(token_ids)]

    def _head(self, hidden: Tensor) -> Tensor:
        filling = hidden.new_zeros(_round_up(len(hidden)) - len(hidden), hidden.shape[1])
        return self.forward.head(torch.cat([hidden, filling]))[: len(hidden)]


def _round_up(rows: int) -> int:
    return -(-rows // MULTIPLE) * MULTIPLE
