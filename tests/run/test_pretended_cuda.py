"""Steps of training on a CUDA device that is not there: no operation mixes devices, and few wait for the device.

The numbers are computed on the processor, so they are compared with those of a run without the pretence.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from pretended_cuda import OnCuda, move, pretended_cuda

from outdo.algorithms.advantages import gae, group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo, ppo
from outdo.extras.record.parquet import make_folder
from outdo.extras.record.recorder import Recorder
from outdo.loop import in_turn, train
from outdo.models.adapter import adapter_config, attach
from outdo.models.bundle import Models
from outdo.models.critic import own_model
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import InProcessReward
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.limits import HOST_READS_EVERY
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import tiny_model
from outdo.types import Prompt, Step

TOKENS = 4
"""The length of an answer."""

METHODS: dict[str, Callable[[Policy], Models]] = {
    "grpo with a reference": lambda policy: Models.of(policy, grpo(beta=0.1)),
    "ppo with a critic of its own": lambda policy: Models.of(
        policy, ppo(), advantage=gae, critic=own_model(policy, lr=1e-2)
    ),
    "lora": lambda policy: Models.of(policy, grpo(beta=0.1)),
}


@dataclass(frozen=True, slots=True)
class Trained:
    """The second step of a run, the weights after it, and what waited for the device: in the step, in its record."""

    step: Step
    weights: list[torch.Tensor]
    step_waits: Counter[str]
    record_waits: Counter[str]


def score(completion: str) -> float:
    """A number that differs among the answers of an untrained model."""
    return sum(map(ord, completion)) % 7 / 7


def two_steps(method: str, folder: Path, *, cuda: bool, tokens: int = TOKENS, group: int = 4) -> Trained:
    """Make two steps, with a record of each."""
    model, tokenizer = tiny_model()
    if method == "lora":
        attach(model, adapter_config("lora", r=4))
    objective = ppo() if "ppo" in method else grpo(beta=0.1)
    advantage = gae if "ppo" in method else per_token(group_standardised)
    with pretended_cuda() if cuda else nullcontext(Counter[str]()) as waits:
        if cuda:
            move(model)
        policy = Policy(model, tokenizer, optimiser=OptimiserSettings(lr=1e-2), precision="float32")
        assert policy.forward.layout == "shared"
        environment, sampling = SingleTurn(InProcessReward(score)), SamplingParams(max_tokens=tokens)
        sampler = GroupSampler(BuiltinEngine(policy), environment, group_size=group, sampling=sampling)
        prompts = [Prompt(id=str(n), text=f"{n}?", token_ids=tuple(range(5, 8 + n)), answer=None) for n in range(2)]
        rollouts = in_turn(policy, itertools.repeat(prompts), sampler)
        loop = train(METHODS[method](policy), rollouts, advantage, objective)
        recorder = Recorder(policy, objective)
        make_folder(folder)
        counts: list[Counter[str]] = []
        for step in itertools.islice(loop, 2):
            counts.append(Counter(waits))
            waits.clear()
            _, write = recorder.measure(step, folder)
            assert write is not None
            write()
            counts.append(Counter(waits))
            waits.clear()
    trained = policy.optimiser.weights.values()
    weights = [each.numbers if isinstance(each, OnCuda) else each.detach() for each in trained]
    return Trained(step, weights, counts[-2], counts[-1])


@pytest.fixture(scope="module")
def on_cuda(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Two steps by a method on the device that is not there, as several tests look at them. Not to be changed."""
    return cache(lambda method: two_steps(method, tmp_path_factory.mktemp("on-cuda"), cuda=True))


@pytest.mark.parametrize(
    "method", [pytest.param(each, marks=[pytest.mark.long] if each == "lora" else []) for each in METHODS]
)
def test_a_step_and_its_record_mix_no_devices_and_compute_what_a_processor_does(
    on_cuda: Callable[[str], Trained], method: str, tmp_path: Path
):
    ours, theirs = two_steps(method, tmp_path, cuda=False), on_cuda(method)
    for one, other in zip(ours.step.groups, theirs.step.groups, strict=True):
        assert [each.token_ids for each in one.rollouts] == [each.token_ids for each in other.rollouts]
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
    assert theirs.step_waits.total() > 0


@pytest.mark.release
def test_what_waits_for_the_device_does_not_grow_with_the_batch(on_cuda: Callable[[str], Trained], tmp_path: Path):
    method = "grpo with a reference"
    small = on_cuda(method)
    longer = two_steps(method, tmp_path / "longer", cuda=True, tokens=TOKENS + HOST_READS_EVERY)
    wider = two_steps(method, tmp_path / "wider", cuda=True, group=8)
    assert wider.step_waits == small.step_waits
    assert small.record_waits == longer.record_waits == wider.record_waits
    # Sampling reads tokens and their log-probabilities, of all answers together, once for several places in an answer.
    assert longer.step_waits == small.step_waits + Counter(tolist=2)


def test_the_pretence_refuses_what_cuda_refuses_and_counts_what_it_waits_for():
    with pretended_cuda() as waits:
        there = torch.arange(6, device="cuda").float()
        assert (there.device.type, there.is_cuda) == ("cuda", True)
        with pytest.raises(RuntimeError, match="tensors on two devices"):
            there + torch.ones(6)
        assert (there + torch.ones(())).device.type == "cuda"
        assert float(there.sum()) == 15
        assert there.cpu().device.type == "cpu"
        assert there[there > 3].tolist() == [4, 5]
    assert waits == Counter({"item": 1, "to the host": 1, "boolean index": 1, "tolist": 1})
