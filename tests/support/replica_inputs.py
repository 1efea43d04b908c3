"""What replicas compute of prompts that bring more than tokens, as a body for `replica_cases.run_replicas`."""

import torch
from moods import reading_model, states
from policy_cases import two_groups, updated
from replica_cases import divided, shared

from outdo.extras.replicas.engine import ReplicatedEngine
from outdo.extras.replicas.replicas import Replicas
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Request
from outdo.utils.rng import Stream

SAMPLING = SamplingParams(max_tokens=8)
REQUESTS = [
    Request(token_ids=(7, 8, 9), stream=Stream("train", 1, str(row), 0), max_tokens=8, inputs=states(row))
    for row in range(3)
]


def reading() -> Policy:
    """A policy of its own, whose rows are divided into several micro-batches."""
    return Policy(reading_model(), byte_bpe_tokenizer([], 264), batch_sizes=BatchSizes(micro_batch_tokens=16))


def rows_with_inputs(replicas: Replicas) -> None:
    """Each replica samples, scores and trains its rows with their own inputs, with whole weights and with parts.

    The second one has nothing of the first call, in which the first one chooses how it samples.
    """
    alone = reading()
    expected = [answer.token_ids for answer in BuiltinEngine(alone, seed=3).generate(REQUESTS, SAMPLING)]
    assert len({*expected}) == len(REQUESTS)
    batch = two_groups().with_(inputs=tuple(states(row // 4) for row in range(8)))
    scores = alone.logprobs(batch)
    others = alone.logprobs(batch.with_(inputs=tuple(states(1 - row // 4) for row in range(8))))
    assert (others - scores).abs().max() > 0.1
    _, gradient = updated(alone, batch)
    for make in (shared, divided):
        policy = make(reading(), replicas)
        engine = ReplicatedEngine(BuiltinEngine(policy, seed=3), replicas)
        for number in (1, 3):
            answers = engine.generate(REQUESTS[:number], SAMPLING)
            assert [answer.token_ids for answer in answers] == expected[:number]
        torch.testing.assert_close(policy.logprobs(batch), scores, rtol=0, atol=1e-5)
        torch.testing.assert_close(updated(policy, batch)[1], gradient, rtol=1e-4, atol=1e-6)
