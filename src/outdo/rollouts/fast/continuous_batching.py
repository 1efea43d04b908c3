"""Continuous batching: finished sequences leave the batch, and waiting ones take their rows. A prompt is prefilled once
for all requests that begin with it. On a CPU in float32 the tokens of a request do not depend on the rest of the batch:
the random numbers of a request are keyed by its stream, and every row of the computation is independent of its
neighbours (see `kv_cache.py`; matrix products have a multiple of four rows, because MKL changes their bits with the
number of rows otherwise).

The tokens after a prompt are read in the way in which they would be sampled. So the next turn of an episode has the
same bits, whether keys and values of the turns before it are cached (see `episode_cache.py`) or computed again.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from outdo.models.forward import Forward
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.limits import (
    ACCELERATOR_BLOCK,
    CPU_BLOCK,
    HOST_READS_EVERY,
    PREFILL_TOKENS,
    SEQUENCES_AT_A_TIME,
)
from outdo.rollouts.engines.modes import SamplingMode
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState, StopRule, append, append_next_tokens, numbers_of
from outdo.rollouts.engines.static_batching import StaticBatching
from outdo.rollouts.fast.device_steps import CAPTURES, Capture, DeviceSteps, rows_of_bucket
from outdo.rollouts.fast.episode_cache import CachedEpisode, EpisodeCache
from outdo.rollouts.fast.kv_cache import KVCache, Prefill
from outdo.rollouts.fast.layer_caches import RowState
from outdo.rollouts.fast.route_log import RouteLog
from outdo.utils.rng import Stream

ROW_MULTIPLE = 4  # matrix products have a multiple of so many rows


class ContinuousBatching(StaticBatching):
    """Samples in one batch, which finished sequences leave and waiting ones enter; caches episodes between turns."""

    def __init__(self, mode: SamplingMode) -> None:
        super().__init__(mode)
        self.episode_cache = EpisodeCache()
        self._cached_version: int | None = None  # of the weights that computed what is cached

    @staticmethod
    def is_possible(mode: SamplingMode, forward: Forward) -> bool:
        """Return whether a mode is one of continuous batching that suits a forward pass and its device."""
        return mode.continuous and forward.layout == "shared" and (not mode.captured or forward.device.type in CAPTURES)

    @property
    def cached_episodes(self) -> int:
        return len(self.episode_cache)

    def drop(self, episodes: Iterable[Stream] | None = None) -> None:
        self.episode_cache.drop(episodes)

    def sample(
        self,
        policy: PolicyView,
        sequences: Sequence[SequenceState],
        sampling: SamplingParams,
        rule: StopRule,
        *,
        rows: int = SEQUENCES_AT_A_TIME,
    ) -> None:
        """Sample every sequence to its end, up to `rows` at a time."""
        if policy.version != self._cached_version:
            self.drop()
        self._cached_version = policy.version
        forward = policy.forward
        routers = forward.routers if sampling.routes else None
        recorded = nullcontext() if routers is None else routers.recorded(forward.model)
        with forward.prepared(packed=True), recorded as recording:
            log = None if recording is None else RouteLog(recording.last)
            capture = CAPTURES.get(forward.device.type) if self.mode.captured else None
            rows = min(rows, len(sequences))
            ContinuousBatch(policy, sampling, rule, rows, log, self.episode_cache, capture=capture).run(sequences)


@dataclass(slots=True)
class PrefilledPrompt:
    """The prefill of one prompt, kept until the last request with this prompt is in the batch."""

    states: list[RowState]
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
        episode_cache: EpisodeCache | None = None,
        *,
        capture: Capture | None = None,
    ) -> None:
        self.forward: Any = policy.forward  # in the shared layout, which has `flat`
        self.log = log
        self.capture = capture
        self.steps: dict[int, DeviceSteps] = {}  # by their number of rows
        self.episode_cache = EpisodeCache() if episode_cache is None else episode_cache
        self.sampling = sampling
        self.rule = rule
        self.rows = rows
        self.active: list[SequenceState] = []
        self.prefilled: dict[tuple[int, ...], PrefilledPrompt] = {}
        device = self.forward.device
        self.on_host = device.type == "cpu"
        block = CPU_BLOCK if self.on_host else ACCELERATOR_BLOCK
        self.cache = KVCache(_round_up(rows), block=block, device=device, one_block=not self.on_host)

    def run(self, sequences: Sequence[SequenceState]) -> None:
        """Sample every sequence to its end."""
        for sequence in sequences:
            sequence.tokens_read = 0
        waiting = deque(sequences)
        waiting_by_prompt = Counter(sequence.prompt for sequence in sequences)
        while waiting or self.active:
            while admitted := self._take(waiting):
                self._admit(admitted, waiting_by_prompt)
            if self.active and (self.on_host or self.log is not None):
                self._decode_step()
            elif self.active:
                self._decode_on_device()
        if self.log is not None:
            self.log.give(sequences)

    def _take(self, waiting: deque[SequenceState]) -> list[SequenceState]:
        """Take as many sequences as there are free rows, with at most `PREFILL_TOKENS` tokens to read, or one."""
        taken: list[SequenceState] = []
        prefilled, unread = set(self.prefilled), 0
        while waiting and len(self.active) + len(taken) < self.rows:
            request, prompt = waiting[0].request, waiting[0].prompt
            cached = self.episode_cache.cached_tokens(request)
            unread += len(request.token_ids) - (cached or len(prompt) * (prompt in prefilled))
            if taken and unread > PREFILL_TOKENS:
                break
            if not cached:
                prefilled.add(prompt)
            taken.append(waiting.popleft())
        return taken

    def _admit(self, sequences: list[SequenceState], waiting_by_prompt: Counter[tuple[int, ...]]) -> None:
        """Give each sequence a row of the cache, and sample its first token."""
        first = len(self.active)
        cached = [self.episode_cache.take(sequence.request) for sequence in sequences]
        self._prefill([sequence for sequence, turn in zip(sequences, cached, strict=True) if turn is None])
        known = [self._known_states(*pair) for pair in zip(sequences, cached, strict=True)]
        for _, same in groupby(range(len(sequences)), key=lambda index: id(known[index][1])):
            places = list(same)
            self.cache.admit(len(self.active), len(places), *known[places[0]])
            self.active += [sequences[index] for index in places]
        append_next_tokens(sequences, self._read(first), self.sampling, self.rule)
        self._remove_finished()
        for sequence in sequences:
            waiting_by_prompt[sequence.prompt] -= 1
            if waiting_by_prompt[sequence.prompt] == 0:
                self.prefilled.pop(sequence.prompt, None)

    def _known_states(self, sequence: SequenceState, cached: CachedEpisode | None) -> tuple[int, Sequence[RowState]]:
        """Return of how many tokens the layers know something when a sequence begins, and what they keep of them."""
        if cached is None:
            return len(sequence.prompt), self.prefilled[sequence.prompt].states
        sequence.routes = cached.turn.routes
        return len(cached.token_ids), cached.states

    def _prefill(self, sequences: Sequence[SequenceState]) -> None:
        """Compute those prompts of some sequences that are not prefilled."""
        new: dict[tuple[int, ...], SequenceState] = {}
        for sequence in sequences:
            if sequence.prompt not in self.prefilled:
                new.setdefault(sequence.prompt, sequence)
        if not new:
            return
        prompts = list(new)
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
            self.prefilled[prompt] = PrefilledPrompt(layout.states[index], logits[index])
            _count(new[prompt], len(prompt))

    def _read(self, first: int) -> Tensor:
        """Compute what the active sequences from `first` on have after their rows; return the next logits, [n, V]."""
        sequences = self.active[first:]
        known = self.cache.lengths[first : len(self.active)].tolist()
        unread = [sequence.request.token_ids[length:] for sequence, length in zip(sequences, known, strict=True)]
        counts = [len(token_ids) for token_ids in unread]
        if not any(counts):
            return torch.stack([self.prefilled[sequence.prompt].logits for sequence in sequences])
        token_ids = [token for tokens in unread for token in tokens]
        padding = _round_up(len(token_ids)) - len(token_ids)
        positions = self.cache.begin([0] * first + counts, padding=padding)
        hidden = self._forward(token_ids + token_ids[-1:] * padding, positions, self.cache)
        if self.log is not None:
            self.log.read(sequences, counts)
        ends = torch.tensor(counts).cumsum(0) - 1
        logits = self._head(hidden[ends.to(hidden.device)])
        for row, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            _count(sequence, count)
            if count == 0:
                logits[row] = self.prefilled[sequence.prompt].logits
        return logits

    def _decode_step(self) -> None:
        """Sample one more token for every active row."""
        n = len(self.active)
        padding = _round_up(n) - n
        token_ids = [sequence.token_ids[-1] for sequence in self.active] + [0] * padding
        positions = self.cache.begin([1] * len(token_ids))
        logits = self._head(self._forward(token_ids, positions, self.cache)[:n])
        if self.log is not None:
            self.log.read(self.active, [1] * n)
        for sequence in self.active:
            _count(sequence, 1)
        append_next_tokens(self.active, logits, self.sampling, self.rule)
        self._remove_finished()

    def _decode_on_device(self) -> None:
        """Sample some more tokens for every active row, none of which the host reads before the last."""
        sequences, n = self.active, len(self.active)
        count = min(HOST_READS_EVERY, *(sequence.max_tokens - len(sequence.token_ids) for sequence in sequences))
        rows = rows_of_bucket(n, len(self.cache.lengths))
        self.cache.make_room(int(self.cache.lengths[:n].max()) + count, rows)
        if any(step.generation != self.cache.generation for step in self.steps.values()):
            self.steps.clear()
        if rows not in self.steps:
            self.steps[rows] = DeviceSteps(self.forward, self.cache, rows, self.sampling, self.capture)
        last, numbers = [sequence.token_ids[-1] for sequence in sequences], numbers_of(sequences, count)
        sampled = self.steps[rows].run(last, self.cache.lengths[:n], numbers)
        for row, (sequence, tokens, logprobs) in enumerate(zip(sequences, *sampled, strict=True)):
            read = append(sequence, tokens, logprobs, self.rule)
            self.cache.lengths[row] += read
            _count(sequence, read)
        self._remove_finished()

    def _remove_finished(self) -> None:
        """Free the rows of finished sequences; keep those of episodes that may go on."""
        # Steps on an accelerator go beyond the end of an answer, and so does the state of a layer after them.
        may_go_on = self.on_host or not self.cache.has_states
        for row in reversed([row for row, sequence in enumerate(self.active) if sequence.finish_reason is not None]):
            if may_go_on and self.active[row].request.episode is not None:
                self.episode_cache.keep(CachedEpisode(self.active[row], self.cache.states_of(row)))
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


def _count(sequence: SequenceState, tokens: int) -> None:
    sequence.tokens_read = (sequence.tokens_read or 0) + tokens


def _round_up(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
