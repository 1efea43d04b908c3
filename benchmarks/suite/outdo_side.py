"""outdo in the benchmark: a training step, built as `outdo train` builds it."""

import dataclasses
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.suite.processes import rank, start_others
from benchmarks.suite.roofline import Weights
from benchmarks.suite.setting import Setting, Turn, Turns
from benchmarks.suite.work import (
    adapter_of,
    matrices_of,
    model_of,
    most_memory,
    prompts_of,
    reward_of,
    synchronise,
    tokenizer_of,
    weights_of,
)
from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.config.replicas import COUNT, SMALL_MODEL
from outdo.extras.record.parquet import make_folder
from outdo.extras.record.recorder import Recorder
from outdo.extras.replicas.engine import ReplicatedEngine
from outdo.extras.replicas.replicas import join
from outdo.extras.vllm.engine import vllm
from outdo.loop import in_turn, train
from outdo.models.adapter import attach
from outdo.models.bundle import Models
from outdo.models.fast.fastest_products import fastest_gradients
from outdo.models.onednn import ONEDNN
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import Reward
from outdo.rewards.types import RewardInput, RewardOutput, Status
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.wrapped import WrappedEngine
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.types import Completion, Prompt, Request
from outdo.utils.errors import WorkerError
from outdo.utils.malloc import disable_trim
from outdo.utils.rng import Stream
from outdo.utils.world import ALONE

LR = 1e-6
TIMEOUT = 3600.0
"""Seconds that a replica waits for the next turn of the first one."""
VLLM = ".venv-vllm/bin/python"
"""Where `make vllm` installs it."""


class EndlessPolicy(Policy):
    """A policy without end tokens: the case decides the length of each answer, not the model."""

    @property
    def end_ids(self) -> frozenset[int]:
        """No token."""
        return frozenset()


class TimedEngine(WrappedEngine):
    """An engine that gives each answer of a group its own length; `sampling` is the last call's time in seconds."""

    def __init__(self, engine: Engine, lengths: Sequence[int]) -> None:
        super().__init__(engine)
        self.lengths = lengths
        self.sampling = 0.0

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """One completion per request, in their order."""
        cut = [dataclasses.replace(each, max_tokens=self.lengths[each.stream.sample]) for each in requests]
        began = time.perf_counter()
        completions = self.engine.generate(cut, sampling)
        self.sampling = time.perf_counter() - began
        return completions


class EveryOther(Reward):
    """A reward by the place in the group, so that the rewards of a group differ."""

    name = "every_other"

    def __call__(self, inputs: Sequence[RewardInput], /) -> list[RewardOutput]:
        """Score every other answer with 1."""
        return [
            RewardOutput(value=reward_of(index), status=Status.ok, parts={self.name: reward_of(index)})
            for index in range(len(inputs))
        ]


def prepared(setting: Setting) -> tuple[EndlessPolicy, Weights, Engine]:
    """The policy of a case, the sizes of its model, and the engine that samples from it, as `outdo train` has them.

    With the option `processes`, a small model has two replicas, and this is one of them.
    """
    model = model_of(setting)
    weights = weights_of(model)
    on_cpu = setting.device == "cpu"
    several = setting.options.get("processes") and on_cpu and weights.all <= SMALL_MODEL and setting.threads >= COUNT
    if adapter := adapter_of(setting):
        attach(model, adapter)
    torch.set_num_threads(setting.threads // COUNT if several else setting.threads)
    disable_trim()
    if several:
        start_others("outdo", setting, COUNT)
    world = join(timeout=TIMEOUT, device="cpu") if several else ALONE
    measured = world.from_first(lambda: fastest_gradients(matrices_of(model))) if on_cpu else None
    gradients = ONEDNN if measured is None else measured.gradients
    settings = OptimiserSettings(lr=LR)
    policy = EndlessPolicy(model, tokenizer_of(model), optimiser=settings, gradients=gradients, world=world)
    if setting.options.get("vllm"):
        return policy, weights, vllm(policy, python=os.environ.get("OUTDO_VLLM", VLLM))
    engine = BuiltinEngine(policy)
    return policy, weights, ReplicatedEngine(engine, world) if several else engine


def sampling(setting: Setting, turns: Turns) -> None:
    """Sample alone, every answer to its length."""
    policy, weights, inner = prepared(setting)
    longest = max(setting.case.answers)
    engine, params, rounds = TimedEngine(inner, setting.case.answers), SamplingParams(max_tokens=longest), count()
    engine.update_weights(policy)

    def turn() -> Turn:
        number = next(rounds)
        requests = [
            Request(token_ids=ids, stream=Stream("train", number, str(place), sample), max_tokens=longest)
            for place, ids in enumerate(_prompts(setting, policy))
            for sample in range(setting.case.group)
        ]
        engine.generate(requests, params)
        return Turn(sampling=engine.sampling, tokens=setting.case.sampled, bytes=most_memory(setting.device))

    turns.take(turn, weights=dataclasses.asdict(weights))


def _prompts(setting: Setting, policy: Policy) -> Sequence[tuple[int, ...]]:
    return prompts_of(setting, policy.model.config.get_text_config().vocab_size)


class Steps:
    """The training loop of a case; `next(steps.steps)` makes a step."""

    def __init__(self, setting: Setting) -> None:
        case = setting.case
        self.policy, self.weights, engine = prepared(setting)
        self.engine = TimedEngine(engine, case.answers)
        self.objective = grpo(beta=0.0)
        params = SamplingParams(max_tokens=max(case.answers))
        sampler = GroupSampler(self.engine, SingleTurn(EveryOther()), group_size=case.group, sampling=params)
        prompts = [
            Prompt(id=str(number), text="", token_ids=ids) for number, ids in enumerate(_prompts(setting, self.policy))
        ]
        models = Models.of(self.policy, self.objective)
        advantage = per_token(group_standardised)
        rollouts = in_turn(self.policy, repeat(prompts), sampler)
        self.steps = train(models, rollouts, advantage, self.objective)


def step(setting: Setting, turns: Turns) -> None:
    """Sample, score and update; with the option `record`, also record what was trained."""
    steps = Steps(setting)
    if rank():
        with suppress(WorkerError):  # the first replica has ended
            for _ in steps.steps:
                pass
        return
    recorder = Recorder(steps.policy, steps.objective)
    with TemporaryDirectory() as place, ThreadPoolExecutor(1) as thread:
        folder, written = Path(place), thread.submit(lambda: None)
        make_folder(folder)

        def turn() -> Turn:
            nonlocal written
            began = time.perf_counter()
            made = next(steps.steps)
            synchronise(setting.device)
            stepped = time.perf_counter()
            if setting.options.get("record"):  # as `outdo train` does: written while the next step is made
                written.result()
                _, write = recorder.measure(made, folder)
                assert write is not None  # every step is recorded
                written = thread.submit(write)
            ended = time.perf_counter()
            return Turn(
                seconds=ended - began,
                sampling=steps.engine.sampling,
                tokens=setting.case.sampled,
                bytes=most_memory(setting.device),
                figures={"recording": ended - stepped, "recorded": _newest(folder)},
            )

        turns.take(turn, weights=dataclasses.asdict(steps.weights))


def _newest(folder: Path) -> int:
    """Return the size in bytes of the newest record; 0 if there is none yet."""
    files = sorted(path for path in folder.rglob("*.parquet"))
    return files[-1].stat().st_size if files else 0
