"""examples/one_file.py and outdo have the same losses in each of 20 steps, with the same answers and rewards."""

import importlib.util
import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import outdo
from outdo.testing import byte_bpe_tokenizer

SOURCE = Path(__file__).parent.parent / "examples" / "one_file.py"
STEPS, PROMPTS, GROUP, LR = 20, 4, 6, 2e-4


@pytest.fixture(scope="module")
def one_file():
    """Load the file as a module."""
    spec = importlib.util.spec_from_file_location("one_file", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def norm(module: Qwen3RMSNorm, x: Tensor) -> Tensor:
    """The formula of the model's norms, which compute it in float32 whatever their input is."""
    return module.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    """Use float64, so that only another formula, or outdo's float32 rewards, can make a difference."""
    monkeypatch.setattr(Qwen3RMSNorm, "forward", norm)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pretend_reward(question, answer):
    """Return a reward that differs between answers; the sums of an untrained model are all wrong."""
    return (len(answer) + sum(map(ord, answer))) % 4 / 4


def as_group(one_file, question, answers):
    """Make outdo's group from the file's answers to a question."""
    rollouts = [
        outdo.Rollout(
            token_ids=tuple(tokens),
            loss_mask=(True,) * len(tokens),
            logprobs=(0.0,) * len(tokens),
            text=one_file.decode(tokens),
            reward=pretend_reward(question, one_file.decode(tokens)),
            finish_reason=outdo.FinishReason.stop,
            policy_version=0,
        )
        for tokens in answers
    ]
    text = one_file.prompt(question)
    return outdo.Group(
        prompt=outdo.Prompt(id=text, text=text, token_ids=tuple(one_file.encode(text))), rollouts=tuple(rollouts)
    )


def by_the_file(one_file, model, monkeypatch, **settings):
    """Run the file's own loop. Return the metrics of each step, and its groups."""
    sampled, sample = [], one_file.sample

    def recorded_sample(model, prompt_ids, group_size, limit=24):
        sampled.append((prompt_ids, sample(model, prompt_ids, group_size, limit)))
        return sampled[-1][1]

    monkeypatch.setattr(one_file, "sample", recorded_sample)
    monkeypatch.setattr(one_file, "reward", pretend_reward)
    questions = [(a, b) for a in range(0, 100, 7) for b in range(0, 100, 9)]
    measured = list(
        one_file.grpo(model, questions, steps=STEPS, prompts_per_step=PROMPTS, group_size=GROUP, lr=LR, **settings)
    )
    question_of = {tuple(one_file.encode(one_file.prompt(question))): question for question in questions}
    groups = [as_group(one_file, question_of[tuple(ids)], answers) for ids, answers in sampled]
    return measured, [groups[step * PROMPTS : (step + 1) * PROMPTS] for step in range(STEPS)]


def by_outdo(model, steps, *, passes, beta):
    """Run outdo's loop on the file's answers."""
    policy = outdo.Policy(model, byte_bpe_tokenizer([]), optimiser=outdo.OptimiserSettings(lr=LR))
    objective = outdo.grpo(beta=beta)
    return outdo.train(
        outdo.Models.of(policy, objective),
        enumerate(map(outdo.Sampled.of, steps), 1),
        outdo.per_token(outdo.group_standardised),
        objective,
        passes=passes,
    )


@pytest.mark.parametrize(
    ("passes", "beta"),
    [(3, 0.1), *(pytest.param(*each, marks=pytest.mark.long) for each in ((1, 0.0), (3, 0.0), (1, 0.1)))],
)
def test_twenty_steps_have_the_same_losses_gradients_and_weights(one_file, monkeypatch, passes, beta):
    torch.manual_seed(0)
    random.seed(0)
    ours = one_file.small_model()
    theirs = deepcopy(ours)
    start = deepcopy(ours)
    measured, steps = by_the_file(one_file, ours, monkeypatch, passes=passes, beta=beta)
    done = list(by_outdo(theirs, steps, passes=passes, beta=beta))
    assert len(done) == len(measured) == STEPS
    for step, metrics in zip(done, measured, strict=True):
        assert float(step.batch.rewards.mean()) == pytest.approx(metrics["reward"])
        assert step.update.metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5, abs=2e-7)
        assert step.update.metrics["grad_norm"] == pytest.approx(metrics["gradient"], rel=2e-5)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(theirs.state_dict()[name], weight, rtol=1e-5, atol=1e-6)
    moved = max(float((weight - start.state_dict()[name]).abs().max()) for name, weight in ours.state_dict().items())
    assert moved > 10 * LR
    if passes > 1 or beta:
        assert max(abs(metrics["loss"]) for metrics in measured) > 1e-3


def test_the_file_does_not_import_outdo_and_is_short():
    text = SOURCE.read_text(encoding="utf-8")
    assert "import outdo" not in text
    assert "from outdo" not in text
    assert len(text.splitlines()) < 300
