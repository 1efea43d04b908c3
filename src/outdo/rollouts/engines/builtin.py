"""Sample from the trainer's own weights: there is no copy to synchronise, and no weight is ever out of date.

How sequences become batches is the work of a `StaticBatching` or of what overrides it; see `choose_batching`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from outdo.models.scorer import sequence_logprobs
from outdo.rollouts.engines.base import Engine, PolicySnapshot, PolicyView
from outdo.rollouts.engines.choose_batching import batching_of, choose_mode
from outdo.rollouts.engines.limits import SEQUENCES_AT_A_TIME
from outdo.rollouts.engines.modes import SamplingChoice
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState, StopRule
from outdo.rollouts.engines.static_batching import StaticBatching
from outdo.types import Completion, Request
from outdo.utils.errors import EngineError
from outdo.utils.out_of_memory import is_out_of_memory
from outdo.utils.rng import Stream, stream_key


class BuiltinEngine(Engine):
    """Samples up to `rows` sequences at a time. `seed` is the seed of the run.

    `choice` is how it samples from `policy`; unset, it is found by a comparison on a few tokens (`choose_mode`).
    Requests with inputs beside their tokens are sampled by `model.generate`.
    """

    reads_inputs = True

    def __init__(
        self,
        policy: PolicyView | None = None,
        *,
        seed: int = 0,
        rows: int = SEQUENCES_AT_A_TIME,
        choice: SamplingChoice | None = None,
    ) -> None:
        self.seed = seed
        self.rows = rows
        self.policy: PolicyView | None = None
        self._sequences: Sequence[SequenceState] = ()  # of the last call
        if policy is not None:
            self._use(policy, choice or choose_mode(policy))

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights, which are the policy's own."""
        return self._require_policy().version

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._require_policy().tokenizer

    @property
    def progress(self) -> int:
        """The number of tokens that the last call of `generate` has sampled so far."""
        return sum(len(sequence.token_ids) for sequence in self._sequences)

    @property
    def completed(self) -> tuple[int, int]:
        sequences = self._sequences
        return sum(sequence.finish_reason is not None for sequence in sequences), len(sequences)

    def update_weights(self, policy: PolicyView) -> None:
        """Use the weights of this policy, as they are at each call of `generate`.

        Raises `ModelError` if no mode samples right from a new policy.
        """
        if self.policy is None or policy.forward is not self.policy.forward:
            self._use(policy, choose_mode(policy))
        self.policy = policy
        self.batching.drop()

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        if self.policy is not None:
            self.batching.drop(episodes)

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability of each token after the first of each sequence, by the policy itself."""
        return sequence_logprobs(self._require_policy().forward, sequences)

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order. An answer ends at the end of the model's context.

        Raises `ModelError`, before it samples, for an input that the model does not name. If memory does not suffice,
        it drops what is cached; after that it samples half as many sequences at a time from then on, down to one.
        """
        if not requests:
            return []
        policy = self._require_policy()
        policy.forward.check_inputs([request.inputs for request in requests])
        while True:
            had_cached = self.batching.cached_episodes > 0
            try:
                return self._generate(policy, requests, sampling)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self.batching.drop()
                if had_cached:
                    continue
                if min(self.rows, len(requests)) <= 1:
                    raise EngineError(
                        "memory does not suffice to sample a single answer: shorter answers (`sampling.max_tokens`) or "
                        f"shorter prompts (`data.max_prompt_tokens`) need less ({error})"
                    ) from error
            self.rows = min(self.rows, len(requests)) // 2

    def _generate(self, policy: PolicyView, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        rule = StopRule(policy, sampling)
        sequences = [
            SequenceState(request, stream_key(self.seed, request.stream), rule.max_new_tokens(request))
            for request in requests
        ]
        self._sequences = sequences
        self._batching_of(requests).sample(policy, sequences, sampling, rule, rows=self.rows)
        return [sequence.completion(policy.version) for sequence in sequences]

    def _use(self, policy: PolicyView, choice: SamplingChoice) -> None:
        self.policy, self.choice = policy, choice
        self.batching = batching_of(choice.mode)
        self._by_generate: StaticBatching | None = None if choice.mode.continuous else self.batching

    def _batching_of(self, requests: Sequence[Request]) -> StaticBatching:
        """Return what samples these requests: continuous batching reads tokens alone."""
        if not any(request.inputs for request in requests):
            return self.batching
        if self._by_generate is None:
            policy = self._require_policy()
            padded = replace(PolicySnapshot.of(policy), forward=policy.forward.padded())
            self._by_generate = batching_of(choose_mode(padded).mode)
        return self._by_generate

    def _require_policy(self) -> PolicyView:
        if self.policy is None:
            raise ValueError("the engine has no policy yet: call `update_weights(policy)` first")
        return self.policy
