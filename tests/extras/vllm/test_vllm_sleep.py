"""vLLM that sleeps while the policy trains, with a stand-in for `vllm.LLM` in its process."""

import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
import torch
from engine_cases import fresh, requests, tokens

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.data.prompts import Prompts
from outdo.extras.remote_engines.proof import FLOAT32, Proof
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.extras.vllm import process
from outdo.extras.vllm.engine import VllmEngine
from outdo.extras.vllm.process import ProcessServer
from outdo.loop import train
from outdo.models.adapter import adapter_config, has_adapter
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.rollouts.in_turn import InTurn
from outdo.testing import tiny_model
from outdo.types import Prompt
from outdo.utils.errors import EngineLostError

STAND_IN = Path(__file__).parents[2] / "support" / "sleeping_vllm.py"
SAMPLING = SamplingParams(max_tokens=4)
QUESTIONS = [Prompt(id=str(number), text="", token_ids=tokens(3, number)) for number in range(16)]
WHOLE = ["wake weights", "load_weights", "wake kv_cache", "answer", "sleep 2"]
ADAPTER = ["wake weights", "add_lora", "wake kv_cache", "answer", "sleep 1"]

Open = Callable[..., RemoteEngine]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ProcessServer]]:
    """Returns a process of each kind; the tests share them, because each loads torch and transformers."""
    process.ENVIRONMENT |= {
        "JOURNAL": str(tmp_path_factory.mktemp("journal") / "journal"),
        "OUTDO_SERVER": str(process.SERVER),
    }
    made: dict[tuple[bool, bool], ProcessServer] = {}

    def server(adapted: bool, sleeps: bool) -> ProcessServer:
        if (kind := (adapted, sleeps)) not in made:
            made[kind] = ProcessServer(sys.executable, {}, timeout=600, sleeps=sleeps, server=STAND_IN)
        return made[kind]

    yield server
    for each in made.values():
        each.close()


@pytest.fixture
def opened(servers: Callable[..., ProcessServer]) -> Open:
    """Returns an engine that is awake and has the weights of a policy."""

    def open_for(policy: Policy, *, sleeps: bool = True) -> RemoteEngine:
        server = servers(has_adapter(policy.model), sleeps)
        engine = RemoteEngine(lambda view: VllmEngine(server, view, seed=3), policy, Proof(FLOAT32))
        engine.update_weights(policy)
        journal_path().write_text("")
        return engine

    return open_for


def journal_path() -> Path:
    return Path(process.ENVIRONMENT["JOURNAL"])


def journal() -> list[str]:
    """The calls of the stand-in, without repetitions."""
    return [call for call, _ in groupby(journal_path().read_text().splitlines())]


def adapted(folder: Path) -> Policy:
    tiny_model(folder)
    return Policy.load(folder, adapter=adapter_config("lora", r=2), optimiser=OptimiserSettings(lr=1e-2))


def rollouts_of(policy: Policy, engine: RemoteEngine, *, rounds: int = 0) -> InTurn:
    environment = SingleTurn(load_reward(lambda completion: float(sum(map(ord, completion)) % 7)))
    sampler = GroupSampler(engine, environment, group_size=2, sampling=SAMPLING)
    prompts = Prompts(QUESTIONS, per_step=2)
    if rounds:
        sampler = DynamicSampling(sampler, prompts, advantage=per_token(group_standardised), rounds=rounds)
    return InTurn(sampler, prompts, policy)


def train_steps(policy: Policy, rollouts: InTurn, steps: int) -> list[tuple[int, ...]]:
    """The first tokens of each step's answers."""
    models, found = Models.of(policy, objective := grpo(beta=0.0)), []
    for step in train(models, rollouts, per_token(group_standardised), objective):
        found += [rollout.token_ids for group in step.sampled.groups for rollout in group.rollouts]
        if step.index == steps:
            return found
    raise AssertionError


def test_it_wakes_its_weights_gets_them_wakes_its_cache_is_proved_answers_and_sleeps(opened: Open):
    policy = fresh(optimiser=OptimiserSettings(lr=1e-2))
    engine = opened(policy)
    train_steps(policy, rollouts_of(policy, engine), 3)
    assert journal() == ["answer", "sleep 2", *WHOLE, *WHOLE]
    assert policy.version == 3
    assert engine.restarts == 0


def test_the_base_of_an_adapter_outlives_the_sleep(opened: Open, tmp_path: Path):
    policy = adapted(tmp_path / "base")
    engine = opened(policy)
    train_steps(policy, rollouts_of(policy, engine), 3)
    assert journal() == ["answer", "sleep 1", *ADAPTER, *ADAPTER]
    assert engine.restarts == 0


def test_answers_and_weights_are_those_of_an_engine_that_never_sleeps(opened: Open):
    def trained(*, sleeps: bool) -> tuple[list[tuple[int, ...]], list[torch.Tensor]]:
        policy = fresh(optimiser=OptimiserSettings(lr=1e-2))
        found = train_steps(policy, rollouts_of(policy, opened(policy, sleeps=sleeps)), 3)
        return found, list(policy.model.parameters())

    (awake, expected), (slept, actual) = trained(sleeps=False), trained(sleeps=True)
    assert slept == awake
    assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))


def test_weights_that_were_dropped_come_again_although_the_policy_has_not_changed(opened: Open):
    """Such as for an evaluation before a step: generation after a wake-up alone would be from noise."""
    policy = fresh()
    engine = opened(policy)
    rollouts = rollouts_of(policy, engine)
    for _ in range(2):
        rollouts.with_engine(lambda view: (engine.update_weights(view), engine.generate(requests()[:2], SAMPLING)))
    assert journal() == ["answer", "sleep 2", *WHOLE]
    assert engine.restarts == 0


def test_further_batches_of_dynamic_sampling_find_the_engine_awake(opened: Open):
    policy = fresh()
    rollouts = rollouts_of(policy, engine := opened(policy), rounds=2)
    rollouts.sampler.sampler.environment = SingleTurn(load_reward(lambda completion: 1.0))  # no group is informative
    _, sampled = next(iter(rollouts))
    assert sampled.metrics["dynamic_sampling/rounds"] == 2
    assert journal() == ["answer", "sleep 2"]
    assert engine.restarts == 0


def test_an_engine_that_sleeps_answers_nothing(opened: Open):
    policy = fresh()
    engine = opened(policy)
    engine.sleep()
    with pytest.raises(EngineLostError, match="the engine sleeps, and has no weights until the next update"):
        engine.engine.generate(requests()[:1], SAMPLING)


def test_what_the_trainer_keeps_of_the_gpu_is_free_before_the_engine_wakes(
    opened: Open, monkeypatch: pytest.MonkeyPatch
):
    policy = fresh()
    engine = opened(policy)

    def empty() -> None:
        journal_path().write_text(f"{journal_path().read_text()}empty\n")

    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    engine.sleep()
    engine.update_weights(policy)
    assert journal() == ["sleep 2", "empty", *WHOLE[:-1]]


def test_an_engine_that_is_not_to_sleep_stays_awake_and_gets_each_version_once(opened: Open):
    policy = fresh()
    engine = opened(policy, sleeps=False)
    rollouts = rollouts_of(policy, engine)
    next(iter(rollouts))
    rollouts.with_engine(engine.update_weights)
    assert journal() == ["answer"]
