"""Sample from the trainer's own weights: there is no copy to synchronise, and no weight is ever out of date.

Batching is continuous: finished sequences leave the batch, and waiting ones take their rows. A prompt is prefilled once
for all requests that begin with it. On a CPU in float32 the tokens of a request do not depend on the rest of the batch:
the random numbers of a request are keyed by its stream, and every row of the computation is independent of its
neighbours (see `kv_cache.py`; matrix products have a multiple of four rows, because MKL changes their bits with the
number of rows otherwise).
"""

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from outdo.models.scorer import sequence_logprobs
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.builtin.hf_generate import generate_with_hf
from outdo.rollouts.engines.builtin.kv_cache import KeysValues, KVCache, Prefill
from outdo.rollouts.engines.builtin.probe import SamplingChoice, SamplingWay, choose_way
from outdo.rollouts.engines.builtin.route_log import RouteLog
from outdo.rollouts.engines.builtin.sequences import SequenceState, StopRule, append_next_tokens
from outdo.rollouts.engines.limits import SEQUENCES_AT_A_TIME
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request
from outdo.utils.errors import EngineError
from outdo.utils.out_of_memory import is_out_of_memory
from outdo.utils.rng import stream_key

ROW_MULTIPLE = 4  # matrix products have a multiple of so many rows
CPU_BLOCK, ACCELERATOR_BLOCK = 64, 512  # tokens of a block: the cache grows by blocks, and attention sums over blocks


class BuiltinEngine:
    """Samples up to `rows` sequences at a time. `seed` is the seed of the run.

    `choice` is how it samples from `policy`; unset, it is found by a comparison on a few tokens (`choose_way`).
    """

    def __init__(
        self,
        policy: PolicyView | None = None,
        *,
        seed: int = 0,
        rows: int = SEQUENCES_AT_A_TIME,
        choice: SamplingChoice | None = None,
    ) -> None:
        self.policy = policy
        self.seed = seed
        self.rows = rows
        self.choice = choose_way(policy, sample) if choice is None and policy is not None else choice
        self._sequences: Sequence[SequenceState] = ()  # of the last call

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights, which are the policy's own."""
        return self._require_policy().version

    @property
    def progress(self) -> int:
        """The number of tokens that the last call of `generate` has sampled so far."""
        return sum(len(sequence.token_ids) for sequence in self._sequences)

    def update_weights(self, policy: PolicyView) -> None:
        """Use the weights of this policy, as they are at each call of `generate`.

        Raises `ModelError` if there is no way to sample from a new policy.
        """
        if self.policy is None or policy.forward is not self.policy.forward:
            self.choice = choose_way(policy, sample)
        self.policy = policy

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        return str(self._require_policy().tokenizer.decode(list(token_ids), skip_special_tokens=True))

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability of each token after the first of each sequence, by the policy itself."""
        return sequence_logprobs(self._require_policy().forward, sequences)

    def health(self) -> None:
        """Do nothing: the engine computes in this process."""

    def close(self) -> None:
        """Do nothing: the engine holds nothing but the policy."""

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order. An answer ends at the end of the model's context.

        If memory does not suffice, it samples half as many sequences at a time from then on, down to one.
        """
        while True:
            try:
                return self._generate(requests, sampling)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if min(self.rows, len(requests)) <= 1:
                    raise EngineError(
                        "memory does not suffice to sample a single answer: shorter answers (`sampling.max_tokens`) or "
                        f"shorter prompts (`data.max_prompt_tokens`) need less ({error})"
                    ) from error
            self.rows = min(self.rows, len(requests)) // 2

    def _generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        policy = self._require_policy()
        assert self.choice is not None
        rule = StopRule(policy, sampling)
        sequences = [
            SequenceState(request, stream_key(self.seed, request.stream), rule.max_new_tokens(request))
            for request in requests
        ]
        self._sequences = sequences
        sample(policy, self.choice.way, sequences, sampling, rule, rows=self.rows)
        return [sequence.completion(policy.version) for sequence in sequences]

    def _require_policy(self) -> PolicyView:
        if self.policy is None:
            raise ValueError("the engine has no policy yet: call `update_weights(policy)` first")
        return self.policy


def sample(
    policy: PolicyView,
    way: SamplingWay,
    sequences: Sequence[SequenceState],
    sampling: SamplingParams,
    rule: StopRule,
    *,
    rows: int = SEQUENCES_AT_A_TIME,
) -> None:
    """Sample every sequence to its end, up to `rows` at a time."""
    # `generate` calls the model's own attention, also of a model that is trained in the shared way.
    forward = policy.forward if way.continuous else policy.forward.with_way("padded")
    routers = forward.routers if sampling.routes and way.continuous else None
    recorded = nullcontext() if routers is None else routers.recorded(forward.model)
    with forward.prepared(packed=True), recorded as recording:
        if way.continuous:
            log = None if recording is None else RouteLog(recording)
            ContinuousBatch(policy, sampling, rule, min(rows, len(sequences)), log).run(sequences)
        else:
            settings = {"mix_lengths": way.mix_lengths, "use_cache": way.use_cache}
            generate_with_hf(policy, sequences, sampling, rule, batch_size=rows, **settings)


@dataclass(slots=True)
class PrefilledPrompt:
    """The prefill of one prompt, kept until the last request with this prompt is in the batch."""

    calls: list[KeysValues]
    logits: Tensor  # [V], of the first token of an answer


class ContinuousBatch:
    """The batch of one call of `generate`: row i of the cache belongs to `active[i]`."""

    def __init__(
        self,
        policy: PolicyView,
        sampling: SamplingParams,
        rule: StopRule,
        rows: int,
        log: RouteLog | None = None,
    ) -> None:
        self.forward = policy.forward
        self.log = log
        self.sampling = sampling
        self.rule = rule
        self.rows = rows
        self.active: list[SequenceState] = []
        self.prefilled: dict[tuple[int, ...], PrefilledPrompt] = {}
        device = self.forward.device
        block = CPU_BLOCK if device.type == "cpu" else ACCELERATOR_BLOCK
        self.cache = KVCache(_round_up(rows), block=block, device=device)

    def run(self, sequences: Sequence[SequenceState]) -> None:
        """Sample every sequence to its end."""
        waiting = deque(sequences)
        waiting_by_prompt = Counter(sequence.request.token_ids for sequence in sequences)
        while waiting or self.active:
            free = min(len(waiting), self.rows - len(self.active))
            if free:
                self._admit([waiting.popleft() for _ in range(free)], waiting_by_prompt)
            if self.active:
                self._decode_step()
        if self.log is not None:
            self.log.give(sequences)

    def _admit(self, sequences: list[SequenceState], waiting_by_prompt: Counter[tuple[int, ...]]) -> None:
        """Sample the first token of each sequence, and give those that continue a row of the cache."""
        prompts = dict.fromkeys(sequence.request.token_ids for sequence in sequences)
        self._prefill([prompt for prompt in prompts if prompt not in self.prefilled])
        logits = torch.stack([self.prefilled[sequence.request.token_ids].logits for sequence in sequences])
        append_next_tokens(sequences, logits, self.sampling, self.rule)
        for prompt, group in groupby(sequences, key=lambda sequence: sequence.request.token_ids):
            admitted = list(group)
            unfinished = [sequence for sequence in admitted if sequence.finish_reason is None]
            self.cache.admit(len(self.active), len(unfinished), self.prefilled[prompt].calls)
            self.active += unfinished
            waiting_by_prompt[prompt] -= len(admitted)
            if waiting_by_prompt[prompt] == 0:
                del self.prefilled[prompt]

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> None:
        if not prompts:
            return
        lengths = [len(prompt) for prompt in prompts]
        layout = Prefill(lengths)
        token_ids = [token for prompt in prompts for token in prompt]
        positions = [position for length in lengths for position in range(length)]
        hidden = self._forward(token_ids, positions, layout)
        if self.log is not None:
            self.log.prefilled(prompts)
        last = torch.tensor(lengths).cumsum(0) - 1  # the last token of each prompt
        logits = self._head(hidden[last.to(hidden.device)])
        for index, prompt in enumerate(prompts):
            self.prefilled[prompt] = PrefilledPrompt(layout.calls[index], logits[index])

    def _decode_step(self) -> None:
        """Sample one more token for every active row."""
        n = len(self.active)
        token_ids = [sequence.token_ids[-1] for sequence in self.active]
        positions = self.cache.lengths[:n].tolist()
        self.cache.begin(_round_up(n))
        logits = self._head(self._forward(token_ids, positions, self.cache)[:n])
        if self.log is not None:
            self.log.decoded(self.active)
        append_next_tokens(self.active, logits, self.sampling, self.rule)
        for row in reversed([row for row in range(n) if self.active[row].finish_reason is not None]):
            last = len(self.active) - 1
            if row != last:
                self.cache.move(last, row)
                self.active[row] = self.active[last]
            self.active.pop()
        self.cache.lengths[len(self.active) :] = 0

    def _forward(self, token_ids: list[int], positions: list[int], layout: Prefill | KVCache) -> Tensor:
        """Compute hidden states [n, H]; padded to a multiple of rows whose results are dropped."""
        padding = [0] * (_round_up(len(token_ids)) - len(token_ids))
        device = self.forward.device
        tokens = torch.tensor(token_ids + padding, device=device)
        return self.forward.flat(tokens, torch.tensor(positions + padding, device=device), layout)[: len(token_ids)]

    def _head(self, hidden: Tensor) -> Tensor:
        padding = hidden.new_zeros(_round_up(len(hidden)) - len(hidden), hidden.shape[1])
        return self.forward.head(torch.cat([hidden, padding]))[: len(hidden)]


def _round_up(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
