"""The whole method in one file and outdo, given the same answers and rewards, do the same: loss for loss, 20 steps."""

import importlib.util
import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import outdo
from outdo.testing import byte_bpe_tokenizer

SOURCE = Path(__file__).parent.parent / "examples" / "one_file.py"
STEPS, PROMPTS, GROUP, LR = 20, 4, 6, 2e-4


@pytest.fixture(scope="module")
def one_file():
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("one_file", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def exactly():
    """Float64 and one thread, so that only the float32 of outdo's rewards tells the two apart, or another formula."""
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


def pretend_reward(question, answer):
    """Something that differs from answer to answer, which an untrained model's sums do not."""
    return (len(answer) + sum(map(ord, answer))) % 4 / 4


def as_group(one_file, question, answers):
    """What outdo makes of the file's answers to a question."""
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
    """What the file's own loop measures in each step, and what it asked and was answered."""
    sampled, sample = [], one_file.sample

    def listening(model, prompt_ids, group_size, limit=24):
        sampled.append((prompt_ids, sample(model, prompt_ids, group_size, limit)))
        return sampled[-1][1]

    monkeypatch.setattr(one_file, "sample", listening)
    monkeypatch.setattr(one_file, "reward", pretend_reward)
    questions = [(a, b) for a in range(0, 100, 7) for b in range(0, 100, 9)]
    measured = list(
        one_file.grpo(model, questions, steps=STEPS, prompts_per_step=PROMPTS, group_size=GROUP, lr=LR, **settings)
    )
    asked = {tuple(one_file.encode(one_file.prompt(question))): question for question in questions}
    groups = [as_group(one_file, asked[tuple(ids)], answers) for ids, answers in sampled]
    return measured, [groups[step * PROMPTS : (step + 1) * PROMPTS] for step in range(STEPS)]


def by_outdo(model, steps, *, updates, beta):
    """The same through outdo's loop, which is given the file's answers."""
    policy = outdo.Policy(model, byte_bpe_tokenizer([]), optimiser=outdo.OptimiserSettings(lr=LR))
    objective = outdo.grpo(beta=beta)
    return outdo.train(
        outdo.Models.of(policy, objective),
        [[group.prompt for group in groups] for groups in steps],
        lambda policy, questions, *, step: steps[step - 1],
        outdo.per_token(outdo.group_standardised),
        objective,
        passes=updates,
    )


@pytest.mark.parametrize(("updates", "beta"), [(1, 0.0), (3, 0.0), (1, 0.1), (3, 0.1)])
def test_twenty_steps_have_the_same_losses_gradients_and_weights(one_file, monkeypatch, updates, beta):
    torch.manual_seed(0)
    random.seed(0)
    ours = one_file.small_model()
    theirs = deepcopy(ours)
    start = deepcopy(ours)
    measured, steps = by_the_file(one_file, ours, monkeypatch, updates=updates, beta=beta)
    done = list(by_outdo(theirs, steps, updates=updates, beta=beta))
    assert len(done) == len(measured) == STEPS
    for step, told in zip(done, measured, strict=True):
        assert float(step.batch.rewards.mean()) == pytest.approx(told["reward"])
        assert step.update.metrics["loss"] == pytest.approx(told["loss"], rel=1e-5, abs=2e-7)
        assert step.update.metrics["grad_norm"] == pytest.approx(told["gradient"], rel=2e-5)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(theirs.state_dict()[name], weight, rtol=1e-5, atol=1e-6)
    moved = max(float((weight - start.state_dict()[name]).abs().max()) for name, weight in ours.state_dict().items())
    assert moved > 10 * LR
    if updates > 1 or beta:
        assert max(abs(told["loss"]) for told in measured) > 1e-3


def test_the_file_stands_alone_and_is_short():
    text = SOURCE.read_text(encoding="utf-8")
    assert "import outdo" not in text
    assert "from outdo" not in text
    assert len(text.splitlines()) < 300
