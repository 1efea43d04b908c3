"""The bits of a real model with two threads: in another batch, and in a run that was stopped and resumed."""

import json
from pathlib import Path

import pytest
import torch
from engine_cases import requests
from run_cases import outdo_, weights

from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Batch

pytestmark = pytest.mark.release

BOUND = 1e-3
"""Nats between sampler and trainer, in float32."""

SETTINGS = ("threads=2", "train.prompts=2", "train.group_size=2", "sampling.max_tokens=8")


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
def test_an_answer_does_not_depend_on_its_batch_and_has_the_log_probabilities_of_the_trainer(smollm2: Path):
    policy = Policy.load(smollm2, device="cpu")
    asked = requests((5, 40), siblings=3, limit=lambda index: (8, 3, 6)[index % 3])
    sampling = SamplingParams(max_tokens=8)
    answers = BuiltinEngine(policy).generate(asked, sampling)
    assert BuiltinEngine(policy, rows=2).generate(asked, sampling) == answers
    assert BuiltinEngine(policy).generate(asked[3:5], sampling) == answers[3:5]
    batch = Batch.of_tokens(
        [request.token_ids for request in asked],
        [answer.token_ids for answer in answers],
        group=[index // 3 for index in range(len(asked))],
    )
    sampled = torch.tensor([logprob for answer in answers for logprob in answer.logprobs])
    torch.testing.assert_close(sampled, policy.logprobs(batch)[batch.loss_mask], rtol=0, atol=BOUND)


@pytest.mark.parametrize("library", ["onednn", pytest.param("mkl", marks=pytest.mark.long)])
def test_a_run_that_was_stopped_and_resumed_has_the_bits_of_one_that_was_not(
    library: str, smollm2: Path, tmp_path: Path
):
    (tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Name {n} birds.", "answer": str(n)}) + "\n" for n in range(2, 12))
    )
    (tmp_path / "score.py").write_text("def score(completion):\n    return sum(map(ord, completion)) % 97 / 97\n")
    gradients = f"gradient_products={{input='{library}', weight='{library}'}}"
    own = (f"model={smollm2}", "data.path=questions.jsonl", "rewards=./score.py:score", gradients, *SETTINGS)
    outdo_(tmp_path, "train", "run=./whole", "steps=2", *own)
    outdo_(tmp_path, "train", "run=./stopped", "steps=1", *own)
    outdo_(tmp_path, "resume", "stopped", "steps=2")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "stopped")
    ]
    assert losses[0] == losses[1]
