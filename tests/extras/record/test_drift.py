"""How far answers have drifted: by hand from whole sequences, and in runs, from each source of the starting policy."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from run_cases import metrics, outdo_, write_home

from outdo.config.file import load
from outdo.extras.record import starting_policy
from outdo.extras.record.reading.drift import drift_metrics, first_completions
from outdo.extras.record.starting_policy import starting_logprobs
from outdo.models.policy import Policy
from outdo.models.scorer import sequence_logprobs
from outdo.run.assemble.assemble import assemble_run
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout
from outdo.utils.world import ALONE


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("start")
    tiny_model(folder)
    return Policy.load(folder, device="cpu")


@pytest.fixture(scope="module")
def policy(start: Policy, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """The starting policy after a large step."""
    folder = tmp_path_factory.mktemp("trained")
    tiny_model(folder)
    trained = Policy.load(folder, device="cpu")
    with torch.no_grad():
        for weight in trained.model.parameters():
            weight.mul_(1.5)
    return trained


def group(policy: Policy, text: str, *answers: str) -> Group:
    def rollout(answer: str) -> Rollout:
        ids = tuple(policy.tokenizer.encode(answer, add_special_tokens=False))
        return Rollout(
            token_ids=ids,
            loss_mask=(True,) * len(ids),
            logprobs=(0.0,) * len(ids),
            text=answer,
            reward=0.0,
            finish_reason=FinishReason.stop,
            policy_version=0,
        )

    prompt = Prompt(id=text, text=text, token_ids=tuple(policy.tokenizer.encode(text, add_special_tokens=False)))
    return Group(prompt=prompt, rollouts=tuple(map(rollout, answers)))


def logprobs(policy: Policy, prompt: str, answer: str) -> list[float]:
    before, after = (policy.tokenizer.encode(each, add_special_tokens=False) for each in (prompt, answer))
    (values,) = sequence_logprobs(policy.forward, [[*before, *after]])
    return values[len(before) - 1 :]


def test_it_is_the_mean_over_the_tokens_of_the_first_answer_to_each_question(start: Policy, policy: Policy) -> None:
    batch = first_completions([group(start, "say cat", "miaow", "never"), group(start, "say dog", "a woof")])
    found = drift_metrics(batch, policy.logprobs(batch), start.logprobs(batch))
    then, now = (
        [*logprobs(each, "say cat", "miaow"), *logprobs(each, "say dog", "a woof")] for each in (start, policy)
    )
    count = len(then)
    assert found["start_logprob"] == pytest.approx(math.fsum(then) / count, abs=1e-4)
    assert found["drift"] == pytest.approx((math.fsum(now) - math.fsum(then)) / count, abs=1e-4)
    assert abs(found["drift"]) > 0.01


RUN = ("steps=4", "eval.every=2", "optim.lr=1e-2", "eval.samples=1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


KL = "train.objective={name='grpo', beta=0.01}"
KINDS = {
    "all weights": [],
    "a reference": [KL],
    "a reference that follows the policy": [KL, "reference.sync={every=2}"],
    "another model as reference": [KL, "reference.model=other"],
    "an adapter": ["train.adapter=lora"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_starting_policy_is_that_before_the_first_step(
    home: Path, start: Policy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whatever the policy has become; `start` has the weights of the recipe's model."""
    monkeypatch.chdir(home)
    tiny_model(home / "other", seed=1)
    run = assemble_run(load("recipe.toml", KINDS[kind]))
    try:
        with torch.no_grad():
            for weight in run.models.policy.optimiser.weights.values():
                weight.add_(0.1)
        if run.models.refresh_every and run.models.reference:
            run.models.reference.refresh(run.models.policy, 1.0)
        batch = Batch.from_groups([group(start, "say cat", "miaow")])
        found = starting_logprobs(run.recipe, run.models, batch, ALONE)
        assert found is not None
        assert torch.allclose(found, start.logprobs(batch), atol=1e-5)
        assert not torch.allclose(run.models.policy.logprobs(batch), start.logprobs(batch), atol=1e-2)
    finally:
        run.close()


def test_a_large_model_is_not_loaded_a_second_time(home: Path, start: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    run = assemble_run(load("recipe.toml"))
    monkeypatch.setattr(starting_policy, "MOST_WEIGHTS", 1000)
    assert (
        starting_logprobs(run.recipe, run.models, first_completions([group(start, "say cat", "miaow")]), ALONE) is None
    )
    run.close()


@pytest.mark.parametrize("option", ["init_lora_weights='pissa'", "bias='all'"])
def test_an_adapter_that_changes_its_base_is_not_measured(
    home: Path, start: Policy, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(home)
    tiny_model(home / "biased", arch="qwen2")
    run = assemble_run(load("recipe.toml", ["model=biased", f"train.adapter={{name='lora', {option}}}"]))
    batch = first_completions([group(start, "say cat", "miaow")])
    assert starting_logprobs(run.recipe, run.models, batch, ALONE) is None
    run.close()


@pytest.mark.release
def test_a_run_whose_model_folder_has_gone_goes_on_without_it(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "home")
    outdo_(tmp_path / "home", "train", "recipe.toml", "run=./gone", *RUN)
    shutil.rmtree(tmp_path / "home/model")
    said = outdo_(tmp_path / "home", "resume", "gone", "steps=6")
    assert "warning: eval/drift is not measured after step 6: " in said
    assert "eval/drift" in metrics(tmp_path / "home/gone")[3]
    assert "eval/drift" not in metrics(tmp_path / "home/gone")[5]
