"""What replicas check with a model whose layers have a state."""

import pytest
import torch
from engine_cases import fresh, requests
from policy_cases import prepared, updated
from replica_cases import divided, shared

from outdo.extras.replicas.engine import ReplicatedEngine
from outdo.extras.replicas.replicas import Replicas
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams

ARCH = "qwen3_5_text"


def states_of_recurrences(replicas: Replicas) -> None:
    """Loss, gradient and answers are those of one process, with whole weights and with divided ones."""
    alone, batch = fresh(ARCH), prepared(policy=fresh(ARCH))
    sampled = BuiltinEngine(alone).generate(requests((1, 3, 17)), SamplingParams())
    expected, gradient = updated(alone, batch)
    for make in (shared, divided):
        policy = make(fresh(ARCH), replicas)
        assert policy.forward.layout == "shared"
        answers = ReplicatedEngine(BuiltinEngine(policy), replicas).generate(requests((1, 3, 17)), SamplingParams())
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in sampled]
        found, of_found = updated(policy, batch)
        torch.testing.assert_close(of_found, gradient, rtol=1e-4, atol=1e-6)
        assert found.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-4, abs=1e-6)
