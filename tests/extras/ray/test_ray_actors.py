"""The built-in engine in actors of Ray: the answers of one process, also after an actor has ended or hangs."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

import pytest
import torch
from engine_cases import requests, threads
from run_cases import alive, command_line, family, wait_for_end, wait_until

from outdo.config.recipe import Piece
from outdo.extras.ray import actors as engine_actors
from outdo.extras.ray import cluster
from outdo.extras.ray.actors import buckets, files
from outdo.extras.ray.cluster import RayCluster, _Watch, connected
from outdo.extras.remote_engines.proof import fixed_sequences
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.models.adapter import adapter_config, attach, trained_weights
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.engines import open_engine
from outdo.testing import tiny_model
from outdo.types import Completion
from outdo.utils.errors import DeliveryError, EngineError, EngineLostError

pytestmark = pytest.mark.release

if find_spec("ray") is None:
    pytest.skip("needs ray", allow_module_level=True)

SAMPLING = SamplingParams(max_tokens=12)
ONE = Piece(name="builtin", options={"processes": 1, "place": "ray"})


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Policy, RemoteEngine]]:
    """An engine beside a policy with an adapter, so that some weights are frozen."""
    before = family(os.getpid())
    model, tokenizer = tiny_model()
    attach(model, adapter_config("lora", r=2))
    policy = Policy(model, tokenizer)
    with threads(1):
        engine = open_engine(ONE, policy, seed=3)
        yield policy, engine
        of_ray = [each for each in family(os.getpid()) if each not in before and b"ray" in command_line(each)]
        assert of_ray
        engine.close()
        wait_for_end(of_ray)  # also an actor that is stopped


def expected(policy: Policy) -> list[Completion]:
    """What the engine within this process samples."""
    return BuiltinEngine(policy, seed=3).generate(requests(siblings=2), SAMPLING)


def updated(policy: Policy) -> None:
    """Change the weights as an optimiser step does."""
    with torch.no_grad():
        for weight in trained_weights(policy.model).values():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(policy.version)))
    policy.optimiser.steps += 1


def actors() -> list[int]:
    """The processes of the actors."""
    return [each for each in family(os.getpid()) if b"EngineActor" in command_line(each)]


def test_the_answers_are_those_of_the_engine_within_the_trainer(opened):
    policy, engine = opened
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(policy)
    sequences = fixed_sequences(policy)[:3]
    assert engine.score(sequences) == BuiltinEngine(policy).score(sequences)
    engine.health()
    assert f"engine: processes on cpu of {os.uname().nodename} (Ray), threads of each: 1" in engine.notes()


def test_each_delivery_replaces_the_weights_in_buckets_and_is_measured(opened, monkeypatch):
    policy, engine = opened
    before = expected(policy)
    updated(policy)
    monkeypatch.setattr(engine_actors, "BUCKET", 1000)  # a weight has more bytes
    engine.update_weights(policy)
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(policy) != before
    metrics = engine.metrics()
    trained = sum(weight.numel() for weight in trained_weights(policy.model).values())
    assert metrics["engine/delivery_bytes"] == 4 * trained < policy.model.num_parameters()
    assert 0 < metrics["engine/delivery_seconds"] < 600


def test_weights_go_through_files_of_a_shared_folder(opened, monkeypatch, tmp_path):
    """The engine that is here gets the folder, so that no other actor has to start; it starts anew at the end."""
    policy, engine = opened
    monkeypatch.setattr(engine_actors, "FILE", 4000)  # several files
    monkeypatch.setattr(engine_actors, "buckets", lambda weights: pytest.fail("sent by Ray"))
    engine.engine._parent = tmp_path
    for _ in range(3):
        updated(policy)
        engine.update_weights(policy)
        assert engine.generate(requests(siblings=2), SAMPLING) == expected(policy)
    (own,) = tmp_path.iterdir()
    steps = policy.version
    assert sorted(path.name for path in own.iterdir()) == [f"{steps - 1}-2", f"{steps}-3", "lock"]
    assert len(list((own / f"{steps}-3").iterdir())) > 1
    trained = sum(weight.numel() for weight in trained_weights(policy.model).values())
    assert engine.metrics()["engine/delivery_bytes"] == 4 * trained

    updated(policy)
    with monkeypatch.context() as patch:
        patch.setattr(engine_actors, "files", lambda weights: list(files(weights))[1:])
        with pytest.raises(DeliveryError, match="process 1 of the engine does not have the policy's weights"):
            engine.update_weights(policy)
        patch.setattr(
            engine_actors, "files", lambda weights: [lambda folder: (folder / "x.safetensors").write_text("")]
        )
        with pytest.raises(EngineError, match=r"cannot read .*x.safetensors: .*a folder that all machines share"):
            engine.update_weights(policy)
    engine.engine._folder.close()
    engine.engine._folder = engine.engine._parent = None


def test_ray_listens_on_loopback_only_and_asks_for_a_token(opened):
    processes = [os.getpid(), *family(os.getpid())]
    assert len(listening(processes)) >= 4  # the actor, two of the raylet, the store of the cluster's state
    assert {socket.inet_ntoa(bytes.fromhex(each)[::-1]) for each in listening(processes)} == {"127.0.0.1"}
    raylet = next(each for each in processes if b"raylet\0" in command_line(each))
    variables = Path(f"/proc/{raylet}/environ").read_bytes().split(b"\0")
    assert b"RAY_AUTH_MODE=token" in variables
    assert f"RAY_AUTH_TOKEN={os.environ['RAY_AUTH_TOKEN']}".encode() in variables
    assert b"RAY_USAGE_STATS_ENABLED=0" in variables


def listening(processes: list[int]) -> list[str]:
    """The IPv4 addresses, in the kernel's hexadecimal form, that some processes listen at."""
    own: set[str] = set()
    for path in (file for each in processes for file in Path(f"/proc/{each}/fd").glob("*")):
        with suppress(OSError):
            own.add(os.readlink(path))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, state, inode = (line.split()[place] for place in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in own:
                found.append(address.split(":")[0][-8:])
    return found


def test_a_cluster_without_room_is_one_sentence(opened, monkeypatch):
    monkeypatch.setattr(cluster, "ROOM", 0.5)
    role = connected.join("the engine", [{"CPU": 5000}] * 2)
    with pytest.raises(EngineError, match=r"no room for the engine \(2 x 5000 CPU\): free are [\d.]+ CPU"):
        connected.start(role, engine_actors.EngineActor, 1)
    connected.leave(role)
    policy, engine = opened
    engine.update_weights(policy)
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(policy)  # another role keeps Ray


def test_ray_that_was_imported_before_is_one_sentence(opened):
    with pytest.raises(EngineError, match="Ray was imported before outdo could set it up"):
        RayCluster().open()


def test_a_cluster_that_does_not_answer_is_given_up():
    found = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=600)
    assert (found.returncode, found.stderr) == (0, "")
    assert re.fullmatch(
        r"Ray at RAY_ADDRESS=127.0.0.1:\d+ gave no answer for 1 s: does it run there, and are its ports open\?\n",
        found.stdout,
    )


SILENT = """
import os, socket
from outdo.extras.ray import cluster
from outdo.utils.errors import EngineError

server = socket.create_server(("127.0.0.1", 0))
os.environ.update(RAY_ADDRESS=f"127.0.0.1:{server.getsockname()[1]}", RAY_AUTH_TOKEN="a" * 32)
cluster.CONNECT = 1.0
try:
    cluster.connected.open()
except EngineError as error:
    print(error)
"""


def test_gpus_are_shown_to_ray_and_no_others(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    with cluster._visible([1, 2]):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,7"


def test_an_actor_that_ends_in_a_call_is_replaced_and_the_answers_stay_the_same(opened, monkeypatch, capsys):
    policy, engine = opened
    sampling, restarts, hit = SamplingParams(max_tokens=400), engine.restarts, list[int]()
    long = [replace(request, max_tokens=400) for request in requests(siblings=2)]
    look = _Watch.look

    def looked(watch: _Watch, waiting: list[int]) -> None:
        look(watch, waiting)
        if waiting and watch._watchdogs[0]._progress and not hit:  # it has sampled some tokens
            hit.extend(actors())
            os.kill(hit[0], signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "POLL", 0.02)
        patch.setattr(_Watch, "look", looked)
        found = engine.generate(long, sampling)
    assert len(hit) == 1
    assert found == BuiltinEngine(policy, seed=3).generate(long, sampling)
    assert engine.restarts == restarts + 1
    assert "The actor died" in capsys.readouterr().err
    wait_until(lambda: not alive(hit[0]))


def test_a_ray_that_is_stopped_holds_no_delivery_up(opened, monkeypatch):
    policy, engine = opened
    updated(policy)
    (raylet,) = [each for each in family(os.getpid()) if b"raylet\0" in command_line(each)]
    wake_up = Timer(20.0, os.kill, (raylet, signal.SIGCONT))  # the test ends also if nobody gives up
    os.kill(raylet, signal.SIGSTOP)
    wake_up.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "ANSWER", 1.0)
            with pytest.raises(EngineLostError, match="Ray gave no answer for 1 s"):
                engine.engine.update_weights(policy)
    finally:
        wake_up.cancel()
        wake_up.join()  # afterwards, raylet's process id may be another process's
        os.kill(raylet, signal.SIGCONT)
    engine.update_weights(policy)
    assert engine.generate(requests(siblings=2), SAMPLING) == expected(policy)


def test_a_process_ends_beside_a_ray_that_is_stopped():
    for each in left_beside_a_ray_that_is_stopped():
        if b"ray" in command_line(each):
            with suppress(ProcessLookupError):  # Ray's agents would end by themselves a minute later
                os.kill(each, signal.SIGKILL)


def left_beside_a_ray_that_is_stopped() -> list[int]:
    """The processes of a Ray that was stopped, when the process that has started it has ended."""
    command, pipe = [sys.executable, "-c", STOPPED], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n", process.communicate()
        started = family(process.pid)
        os.kill(next(each for each in started if b"raylet\0" in command_line(each)), signal.SIGSTOP)
        said, error = process.communicate("go on\n", timeout=600)
    assert said == "closed\n", error
    # A thread still waits in the code of Ray while Python ends, which has crashed there once: see docs/cluster.md.
    assert process.returncode in (0, -signal.SIGSEGV), error
    return started


STOPPED = """
import os, sys, threading
from outdo.extras.ray import cluster

cluster.connected.open()
print("open", flush=True)
sys.stdin.readline()
cluster.ANSWER = 1.0
end = threading.Timer(300.0, os._exit, (3,))
end.daemon = True
end.start()
cluster.connected.close()
print("closed", flush=True)
"""


def test_the_memory_of_weights_that_were_sent_can_be_dropped():
    weight = torch.arange(6.0)
    (bucket,) = buckets({"weight": weight})
    weight.untyped_storage().resize_(0)  # as a divided model does after a delivery
    assert bucket[0].content.view("float32").tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("silence", "seconds", "message"),
    [
        pytest.param(30.0, 0.5, "actor 1 of the engine made no progress for 0.5 s", id="progress"),
        pytest.param(2.0, 600.0, "actor 1 of the engine gave no sign of life for 2 s", id="silence"),
    ],
)
def test_an_actor_that_is_stopped_is_lost(opened, monkeypatch, silence: float, seconds: float, message: str):
    """Of this engine the last test: its actor is left stopped."""
    _, engine = opened
    monkeypatch.setattr(cluster, "POLL", 0.1)
    monkeypatch.setattr(cluster, "SILENCE", silence)
    (process,) = actors()
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(EngineLostError, match=message):
        engine.engine._call("health", [()], seconds)
