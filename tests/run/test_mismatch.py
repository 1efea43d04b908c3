"""How far engine and trainer are apart, by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from outdo.algorithms.objectives.corrections import truncate
from outdo.algorithms.objectives.presets import grpo
from outdo.run.metrics.mismatch import correction_metrics, mismatch_metrics
from outdo.types import Batch, Sampled, Step, Update

PREFIX = "sampling/sampling_logp_difference"


def test_the_mismatch_of_four_tokens():
    engine, trainer = torch.tensor([-1.0, -1.0, -1.0, -1.0]), torch.tensor([-1.0, -1.05, -0.8, -1.0])
    found = mismatch_metrics(engine, trainer)
    weights = [1.0, math.exp(-0.05), math.exp(0.2), 1.0]
    assert found[f"{PREFIX}/mean"] == pytest.approx(0.25 / 4, abs=1e-6)
    assert found[f"{PREFIX}/max"] == found[f"{PREFIX}/p99"] == pytest.approx(0.2, abs=1e-6)
    assert found[f"{PREFIX}/far"] == 0.25
    expected = sum(weights) ** 2 / (4 * sum(weight**2 for weight in weights))
    assert found["sampling/effective_sample_size"] == pytest.approx(expected, abs=1e-6)


def test_tokens_without_a_known_log_probability_are_left_out():
    engine, trainer = torch.tensor([-1.0, math.nan, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -3.0, math.nan])
    assert mismatch_metrics(engine, trainer) == mismatch_metrics(engine[[0, 2]], trainer[[0, 2]])
    assert mismatch_metrics(engine[1:2], trainer[1:2]) == {}


def test_the_percentile_leaves_out_one_token_of_a_hundred():
    trainer = torch.zeros(200)
    trainer[:2] = 3.0
    assert mismatch_metrics(torch.zeros(200), trainer)[f"{PREFIX}/p99"] == 0.0
    trainer[:3] = 3.0
    assert mismatch_metrics(torch.zeros(200), trainer)[f"{PREFIX}/p99"] == 3.0


def test_corrected_tokens_are_those_whose_factor_is_not_about_1():
    engine = torch.tensor([[0.0, -1.0, -1.0, -1.0]])
    trainer = torch.tensor([[0.0, -1.0, -1.005, -1.5]])
    mask = torch.tensor([[False, True, True, True]])
    batch = SimpleNamespace(rollout_logprobs=engine, old_logprobs=None, loss_mask=mask)
    step = SimpleNamespace(batch=batch, update=SimpleNamespace(tokens={"logprobs": trainer}))
    objective = grpo(beta=0.0)
    assert correction_metrics(step, objective) == {}
    assert correction_metrics(step, replace(objective, correction=truncate())) == {
        "sampling/corrected": pytest.approx(1 / 3)
    }


@pytest.mark.parametrize(("bypass", "share"), [(False, 0.0), (True, 1.0)])
def test_with_bypass_a_correction_compares_the_policy_of_the_last_pass_with_the_engine(bypass, share):
    old = torch.tensor([[0.0, -1.0, -1.0]])
    batch = Batch.of(mask=old != 0, advantages=torch.ones(1), old_logprobs=old, rollout_logprobs=old)
    update = Update(metrics={}, tokens={"logprobs": old - 0.5 * (old != 0)})
    step = Step(index=1, sampled=Sampled(groups=()), batch=batch, updates=[update])
    objective = replace(grpo(beta=0.0), correction=truncate(), bypass=bypass)
    assert correction_metrics(step, objective) == {"sampling/corrected": share}
