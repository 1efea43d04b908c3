"""What replicas with an engine of their own do together, as bodies for `replica_cases.run_replicas`."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from copied_engines import CopyingEngine
from engine_cases import fresh, requests
from replica_cases import divided, shared
from safetensors.torch import load_file

from outdo.config.recipe import Piece
from outdo.extras.remote_engines.first_replica import GatheredPolicy
from outdo.extras.remote_engines.proof import FLOAT32, Proof
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.extras.replicas.replicas import Replicas
from outdo.extras.replicas.sharding import DividingReplicas
from outdo.extras.vllm.weights import merged_weights, write_weights
from outdo.models.adapter import adapter_config, trained_weights
from outdo.models.completion_text import completion_text
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.copies import whole_policy
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.engines import open_engine
from outdo.types import Completion
from outdo.utils.errors import DeliveryError, EngineLostError, WorkerError
from outdo.utils.sharded_tensors import is_sharded, own_part

SAMPLING = SamplingParams(max_tokens=12)
ONE = Piece(name="builtin", options={"processes": 1})


def processes_of_the_first(replicas: Replicas) -> None:
    """The first replica has the engine, all get its answers, and one that is killed answers again from new weights."""
    alone, policy = fresh(), divided(fresh(), replicas)
    engine = open_engine(ONE, policy, seed=3, world=replicas)
    assert isinstance(engine, RemoteEngine)
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(alone)
    updated(alone)
    updated(policy)
    engine.update_weights(policy)
    processes = engine.engine._processes
    assert len(processes) == int(replicas.first)
    for process in processes:
        os.kill(process._process.pid, signal.SIGKILL)
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(alone)
    assert engine.version == 1
    assert completion_text(engine.tokenizer, [40, 41]) == completion_text(alone.tokenizer, [40, 41])
    engine.health()
    assert all(is_sharded(weight) for weight in policy.model.parameters())
    metrics = replicas.together(lambda: engine.metrics())
    assert [each["engine/restarts"] for each in metrics] == [1, 1]
    assert [each["engine/delivery_bytes"] for each in metrics] == [4 * alone.model.num_parameters()] * 2
    assert any("processes on cpu" in note for note in engine.notes())
    engine.close()


def frozen_weights_of_parts(replicas: Replicas) -> None:
    """The engine keeps the frozen weights that the replicas gather for a delivery and drop again."""
    policy = divided_adapter(replicas)
    engine, alone = open_engine(ONE, policy, seed=3, world=replicas), BuiltinEngine(policy, seed=3)
    found = [engine.generate(requests(siblings=2), SAMPLING) for _ in range(2)]
    with policy.forward.gathered():
        answers = alone.generate(requests(siblings=2), SAMPLING)
    assert found == [answers, answers]
    engine.close()
    without = engine_with("no load", divided_adapter(replicas, updates=0), replicas)
    with pytest.raises(DeliveryError, match="the adapter is not loaded"):
        without.update_weights(policy)


def a_thread_of_the_first(replicas: Replicas) -> None:
    """The first replica samples, and evaluates, from copies, while the weights of the replicas are divided."""
    divided(fresh(), replicas)
    _without_the_other(divided_adapter(replicas), replicas)
    assert replicas.together(lambda: replicas.rank) == [0, 1]


def _without_the_other(policy: Policy, replicas: Replicas) -> None:
    first_replica = GatheredPolicy(policy, replicas)
    engine = open_engine(ONE, policy, seed=3, first_replica=first_replica, world=replicas)
    alone, asked = BuiltinEngine(policy, seed=3), requests(siblings=2)
    with policy.forward.gathered():
        before = alone.generate(asked, SAMPLING)
    copied = first_replica.copied()
    assert (copied is not None) == replicas.first
    updated(policy)
    if copied is not None:  # the other replica does nothing meanwhile
        engine.update_weights(copied)
        assert engine.generate(asked, SAMPLING) == before
        processes = engine.engine._processes
    with policy.forward.gathered():
        after = alone.generate(asked, SAMPLING)

    def evaluation(newest: PolicyView) -> list[Completion]:
        engine.update_weights(newest)
        return engine.generate(asked, SAMPLING)

    assert first_replica.with_policy(evaluation) == after != before
    if replicas.first:
        assert engine.engine._processes is processes  # they were not started anew
    engine.close()

    def lost(newest: PolicyView) -> None:
        raise EngineLostError("it has ended")

    with pytest.raises(EngineLostError, match="it has ended"):
        first_replica.with_policy(lost)


def faults_of_an_engine(replicas: Replicas) -> None:
    """What goes wrong with the engine goes wrong on every replica, as the same error, and none of them hangs."""
    for make in (shared, divided):
        policy = make(fresh(), replicas)
        engine = engine_with("wrong tensor", policy, replicas)
        engine.update_weights(policy)
        updated(policy)
        with pytest.raises(DeliveryError, match="after 1 optimiser step the engine does not sample"):
            engine.update_weights(policy)
        engine = engine_with("", policy, replicas, losses=9)
        engine.update_weights(policy)
        with pytest.raises(EngineLostError, match="it has ended"):
            engine.generate(requests(), SAMPLING)
        assert engine.restarts == 2

        def defect(*arguments: object) -> None:
            raise KeyError("a defect")

        engine.engine.score = defect
        with pytest.raises(KeyError if replicas.first else WorkerError, match="a defect"):
            engine.score([[1, 2]])
        assert replicas.together(lambda: replicas.rank) == [0, 1]


def whole_folders(replicas: Replicas) -> None:
    """The first replica writes divided weights as vLLM reads them, without the others."""
    alone, policy = fresh(), divided(fresh(), replicas)
    write_weights(alone, Path(f"alone-{replicas.rank}"), as_adapter=False)
    with policy.forward.gathered():
        view = whole_policy(policy)
        if replicas.first:
            write_weights(view, Path("whole"), as_adapter=False)
    if replicas.first:
        found, theirs = (load_file(Path(folder, "model.safetensors")) for folder in ("whole", "alone-0"))
        assert found.keys() == theirs.keys()
        assert all(found[name].equal(theirs[name]) for name in found)
    policy = divided_adapter(replicas)
    with policy.forward.gathered():
        view = whole_policy(policy)
        if replicas.first:
            write_weights(view, Path("adapter"), as_adapter=True)
            assert len(load_file("adapter/adapter_model.safetensors")) == len(trained_weights(view.model))
            assert merged_weights(view.model).keys() == theirs.keys()
    assert replicas.together(lambda: replicas.rank) == [0, 1]


def engine_with(fault: str, policy: Policy, replicas: Replicas, losses: int = 0) -> RemoteEngine:
    """An engine with a fault, as a run opens one beside replicas."""
    make = partial(CopyingEngine, fault=fault, losses=losses)
    with policy.forward.gathered():
        return RemoteEngine(make, policy, Proof(FLOAT32), world=replicas)


def divided_adapter(replicas: Replicas, updates: int = 1) -> Policy:
    """A divided policy with an adapter that changes its answers."""
    world = DividingReplicas(timeout=replicas.timeout, device=fresh().device)
    policy = Policy.load("model", device="cpu", adapter=adapter_config("lora", r=2), world=world)
    for _ in range(updates):
        updated(policy)
    return policy


def expected(policy: Policy) -> list[Completion]:
    """What the engine within this process samples."""
    return BuiltinEngine(policy, seed=3).generate(requests(siblings=2), SAMPLING)


@torch.no_grad()
def updated(policy: Policy) -> None:
    """Change the weights as an optimiser step does, those of parts and those of whole models in the same way."""
    for number, weight in enumerate(trained_weights(policy.model).values()):
        own_part(weight).mul_(1.0 + 0.01 * (number % 3)).add_(0.01)
    policy.optimiser.steps += 1
