"""Prove that an engine with a copy of the weights has those of the policy: both score the same tokens.

A fault in the delivery of weights raises no error by itself. The engine goes on to sample, from old weights or with
old keys and values in its cache, and the run learns from answers of another policy. So after each update the engine
scores fixed sequences, and continues them at a temperature other than 1; the policy scores the same tokens.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outdo.extras.remote_engines.first_replica import on_first_replica
from outdo.models.adapter import has_adapter, on_same_base, switch
from outdo.models.scorer import sequence_logprobs, token_scores
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import check_completions
from outdo.types import Batch, Completion, Request
from outdo.utils.errors import DeliveryError, EngineError
from outdo.utils.rng import Stream, stream_key
from outdo.utils.text import counted
from outdo.utils.world import ALONE, World

SEQUENCES, LENGTH = 8, 64
SAMPLED = 8
"""Tokens that the engine samples after each sequence."""
TEMPERATURE = 0.7
"""Their temperature. At 1, log-probabilities of the wrong temperature would be right."""
REMEMBERED = 16
"""Versions whose log-probabilities are kept, to recognise an engine that still has the weights of one of them."""


class Bound(NamedTuple):
    """How far the log-probabilities of engine and policy may be apart, in nats."""

    largest: float
    mean: float


FLOAT32 = Bound(1e-4, 1e-4)
"""With vLLM 0.32 on a CPU, a model of 0.8 M weights was at most 3.8e-5 apart in 20 steps of training."""
BFLOAT16 = Bound(0.75, 0.08)
"""For an engine or a policy that computes in bfloat16: twice what was measured with vLLM 0.32 on a CPU. The model of
the quickstart was up to 0.36 nats apart, 0.029 on average; one with larger random weights 0.21 and 0.039."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of the same tokens by the engine and by the policy."""

    engine: Tensor  # [S, L - 1], of the fixed sequences, at temperature 1
    policy: Tensor
    engine_sampled: list[Tensor]  # [n] for each sequence, of what the engine sampled after it
    policy_sampled: list[Tensor]
    unscaled: list[Tensor]  # the same by the policy, at temperature 1

    def differences(self) -> list[Tensor]:
        """Return for each sequence how far the log-probabilities of all of its tokens are apart."""
        fixed = self.engine - self.policy
        sampled = zip(self.engine_sampled, self.policy_sampled, strict=True)
        return [torch.cat([row, mine - its]) for row, (mine, its) in zip(fixed, sampled, strict=True)]


class Proof:
    """Compares an engine with the policy after each update. `last` is the largest difference that was found.

    Each process of an engine needs at least one of the `sequences`.
    """

    def __init__(self, bound: Bound, *, sequences: int = SEQUENCES) -> None:
        self.bound = bound
        self.sequences = sequences
        self.last = 0.0
        self._earlier: deque[tuple[int, Tensor]] = deque(maxlen=REMEMBERED)

    def check(self, engine: Engine, policy: PolicyView, world: World = ALONE) -> None:
        """Compare the two. Beside several replicas the engine is the first one's, and all of them compare.

        Raises `DeliveryError` if they are further apart than the bound, with the token that is furthest apart and the
        likely cause; `EngineError` if what the engine returned cannot be right.
        """
        sequences = fixed_sequences(policy, self.sequences)
        scores = _measure(engine, policy, sequences, world)
        differences = torch.cat(scores.differences()).abs()
        self.last, mean = float(differences.max()), float(differences.mean())
        if not (self.last <= self.bound.largest and mean <= self.bound.mean):  # NaN is neither
            raise DeliveryError(self._message(scores, policy, sequences, mean))
        self._earlier.append((policy.version, scores.policy))

    def _message(self, scores: Scores, policy: PolicyView, sequences: Sequence[Sequence[int]], mean: float) -> str:
        rows = scores.differences()
        worst = max(range(len(rows)), key=lambda row: float(rows[row].abs().max()))
        column = int(rows[worst].abs().argmax())
        by_engine = torch.cat([scores.engine[worst], scores.engine_sampled[worst]])[column]
        by_policy = torch.cat([scores.policy[worst], scores.policy_sampled[worst]])[column]
        kind = "sampled " if column >= scores.policy.shape[1] else ""
        return (
            f"after {counted(policy.version, 'optimiser step')} the engine does not sample from the policy's weights: "
            f"{kind}token {column + 1} of test sequence {worst + 1} has the log-probability {by_engine:.4f} by the "
            f"engine and {by_policy:.4f} by the policy, {self.last:.2g} nats apart (at most {self.bound.largest:g}; on "
            f"average {mean:.2g}, at most {self.bound.mean:g}). Likely cause: {self._cause(scores, policy, sequences)}"
        )

    def _cause(self, scores: Scores, policy: PolicyView, sequences: Sequence[Sequence[int]]) -> str:
        for version, earlier in reversed(self._earlier):
            if version != policy.version and self._near(scores.engine, earlier):
                steps = counted(version, "optimiser step")
                return f"the engine still has the weights after {steps}: this update did not reach it"
        if has_adapter(policy.model) and self._near(scores.engine, _base_scores(policy, sequences)):
            return "the engine computes the base model: the adapter is not loaded, or requests do not name it"
        fixed_are_right = self._near(scores.engine, scores.policy)
        if fixed_are_right and self._near(torch.cat(scores.engine_sampled), torch.cat(scores.unscaled)):
            return "its log-probabilities are those at temperature 1, not at the sampling temperature"
        wrong = [number for number, row in enumerate(scores.differences(), 1) if row.abs().max() > self.bound.largest]
        if fixed_are_right or len(wrong) == 1:
            where = f"only sequence {wrong[0]} is wrong" if len(wrong) == 1 else "only sampled tokens are wrong"
            return f"{where}: the prefix cache still has keys and values of earlier weights"
        return "a part of the weights did not arrive, such as a tied output head, or the engine computes another model"

    def _near(self, first: Tensor, second: Tensor) -> bool:
        if first.shape != second.shape:
            return False
        apart = (first - second).abs()
        return bool(apart.max() <= self.bound.largest and apart.mean() <= self.bound.mean)


def fixed_sequences(policy: PolicyView, number: int = SEQUENCES) -> list[list[int]]:
    """Return `number` sequences of token ids that depend only on the size of the vocabulary and of the context."""
    vocabulary = min(len(policy.tokenizer), policy.model.config.get_text_config().vocab_size)
    length = LENGTH if policy.context is None else max(2, min(LENGTH, policy.context - SAMPLED))
    return [
        [stream_key(position, Stream("proof", 0, str(row), 0)) % vocabulary for position in range(length)]
        for row in range(number)
    ]


@torch.no_grad()
def _measure(engine: Engine, policy: PolicyView, sequences: Sequence[list[int]], world: World) -> Scores:
    by_engine = on_first_replica(world, lambda: engine.score(sequences))
    lengths = [len(row) for row in by_engine]
    if lengths != [len(sequence) - 1 for sequence in sequences]:
        raise EngineError(f"the engine scored {lengths} tokens of test sequences of {len(sequences[0])} tokens")
    completions = _sample(engine, policy, sequences, world)
    scaled, unscaled = (
        _sampled_scores(policy, sequences, completions, temperature) for temperature in (TEMPERATURE, 1.0)
    )
    return Scores(
        engine=torch.tensor(by_engine),
        policy=torch.tensor(sequence_logprobs(policy.forward, sequences)),
        engine_sampled=[torch.tensor(completion.logprobs) for completion in completions],
        policy_sampled=scaled,
        unscaled=unscaled,
    )


def _sample(engine: Engine, policy: PolicyView, sequences: Sequence[list[int]], world: World) -> list[Completion]:
    """Sample a few tokens after each sequence. Raises `EngineError` for what cannot be sampled from the policy."""
    left = SAMPLED if policy.context is None else max(1, min(SAMPLED, policy.context - len(sequences[0])))
    requests = [
        Request(token_ids=tuple(sequence), stream=Stream("proof", 0, str(row), 0), max_tokens=left)
        for row, sequence in enumerate(sequences)
    ]
    sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=left)
    completions = on_first_replica(world, lambda: engine.generate(requests, sampling))
    check_completions(requests, completions)
    rows = policy.model.config.get_text_config().vocab_size
    for completion in completions:
        if (largest := max(completion.token_ids, default=0)) >= rows:
            raise EngineError(f"the engine returned the token {largest}, and the model has {rows}")
        if completion.policy_version != policy.version:
            raise EngineError(
                f"the engine sampled from the weights after {counted(completion.policy_version, 'optimiser step')}, "
                f"and the policy has had {policy.version}"
            )
    return completions


def _sampled_scores(
    policy: PolicyView, sequences: Sequence[list[int]], completions: Sequence[Completion], temperature: float
) -> list[Tensor]:
    sampled = [completion.token_ids for completion in completions]
    batch = Batch.of_tokens(sequences, sampled, temperature=[temperature] * len(sequences))
    logprobs = token_scores(policy.forward, batch).logprobs.cpu()
    return [row[mask] for row, mask in zip(logprobs, batch.loss_mask, strict=True)]


def _base_scores(policy: PolicyView, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Compute the log-probabilities of the policy without its adapter."""
    model = on_same_base(policy.model)
    switch(model, on=False)
    return torch.tensor(sequence_logprobs(policy.forward.with_model(model), sequences))
