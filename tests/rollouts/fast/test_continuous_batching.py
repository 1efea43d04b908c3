"""Continuous batching samples what static batching by `model.generate` does, which is plain."""

import pytest
import torch
from engine_cases import SHARED, requests, shared

from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.modes import MODES, SamplingChoice
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion

CONTINUOUS, PLAIN = MODES[1], MODES[2]
CORE = ("qwen3", "gemma2", "lfm2", "qwen3_5_text")
OTHERS = [pytest.param(arch, marks=pytest.mark.release) for arch in SHARED if arch not in CORE]


@pytest.mark.parametrize("arch", [*CORE, *OTHERS])
def test_the_tokens_are_the_same_and_their_log_probabilities_nearly(arch: str):
    policy, asked = shared(arch), requests((1, 20, 63, 90), siblings=2, limit=lambda index: (3, 40, 12, 1)[index % 4])

    def answers(choice: SamplingChoice | None) -> list[Completion]:
        return BuiltinEngine(policy, choice=choice).generate(asked, SamplingParams(max_tokens=40, top_p=0.9))

    assert BuiltinEngine(policy).choice == SamplingChoice(CONTINUOUS)
    fast, plain = answers(SamplingChoice(CONTINUOUS)), answers(SamplingChoice(PLAIN))
    assert [answer.token_ids for answer in fast] == [answer.token_ids for answer in plain]
    fast_logprobs, plain_logprobs = (
        torch.tensor([logprob for answer in answered for logprob in answer.logprobs]) for answered in (fast, plain)
    )
    torch.testing.assert_close(fast_logprobs, plain_logprobs, rtol=0, atol=2e-5)
