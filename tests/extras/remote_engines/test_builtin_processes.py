"""The built-in engine in processes of its own: the answers of one process, from the weights delivered last."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import pytest
import torch
from engine_cases import begun, fresh, next_turn, requests, threads

import outdo.extras.remote_engines.process
from outdo.config.recipe import Piece
from outdo.extras.remote_engines.processes import SharedCopy
from outdo.extras.remote_engines.proof import fixed_sequences
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.models.adapter import adapter_config, attach, trained_weights
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.copies import copied_policy
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.engines import device_mistakes, open_engine
from outdo.testing import tiny_model
from outdo.types import Completion
from outdo.utils.errors import DeliveryError, EngineError

SAMPLING = SamplingParams(max_tokens=12)
TWO = Piece(name="builtin", options={"processes": 2})


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Policy, RemoteEngine]]:
    policy = fresh()
    with threads(1):
        engine = open_engine(TWO, policy, seed=3)
        yield policy, engine
        engine.close()


def expected(policy: Policy) -> list[Completion]:
    """What the engine within this process samples."""
    return BuiltinEngine(policy, seed=3).generate(requests(siblings=2), SAMPLING)


@contextmanager
def signalled(pid: int, number: int) -> Iterator[None]:
    """Send a signal to a process again and again until it has ended.

    Linux wakes a process that is stopped when its parent reads a sign of life that it gave before.
    """
    over = Event()

    def send() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            while not over.wait(0.05):
                os.kill(pid, number)

    sender = Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


def updated(policy: Policy) -> None:
    """Change the weights as an optimiser step does."""
    with torch.no_grad():
        for weight in trained_weights(policy.model).values():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(policy.version)))
    policy.optimiser.steps += 1


def test_the_answers_are_those_of_the_engine_within_the_trainer(opened):
    policy, engine = opened
    answers = expected(policy)
    assert engine.generate(requests(siblings=2), SAMPLING) == answers
    assert engine.generate(requests(siblings=2)[3:4], SAMPLING) == answers[3:4]
    assert engine.generate([], SAMPLING) == []
    sequences = fixed_sequences(policy)[:3]
    assert engine.score(sequences) == BuiltinEngine(policy).score(sequences)
    engine.health()


def test_each_delivery_replaces_the_weights_and_is_measured(opened):
    policy, engine = opened
    before = expected(policy)
    updated(policy)
    engine.update_weights(policy)
    answers = engine.generate(requests(siblings=2), SAMPLING)
    assert answers == expected(policy) != before
    assert {answer.policy_version for answer in answers} == {engine.version} == {policy.version}
    metrics = engine.metrics()
    assert metrics["engine/delivery_bytes"] == 4 * policy.model.num_parameters()
    assert metrics["engine/delivery_seconds"] > 0
    assert metrics["engine/proof_seconds"] > 0


def test_each_process_keeps_its_episodes_until_the_next_delivery(opened):
    policy, engine = opened
    batch = begun((3, 30, 64, 90))
    for turn in range(4):
        if turn == 2:
            engine.update_weights(policy)  # there is nothing to deliver
        if turn == 3:
            updated(policy)
            engine.update_weights(policy)
        found = engine.generate(batch, SAMPLING)
        again = BuiltinEngine(policy, seed=3).generate(batch, SAMPLING)
        assert found == again
        read = [sum(each.tokens_read for each in completions) for completions in (found, again)]
        assert (read[0] < read[1]) == (turn in (1, 2)), turn
        batch = [next_turn(*each, written=5) for each in zip(batch, found, strict=True)]
    engine.end_episodes([each.episode for each in batch])
    later = engine.generate(batch, SAMPLING)
    again = BuiltinEngine(policy, seed=3).generate(batch, SAMPLING)
    assert [each.tokens_read for each in later] == [each.tokens_read for each in again]


def test_weights_that_change_after_a_delivery_do_not_change_the_answers(opened):
    """A trainer may take its steps while the engine samples."""
    policy, engine = opened
    before = engine.generate(requests(siblings=2), SAMPLING)
    updated(policy)
    assert engine.generate(requests(siblings=2), SAMPLING) == before
    engine.update_weights(policy)


def test_a_weight_that_does_not_arrive_is_named_however_small_its_change_is(opened, monkeypatch):
    policy, engine = opened
    name = "model.layers.1.mlp.up_proj.weight"
    dict(policy.model.named_parameters())[name].data[3, 5] += 1e-6
    policy.optimiser.steps += 1
    with monkeypatch.context() as patch:
        patch.setattr(SharedCopy, "write", lambda self, policy: 0)
        with pytest.raises(DeliveryError, match=rf"process 1 of the engine .* 1 of \d+ differ, such as {name}"):
            engine.update_weights(policy)
    engine.update_weights(policy)


def test_a_copy_of_the_policy_gets_no_new_processes_and_another_model_does(opened):
    policy, engine = opened
    before = list(engine.engine._processes)
    updated(policy)
    engine.update_weights(copied_policy(policy))  # as sampling ahead does
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(policy)
    assert engine.engine._processes == before
    other = Policy(tiny_model(hidden=16)[0], policy.tokenizer)
    engine.update_weights(other)
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(other)
    engine.update_weights(policy)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "if it ran out of memory, fewer `engine.processes` need less\n"),
        (signal.SIGSTOP, "gave no sign of life for 3 s, and was killed\n"),
    ],
)
def test_a_process_that_ends_or_hangs_is_replaced_and_the_answers_stay_the_same(
    opened, monkeypatch, capsys, number, reason
):
    policy, engine = opened
    answers, restarts = expected(policy), engine.restarts
    pid = engine.engine._processes[1]._process.pid
    with monkeypatch.context() as patch:
        patch.setattr(outdo.extras.remote_engines.process, "SILENCE", 3.0)
        with signalled(pid, number):
            assert engine.generate(requests(siblings=2), SAMPLING) == answers
    assert engine.restarts == restarts + 1
    said = capsys.readouterr().err
    assert said.startswith("the engine is restarted: ")
    assert said.endswith(reason)
    assert pid not in [process._process.pid for process in engine.engine._processes]


def test_only_an_adapter_is_delivered():
    model, tokenizer = tiny_model()
    attach(model, adapter_config("lora", r=2))
    policy = Policy(model, tokenizer)
    with threads(1):
        engine = open_engine(Piece(name="builtin", options={"processes": 1}), policy, seed=3)
        updated(policy)
        engine.update_weights(policy)
        assert engine.generate(requests(siblings=2), SAMPLING) == expected(policy)
    trained = sum(weight.numel() for weight in trained_weights(model).values())
    assert engine.metrics()["engine/delivery_bytes"] == 4 * trained < model.num_parameters()
    engine.close()


def test_too_little_shared_memory_is_one_sentence(monkeypatch):
    monkeypatch.setattr("outdo.extras.remote_engines.processes.shutil.disk_usage", lambda path: _Disk())
    with pytest.raises(EngineError, match=r"/dev/shm has 0 MiB free, and the engine's copy of the weights needs 0"):
        SharedCopy(fresh())


class _Disk:
    free = 1000


def test_a_device_that_the_machine_lacks_is_one_sentence():
    piece = Piece(name="builtin", options={"processes": 1, "devices": ["cuda:63"]})
    (mistake,) = device_mistakes(piece, "cpu")
    assert mistake.startswith("engine.devices: this machine has no cuda:63; it has cpu")
    assert device_mistakes(TWO, "cpu") == []


def test_the_processes_of_an_engine_get_the_gpus_after_those_of_all_replicas(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr("outdo.extras.remote_engines.devices.choose_device", lambda name: (torch.device("cuda"), ""))
    assert device_mistakes(TWO, "auto", replicas=2) == []
    (mistake,) = device_mistakes(TWO, "auto", replicas=3)
    assert mistake.startswith("engine.processes = 2 needs as many GPUs after the trainer's, cuda:2, and this machine")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # of four replicas on two machines
    assert device_mistakes(TWO, "auto", replicas=4) == []
    monkeypatch.setenv("RANK", "3")  # it holds no engine
    assert device_mistakes(TWO, "auto", replicas=8) == []
